"""Progress lines for long-running work: amount done, rate and remaining time."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

_SECONDS_BETWEEN_LINES = 10.0
_MIN_LOG_LINES = 20  # if the run has as many steps


def get_log_interval(num_steps: int, max_interval: int) -> int:
    """Returns the number of steps between log lines. In short runs it is so small that they get about 20 lines."""
    return min(max_interval, max(1, num_steps // _MIN_LOG_LINES))


def format_duration(seconds: float) -> str:
    """Formats seconds as 42s, 3:07 or 2:03:07."""
    seconds = max(0, round(seconds))
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"


def _format_amount(value: float) -> str:
    """Formats an amount as a whole number, or with two significant digits if it is small: 1,234, 7, 0.052."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


class Progress:
    """Prints a progress line to stderr every ten seconds. Shorter work prints nothing.

    Args:
        what: Description of the work, at the start of each line.
        total: Total amount of work.
        unit: Unit of `total` and of the amounts passed to `update`, such as "MB".
    """

    def __init__(self, what: str, total: float, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._start = self._last = time.monotonic()
        self._done = self._done_at_start = 0.0
        self._lock = threading.Lock()

    def begin(self, done: float) -> None:
        """Restarts the clock, so that the time spent before, for example on compilation, does not affect the rate.

        Args:
            done: The amount done so far.
        """
        self._start, self._done_at_start = time.monotonic(), done

    def advance(self, amount: float) -> None:
        """Adds to the amount done, and prints a progress line like `update`. Several threads may call it."""
        with self._lock:
            self._done += amount
            self.update(self._done)

    def update(self, done: float, detail: str = "") -> None:
        """Prints a progress line if ten seconds have passed since the last one.

        Args:
            done: The amount done so far.
            detail: Text to append to the line.
        """
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = (done - self._done_at_start) / max(now - self._start, 1e-9)
        share = 100 * done / self._total if self._total else 100
        left = format_duration((self._total - done) / rate) if rate > 0 else "unknown"
        print(
            f"{self._what}: {_format_amount(done)} of {_format_amount(self._total)} {self._unit} ({share:.0f} %), "
            f"{_format_amount(rate)} {self._unit}/s, {left} left" + (f"; {detail}" if detail else ""),
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def report_elapsed_time(what: str) -> Iterator[None]:
    """Prints the elapsed time to stderr every ten seconds within the context, for work of unknown duration."""
    start = time.monotonic()

    def report() -> None:
        print(f"{what}: {format_duration(time.monotonic() - start)} so far", file=sys.stderr, flush=True)

    with call_repeatedly(report, _SECONDS_BETWEEN_LINES):
        yield


@contextlib.contextmanager
def call_repeatedly(function: Callable[[], None], seconds: float) -> Iterator[None]:
    """Calls a function every `seconds` seconds in a separate thread, until the context ends."""
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
