"""The server's metrics for Prometheus."""

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server; `model` is always the name of a model that it serves, or empty."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = functools.partial(Counter, namespace="official_bert", registry=registry)
        gauge = functools.partial(Gauge, namespace="official_bert", registry=registry)
        histogram = functools.partial(Histogram, namespace="official_bert", registry=registry, buckets=_SECONDS)
        by_model, by_action = ["model"], ["model", "action"]
        self.requests = counter("requests", "Requests answered, by status.", [*by_action, "status"])
        self.request_seconds = histogram("request_seconds", "From a request's arrival to its answer.", by_action)
        self.queue_seconds = histogram("queue_seconds", "How long texts and windows waited for the model.", by_model)
        self.batch_seconds = histogram("batch_seconds", "How long the model took for a batch.", by_model)
        self.batch_size = histogram("batch_size", "Texts or windows in a batch.", by_model, buckets=_COUNTS)
        self.texts_cut = counter("texts_cut", "Instances whose end the model did not read.", by_model)
        self.waiting = gauge("waiting", "Instances that wait for the model.", by_model)
        self.in_flight = gauge("requests_in_flight", "Requests in flight.")
        self.version = gauge("version", "The version that answers by default.", by_model)
        self.loads = counter("loads", "Versions loaded, or not.", [*by_model, "result"])

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self._registry)
