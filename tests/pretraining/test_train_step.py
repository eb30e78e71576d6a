"""The training step: its arithmetic, dropout, micro-batches, and values that are not finite."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.dropout import step_seed
from official_bert.pretraining.losses import compute_pretraining_metrics
from official_bert.pretraining.train_step import SUMS
from tests.conftest import ROOT
from tests.make import list_weights
from tests.make import tiny_config as make_config
from tests.pretraining import pretraining_runs as runs

GOLDEN_TRACE = ROOT / "tests" / "golden" / "loss_trace.json"
ONE_BLOCK = make_config(num_hidden_layers=1)


def test_twenty_steps_reproduce_the_stored_losses_and_change_every_variable(tiny_config, record_files):
    pretrainer = runs.make_pretrainer(tiny_config)
    batches = runs.make_batches(pretrainer, record_files)
    trace, weights = [], []
    for step in range(20):
        trace.append(compute_pretraining_metrics(pretrainer.train(batches, 1))["loss"])
        weights += [list_weights(pretrainer.model)] if step < 2 else []
    assert trace == pytest.approx(json.loads(GOLDEN_TRACE.read_text()), rel=1e-3)
    assert trace[-1] < trace[0]
    assert not [path for path, value in weights[1].items() if np.array_equal(value, weights[0][path])]


def test_without_next_sentences_only_the_pooler_and_its_head_are_frozen(record_files, eager_steps):
    pretrainer = runs.make_pretrainer(ONE_BLOCK, next_sentence=False, optimizer_settings={"weight_decay_rate": 0.5})
    before = list_weights(pretrainer.model)
    pretrainer.train(runs.make_batches(pretrainer, record_files), 2)  # the first has a learning rate of 0
    kept = {path for path, value in list_weights(pretrainer.model).items() if np.array_equal(value, before[path])}
    assert kept == {f"{layer}/{part}" for layer in ("pooler", "next_sentence") for part in ("kernel", "bias")}
    assert {variable.path for variable in pretrainer.model.trainable_variables} == before.keys() - kept


def test_layers_are_frozen_in_addition_to_the_next_sentence_head():
    model = runs.make_pretrainer(ONE_BLOCK, next_sentence=False, frozen=["word_embeddings"]).model
    frozen = {layer.name for layer in model.layers if layer.weights and not layer.trainable}
    assert frozen == {"word_embeddings", "pooler", "next_sentence"}


def test_a_step_in_micro_batches_has_the_sums_and_gradients_of_the_whole_step(record_files, monkeypatch):
    config = runs.disable_dropout(ONE_BLOCK)
    whole, in_parts = (runs.make_pretrainer(config, micro_batches=count) for count in (1, 2))
    batch = next(runs.make_batches(whole, record_files))
    seeds = []
    monkeypatch.setattr(in_parts, "_dropout_seed", lambda *places: seeds.append(list(map(int, places))) or (0, 0))
    runs.assert_same_first_step((in_parts, batch), (whole, batch))
    assert seeds == [[0, number] for number in range(2)]  # of the only replica


def test_losses_are_divided_by_the_counts_of_all_replicas(record_files, monkeypatch):
    alone, first_of_two = (runs.make_pretrainer(runs.disable_dropout(ONE_BLOCK)) for _ in range(2))
    batch = next(runs.make_batches(alone, record_files))
    batch["next_sentence_labels"] *= 0  # the gradients of both labels would cancel each other
    expected = alone.strategy.run(alone.replica_step, args=(batch,))
    monkeypatch.setattr("official_bert.pretraining.train_step.all_reduce_sum", lambda value: 2 * value)
    found = first_of_two.strategy.run(first_of_two.replica_step, args=(batch,))
    for name, factor in (*((name, 2) for name in SUMS), ("gradient_norm", 0.5)):  # the other gradients are not added
        assert float(found[name]) == pytest.approx(factor * float(expected[name]), rel=1e-5), name


def test_the_loss_is_scaled_in_float16_and_gradients_are_not(record_files):
    plain, scaled = (
        runs.make_pretrainer(runs.disable_dropout(ONE_BLOCK), dtype=dtype) for dtype in ("float32", "mixed_float16")
    )
    batch = next(runs.make_batches(plain, record_files))
    norms = [each.strategy.run(each.replica_step, args=(batch,))["gradient_norm"] for each in (plain, scaled)]
    assert float(norms[1]) == pytest.approx(float(norms[0]), rel=0.05)


def test_measurements_are_sums_over_finite_steps_and_the_first_bad_loss_is_reported():
    pretrainer = runs.make_pretrainer(ONE_BLOCK, times_input=False)

    def scripted_step(batch):
        pretrainer.optimizer.iterations.assign_add(1)
        loss, norm = batch["loss"], batch["norm"]
        sums = {name: tf.constant(2.0) for name in SUMS} | {"masked_lm_loss": loss, "next_sentence_loss": 2 * loss}
        finite_loss = tf.math.is_finite(loss)
        return {
            **sums,
            "gradient_norm": norm,
            "finite": finite_loss & tf.math.is_finite(norm),
            "finite_loss": finite_loss,
        }

    pretrainer._step = scripted_step
    nan, inf = np.nan, np.inf
    losses, norms = np.float32([[1, 7, nan, 3, -inf, 9, 9], [10, inf, nan, 30, 5, inf, nan]])
    data = tf.data.Dataset.from_tensor_slices({"loss": losses, "norm": norms})
    batches = iter(data)
    expected = {"masked_lm_loss": 4, "next_sentence_loss": 8, "tokens": 4, "gradient_norm": 40, "input_wait": 0}
    expected |= {"nonfinite_steps": 5, "nonfinite_losses": 2, "nonfinite_at_end": 3}
    found = pretrainer.train(batches, 7)
    assert {name: found[name] for name in expected} == expected
    np.testing.assert_equal([found[f"nonfinite_{name}"] for name in ("step", "loss", "norm")], [3, nan, nan])
    # Another call starts afresh. Without a bad loss, the first bad gradient is reported.
    found = pretrainer.train(iter(data.skip(5)), 2)
    names = ("nonfinite_steps", "nonfinite_losses", "nonfinite_at_end", "nonfinite_step", "nonfinite_loss")
    assert [found[name] for name in names] == [2, 0, 2, 8, 27]
    assert found["nonfinite_norm"] == inf


@pytest.mark.slow
def test_compiled_and_rematerialized_steps_equal_plain_steps(tiny_config, record_files):
    def take_steps(**settings):
        return runs.steps_and_weights(runs.make_pretrainer(tiny_config, **settings), record_files)

    expected = take_steps()
    for settings in ({"jit_compile": True}, {"compile_parts": True}, {"rematerialize": True}):
        runs.assert_same_steps(take_steps(**settings), expected)


def test_dropout_seeds_differ_and_never_change_between_versions():
    # Recorded when seeds began to depend on replicas and micro-batches. A resumed run needs the same masks.
    assert step_seed(12345678, 5, 3, 2).numpy().tolist() == [-2097229707, 5]
    arguments = itertools.product((0, 1), (0, 1), (0, 1, 7), (0, 1, 7))  # seed, step, replica and micro-batch
    assert len({tuple(step_seed(*each).numpy()) for each in arguments}) == 2 * 2 * 3 * 3
    pretrainer = runs.make_pretrainer(ONE_BLOCK, micro_batches=2)
    seeds = {tuple(pretrainer._dropout_seed(replica, part).numpy()) for replica in range(8) for part in range(8)}
    assert len(seeds) == 64
    pretrainer.optimizer.iterations.assign(7)
    assert int(pretrainer._dropout_seed(0, 0)[1]) == 7


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_micro_batches_give_the_same_step(tiny_config, record_files, optimizer):
    def take_steps(**settings):
        pretrainer = runs.make_pretrainer(runs.disable_dropout(tiny_config), optimizer=optimizer, **settings)
        return runs.steps_and_weights(pretrainer, record_files)

    expected = take_steps()
    for settings in ({}, {"rematerialize": True, "jit_compile": True}):
        runs.assert_same_steps(take_steps(micro_batches=2, **settings), expected)
    runs.assert_same_steps(take_steps(micro_batches=4), expected)


@pytest.mark.slow
def test_gradients_of_large_tensors_are_accumulated_in_every_call(record_files):
    """TensorFlow orders additions differently if it expects to run out of memory, from 200 MB on a CPU."""
    pretrainer = runs.make_pretrainer(make_config(num_hidden_layers=1, vocab_size=500_000), micro_batches=2)
    batches = runs.make_batches(pretrainer, record_files)
    assert [pretrainer.train(batches, 1)["nonfinite_steps"] for _ in range(3)] == [0, 0, 0]


@pytest.mark.slow
def test_the_whole_step_compiles_in_half_precision(tiny_config, record_files):
    settings, losses = {"dtype": "mixed_float16", "micro_batches": 2, "rematerialize": True}, []
    for jit_compile in (False, True):
        pretrainer = runs.make_pretrainer(runs.disable_dropout(tiny_config), jit_compile=jit_compile, **settings)
        losses.append(pretrainer.train(runs.make_batches(pretrainer, record_files), 3)["masked_lm_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_nonfinite_steps_can_be_skipped(record_files, eager_steps):
    pretrainer = runs.make_pretrainer(ONE_BLOCK, skip_nonfinite=True)
    batches = runs.make_batches(pretrainer, record_files)
    pretrainer.train(batches, 2)
    before = list_weights(pretrainer.model)
    kernel = pretrainer.model.get_layer("pooler").kernel
    kernel.assign(tf.fill(kernel.shape, np.inf))
    sums = pretrainer.train(batches, 2)
    assert (sums["nonfinite_steps"], sums["nonfinite_step"], sums["masked_lm_count"]) == (2, 3, 0)
    assert not np.isfinite(sums["nonfinite_loss"])
    kernel.assign(before["pooler/kernel"])
    np.testing.assert_equal(list_weights(pretrainer.model), before)
    assert pretrainer.step == 4
    assert pretrainer.train(batches, 1)["nonfinite_steps"] == 0
