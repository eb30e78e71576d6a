"""Signals while C code blocks the main thread."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Like TensorFlow's runtime for several workers, C code replaces the handler of SIGTERM and waits with Python's lock.
_WAIT = """
import ctypes, os, signal
from official_bert.utils.signals import default_signals, handle_interrupts
libc = ctypes.PyDLL(None)
with handle_interrupts():
    with default_signals():
        libc.signal(signal.SIGTERM, 1)
        if {waits}:
            print("waiting", flush=True)
            libc.sleep(20)
    print(signal.getsignal(signal.SIGINT).__name__, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("waits", "line", "number"), [
    (True, "waiting\n", signal.SIGINT), (False, "interrupt\n", signal.SIGTERM),
])  # fmt: skip
def test_signals_end_a_process_during_and_after_a_wait_in_c_code(waits: bool, line: str, number: signal.Signals):
    command = [sys.executable, "-c", _WAIT.format(waits=waits)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == line
        process.send_signal(number)
        assert process.wait(timeout=10) == -number
