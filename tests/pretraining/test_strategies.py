"""A step on several devices or workers equals the step on one device."""

import json
import re
import signal
import subprocess
import time

import numpy as np
import pytest
import tensorflow as tf

from official_bert.optimization.choices import OPTIMIZERS
from official_bert.optimization.distribution import get_strategy
from official_bert.runs.training_log import read_log
from tests.conftest import ROOT
from tests.make import tiny_config, write_text
from tests.pretraining import pretraining_runs as runs
from tests.processes import run_marked_tests, worker_environments


@pytest.mark.slow
@pytest.mark.core
def test_two_devices_equal_one():
    """Runs the tests marked two_devices in a separate process whose CPU is split into two devices."""
    assert "3 passed" in run_marked_tests(2, __file__)


def take_steps(device, devices, record_files, size=8, **settings):
    strategy = get_strategy(device)
    assert strategy.num_replicas_in_sync == devices
    pretrainer = runs.make_pretrainer(runs.disable_dropout(tiny_config(num_hidden_layers=1)), strategy, **settings)
    return runs.steps_and_weights(pretrainer, record_files, size)


@pytest.mark.two_devices
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_devices_take_the_same_steps_as_one(record_files, optimizer):
    found = take_steps("mirrored", 2, record_files, optimizer=optimizer)
    runs.assert_same_steps(found, take_steps("one_device", 1, record_files, optimizer=optimizer))


@pytest.mark.slow
@pytest.mark.core
def test_eight_devices_equal_one():
    """Runs the tests marked eight_devices in a separate process whose CPU is split into eight devices."""
    assert "1 passed" in run_marked_tests(8, __file__)


@pytest.mark.eight_devices
def test_eight_devices_with_micro_batches_take_the_same_steps_as_one(record_files):
    found = take_steps("mirrored", 8, record_files, 16, micro_batches=2, skip_nonfinite=True)
    runs.assert_same_steps(found, take_steps("one_device", 1, record_files, 16, skip_nonfinite=True))


@pytest.mark.slow
@pytest.mark.core
def test_two_workers_equal_one(record_files, tmp_path, vocab_file):
    """Launches two real processes with the command, stopped by a signal to one and by its loss, and then resumed."""
    config = write_text(tmp_path / "config.json", runs.disable_dropout(tiny_config()).to_json())
    one, two = tmp_path / "one", tmp_path / "two"
    environments = worker_environments(2)

    def command(folder, steps, *flags):
        rates = ("--log_steps=2", "--learning_rate=1e-3", "--num_warmup_steps=2", f"--num_train_steps={steps}")
        return runs.pretrain_command(record_files, config, folder, f"--vocab_file={vocab_file}", *rates, *flags)

    def launch(steps, passes_flags=True, flags_of_second=()):
        flags = ["--distribution_strategy=multi_worker", "--gradient_accumulation_steps=2"]
        processes = []
        for index, environment in enumerate(environments):
            own_flags = flags_of_second if index else ()
            whole = command(two, steps, *flags, "--allow_changes=num_train_steps", *own_flags)
            if passes_flags:
                environment = dict(environment)
                hosts = json.loads(environment.pop("TF_CONFIG"))["cluster"]["worker"]
                whole += [f"--worker_hosts={','.join(hosts)}", f"--worker_index={index}"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
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
    names = [name for name in expected if name.startswith("model/")]
    assert names
    for name in names:
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
    steps_logged = runs.log_values(two, "step")
    assert steps_logged[-1] == step + 4
    assert len(set(steps_logged)) == len(steps_logged)
    assert runs.checkpoint(two, step + 4)["place/position/.ATTRIBUTES/VARIABLE_VALUE"] == 8 * (step + 4)
