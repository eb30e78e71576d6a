"""The parts of tpu_check that need neither its environment nor a TPU's compiler, such as reading the TPU recipes."""

import dataclasses
import itertools
import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.tasks.options import TASK_OPTIONS
from tests.make import ROOT, assert_rejected, run_python, write_text
from tools.tpu_check import answers, command, compiler, recipes, steps
from tools.tpu_check import options as step_options
from tools.tpu_check.answers import Compiled, Refused
from tools.tpu_check.functional import replay_without_variables


def test_largest_batch_is_found_to_an_eighth():
    limits = (0, 1, 2, 5, 8, 15, 16, 17, 63, 64, 100, 129, 255, 256, 1000)
    for largest, start in itertools.product(limits, (1, 7, 64, 300)):
        tried: list[int] = []

        def fits(batch: int, largest: int = largest, tried: list[int] = tried) -> bool:
            tried.append(batch)
            return batch <= largest

        found = answers.find_largest_batch(fits, start)
        assert found <= largest < found + max(1, found / 8)
        assert len(set(tried)) == len(tried) < 16


@pytest.mark.parametrize(("message", "expected"), [
    ("Used 59.95G of 15.75G hbm. Exceeded hbm capacity by 44.20G.\n\nTotal hbm usage >= 60.20G:", "59.95 GiB of 15.75"),
    ("Used 512.5M of 15.75G hbm", "0.50 GiB of 15.75"), ("UNIMPLEMENTED: something else", "None"),
    ("Ran out of memory on HBM, the total memory required for HLO temporaries (60.76G) exceeds available HBM (15.75G).",
     "60.76 GiB of 15.75"),
])  # fmt: skip
def test_out_of_memory_messages_of_the_compiler_are_parsed(message: str, expected: str):
    assert str(answers.parse_refusal(message)).removeprefix("needs ") == expected


def test_exchanges_between_replicas_are_counted_in_operations_and_bytes():
    hlo = """
  %all-reduce.1 = f32[]{:T(128)} all-reduce(%reduce.16), replica_groups={{0,1,2,3}}, to_apply=%region_21.22
  %x = (f32[100,128]{1,0:T(8,128)}, /*index=1*/bf16[3]{0:T(8,128)(2,1)}) all-reduce(%a, %b), to_apply=%add
  %all-gather.7 = u32[8,2]{1,0} all-gather-start(%c), dimensions={0}
  %get-tuple-element.1 = f32[100,128]{1,0:T(8,128)} get-tuple-element(%all-reduce.1), index=0
"""
    assert answers.parse_collectives(hlo) == [("all-gather", 1, 64), ("all-reduce", 2, 4 + 100 * 128 * 4 + 3 * 2)]


def test_results_are_formatted_as_text():
    compiled = answers.Compiled("TPU v5 lite", 4.5194e12, 4 * 2**30, 2**30, [("all-reduce", 2, 440_500_000)])
    first, second = str(compiled).split(", exchanged between replicas: ")
    assert first == "4.52 TFLOP, peak memory 4.00 GiB (weights and optimizer 1.00)"
    assert second == "2 all-reduce of 440.5 MB"


def test_small_topologies_state_the_chips_per_host():
    bounds = [compiler._host_bounds(topology) for topology in ("v5e:1x1", "v5e:2x4", "v4:2x2x1")]
    assert bounds == [{"chips_per_host_bounds": [1, 1, 1]}, {}, {}]


_TINY = str(ROOT / "configs/models/uncased_L-2_H-128_A-2.json")


@pytest.mark.parametrize(("task", "changes", "names"), [
    ("pretraining", {"dtype": "float16"}, ("--dtype", "float16", "bfloat16")),
    ("pretraining", {"bert_config_file": "missing.json"}, "missing.json"),
    ("pretraining", {"pack_sequences": True}, ("--pack_sequences", "--packed_rows")),
    ("pretraining", {"packed_rows": 8}, ("--pack_sequences", "--packed_rows")),
    ("squad", {"init": "nothing"}, ("--init", "nothing", "bert_config.json")),
    *[(task, {"max_seq_length": 1024}, ("--max_seq_length", 1024, _TINY, 512)) for task in ("pretraining", "squad")],
    # Without mistakes, the environment is checked.
    *[(task, {}, ("tensorflow-tpu", "tpu-check")) for task in ("pretraining", "squad")],
])  # fmt: skip
def test_bad_options_are_refused_before_anything_is_compiled(task: str, changes, names):
    def check() -> int:
        if task == "pretraining":
            of_pretraining = step_options.PretrainingStepOptions(**{"bert_config_file": _TINY} | changes)
            return command.run(step_options.Options(), of_pretraining)
        of_step = step_options.FineTuningStepOptions(**{"init": _TINY} | changes)
        return command.run(step_options.Options(task=task), of_step, step_options.TaskStepOptions())

    assert_rejected(names, check)


def test_all_requirements_files_pin_the_same_versions_except_tensorflow_and_numpy():
    pins: dict[str, set[str]] = {}
    for path in [ROOT / "constraints.txt", *ROOT.glob("requirements*.txt")]:
        for name, version in re.findall(r"^([\w-]+)==(\S+) *(?:#.*)?$", path.read_text(encoding="utf-8"), re.MULTILINE):
            pins.setdefault(name, set()).add(version)
    assert {name for name, versions in pins.items() if len(versions) > 1} == {"tensorflow", "tensorflow-tpu", "numpy"}


def test_the_compiler_is_stopped_at_the_time_limit():
    with pytest.raises(compiler.OutOfTimeError):
        compiler.compile_step(compiler.LoweredStep(b"", range(0), 0), "v5e:2x4", True, seconds=0.001)


def test_a_search_at_the_time_limit_prints_its_results():
    untried, refused = "16 per replica fits, larger batches were not tried", "8 per replica fits, 16 does not"
    assert command._describe_search({4: True, 8: True}, parts=2) == untried
    assert command._describe_search({4: True, 8: False}, parts=2) == refused
    assert command._describe_search({4: False}, parts=2) == "no batch that fits was found, 8 does not"


def test_every_task_can_be_checked_with_the_flags_of_the_check():
    assert list(step_options.make_variants()) == ["pretraining", *TASK_OPTIONS]
    text = run_python("-m", "tools.tpu_check", "--help").stdout
    for field in (*dataclasses.fields(step_options.Options), *dataclasses.fields(step_options.PretrainingStepOptions)):
        assert f"--{field.name}" in text or f"--[no]{field.name}" in text, field.name


def test_control_flow_on_variables_becomes_functional():
    first, second = tf.Variable(2.0), tf.Variable([1.0, 2.0])

    @tf.function
    def doubled(x: tf.Tensor) -> tf.Tensor:
        second.assign_add(second)
        return 2.0 * x

    @tf.function
    def stateful(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = doubled(x) * first
            first.assign_sub(0.25)
        if x > 10.0:
            first.assign(100.0)
            x = x + tf.gather(second, 1)
        else:
            second.assign([7.0, 7.0])
        return x

    graph = stateful.get_concrete_function(tf.TensorSpec([])).graph
    names = [variable.handle.ref() for variable in (first, second)]
    order = [names.index(handle.ref()) for handle, _ in graph.captures]
    pure = tf.function(lambda *tensors: replay_without_variables(graph, tensors[:1], tensors[1:]), autograph=False)
    for x in (1.0, 0.01):
        first.assign(2.0)
        second.assign([1.0, 2.0])
        values = [first.read_value(), second.read_value()]
        result, *after = pure(tf.constant(x), *(values[place] for place in order))
        np.testing.assert_allclose(result, stateful(tf.constant(x)))
        for place, value in zip(order, after, strict=True):
            np.testing.assert_allclose(value, (first, second)[place])


def test_each_phase_of_a_recipe_is_a_separate_step(monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe_of_tpu = {"v3-8": ("v3:2x2", 256), "v5e-8": ("v5e:2x4", 1024), "v5e-64": ("v5e:8x8", 256)}
    found = {path.name for path in (ROOT / "configs").glob("tpu_*")}
    assert found == {f"tpu_{name}.flagfile" for name in recipe_of_tpu}
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
