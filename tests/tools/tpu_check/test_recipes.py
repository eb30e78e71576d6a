"""The TPU recipes as the check reads them. Compiling them needs a separate environment."""

from unittest import mock

import pytest

from official_bert.errors import UserError
from tests.conftest import ROOT
from tests.make import assert_rejected, write_text
from tools.tpu_check import compiler, recipes, steps
from tools.tpu_check.answers import Compiled, Refused


def test_each_phase_of_a_recipe_is_a_separate_step(monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe_of_tpu = {"v3-8": ("v3:2x2", 256), "v5e-8": ("v5e:2x4", 1024), "v5e-64": ("v5e:8x8", 256)}
    assert {path.name for path in (ROOT / "configs").glob("tpu_*")} == {
        f"tpu_{name}.flagfile" for name in recipe_of_tpu
    }
    for name, (topology, batch) in recipe_of_tpu.items():
        phases = recipes.read_phases(f"configs/tpu_{name}.flagfile")
        assert [(phase.max_seq_length, phase.max_predictions_per_seq) for phase in phases] == [(128, 20), (512, 77)]
        assert recipes.get_topology(f"configs/tpu_{name}.flagfile") == topology
        assert {(phase.train_batch_size, phase.dtype) for phase in phases} == {(batch, "bfloat16")}


def test_recipes_with_an_unknown_tpu_or_flag_are_rejected(tmp_path):
    name = "configs/tpu_v9-8.flagfile"
    assert_rejected((name, "tpu_NAME.flagfile", "v3-8"), recipes.get_topology, name)
    for content, *names in (
        ("# a comment\n--bert_config=x\n", "tpu_v3-8.flagfile", "line 2", "run_pretraining", "--bert_config"),
        ("--left_to_right\n", "tpu_v3-8.flagfile", "line 1", "--left_to_right"),
        ("--bert_config_file=x\n--pack_sequences\n", "--pack_sequences", "--packed_rows"),
    ):
        path = write_text(tmp_path / "tpu_v3-8.flagfile", content)
        assert_rejected((*names,), recipes.read_phases, path)


@pytest.mark.parametrize(("answer", "row", "is_known"), [
    (Compiled("TPU v3", 2.5e12, 3 * 2**30, 2**30, [("all-reduce", 5, 440_000_000)]),
     ("2.50", "3.00", "5 all-reduce: 440 MB", "yes"), True),
    (Refused(2**34, 2**33), ("-", "-", "-", "no: needs 16.00 GiB of 8.00"), False),
    (compiler.OutOfTimeError(), ("-", "-", "-", "not known: out of time"), False),
    (UserError("the compiler itself crashed"), ("-", "-", "-", "not known: the compiler itself crashed"), False),
])  # fmt: skip
def test_compiler_results_become_a_table_row(answer, row, is_known, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(steps, "pretraining_step", lambda *_: (None, 0))
    fake_tpu = mock.Mock(replicas=8, topology="v3:2x2", compile=mock.Mock(side_effect=[answer]))
    phase = recipes.read_phases("configs/tpu_v3-8.flagfile")[0]
    assert recipes._compile_phase(phase, fake_tpu) == (("32", *row), is_known)
