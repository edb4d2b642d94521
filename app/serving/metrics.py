"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

BUCKETS = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds. The lowest is below the cost of the smallest query, the highest above the largest."""

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The counters of one server process, in a registry of their own.

    A model's name is a label only once the model was found, so a caller cannot make up labels.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._queries = Counter(
            "stms_queries", "Single-class queries answered.", ["model", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "stms_query_seconds",
            "Time from a query's arrival to its answer, of queries that succeeded.",
            ["model"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._rows = Counter("stms_query_rows", "Rows decided.", ["model"], registry=self.registry)
        self._predictions = Counter(
            "stms_predictions", "Requests to the full teacher answered.", ["model"], registry=self.registry
        )
        self._good: dict[str, tuple[Counter, Histogram, Counter]] = {}
        ProcessCollector(registry=self.registry)

    def answered(self, model: str, rows: int, seconds: float) -> None:
        """Count a query that succeeded."""
        good = self._good.get(model)
        if good is None:
            good = (
                self._queries.labels(model, "200"),
                self._seconds.labels(model),
                self._rows.labels(model),
            )
            self._good[model] = good
        good[0].inc()
        good[1].observe(seconds)
        good[2].inc(rows)

    def refused(self, model: str, status: int) -> None:
        """Count a query that failed; model is empty where it was not found."""
        self._queries.labels(model, str(status)).inc()

    def predicted(self, model: str) -> None:
        """Count an answer of the full teacher."""
        self._predictions.labels(model).inc()

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def watch_jobs(self, count: Callable[[], Mapping[str, int] | None]) -> None:
        """Training jobs by state; ``count`` gives None while the database cannot be reached."""
        self.registry.register(_Jobs(count))

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _Jobs(Collector):
    def __init__(self, count: Callable[[], Mapping[str, int] | None]) -> None:
        self._count = count

    def collect(self) -> Iterable[Metric]:
        counts = self._count()
        up = GaugeMetricFamily("stms_database_up", "1 while the database answers.")
        up.add_metric([], 0.0 if counts is None else 1.0)
        yield up
        if counts is not None:
            jobs = GaugeMetricFamily("stms_jobs", "Training jobs by state.", labels=["state"])
            for state, number in counts.items():
                jobs.add_metric([state], number)
            yield jobs

    def describe(self) -> Iterable[Metric]:
        # Named without asking the database: registering must not need it.
        return [GaugeMetricFamily("stms_database_up", ""), GaugeMetricFamily("stms_jobs", "")]
