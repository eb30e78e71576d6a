"""The TPU recipes as the check reads them; compiling them needs an environment of its own."""

import pytest

from official_bert.errors import UserError
from tests.conftest import ROOT
from tpu_check import recipes


@pytest.mark.parametrize(
    ("name", "topology", "lengths", "batch"),
    [
        ("tpu_v3-8", "v3:2x2", [128, 512], 256),
        ("tpu_v5e-8", "v5e:2x4", [128, 512], 1024),
        ("tpu_v5e-64", "v5e:8x8", [128, 512], 256),
    ],
)
def test_each_phase_of_a_recipe_is_a_step_of_its_own(name, topology, lengths, batch, monkeypatch):
    monkeypatch.chdir(ROOT)
    phases = recipes.phases_of(f"configs/{name}.flagfile")
    assert [phase.max_seq_length for phase in phases] == lengths
    assert [phase.max_predictions_per_seq for phase in phases] == [20, 77]
    assert {phase.topology for phase in phases} == {topology}
    assert {phase.train_batch_size for phase in phases} == {batch}
    assert {phase.dtype for phase in phases} == {"bfloat16"}
    assert not any(phase.find_largest_batch for phase in phases)


def test_every_tpu_recipe_is_checked():
    assert {path.name for path in (ROOT / "configs").glob("tpu_*.flagfile")} == {
        "tpu_v3-8.flagfile", "tpu_v5e-8.flagfile", "tpu_v5e-64.flagfile"
    }  # fmt: skip


def test_a_recipe_of_an_unknown_tpu_or_flag_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected tpu_NAME.flagfile, with NAME one of v3-8"):
        recipes.topology_of("configs/tpu_v9-8.flagfile")
    path = tmp_path / "tpu_v3-8.flagfile"
    path.write_text("# a comment\n--bert_config=x\n")
    with pytest.raises(UserError, match="line 2: run_pretraining has no flag --bert_config"):
        recipes.phases_of(str(path))


def test_what_the_compiler_says_becomes_a_row(monkeypatch):
    from tpu_check.answers import Compiled, Refused

    answers = iter(
        [Compiled("TPU v3", 2.5e12, 3 * 2**30, 2**30, [("all-reduce", 5, 440_000_000)]), Refused(2**34, 2**33)]
    )

    class Check:
        batch = 32

        def __init__(self, options):
            pass

        def compiled(self, batch, quickly):
            return next(answers)

    monkeypatch.setattr(recipes, "StepCheck", Check)
    assert recipes._compiled(None) == (("32", "2.50", "3.00", "5 all-reduce: 440 MB"), True)
    assert recipes._compiled(None) == (("32", "-", "needs 16.00 GiB of 8.00", "-"), False)
