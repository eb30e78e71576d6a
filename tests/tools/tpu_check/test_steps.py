"""The programs compiled for a TPU take the same steps as on this machine."""

import contextlib
import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data.packing import Packing, pack
from official_bert.kinds import names
from official_bert.kinds.features import NO_LABEL
from tests.make import tiny_config, write_text
from tests.pretraining.pretraining_runs import feature_specs
from tools.tpu_check import answers, command, compiler, functional, steps
from tools.tpu_check import options as step_options
from tools.tpu_check.steps import ReplicaStep

LENGTH, BATCH = 8, 4
CONFIG = tiny_config(num_hidden_layers=1)
TASKS = {
    names.CLASSIFICATION: ("mnli", step_options.TaskStepOptions()),
    names.REGRESSION: ("sts-b", step_options.TaskStepOptions()),
    names.MULTI_LABEL: ("table", step_options.TableStepOptions(num_labels=3, label_kind="multi_label")),
    names.TAGGING: ("tagging", step_options.LabelledTaskStepOptions(num_labels=3)),
    names.QUESTION_ANSWERING: ("squad", step_options.TaskStepOptions()),
    names.MULTIPLE_CHOICE: ("swag", step_options.TaskStepOptions()),
}


@pytest.fixture
def real_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creates variables with real values, so that steps can be run."""
    here = contextlib.nullcontext(tf.distribute.OneDeviceStrategy("CPU:0"))
    monkeypatch.setattr(steps, "create_variables_without_values", lambda: here)


LIMITS = {"input_ids": CONFIG.vocab_size, "masked_lm_ids": CONFIG.vocab_size, "masked_lm_positions": LENGTH}


def draw(spec: tf.TensorSpec, rng: np.random.Generator, name: str = "") -> tf.Tensor:
    """Returns plausible random values for a feature, by its name."""
    least = NO_LABEL if name == "labels" and len(spec.shape) == 2 and spec.dtype == tf.int32 else 0
    values = np.ones(spec.shape) if name == "input_mask" else rng.integers(least, LIMITS.get(name, 2), spec.shape)
    return tf.cast(values, spec.dtype)


def assert_same(step: ReplicaStep) -> int:
    """Runs a step directly and as a function of its variables' values. Returns the number of variables it changed."""
    rng, specs = np.random.default_rng(0), step.arguments(BATCH)
    arguments = [
        {name: draw(spec, rng, name) for name, spec in each.items()} if isinstance(each, dict) else draw(each, rng)
        for each in specs
    ]
    tensors = tf.nest.flatten(arguments)

    @tf.function
    def take(*tensors: tf.Tensor) -> Any:
        with step.strategy.scope():
            return step.strategy.run(step.function, args=tuple(tf.nest.pack_sequence_as(arguments, tensors)))

    traced = take.get_concrete_function(*tensors)
    variables = {variable.handle.ref(): variable for variable in traced.graph.variables}
    held = [variables[handle.ref()] for handle, _ in traced.graph.captures]
    before = [variable.numpy() for variable in held]
    # Compiled as for a TPU: XLA supports all operations of forward pass, backward pass, clipping and optimizer.
    replay = functional.replay_without_variables
    pure = tf.function(lambda tensors, values: replay(traced.graph, tensors, values), jit_compile=True)
    results = pure(tensors, before)
    expected = tf.nest.flatten(traced(*tensors))
    for result, value in zip(results, expected, strict=False):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-6)
    changed = 0
    for result, variable, old in zip(results[len(expected) :], held, before, strict=True):
        np.testing.assert_allclose(result, variable.numpy(), rtol=1e-4, atol=1e-6)
        changed += not np.array_equal(old, variable.numpy())
    return changed


def assert_changes_all_variables(step: ReplicaStep) -> None:
    """Compares a training step as above, and checks that weights, moments and step counter change."""
    # The function is a method in pre-training, and a TrainingStep in fine-tuning.
    trainer: Any = getattr(step.function, "__self__", step.function)
    trainer.optimizer.iterations.assign(steps.STEPS // 2)  # at step 0 the learning rate is 0
    assert assert_same(step) == 3 * len(trainer.model.trainable_variables) + 1


SIZES = {"max_seq_length": LENGTH, "train_batch_size": BATCH}


def pretraining(**changes: Any) -> ReplicaStep:
    options = step_options.PretrainingStepOptions("bert_config.json", max_predictions_per_seq=3, **SIZES, **changes)
    return steps.pretraining_step(CONFIG, options, replicas=1)[0]


@pytest.mark.slow
def test_the_functional_step_of_pretraining_equals_the_step(real_variables: None):
    assert_changes_all_variables(pretraining())


@pytest.mark.slow
@pytest.mark.parametrize("kind", names.KINDS)
def test_the_functional_steps_of_fine_tuning_equal_the_steps(kind, real_variables):
    name, task_options = TASKS[kind]
    options = step_options.FineTuningStepOptions("bert_config.json", **SIZES)
    ((length, training, prediction),), _ = steps.finetuning_steps(CONFIG, name, options, task_options)
    assert (length, steps.make_dataless_task(name, task_options).spec.kind) == (LENGTH, kind)
    assert assert_same(prediction) == 0
    assert_changes_all_variables(training)


def test_tpu_lengths_are_compiled_longest_first():
    config = dataclasses.replace(CONFIG, max_position_embeddings=100)
    options = step_options.FineTuningStepOptions("bert_config.json", max_seq_length=100, train_batch_size=BATCH)
    by_length, parameters = steps.finetuning_steps(config, "swag", options, step_options.TaskStepOptions())
    assert [length for length, _, _ in by_length] == [100, 64, 32]
    inputs, labels = by_length[0][1].arguments(2)
    assert (inputs["input_ids"].shape, labels.shape) == ((2, 4, 100), (2,))  # SWAG has four endings
    assert parameters > 0
    optimizer = by_length[0][1].function.optimizer  # type: ignore[attr-defined]
    assert not optimizer.uses_kernel  # XLA supports neither this kernel nor an unknown number of rows
    assert not optimizer.clips_rows


def test_packed_records_have_the_shapes_of_training():
    step = pretraining(pack_sequences=True, packed_rows=3, gradient_accumulation_steps=2)
    (features,) = step.arguments(BATCH)
    records = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in feature_specs(BATCH, LENGTH, 3).items()}
    expected = pack(records, Packing(batch_size=BATCH, replicas=1, micro_batches=2, typical_micro_batches=2, rows=2))
    assert features == {name: tf.TensorSpec(each.shape, each.dtype) for name, each in expected.items()}
    assert step.repeats == 2
    tf.function(step.function, autograph=False).get_concrete_function(features)  # accepts the features


class FakeTpu:
    """A fake StepCompiler: batches of more than `largest` rows do not fit, and time is up after `max_answers`."""

    replicas, topology = 2, "v5e:1x2"

    def __init__(self, largest: int, max_answers: int = 100) -> None:
        self.asked: list[tuple[str, int]] = []
        self._largest, self._max_answers = largest, max_answers

    def compile(self, step: ReplicaStep, batch: int, fast: bool = False) -> answers.Compiled | answers.Refused:
        self.asked.append((step.name, batch))
        if len(self.asked) > self._max_answers:
            raise compiler.OutOfTimeError
        if batch > self._largest:
            return answers.Refused(2**34, 2**33)
        return answers.Compiled("TPU v5 lite", 2e12, 2**30, 2**29, [])


@pytest.mark.parametrize(("tpu", "printed", "unknown"), [
    (FakeTpu(largest=4), [
        "| 64 | training | 3 | 2.00 | 1.00 | nothing | yes |",
        "| 32 | prediction | 5 | - | - | - | no: needs 16.00 GiB of 8.00 |",
        "training step of length 64: the largest batch that fits, to within an eighth: 4 per replica, 8 in all",
    ], 0),
    (FakeTpu(largest=99, max_answers=1), [
        "| 64 | training | 3 | 2.00 | 1.00 | nothing | yes |",
        "stopped after --time_limit=1200 seconds; 3 per replica fits, larger batches were not tried",
    ], 3),
    (FakeTpu(largest=99, max_answers=0), [], 4),
])  # fmt: skip
def test_a_check_of_fine_tuning_prints_every_length_and_the_largest_batch(
    tpu: FakeTpu, printed: list[str], unknown: int, tmp_path, monkeypatch, capsys
):
    config = dataclasses.replace(CONFIG, max_position_embeddings=64)
    config_file = write_text(tmp_path / "bert_config.json", config.to_json())
    monkeypatch.setattr(command, "StepCompiler", lambda topology, time_limit: tpu)
    options = step_options.FineTuningStepOptions(config_file, max_seq_length=64, train_batch_size=6, eval_batch_size=9)
    assert command.run(step_options.Options(task="mrpc"), options, step_options.TaskStepOptions()) == 1
    # 6 rows of a batch are 3 per replica. 9 rows are 5 per replica, including an empty one.
    batches = (("training step", 3), ("prediction", 5))
    assert tpu.asked[:4] == [(f"{step} of length {length}", batch) for length in (64, 32) for step, batch in batches]
    output = capsys.readouterr().out
    assert [text for text in printed if text not in output] == []
    assert output.count("| not known: out of time |") == unknown
    assert printed or not re.search("per replica fits|does not", output)


def test_nothing_is_lowered_after_the_time_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "_check_environment", lambda: None)
    monkeypatch.setattr(compiler, "count_replicas", lambda topology: 8)
    step_compiler = command.StepCompiler("v5e:2x4", time_limit=-1)
    with pytest.raises(compiler.OutOfTimeError):
        step_compiler.compile(None, 1)  # type: ignore[arg-type]
