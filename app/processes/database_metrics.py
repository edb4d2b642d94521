"""Metrics of the whole installation from the database, which are the same in every server process.

Sums over several servers would count them several times, so queries use ``max by (state)`` and the like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.domain.entities import JobState
from app.domain.figures import (
    ATTEMPT_OUTCOMES,
    COUNTED_ERRORS,
    COUNTED_EVENTS,
    JOB_ERRORS,
    JOB_EVENTS,
    JOB_SECONDS,
    JOB_SECONDS_BUCKET,
    JOB_SECONDS_SUM,
    OTHER_ERRORS,
    WEBHOOK_ATTEMPTS,
    WORKER_FAILURES,
    WORKER_PARTS,
    DatabaseFigures,
)

Health: TypeAlias = tuple[Mapping[str, bool], DatabaseFigures | None]
"""Whether each check of the database succeeded, by name; and the figures, None while it cannot be read."""


class DatabaseMetrics(Collector):
    """Renders the result of ``read``, which must not block."""

    def __init__(self, read: Callable[[], Health]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """All metrics; figures are left out while the database cannot be read."""
        checks, figures = self._read()
        up = figures is not None
        yield GaugeMetricFamily("stms_database_up", "1 while the database answers.", float(up))
        yield _gauges("stms_check_ok", "1 while a check of /readyz succeeds.", "check", checks)
        if figures is not None:
            yield from _gauges_of(figures)
            yield from _counters_of(figures.tallies)

    def describe(self) -> Iterable[Metric]:
        """No names: registration must not read the database."""
        return []


def _gauges_of(figures: DatabaseFigures) -> Iterable[Metric]:
    yield _gauges("stms_jobs", "Training jobs by state.", "state", figures.jobs)
    yield GaugeMetricFamily(
        "stms_jobs_oldest_queued_seconds",
        "How long the oldest queued job has waited; 0 without one.",
        figures.oldest_queued_seconds,
    )
    yield _gauges("stms_units", "Units of work of unfinished jobs by state.", "state", figures.work_units)
    students = {"done": figures.units_done, "total": figures.units_total}
    yield _gauges("stms_unfinished_students", "Students of unfinished jobs.", "state", students)
    yield _gauges("stms_workers", "Worker processes by state.", "state", figures.workers)
    yield GaugeMetricFamily(
        "stms_worker_slots", "Units that live workers can run at a time.", float(figures.slots)
    )
    yield GaugeMetricFamily("stms_worker_slots_busy", "Units that live workers run.", float(figures.busy))
    yield GaugeMetricFamily(
        "stms_webhook_deliveries_waiting", "Deliveries to webhooks that wait.", float(figures.deliveries)
    )
    yield GaugeMetricFamily(
        "stms_webhook_late_seconds",
        "How long the first waiting delivery to a webhook has been due; 0 without one.",
        figures.late_seconds,
    )
    yield GaugeMetricFamily(
        "stms_promise_broken",
        "Alarms of monitors that nobody has acknowledged.",
        float(figures.broken_promises),
    )


def _counters_of(tallies: Mapping[tuple[str, str], float]) -> Iterable[Metric]:
    """Every series from the start, because ``increase`` misses the event with which a series appears."""
    for name, text, label, tally, values in (
        (
            "job_events",
            "Events of jobs that an operator should learn of.",
            "type",
            JOB_EVENTS,
            COUNTED_EVENTS,
        ),
        ("webhook_attempts", "Attempts to reach webhooks.", "outcome", WEBHOOK_ATTEMPTS, ATTEMPT_OUTCOMES),
        ("worker_failures", "Failed periodic work of workers.", "part", WORKER_FAILURES, WORKER_PARTS),
    ):
        counter = CounterMetricFamily(f"stms_{name}", text, labels=[label])
        for value in sorted(values):
            counter.add_metric([value], tallies.get((tally, value), 0.0))
        yield counter
    errors = CounterMetricFamily("stms_job_errors", "Failed jobs by error code.", labels=["code"])
    seconds = HistogramMetricFamily(
        "stms_job_seconds", "Time from the start of a job to its end.", labels=["outcome"]
    )
    for code in sorted({*COUNTED_ERRORS, OTHER_ERRORS}):
        errors.add_metric([code], tallies.get((JOB_ERRORS, code), 0.0))
    for state in JobState:
        if state.ended:
            total = tallies.get((JOB_SECONDS_SUM, state.value), 0.0)
            seconds.add_metric([state.value], _buckets(tallies, state.value), total)
    yield errors
    yield seconds


def _buckets(tallies: Mapping[tuple[str, str], float], outcome: str) -> list[tuple[str, float]]:
    """Cumulative counts of a histogram, each with its upper bound."""
    limits = [*map(repr, JOB_SECONDS), "+Inf"]
    counts = [tallies.get((JOB_SECONDS_BUCKET, f"{outcome} {index}"), 0.0) for index in range(len(limits))]
    return list(zip(limits, accumulate(counts), strict=True))


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family
