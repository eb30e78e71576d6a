"""The TPU recipes as the check reads them. Compiling them needs a separate environment."""

import pytest

from official_bert.errors import UserError
from tests.conftest import ROOT
from tests.make import assert_refused
from tools.tpu_check import compiler, recipes, steps
from tools.tpu_check.answers import Compiled, Refused


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
    phases = recipes.read_phases(f"configs/{name}.flagfile")
    assert [phase.max_seq_length for phase in phases] == lengths
    assert [phase.max_predictions_per_seq for phase in phases] == [20, 77]
    assert recipes.get_topology(f"configs/{name}.flagfile") == topology
    assert {phase.train_batch_size for phase in phases} == {batch}
    assert {phase.dtype for phase in phases} == {"bfloat16"}


def test_every_tpu_recipe_is_checked():
    assert {path.name for path in (ROOT / "configs").glob("tpu_*.flagfile")} == {
        "tpu_v3-8.flagfile", "tpu_v5e-8.flagfile", "tpu_v5e-64.flagfile"
    }  # fmt: skip


def test_a_recipe_of_an_unknown_tpu_or_flag_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected tpu_NAME.flagfile, with NAME one of v3-8"):
        recipes.get_topology("configs/tpu_v9-8.flagfile")
    path = tmp_path / "tpu_v3-8.flagfile"
    path.write_text("# a comment\n--bert_config=x\n")
    assert_refused("line 2: run_pretraining has no flag --bert_config", recipes.read_phases, str(path))
    path.write_text("--left_to_right\n")
    assert_refused("line 1: --left_to_right is not a flag of the check", recipes.read_phases, str(path))
    path.write_text("--bert_config_file=x\n--pack_sequences\n")
    assert_refused("--pack_sequences and --packed_rows", recipes.read_phases, str(path))


def test_what_the_compiler_says_becomes_a_row(monkeypatch):
    said = iter(
        [
            Compiled("TPU v3", 2.5e12, 3 * 2**30, 2**30, [("all-reduce", 5, 440_000_000)]),
            Refused(2**34, 2**33),
            compiler.OutOfTimeError(),
            UserError("the compiler itself crashed"),
        ]
    )

    class FakeTpu:
        replicas, topology = 8, "v3:2x2"

        def compile(self, step, batch):
            answer = next(said)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(steps, "pretraining_step", lambda *_: (None, 0))
    phase = recipes.read_phases("configs/tpu_v3-8.flagfile")[0]
    step_compiler = FakeTpu()
    assert recipes._compile_phase(phase, step_compiler) == (("32", "2.50", "3.00", "5 all-reduce: 440 MB", "yes"), True)
    assert recipes._compile_phase(phase, step_compiler) == (("32", "-", "-", "-", "no: needs 16.00 GiB of 8.00"), False)
    assert recipes._compile_phase(phase, step_compiler) == (("32", "-", "-", "-", "not known: out of time"), False)
    assert recipes._compile_phase(phase, step_compiler) == (
        ("32", "-", "-", "-", "not known: the compiler itself crashed"),
        False,
    )
