"""Counts the requests in flight: those that have begun to arrive and are not answered yet."""

import contextlib
from collections.abc import Iterator

from official_bert.serving.metrics import Metrics
from official_bert.serving.request_error import RequestError


class InFlight:
    """Counts requests and their bytes.

    Args:
        max_bytes: what all requests together may hold.
        metrics: where the requests are counted.

    Attributes:
        requests: how many there are.
    """

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self._max_bytes, self._metrics = max_bytes, metrics
        self.requests = 0
        self._bytes = 0

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request while the block runs."""
        self.requests += 1
        self._metrics.in_flight.set(self.requests)
        try:
            yield
        finally:
            self.requests -= 1
            self._metrics.in_flight.set(self.requests)

    def add_bytes(self, count: int) -> None:
        """Counts bytes, until as many are removed; raises a RequestError where they are too many."""
        self._bytes += count
        if self._bytes > self._max_bytes:
            raise RequestError(503, "too many bytes are in flight; try again later", retry_after=1)

    def remove_bytes(self, count: int) -> None:
        self._bytes -= count
