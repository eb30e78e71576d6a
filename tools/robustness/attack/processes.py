"""Commands in processes of their own, to be killed, limited and watched.

A process is a fork of this one, in which TensorFlow is imported and has not computed anything yet: that saves the
seconds of the import. So nothing in this process may compute with TensorFlow, if it is to fork.
"""

import contextlib
import dataclasses
import os
import pathlib
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_bert.utils.signals import end_with_parent

TRACEBACK = "Traceback (most recent call last)"
_MOST_MEGABYTES = 3000
_MOST_SECONDS = 400.0  # of a process, on a busy machine
_DEFECT = 70  # the exit code of a function that raised


class NotHeldError(Exception):
    """The program did not hold: the message says what was seen."""


def import_all() -> None:
    """Imports what the commands import."""
    import keras  # noqa: F401
    import tensorflow_text  # noqa: F401

    import official_bert.export.saved_model
    import official_bert.finetuning.runner
    import official_bert.finetuning.sweep
    import official_bert.inference.batch_prediction
    import official_bert.inference.feature_extraction
    import official_bert.pretraining.training
    import official_bert.serving.server  # noqa: F401


@dataclasses.dataclass
class Ended:
    """How a process ended: its exit code, or a signal's number below 0; what it printed; its seconds and memory."""

    code: int
    output: str
    seconds: float
    megabytes: float

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1][:300] if lines else ""

    def check(self, codes: Sequence[int] = (0, 1)) -> None:
        """Raises NotHeldError for a traceback, another exit code, much memory, or an error without a line on it."""
        if TRACEBACK in self.output:
            raise NotHeldError(f"a traceback: {self.output[self.output.index(TRACEBACK) :][-1500:]}")
        if self.code not in codes:
            raise NotHeldError(f"exit code {self.code}: {self.output[-600:]}")
        if self.code == 1 and "error: " not in self.output:
            raise NotHeldError(f"no line says why it ended: {self.output[-600:]}")
        if self.megabytes > _MOST_MEGABYTES:
            raise NotHeldError(f"{self.megabytes:,.0f} MB")


class Running:
    """A process that has been started."""

    def __init__(self, pid: int, log: str) -> None:
        self.pid, self._log, self._since = pid, log, time.monotonic()
        self._ended: Ended | None = None

    @property
    def output(self) -> str:
        return pathlib.Path(self._log).read_text(errors="replace")

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        if self._ended is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                seconds = time.monotonic() - self._since
                code = os.waitstatus_to_exitcode(status)
                self._ended = Ended(code, self.output, seconds, usage.ru_maxrss / 1024)
                os.remove(self._log)
        return self._ended

    def wait(self, seconds: float = _MOST_SECONDS, until: Callable[[], bool] = lambda: False) -> Ended | None:
        """Waits until it has ended, or until something else; a process that takes longer is a hang."""
        end = time.monotonic() + seconds
        while (ended := self.poll()) is None and not until():
            if time.monotonic() > end:
                shown = self.output[-600:]
                self.end_group()
                raise NotHeldError(f"it runs for more than {seconds:.0f} seconds: {shown}")
            time.sleep(0.002)
        return ended

    def done(self, seconds: float = _MOST_SECONDS) -> Ended:
        """Waits for its end, and ends what it has started."""
        ended = self.wait(seconds)
        assert ended is not None
        self.end_group()
        return ended

    def kill(self, number: int, group: bool) -> Ended:
        """Sends a signal to it, or to all that it has started too, and waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            if self._ended is None:
                os.killpg(self.pid, number) if group else os.kill(self.pid, number)
        ended = self.wait(60.0)
        assert ended is not None
        return ended

    def end_group(self) -> None:
        """Ends it and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.002)


def start(
    command: str,
    arguments: Sequence[str],
    limits: Mapping[int, int] | None = None,
    before: Callable[[], None] | None = None,
) -> Running:
    """Starts a command of official-bert, or the paper's experiments.

    Args:
        command: its name, or reproduce.
        arguments: its flags.
        limits: resource limits by their numbers.
        before: what the process does first.
    """

    def function() -> None:
        for number, value in (limits or {}).items():
            resource.setrlimit(number, (value, value))
        if before:
            before()
        if command == "reproduce":
            _shrink_experiments()
            sys.argv = [command, *arguments]
            runpy.run_module("tools.reproduce", run_name="__main__")
        else:
            from official_bert_cli import main

            sys.argv = ["official-bert", command, *arguments]
            main()

    return start_function(function)


def _shrink_experiments() -> None:
    """Makes the models of the paper's experiments tiny, and not compiled, so that most of the time is not theirs."""
    from tools.reproduce.tables import SCALES, Shape

    shape, scale = Shape(layers=1, hidden=8, heads=2), SCALES["tiny"]
    pretraining = {**scale.pretraining, "jit_compile": False, "compile_parts": False}
    SCALES["tiny"] = dataclasses.replace(
        scale, shape=shape, shapes=(shape,) * len(scale.shapes), pretraining=pretraining
    )


def run(command: str, arguments: Sequence[str], **changes: Any) -> Ended:
    """Runs a command to its end."""
    return start(command, arguments, **changes).done()


def start_function(function: Callable[[], None]) -> Running:
    """Calls a function in a process of its own."""
    descriptor, log = tempfile.mkstemp(prefix="attack-", suffix=".log")
    sys.stdout.flush()
    sys.stderr.flush()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        code = _DEFECT
        try:
            os.setpgid(0, 0)
            end_with_parent(parent)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            # By lines, so that what was done can be seen from outside.
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            function()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    os.close(descriptor)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # so that the group is there at once, whoever is first
    return Running(pid, log)


def call(function: Callable[[], None]) -> None:
    """Calls a function in a process of its own, and raises a RuntimeError if it fails."""
    ended = start_function(function).done()
    if ended.code:
        raise RuntimeError(f"exit code {ended.code}: {ended.output[-3000:]}")
