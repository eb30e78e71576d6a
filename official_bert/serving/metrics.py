"""What the server counts, for Prometheus."""

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server; `model` is always the name of a model that it serves, or empty."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        seconds = functools.partial(Histogram, buckets=_SECONDS, registry=registry)
        self.requests = Counter(
            "official_bert_requests", "Requests answered, by status.", ["model", "action", "status"], registry=registry
        )
        self.request_seconds = seconds(
            "official_bert_request_seconds", "From a request's arrival to its answer.", ["model", "action"]
        )
        self.queue_seconds = seconds(
            "official_bert_queue_seconds", "How long instances waited for the model.", ["model"]
        )
        self.batch_seconds = seconds("official_bert_batch_seconds", "How long the model took for a batch.", ["model"])
        self.batch_size = Histogram(
            "official_bert_batch_size", "Instances in a batch.", ["model"], buckets=_COUNTS, registry=registry
        )
        self.texts_cut = Counter(
            "official_bert_texts_cut", "Instances whose end the model did not read.", ["model"], registry=registry
        )
        self.waiting = Gauge(
            "official_bert_waiting", "Instances that wait for the model.", ["model"], registry=registry
        )
        self.in_flight = Gauge("official_bert_requests_under_way", "Requests in flight.", registry=registry)
        self.version = Gauge(
            "official_bert_version", "The version that answers by default.", ["model"], registry=registry
        )
        self.loads = Counter("official_bert_loads", "Versions loaded, or not.", ["model", "result"], registry=registry)

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self._registry)
