"""The server's metrics, in Prometheus' format."""

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server.

    The label `model` is the name of a model, or empty for requests that concern no model.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = functools.partial(Counter, namespace="official_bert", registry=registry)
        gauge = functools.partial(Gauge, namespace="official_bert", registry=registry)
        histogram = functools.partial(Histogram, namespace="official_bert", registry=registry, buckets=_SECONDS)
        by_model, by_action = ["model"], ["model", "action"]
        self.requests = counter("requests", "Answered requests by status.", [*by_action, "status"])
        self.request_seconds = histogram(
            "request_seconds", "Time from the arrival of a request to its answer.", by_action
        )
        self.queue_seconds = histogram("queue_seconds", "Time that a text or window waited for the model.", by_model)
        self.batch_seconds = histogram("batch_seconds", "Time in which the model computed a batch.", by_model)
        self.batch_size = histogram("batch_size", "Number of texts or windows in a batch.", by_model, buckets=_COUNTS)
        self.texts_cut = counter("texts_cut", "Number of truncated instances.", by_model)
        self.waiting = gauge("waiting", "Number of instances that wait for the model.", by_model)
        self.in_flight = gauge("requests_in_flight", "Number of requests in flight.")
        self.version = gauge("version", "The version that answers by default.", by_model)
        self.loads = counter("loads", "Number of versions that were loaded or failed to load.", [*by_model, "result"])

    def text(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
