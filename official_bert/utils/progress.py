"""Lines that tell how far long work has come: amount, rate, time left."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

_SECONDS_BETWEEN_LINES = 10.0
_LEAST_POINTS = 20  # of the curve of a run of as many steps


def log_interval(num_steps: int, most: int) -> int:
    """Returns the steps between lines of the log: so few that a short run's curve has some twenty points."""
    return min(most, max(1, num_steps // _LEAST_POINTS))


def format_duration(seconds: float) -> str:
    """Returns seconds as 42s, 3:07 or 2:03:07."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"


def _amount(value: float) -> str:
    """Whole numbers, but small amounts with two digits: 1,234, 7, 0.052."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


class Progress:
    """Prints a line to stderr every ten seconds, which begins with what is being done; short work prints none.

    `total` is the amount at the end, in `unit`.
    """

    def __init__(self, what: str, total: float, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._start = self._last = time.monotonic()
        self._done_at_start = 0.0

    def begin(self, done: float) -> None:
        """Lets rate and time left count from now on, so that what came before, such as compiling, is not counted."""
        self._start, self._done_at_start = time.monotonic(), done

    def update(self, done: float, detail: str = "") -> None:
        """Says that `done` of the total is done, and what else there is to say."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = (done - self._done_at_start) / max(now - self._start, 1e-9)
        share = 100 * done / self._total if self._total else 100
        left = format_duration((self._total - done) / rate) if rate > 0 else "unknown"
        print(
            f"{self._what}: {_amount(done)} of {_amount(self._total)} {self._unit} ({share:.0f} %), "
            f"{_amount(rate)} {self._unit}/s, {left} left" + (f"; {detail}" if detail else ""),
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def report_elapsed_time(what: str) -> Iterator[None]:
    """Prints a line to stderr every ten seconds while the block runs, for work whose share done is not known."""
    start = time.monotonic()

    def report() -> None:
        print(f"{what}: {format_duration(time.monotonic() - start)} so far", file=sys.stderr, flush=True)

    with call_repeatedly(report, _SECONDS_BETWEEN_LINES):
        yield


@contextlib.contextmanager
def call_repeatedly(function: Callable[[], None], seconds: float) -> Iterator[None]:
    """Calls a function every so many seconds, in a thread of its own, while the block runs."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            function()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
