"""Tests that need separate processes: a CPU split into several devices, and workers that connect to each other."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from tests.make import ROOT

_MARKED_TESTS_ON_DEVICES = """
import sys
import tensorflow as tf
number, marker, path = sys.argv[1:]
devices = [tf.config.LogicalDeviceConfiguration()] * int(number)
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
sys.exit(__import__("pytest").main(["-q", "-rA", "-m", marker, "-p", "no:cacheprovider", path]))
"""
MARKERS = {2: "two_devices", 8: "eight_devices"}


def run_marked_tests(devices: int, path: str) -> str:
    """Runs the tests of a file that are marked for this number of devices, and returns pytest's output if all pass."""
    command = [sys.executable, "-c", _MARKED_TESTS_ON_DEVICES, str(devices), MARKERS[devices], path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def worker_environments(number: int) -> list[dict[str, str]]:
    """Returns the environment of each of `count` workers on this machine, on ports that are currently free."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]}
    configs = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(number)]
    whole = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    return [{**whole, "TF_CONFIG": json.dumps(config)} for config in configs]


def wait_for_exit(pid: int, seconds: float = 10.0) -> None:
    """Waits until a process, which need not be a child, has ended. Zombies count as ended. Fails after `seconds`."""
    end = time.monotonic() + seconds
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < end, f"process {pid} still runs"
            time.sleep(0.01)
