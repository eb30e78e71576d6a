"""Stop requests: after SIGTERM or Ctrl-C, training finishes the current steps, saves and stops."""

import signal
import sys

import tensorflow as tf

from official_bert.optimization import distribution


class StopRequest:
    """A context in which SIGTERM and the first Ctrl-C do not end the process, but are recorded as a request to stop.

    Attributes:
        signal: Number of the signal that this process received, or None if it received none.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.signal: int | None = None

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_pending(self) -> bool:
        """Returns whether any worker has received a signal. All workers must call it at the same step."""
        return distribution.mean_over_workers(self._strategy, float(self.signal is not None)) > 0

    @property
    def exit_code(self) -> int:
        """The exit code for a process that stopped on request: 128 plus the number of the signal."""
        return 128 + (self.signal or signal.SIGTERM)

    def _on_signal(self, number: int, _: object) -> None:
        self.signal = number
        before = self._before[signal.SIGINT]
        signal.signal(signal.SIGINT, before if callable(before) else signal.default_int_handler)
        line = f"received {signal.Signals(number).name}: saving after the current steps"
        try:
            print(line, flush=True)
        except RuntimeError:  # The signal interrupted another print to standard output.
            print(line, file=sys.stderr, flush=True)
