"""The training step: its arithmetic, dropout, micro-batches, and values that are not finite."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.pretraining.losses import compute_pretraining_metrics
from tests.conftest import ROOT
from tests.pretraining.pretraining_runs import (
    assert_same_steps,
    batches_for,
    disable_dropout,
    list_weights,
    pretrainer_for,
    steps_and_weights,
)

GOLDEN_TRACE = ROOT / "tests" / "golden" / "loss_trace.json"


def test_one_step_changes_every_trainable_variable(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batches = batches_for(pretrainer, record_files)
    pretrainer.train(batches, 1)  # the first has a learning rate of 0
    before = list_weights(pretrainer)
    pretrainer.train(batches, 1)
    for path, value in list_weights(pretrainer).items():
        assert not np.array_equal(value, before[path]), path


def test_without_next_sentences_only_the_pooler_and_its_head_are_frozen(
    tiny_config: BertConfig, record_files: list[str]
):
    pretrainer = pretrainer_for(tiny_config, next_sentence=False, optimizer_settings={"weight_decay_rate": 0.5})
    batches = batches_for(pretrainer, record_files)
    before = list_weights(pretrainer)
    pretrainer.train(batches, 2)  # the first has a learning rate of 0
    kept = {path for path, value in list_weights(pretrainer).items() if np.array_equal(value, before[path])}
    assert kept == {f"{layer}/{part}" for layer in ("pooler", "next_sentence") for part in ("kernel", "bias")}
    trained = {variable.path for variable in pretrainer.model.trainable_variables}
    assert trained == before.keys() - kept


def test_twenty_steps_reproduce_the_stored_losses(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batches = batches_for(pretrainer, record_files)
    trace = [compute_pretraining_metrics(pretrainer.train(batches, 1))["loss"] for _ in range(20)]
    assert trace == pytest.approx(json.loads(GOLDEN_TRACE.read_text()), rel=1e-3)
    assert trace[-1] < trace[0]


@pytest.mark.slow
def test_many_steps_in_one_call_and_compiled_steps_equal_single_steps(tiny_config: BertConfig, record_files: list[str]):
    results = []
    compilations = {"jit_compile": True}, {"compile_parts": True}
    for calls, compilation in (([1] * 6, {}), ([2, 4], {}), *(([6], each) for each in compilations)):
        pretrainer = pretrainer_for(tiny_config, **compilation)
        batches = batches_for(pretrainer, record_files)
        sums = [pretrainer.train(batches, steps) for steps in calls]
        results.append((sum(each["masked_lm_loss"] for each in sums), list_weights(pretrainer)))
        assert pretrainer.step == 6
    for loss, weights in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        for path, value in weights.items():
            np.testing.assert_allclose(value, results[0][1][path], atol=1e-5)


@pytest.mark.slow
def test_dropout_depends_on_the_step_alone(tiny_config: BertConfig, record_files: list[str]):
    batch = next(batches_for(pretrainer_for(tiny_config), record_files))
    losses = []
    for _ in range(2):
        pretrainer = pretrainer_for(tiny_config, rate=1e-30)
        data = tf.data.Dataset.from_tensors(batch).repeat()
        batches = iter(pretrainer.strategy.experimental_distribute_dataset(data))
        losses.append([pretrainer.train(batches, 1)["masked_lm_loss"] for _ in range(3)])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_micro_batches_make_the_same_step(tiny_config: BertConfig, record_files, optimizer: str):
    results = []
    for parts in (1, 2, 4):
        pretrainer = pretrainer_for(disable_dropout(tiny_config), optimizer=optimizer, micro_batches=parts)
        results.append(steps_and_weights(pretrainer, batches_for(pretrainer, record_files)))
    for found in results[1:]:
        assert_same_steps(found, results[0])


@pytest.mark.slow
def test_micro_batches_of_large_tensors_are_added_up_in_every_call(tiny_config: BertConfig, record_files):
    """TensorFlow orders additions differently if it expects to run out of memory, from 200 MB on a CPU."""
    config = dataclasses.replace(tiny_config, num_hidden_layers=1, vocab_size=500_000)
    pretrainer = pretrainer_for(config, micro_batches=2)
    batches = batches_for(pretrainer, record_files)
    for _ in range(3):
        assert pretrainer.train(batches, 1)["nonfinite_steps"] == 0


def test_micro_batches_have_other_dropout_masks(tiny_config: BertConfig):
    pretrainer = pretrainer_for(tiny_config, micro_batches=2)
    seeds = {tuple(pretrainer._dropout_seed(replica, part).numpy()) for replica in range(8) for part in range(8)}
    assert len(seeds) == 64


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed_float16", marks=pytest.mark.slow)])
def test_the_whole_step_compiles(tiny_config: BertConfig, record_files: list[str], dtype: str):
    losses = []
    for jit_compile in (False, True):
        pretrainer = pretrainer_for(
            disable_dropout(tiny_config), dtype=dtype, jit_compile=jit_compile, micro_batches=2, rematerialize=True
        )
        losses.append(pretrainer.train(batches_for(pretrainer, record_files), 3)["masked_lm_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5 if dtype == "float32" else 1e-2)


def test_steps_that_are_not_finite_are_skipped_if_asked(record_files, tiny_config: BertConfig):
    pretrainer = pretrainer_for(tiny_config, skip_nonfinite=True)
    batches = batches_for(pretrainer, record_files)
    pretrainer.train(batches, 2)
    before = list_weights(pretrainer)
    kernel = pretrainer.model.get_layer("pooler").kernel
    saved = np.asarray(kernel)
    kernel.assign(np.full_like(saved, np.inf))
    sums = pretrainer.train(batches, 2)
    assert sums["nonfinite_steps"] == 2
    assert sums["nonfinite_step"] == 3
    assert not np.isfinite(sums["nonfinite_loss"])
    assert sums["masked_lm_count"] == 0
    kernel.assign(saved)
    for path, value in list_weights(pretrainer).items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)
    assert pretrainer.step == 4
    assert pretrainer.train(batches, 1)["nonfinite_steps"] == 0
