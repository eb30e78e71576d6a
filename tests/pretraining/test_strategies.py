"""A step on several devices or workers equals the step on one device."""

import json
import re
import signal
import subprocess
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.runs.training_log import read_log
from tests.conftest import ROOT
from tests.pretraining.pretraining_runs import (
    assert_same_steps,
    batches_for,
    disable_dropout,
    pretrain_command,
    pretrainer_for,
    steps_and_weights,
)
from tests.processes import run_marked_tests, worker_environments


@pytest.mark.slow
@pytest.mark.core
def test_two_devices_equal_one():
    """Runs the tests marked two_devices in a separate process whose CPU is split into two devices."""
    assert "2 passed" in run_marked_tests(2, __file__)


@pytest.mark.two_devices
def test_two_devices_take_the_same_steps_as_one(tiny_config: BertConfig, record_files: list[str]):
    results = []
    for name in ("one_device", "mirrored"):
        strategy = distribution.get_strategy(name)
        assert strategy.num_replicas_in_sync == (2 if name == "mirrored" else 1)
        pretrainer = pretrainer_for(disable_dropout(tiny_config), strategy)
        results.append(steps_and_weights(pretrainer, batches_for(pretrainer, record_files)))
    assert_same_steps(results[1], results[0])


@pytest.mark.two_devices
def test_dropout_differs_between_devices_and_steps(tiny_config: BertConfig):
    pretrainer = pretrainer_for(tiny_config, distribution.get_strategy("mirrored"))

    @tf.function
    def seeds():
        return pretrainer.strategy.run(
            lambda: pretrainer._dropout_seed(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        )

    found = []
    for _ in range(3):
        found += [tuple(seed.numpy()) for seed in pretrainer.strategy.experimental_local_results(seeds())]
        pretrainer.optimizer.iterations.assign_add(1)
    assert len(set(found)) == 6


@pytest.mark.slow
@pytest.mark.core
def test_eight_devices_equal_one():
    """Runs the tests marked eight_devices in a separate process whose CPU is split into eight devices."""
    assert "1 passed" in run_marked_tests(8, __file__)


@pytest.mark.eight_devices
def test_eight_devices_with_micro_batches_take_the_same_steps_as_one(tiny_config: BertConfig, record_files):
    results = []
    for name, parts in (("one_device", 1), ("mirrored", 2)):
        strategy = distribution.get_strategy(name)
        assert strategy.num_replicas_in_sync == (8 if name == "mirrored" else 1)
        pretrainer = pretrainer_for(disable_dropout(tiny_config), strategy, micro_batches=parts, skip_nonfinite=True)
        results.append(steps_and_weights(pretrainer, batches_for(pretrainer, record_files, size=16)))
    assert_same_steps(results[1], results[0])


@pytest.mark.slow
@pytest.mark.core
def test_two_workers_equal_one(tiny_config: BertConfig, record_files, tmp_path, vocab_file):
    """Launches two real processes with the command, stopped by a signal to one and by its loss, and then resumed."""
    (tmp_path / "config.json").write_text(disable_dropout(tiny_config).to_json())

    def command(folder: str, steps: int, *flags: str) -> list[str]:
        rates = ("--log_steps=2", "--learning_rate=1e-3", "--num_warmup_steps=2", f"--num_train_steps={steps}")
        config = tmp_path / "config.json"
        return pretrain_command(record_files, config, tmp_path / folder, f"--vocab_file={vocab_file}", *rates, *flags)

    environments = worker_environments(2)

    def launch(steps: int, by_flags: bool = True) -> list[subprocess.Popen[str]]:
        processes = []
        for index, environment in enumerate(environments):
            whole = command("two", steps, "--distribution_strategy=multi_worker", "--gradient_accumulation_steps=2")
            whole.append("--allow_changes=num_train_steps")
            if by_flags:
                hosts = json.loads(environment["TF_CONFIG"])["cluster"]["worker"]
                environment = {name: value for name, value in environment.items() if name != "TF_CONFIG"}
                whole += [f"--worker_hosts={','.join(hosts)}", f"--worker_index={index}"]
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            processes.append(subprocess.Popen(whole, cwd=ROOT, env=environment, text=True, **pipes))
        return processes

    # The learning rate depends on the number of steps, so this first run has the full number.
    processes = launch(10, by_flags=False)
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    subprocess.run(command("one", 10), cwd=ROOT, capture_output=True, check=True)
    one, two = (tf.train.load_checkpoint(f"{tmp_path}/{name}") for name in ("one", "two"))
    names = [name for name in one.get_variable_to_shape_map() if name.startswith("model/")]
    assert names
    for name in names:
        np.testing.assert_allclose(two.get_tensor(name), one.get_tensor(name), atol=2e-5, err_msg=name)

    logs = [read_log(f"{tmp_path}/{name}", "train") for name in ("one", "two")]
    assert len(logs[0]) == 5
    for expected, found in zip(*logs, strict=True):
        for name in ("masked_lm_loss", "next_sentence_loss", "gradient_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name

    def launch_and_wait() -> list[subprocess.Popen[str]]:
        """Launches a long run and waits for some steps."""
        lines = len(read_log(f"{tmp_path}/two", "train"))
        processes = launch(1_000_000)
        deadline = time.monotonic() + 120
        while len(read_log(f"{tmp_path}/two", "train")) < lines + 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        return processes

    # A signal to the worker that does not save stops both, after a save.
    processes = launch_and_wait()
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [128 + signal.SIGTERM] * 2, outputs
    steps = {re.search(r"stopped at step ([\d,]+)", output).group(1).replace(",", "") for output in outputs}  # type: ignore[union-attr]
    assert len(steps) == 1
    step = int(steps.pop())
    assert tf.train.latest_checkpoint(f"{tmp_path}/two").endswith(f"ckpt-{step}")

    # If one worker is lost, the other exits with an error message.
    processes = launch_and_wait()
    processes[1].kill()
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert processes[0].returncode == 1
    assert "error: another worker stopped or cannot be reached" in outputs[0]
    step = int(tf.train.latest_checkpoint(f"{tmp_path}/two").rpartition("-")[2])

    # Both resume from that save, with the next step and its records.
    processes = launch(step + 4)
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all(f"resuming from {tmp_path}/two/ckpt-{step}, step {step:,}" in output for output in outputs)
    steps_logged = [line["step"] for line in read_log(f"{tmp_path}/two", "train")]
    assert steps_logged[-1] == step + 4
    assert len(set(steps_logged)) == len(steps_logged)
    position = "place/position/.ATTRIBUTES/VARIABLE_VALUE"
    assert tf.train.load_variable(f"{tmp_path}/two/ckpt-{step + 4}", position) == 8 * (step + 4)
