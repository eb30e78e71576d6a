"""The training step: its arithmetic, dropout, micro-batches, and values that are not finite."""

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
from official_bert.optimization.choices import OPTIMIZERS
from official_bert.optimization.distribution import get_strategy
from official_bert.pretraining.losses import compute_pretraining_metrics
from official_bert.pretraining.train_step import SUMS
from official_bert.runs.training_log import read_log
from tests.make import ROOT, list_weights, write_text
from tests.make import tiny_config as make_config
from tests.pretraining import pretraining_runs as runs
from tests.processes import run_marked_tests, worker_environments

ONE_BLOCK = make_config(num_hidden_layers=1)
WITHOUT_DROPOUT = runs.disable_dropout(ONE_BLOCK)


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
