"""Figures about the whole installation, which every server process reads from the database."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

JOB_SECONDS: Final = (
    1.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    86400.0,
)
"""Upper bounds of the buckets in the histogram of job durations."""

JOB_SECONDS_SUM: Final = "job_seconds_sum"
JOB_SECONDS_BUCKET: Final = "job_seconds_bucket"
JOB_ERRORS: Final = "job_errors"
JOB_EVENTS: Final = "job_events"
"""Names of tallies: of jobs by outcome, of failed jobs by error code, and of `COUNTED_EVENTS` by type."""

WEBHOOK_ATTEMPTS: Final = "webhook_attempts"
ATTEMPT_OUTCOMES: Final = ("delivered", "failed", "dead")
"""Name of the tally of attempts to deliver events to webhooks, and its labels; the last attempt is "dead"."""
WORKER_FAILURES: Final = "worker_failures"
WORKER_PARTS: Final = ("webhook outcomes", "webhook requests", "webhook events", "failure counts")
"""Name of the tally of failed periodic work of the elected worker, and the parts of that work."""

COUNTED_EVENTS: Final = frozenset({"worker_took_over", "job_restarted", "solver_died", "solver_hung"})
"""Types of events that are rare and important to an operator."""

COUNTED_ERRORS: Final = frozenset(
    {
        "cache_full",
        "internal_error",
        "out_of_memory",
        "solver_died",
        "step_too_slow",
        "students_failed",
        "students_not_good_enough",
        "time_limit",
        "too_many_restarts",
    }
)
"""Error codes of jobs with a counter of their own; all others count as `OTHER_ERRORS`."""
OTHER_ERRORS: Final = "others"


@dataclass(frozen=True, slots=True)
class DatabaseFigures:
    """What metrics say about the database.

    jobs: numbers by state. oldest_queued_seconds: how long the oldest queued job has waited; 0 without one.
    work_units: units of work that wait and that run, see `app.store.repositories.units.UnitCounts`.
    units_done, units_total: finished and all students of unfinished jobs, a teacher counted as one more.
    workers: numbers of those that are alive, silent (no recent heartbeat) and lost (their work goes on
    elsewhere). slots, busy: of the workers that are alive. tallies: counters by name and label.
    deliveries: to webhooks that wait for an attempt. late_seconds: how long the first of them has been due.
    broken_promises: alarms of monitors that nobody has acknowledged.
    """

    jobs: Mapping[str, int]
    oldest_queued_seconds: float
    work_units: Mapping[str, int]
    units_done: int
    units_total: int
    workers: Mapping[str, int]
    slots: int
    busy: int
    tallies: Mapping[tuple[str, str], float]
    deliveries: int = 0
    late_seconds: float = 0.0
    broken_promises: int = 0


class InputRow(NamedTuple):
    """What the records of queries to a version were like in one hour.

    hour: since the epoch. records: that were answered. sampled: those whose values were put into bins.
    counts: of each column its `UNUSUAL` and its bins, uint32, little endian.
    """

    hour: int
    records: int
    sampled: int
    counts: bytes


HOUR: Final = 3600.0
KEPT_INPUTS_DAYS: Final = 90
"""Days for which counts of inputs and answers are kept."""
UNUSUAL: Final = ("gap", "unseen", "outside", "cut")
"""What is unusual about a value of a record: it is missing, a category that training did not have, a number
or date outside its range in training, or a text that is truncated because it is too long."""


def error_label(code: str) -> str:
    """Label of the tally `JOB_ERRORS` of a job that failed with ``code``."""
    return code if code in COUNTED_ERRORS else OTHER_ERRORS


SERVER_ALIVE_SECONDS: Final = 10.0
"""A group of server processes is alive if its last heartbeat is not older than this."""


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A group of server processes on one machine, as it was at its last beat.

    id: shared by the processes of the group. pid: of the process that writes. program: its version.
    started_at: when this process started, by its own clock. beat_at: by the database's clock. figures: see
    `app.serving.server_beats`.
    """

    id: str
    host: str
    pid: int
    program: str
    started_at: float
    beat_at: float
    figures: dict[str, Any]

    def is_alive(self, now: float) -> bool:
        """Whether the last heartbeat was at most `SERVER_ALIVE_SECONDS` before ``now`` (database clock)."""
        return now - self.beat_at <= SERVER_ALIVE_SECONDS


def bucket_label(outcome: str, seconds: float) -> str:
    """Label of the tally `JOB_SECONDS_BUCKET` of a job: its outcome, and the number of its bucket."""
    return f"{outcome} {bisect_left(JOB_SECONDS, seconds)}"
