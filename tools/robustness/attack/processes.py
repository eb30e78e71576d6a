"""Runs commands in processes that can be killed, limited and watched.

Each process is a fork of this one, made after TensorFlow was imported and before it computes anything. This saves the
time of the import. Therefore, a process that starts others must not compute anything with TensorFlow.
"""

import contextlib
import dataclasses
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from official_bert.utils.signals import end_with_parent
from tools.robustness.attack.cases import NotHeldError

TRACEBACK = "Traceback (most recent call last)"
_MAX_MEGABYTES = 3000
_MAX_SECONDS = 400.0  # of a process, on a busy machine
_DEFECT = 70  # exit code of a function that raised an exception


def import_all() -> None:
    """Imports the modules of all commands, so that forks need not."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras  # noqa: F401
    import tensorflow_text  # noqa: F401

    import official_bert.export.formats
    import official_bert.finetuning.runner
    import official_bert.inference.batch_prediction
    import official_bert.inference.feature_extraction
    import official_bert.pretraining.run
    import official_bert.serving.server  # noqa: F401


@dataclasses.dataclass
class Ended:
    """A process that has ended.

    Attributes:
        code: Exit code, or the negative number of the signal that killed it.
        output: Everything that it printed.
        megabytes: Peak memory.
    """

    code: int
    output: str
    megabytes: float

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1][:300] if lines else ""

    def check(self, codes: Sequence[int] = (0, 1)) -> None:
        """Raises NotHeldError if the process ended in a way that no attack may cause.

        This is a traceback, an exit code other than `codes`, too much memory, or an error without a message.
        """
        if TRACEBACK in self.output:
            raise NotHeldError(f"a traceback: {self.output[self.output.index(TRACEBACK) :][-1500:]}")
        if self.code not in codes:
            raise NotHeldError(f"exit code {self.code}: {self.output[-600:]}")
        if self.code == 1 and "error: " not in self.output:
            raise NotHeldError(f"no error message: {self.output[-600:]}")
        if self.megabytes > _MAX_MEGABYTES:
            raise NotHeldError(f"{self.megabytes:,.0f} MB of memory")


class Running:
    """A running process that this module started."""

    def __init__(self, pid: int, log: str) -> None:
        self.pid, self._log, self._started = pid, log, time.monotonic()
        self._ended: Ended | None = None

    @property
    def output(self) -> str:
        return pathlib.Path(self._log).read_text(errors="replace")

    @property
    def seconds(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self._started

    def poll(self) -> Ended | None:
        """Returns the outcome of the process if it has ended, or else None."""
        if self._ended is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._ended = Ended(os.waitstatus_to_exitcode(status), self.output, usage.ru_maxrss / 1024)
                os.remove(self._log)
        return self._ended

    def wait(self, seconds: float = _MAX_SECONDS, until: Callable[[], bool] = lambda: False) -> Ended | None:
        """Waits until the process has ended or `until` returns True. Returns the outcome if it has ended, or else None.

        Raises:
            NotHeldError: If neither happens within `seconds`.
        """
        end = time.monotonic() + seconds
        while (ended := self.poll()) is None and not until():
            if time.monotonic() > end:
                output = self.output[-600:]
                self.end_group()
                raise NotHeldError(f"it runs for more than {seconds:g} seconds: {output}")
            time.sleep(0.002)
        return ended

    def finish(self, seconds: float = _MAX_SECONDS) -> Ended:
        """Waits for the end of the process, then kills the processes that it started. Returns the outcome."""
        ended = self.wait(seconds)
        assert ended is not None
        self.end_group()
        return ended

    def kill(self, number: int, group: bool) -> Ended:
        """Sends a signal to the process and waits for its end.

        Args:
            number: Number of the signal.
            group: Whether to send it also to the processes that it started.
        """
        with contextlib.suppress(ProcessLookupError):
            if self._ended is None:
                os.killpg(self.pid, number) if group else os.kill(self.pid, number)
        ended = self.wait(60.0)
        assert ended is not None
        return ended

    def end_group(self) -> None:
        """Kills the process and all processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.002)


def start(command: str, arguments: Sequence[str], limits: Mapping[int, int] | None = None) -> Running:
    """Starts a command of official-bert.

    Args:
        command: Name of the command.
        arguments: Its flags.
        limits: Resource limits, by number of the resource (such as resource.RLIMIT_FSIZE).
    """

    def run_command() -> None:
        for number, value in (limits or {}).items():
            resource.setrlimit(number, (value, value))
        from official_bert_cli import main

        sys.argv = ["official-bert", command, *arguments]
        main()

    return start_function(run_command)


def run(command: str, arguments: Sequence[str], limits: Mapping[int, int] | None = None) -> Ended:
    """Runs a command of official-bert to its end. The arguments are the same as for `start`."""
    return start(command, arguments, limits).finish()


def start_function(function: Callable[[], None]) -> Running:
    """Calls a function in a separate process."""
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
            # Line buffering lets the parent follow the progress.
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
        os.setpgid(pid, pid)  # both processes do this because either may run first
    return Running(pid, log)
