"""SIGTERM and Ctrl-C as requests: training ends after the steps under way and a save."""

import signal


class StopRequest:
    """Within its context, SIGTERM and the first Ctrl-C ask for a stop instead of forcing one.

    Attributes:
        signal: the number of the signal that asked, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"received {signal.Signals(number).name}: saving after the steps under way", flush=True)
