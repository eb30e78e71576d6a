"""What the server counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server; `model` is always the name of a model that it serves, or empty."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter(
            "official_bert_requests", "Requests answered, by status.", ["model", "action", "status"],
            registry=self._registry,
        )  # fmt: skip
        self.request_seconds = Histogram(
            "official_bert_request_seconds", "From a request's arrival to its answer.", ["model", "action"],
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self.queue_seconds = Histogram(
            "official_bert_queue_seconds", "How long instances waited for the model.", ["model"],
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self.batch_seconds = Histogram(
            "official_bert_batch_seconds", "How long the model took for a batch.", ["model"],
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self.batch_size = Histogram(
            "official_bert_batch_size", "Instances in a batch.", ["model"], buckets=_COUNTS, registry=self._registry
        )
        self.waiting = Gauge(
            "official_bert_waiting", "Instances that wait for the model.", ["model"], registry=self._registry
        )
        self.in_flight = Gauge("official_bert_requests_under_way", "Requests in flight.", registry=self._registry)
        self.version = Gauge(
            "official_bert_version", "The version that answers by default.", ["model"], registry=self._registry
        )
        self.loads = Counter(
            "official_bert_loads", "Versions loaded, or not.", ["model", "result"], registry=self._registry
        )

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self._registry)
