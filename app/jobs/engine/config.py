"""DBOS settings on which the client in an API process and a worker must agree."""

from __future__ import annotations

import logging
from typing import Final, TypedDict

from dbos import DBOSPortableJSONSerializer, Serializer, error
from sqlalchemy.engine import make_url

from app.domain.entities import Priority
from app.services.admission import MAX_COORDINATED_JOBS, regular_jobs
from app.settings import Settings

APPLICATION: Final = "stms"
APPLICATION_VERSION: Final = "1"
"""A constant: DBOS's default hashes the source code and would strand unfinished jobs at every upgrade."""

JOB_QUEUE: Final = "stms-jobs"
UNIT_QUEUE: Final = "stms-units"
TRAIN_MODEL: Final = "train_model"
TRAIN_UNIT: Final = "train_unit"
EVALUATE: Final = "evaluate"
"""DBOS stores names of queues and workflows with every job, so they must never change."""

SCHEMA: Final = "dbos"

POLL_SECONDS: Final = 0.1
BUSY_POLL_SECONDS: Final = 0.3
"""Poll interval of the job queue while a unit runs on this worker, because the solver needs the core."""


_LEVELS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
_POSITIONS_PER_LEVEL: Final = 2**29


def priority_level(priority: Priority) -> int:
    """Level in the queue of units; units of a smaller level are always taken first."""
    return _LEVELS[priority]


def queue_priority(level: int, turn: int) -> int:
    """Priority for DBOS, from 1; smaller is sooner. turn: start tag of the tenant's fair queueing."""
    return level * _POSITIONS_PER_LEVEL + min(turn, _POSITIONS_PER_LEVEL - 1)


class QueueLimits(TypedDict):
    """worker_concurrency: items that one worker runs at the same time."""

    worker_concurrency: int
    polling_interval_sec: float


def queue_limits(settings: Settings) -> dict[str, QueueLimits]:
    """Limits by queue. Jobs wait in one queue; their work units, which do all the computing, in the other."""
    return {
        JOB_QUEUE: QueueLimits(
            worker_concurrency=MAX_COORDINATED_JOBS * regular_jobs([settings.worker_concurrency]),
            polling_interval_sec=POLL_SECONDS,
        ),
        UNIT_QUEUE: QueueLimits(
            worker_concurrency=settings.worker_concurrency, polling_interval_sec=POLL_SECONDS
        ),
    }


def serializer() -> Serializer:
    """A JSON serializer, because DBOS's default is pickle."""
    return DBOSPortableJSONSerializer()


def engine_url(settings: Settings) -> str:
    """URL of the jobs database for DBOS, which chooses the driver itself: plain ``postgresql://``.

    It accepts no standby server, unless the settings say otherwise.
    """
    address = settings.jobs_database_url
    if address.startswith("sqlite"):
        return address
    url = make_url(address).set(drivername="postgresql")
    if "target_session_attrs" not in url.query:
        url = url.update_query_dict({"target_session_attrs": "read-write"})
    return url.render_as_string(hide_password=False)


def quiet_engine_log() -> None:
    """Route DBOS's log through our handlers; if a handler exists, DBOS adds no console output of its own."""
    log = logging.getLogger("dbos")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    log.setLevel(logging.WARNING)
    log.addFilter(_is_not_cancellation)


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that DBOS logs for cancelled workflows: a cancellation is not an error here."""
    return not (record.exc_info and isinstance(record.exc_info[1], error.DBOSAwaitedWorkflowCancelledError))
