"""The training step: its losses, arithmetic, dropout, micro-batches, and values that are not finite."""

import itertools
import json
import re
import signal
import subprocess
import time

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.dropout import step_seed
from official_bert.modeling.fast.compiled_blocks import FactoredLogits
from official_bert.optimization.choices import OPTIMIZERS
from official_bert.optimization.distribution import get_strategy
from official_bert.pretraining import losses
from official_bert.pretraining.losses import compute_pretraining_metrics
from official_bert.pretraining.train_step import SUMS
from official_bert.runs.training_log import read_log
from tests.make import ROOT, list_weights, write_text
from tests.make import tiny_config as make_config
from tests.pretraining import pretraining_runs as runs
from tests.processes import run_marked_tests, worker_environments
from tests.reference import Reference, softmax

ONE_BLOCK = make_config(num_hidden_layers=1)
WITHOUT_DROPOUT = runs.disable_dropout(ONE_BLOCK)


@pytest.mark.parametrize("form", ["plain", "compiled", "factored"])
def test_masked_lm_losses_hits_and_gradients_equal_their_definitions(form, monkeypatch):
    """An edit doubles losses and gradients. No form may miss it."""
    original = losses._compute_losses_and_errors

    def double(*inputs):
        loss, hits, errors, scale = original(*inputs)
        return 2.0 * loss, hits, errors, 2.0 * scale

    monkeypatch.setattr(losses, "_compute_losses_and_errors", double)
    rng = np.random.default_rng(1)
    # Whole numbers, so that equal rows of the table give equal logits.
    vectors, table, bias = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 3, 4), (7, 4), (7,)))
    vectors[0, :2], table[[2, 6]], bias[[2, 6]] = [1, 2, 1, 2], 3, 1
    weights = rng.uniform(size=(2, 3)).astype(np.float32)
    labels = (vectors @ table.T + bias).argmax(axis=-1).astype(np.int32)
    labels[0, 0] = 6  # one of two equal highest logits, but not the first, so no hit
    labels[0, 2] = (labels[0, 2] + 1) % 7
    factors = [tf.constant(each) for each in (vectors, table, bias)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(factors)
        logits = tf.matmul(factors[0], factors[1], transpose_b=True) + factors[2]
        values, is_compiled = FactoredLogits(*factors) if form == "factored" else logits, form != "plain"
        found_losses, hits = losses.masked_lm_losses(values, labels, is_compiled)
        loss = tf.reduce_sum(weights * found_losses)
        expected_losses = 2.0 * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        expected = tf.reduce_sum(weights * expected_losses)
    np.testing.assert_allclose(found_losses, expected_losses, rtol=1e-5, atol=1e-6)
    assert hits.numpy().tolist() == [[0, 1, 0], [1, 1, 1]]
    for found, wanted in zip(tape.gradient(loss, factors), tape.gradient(expected, factors), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    labels[1] = 7, -1, 6
    assert np.isnan(losses.masked_lm_losses(values, labels, is_compiled)[0][1]).tolist() == [True, True, False]


def test_gradients_in_float16_are_finite_for_any_vocabulary():
    """The sum of exponentials, about 80,000, exceeds the greatest number of float16."""
    rng = np.random.default_rng(0)
    vectors, table, bias = (rng.normal(0, 0.1, shape) for shape in ((1, 2, 4), (119_547, 4), 119_547))
    factors = [tf.constant(vectors, "float16"), tf.constant(table, "float32"), tf.constant(bias, "float32")]
    with tf.GradientTape() as tape:
        tape.watch(factors)
        loss = tf.reduce_sum(losses.masked_lm_losses(FactoredLogits(*factors), np.array([[5, 119_546]], np.int32))[0])
    found = tape.gradient(loss, factors)
    errors = softmax(vectors[0] @ table.T + bias)
    errors[[0, 1], [5, 119_546]] -= 1
    for each, expected in zip(found, (errors @ table, errors.T @ vectors[0], errors.sum(axis=0)), strict=True):
        np.testing.assert_allclose(np.reshape(each, expected.shape), expected, atol=1e-3)


@pytest.mark.usefixtures("eager_steps")
def test_losses_equal_the_reference_and_padding_records_are_ignored(tiny_config, record_files):
    pretrainer = runs.make_pretrainer(tiny_config)
    batch = runs.read_batch(record_files)
    features = {name: value.numpy() for name, value in batch.items()}
    inputs = (features[name] for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions"))
    logits, scores = Reference(list_weights(pretrainer.model), tiny_config).predict(*inputs)
    labels, weights = features["masked_lm_ids"], features["masked_lm_weights"]
    right = np.take_along_axis(softmax(logits), labels[..., None], axis=-1)[..., 0]
    chosen = np.take_along_axis(softmax(scores), features["next_sentence_labels"], axis=-1)
    expected = {
        "masked_lm_loss": (-np.log(right) * weights).sum() / weights.sum(),
        "next_sentence_loss": -np.log(chosen).mean(),
        "masked_lm_accuracy": ((logits.argmax(axis=-1) == labels) * weights).sum() / weights.sum(),
        "next_sentence_accuracy": (scores.argmax(axis=-1) == features["next_sentence_labels"][:, 0]).mean(),
    }
    expected["loss"] = expected["masked_lm_loss"] + expected["next_sentence_loss"]
    sums = pretrainer.evaluate(batch)
    assert compute_pretraining_metrics(sums) == pytest.approx(expected, rel=1e-5)
    filled = {name: tf.concat([value, tf.zeros_like(value)], axis=0) for name, value in batch.items()}
    assert pretrainer.evaluate(filled) == pytest.approx(sums, rel=1e-5)


def test_metrics_are_means_over_predictions_and_records():
    def compute(*sums):
        return compute_pretraining_metrics(dict(zip(SUMS, (*sums, 0.0), strict=True)))

    tokens = {"loss": 1.5, "masked_lm_loss": 1.5, "masked_lm_accuracy": 0.375}
    pairs = {"loss": 1.8, "next_sentence_loss": 0.3, "next_sentence_accuracy": 0.4}
    assert compute(12.0, 3.0, 8.0, 0.0, 0.0, 0.0) == pytest.approx(tokens)
    assert compute(12.0, 3.0, 8.0, 1.5, 2.0, 5.0) == pytest.approx({**tokens, **pairs})
    assert compute(0.0, 0.0, 0.0, 0.0, 0.0, 0.0) == dict.fromkeys(tokens, 0.0)


def test_the_masked_lm_loss_has_the_epsilon_of_the_original():
    sums = {"masked_lm_loss": 3.0, "next_sentence_loss": 5.0}
    # google-research/bert: numerator / (denominator + 1e-5)
    for counts, expected in (((0.0, 0.0), [3.0 / 1e-5, 5.0]), ((2.0, 10.0), [3.0 / 2.00001, 0.5])):
        assert list(map(float, losses.compute_mean_losses(sums, *counts))) == pytest.approx(expected, rel=1e-7)


def test_twenty_steps_reproduce_the_stored_losses_and_change_every_variable(tiny_config, record_files):
    pretrainer = runs.make_pretrainer(tiny_config)
    batches = runs.make_batches(pretrainer, record_files)
    trace, weights = [], []
    for step in range(20):
        trace.append(compute_pretraining_metrics(pretrainer.train(batches, 1))["loss"])
        weights += [list_weights(pretrainer.model)] if step < 2 else []
    assert trace == pytest.approx(json.loads((ROOT / "tests" / "golden" / "loss_trace.json").read_text()), rel=1e-3)
    assert trace[-1] < trace[0]
    assert not [path for path, value in weights[1].items() if np.array_equal(value, weights[0][path])]


def test_without_next_sentences_only_the_pooler_and_its_head_are_frozen(record_files):
    pretrainer = runs.make_pretrainer(ONE_BLOCK, next_sentence=False, optimizer_settings={"weight_decay_rate": 0.5})
    before = list_weights(pretrainer.model)
    pretrainer.optimizer.iterations.assign(1)  # the first step has a learning rate of 0
    pretrainer.strategy.run(pretrainer.replica_step, args=(runs.read_batch(record_files),))
    kept = {path for path, value in list_weights(pretrainer.model).items() if np.array_equal(value, before[path])}
    assert kept == {f"{layer}/{part}" for layer in ("pooler", "next_sentence") for part in ("kernel", "bias")}
    assert {variable.path for variable in pretrainer.model.trainable_variables} == before.keys() - kept
    model = runs.make_pretrainer(ONE_BLOCK, next_sentence=False, frozen=["word_embeddings"]).model
    frozen = {layer.name for layer in model.layers if layer.weights and not layer.trainable}
    assert frozen == {"word_embeddings", "pooler", "next_sentence"}, "in addition to other layers"


def test_a_step_in_micro_batches_has_the_sums_and_gradients_of_the_whole_step(record_files, monkeypatch):
    whole, in_parts = (runs.make_pretrainer(WITHOUT_DROPOUT, micro_batches=count) for count in (1, 2))
    batch = runs.read_batch(record_files)
    seeds = []
    monkeypatch.setattr(in_parts, "_dropout_seed", lambda *places: seeds.append(list(map(int, places))) or (0, 0))
    runs.assert_same_first_step((in_parts, batch), (whole, batch))
    assert seeds == [[0, number] for number in range(2)]  # of the only replica


def test_losses_are_divided_by_the_counts_of_all_replicas(record_files, monkeypatch):
    alone, first_of_two = (runs.make_pretrainer(WITHOUT_DROPOUT) for _ in range(2))
    batch = runs.read_batch(record_files)
    batch["next_sentence_labels"] *= 0  # the gradients of both labels would cancel each other
    expected = alone.strategy.run(alone.replica_step, args=(batch,))
    monkeypatch.setattr("official_bert.pretraining.train_step.all_reduce_sum", lambda value: 2 * value)
    found = first_of_two.strategy.run(first_of_two.replica_step, args=(batch,))
    for name, factor in (*((name, 2) for name in SUMS), ("gradient_norm", 0.5)):  # the other gradients are not added
        assert float(found[name]) == pytest.approx(factor * float(expected[name]), rel=1e-5), name


def test_the_loss_is_scaled_in_float16_and_gradients_are_not(record_files):
    batch, norms = runs.read_batch(record_files), []
    for dtype in ("float32", "mixed_bfloat16", "mixed_float16"):
        pretrainer = runs.make_pretrainer(WITHOUT_DROPOUT, dtype=dtype)
        norms.append(float(pretrainer.strategy.run(pretrainer.replica_step, args=(batch,))["gradient_norm"]))
        assert ("loss_scale" in pretrainer.variables) == (dtype == "mixed_float16")
    assert norms[1:] == pytest.approx(norms[:1] * 2, rel=0.05)


def test_measurements_are_sums_over_finite_steps_and_the_first_bad_loss_is_reported():
    pretrainer = runs.make_pretrainer(ONE_BLOCK, times_input=False)

    def scripted_step(batch):
        pretrainer.optimizer.iterations.assign_add(1)
        loss, norm = batch["loss"], batch["norm"]
        sums = {name: tf.constant(2.0) for name in SUMS} | {"masked_lm_loss": loss, "next_sentence_loss": 2 * loss}
        finite_loss = tf.math.is_finite(loss)
        finite = finite_loss & tf.math.is_finite(norm)
        return {**sums, "gradient_norm": norm, "finite": finite, "finite_loss": finite_loss}

    pretrainer._step = scripted_step
    nan, inf = np.nan, np.inf
    step_losses, norms = np.float32([[1, 7, nan, 3, -inf, 9, 9], [10, inf, nan, 30, 5, inf, nan]])
    data = tf.data.Dataset.from_tensor_slices({"loss": step_losses, "norm": norms})
    expected = {"masked_lm_loss": 4, "next_sentence_loss": 8, "tokens": 4, "gradient_norm": 40, "input_wait": 0}
    expected |= {"nonfinite_steps": 5, "nonfinite_losses": 2, "nonfinite_at_end": 3}
    found = pretrainer.train(iter(data), 7)
    assert {name: found[name] for name in expected} == expected
    np.testing.assert_equal([found[f"nonfinite_{name}"] for name in ("step", "loss", "norm")], [3, nan, nan])
    # Another call starts afresh. Without a bad loss, the first bad gradient is reported.
    found = pretrainer.train(iter(data.skip(5)), 2)
    assert [found[f"nonfinite_{name}"] for name in ("steps", "losses", "at_end", "step", "loss")] == [2, 0, 2, 8, 27]
    assert found["nonfinite_norm"] == inf


def take_steps(config, record_files, device="one_device", size=8, **settings):
    return runs.steps_and_weights(runs.make_pretrainer(config, get_strategy(device), **settings), record_files, size)


@pytest.mark.slow
def test_compiled_and_rematerialized_steps_equal_plain_steps(tiny_config, record_files):
    expected = take_steps(tiny_config, record_files)
    for setting in ("jit_compile", "compile_parts", "rematerialize"):
        runs.assert_same_steps(take_steps(tiny_config, record_files, **{setting: True}), expected)


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
    config = runs.disable_dropout(tiny_config)
    expected = take_steps(config, record_files, optimizer=optimizer)
    for count, settings in ((2, {}), (2, {"rematerialize": True, "jit_compile": True}), (4, {})):
        found = take_steps(config, record_files, optimizer=optimizer, micro_batches=count, **settings)
        runs.assert_same_steps(found, expected)


@pytest.mark.slow
def test_gradients_of_large_tensors_are_accumulated_in_every_call(record_files):
    """TensorFlow orders additions differently if it expects to run out of memory, from 200 MB on a CPU."""
    pretrainer = runs.make_pretrainer(make_config(num_hidden_layers=1, vocab_size=500_000), micro_batches=2)
    batches = runs.make_batches(pretrainer, record_files)
    assert [pretrainer.train(batches, 1)["nonfinite_steps"] for _ in range(3)] == [0, 0, 0]


@pytest.mark.slow
def test_the_whole_step_compiles_in_half_precision(tiny_config, record_files):
    settings, found = {"dtype": "mixed_float16", "micro_batches": 2, "rematerialize": True}, []
    for jit_compile in (False, True):
        pretrainer = runs.make_pretrainer(runs.disable_dropout(tiny_config), jit_compile=jit_compile, **settings)
        found.append(pretrainer.train(runs.make_batches(pretrainer, record_files), 3)["masked_lm_loss"])
    assert found[1] == pytest.approx(found[0], rel=1e-2)


def test_nonfinite_steps_can_be_skipped(record_files, eager_steps):
    pretrainer = runs.make_pretrainer(ONE_BLOCK, skip_nonfinite=True)
    batches = runs.make_batches(pretrainer, record_files)
    pretrainer.train(batches, 1)
    before = list_weights(pretrainer.model)
    kernel = pretrainer.model.get_layer("pooler").kernel
    kernel.assign(tf.fill(kernel.shape, np.inf))
    sums = pretrainer.train(batches, 1)
    assert (sums["nonfinite_steps"], sums["nonfinite_step"], sums["masked_lm_count"]) == (1, 2, 0)
    assert not np.isfinite(sums["nonfinite_loss"])
    kernel.assign(before["pooler/kernel"])
    np.testing.assert_equal(list_weights(pretrainer.model), before)
    assert pretrainer.step == 2
    assert pretrainer.train(batches, 1)["nonfinite_steps"] == 0


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize(("devices", "tests"), [(2, 3), (8, 1)])
def test_several_devices_equal_one(devices, tests):
    """Runs the tests marked two_devices or eight_devices in a process whose CPU is split into so many devices."""
    assert f"{tests} passed" in run_marked_tests(devices, __file__)


@pytest.mark.two_devices
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_devices_take_the_same_steps_as_one(record_files, optimizer):
    assert get_strategy("mirrored").num_replicas_in_sync == 2
    found = take_steps(WITHOUT_DROPOUT, record_files, "mirrored", optimizer=optimizer)
    runs.assert_same_steps(found, take_steps(WITHOUT_DROPOUT, record_files, optimizer=optimizer))


@pytest.mark.eight_devices
def test_eight_devices_with_micro_batches_take_the_same_steps_as_one(record_files):
    assert get_strategy("mirrored").num_replicas_in_sync == 8
    found = take_steps(WITHOUT_DROPOUT, record_files, "mirrored", 16, micro_batches=2, skip_nonfinite=True)
    runs.assert_same_steps(found, take_steps(WITHOUT_DROPOUT, record_files, size=16, skip_nonfinite=True))


@pytest.mark.slow
@pytest.mark.core
def test_two_workers_equal_one(record_files, tmp_path, vocab_file):
    """Launches two real processes with the command, stopped by a signal to one and by its loss, and then resumed."""
    config = write_text(tmp_path / "config.json", runs.disable_dropout(make_config()).to_json())
    one, two = tmp_path / "one", tmp_path / "two"
    environments = worker_environments(2)

    def command(folder, steps, *flags):
        rates = ("--log_steps=2", "--learning_rate=1e-3", "--num_warmup_steps=2", f"--num_train_steps={steps}")
        return runs.pretrain_command(record_files, config, folder, f"--vocab_file={vocab_file}", *rates, *flags)

    def launch(steps, passes_flags=True, flags_of_second=()):
        flags = ["--distribution_strategy=multi_worker", "--gradient_accumulation_steps=2"]
        pipes, processes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}, []
        for index, environment in enumerate(environments):
            whole = command(two, steps, *flags, "--allow_changes=num_train_steps", *(flags_of_second if index else ()))
            if passes_flags:
                environment = dict(environment)
                hosts = json.loads(environment.pop("TF_CONFIG"))["cluster"]["worker"]
                whole += [f"--worker_hosts={','.join(hosts)}", f"--worker_index={index}"]
            processes.append(subprocess.Popen(whole, cwd=ROOT, env=environment, text=True, **pipes))
        return processes

    def launch_and_wait_for_steps():
        lines, deadline = len(read_log(str(two), "train")), time.monotonic() + 120
        processes = launch(1_000_000)
        while len(read_log(str(two), "train")) < lines + 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        return processes

    def wait(processes, *codes):
        outputs = [process.communicate(timeout=180)[0] for process in processes]
        assert [process.returncode for process in processes] == list(codes), outputs
        return outputs

    # The workers would train different weights.
    outputs = wait(launch(10, flags_of_second=["--learning_rate=1e-4"]), 1, 1)
    assert all("--learning_rate" in output and "--worker_index" in output for output in outputs)

    # The learning rate depends on the number of steps, so this first run has the full number.
    outputs = wait(launch(10, passes_flags=False), 0, 0)
    assert all(" on CPU:0 of worker 0, CPU:0 of worker 1\n" in output for output in outputs)
    subprocess.run(command(one, 10), cwd=ROOT, capture_output=True, check=True)
    expected, found = (runs.checkpoint(folder, 10) for folder in (one, two))
    assert any(name.startswith("model/") for name in expected)
    for name in filter(lambda name: name.startswith("model/"), expected):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-5, err_msg=name)
    for name in ("masked_lm_loss", "next_sentence_loss", "gradient_norm"):
        assert len(runs.log_values(one, name)) == 5
        assert runs.log_values(two, name) == pytest.approx(runs.log_values(one, name), rel=1e-4), name

    # A signal to the worker that does not save stops both, after a save.
    processes = launch_and_wait_for_steps()
    processes[1].send_signal(signal.SIGTERM)
    outputs = wait(processes, 128 + signal.SIGTERM, 128 + signal.SIGTERM)
    (step,) = {re.search(r"stopped at step ([\d,]+)", output)[1].replace(",", "") for output in outputs}
    assert tf.train.latest_checkpoint(str(two)).endswith(f"ckpt-{step}")

    # If one worker is lost, the other exits with an error message.
    processes = launch_and_wait_for_steps()
    processes[1].kill()
    outputs = wait(processes, 1, -signal.SIGKILL)
    assert "error: another worker stopped or cannot be reached" in outputs[0]
    step = int(tf.train.latest_checkpoint(str(two)).rpartition("-")[2])

    # Both resume from that save, with the next step and its records.
    outputs = wait(launch(step + 4), 0, 0)
    assert all(f"resuming from {two}/ckpt-{step}, step {step:,}" in output for output in outputs)
    logged = runs.log_values(two, "step")
    assert logged[-1] == step + 4
    assert len(set(logged)) == len(logged)
    assert runs.checkpoint(two, step + 4)["place/position/.ATTRIBUTES/VARIABLE_VALUE"] == 8 * (step + 4)
