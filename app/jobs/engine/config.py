"""The job engine's names and addresses: what the client in an API process and a worker must agree on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypedDict

import sqlalchemy as sa
from dbos import DBOSPortableJSONSerializer, Serializer, _sys_db, _utils
from dbos._error import DBOSAwaitedWorkflowCancelledError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from app.settings import Settings
from app.store.db_errors import unavailable_of

APPLICATION = "stms"
APPLICATION_VERSION = "1"
"""A constant: the engine's default hashes the source and would strand unfinished jobs at every upgrade."""
JOB_QUEUE = "stms-jobs"
UNIT_QUEUE = "stms-units"
TRAIN_MODEL = "train_model"
TRAIN_UNIT = "train_unit"
SCHEMA = "dbos"
COORDINATORS = 64
"""Jobs that one worker coordinates at once; it waits most of the time."""
_ENQUEUED = "ENQUEUED"
_POLL_SECONDS = 0.1
_BUSY_POLL_SECONDS = 0.3
_LIMITS_SECONDS = 5.0
_LONGEST_NAP_SECONDS = 2.0


class Limits(TypedDict):
    """Of one queue: items a worker runs at once, and how often it looks for new ones."""

    worker_concurrency: int
    polling_interval_sec: float


def queue_limits(settings: Settings) -> dict[str, Limits]:
    """Every queue. Jobs wait in one, their units of work in the other, where all the computing is."""
    return {
        JOB_QUEUE: Limits(worker_concurrency=COORDINATORS, polling_interval_sec=_POLL_SECONDS),
        UNIT_QUEUE: Limits(
            worker_concurrency=settings.worker_concurrency, polling_interval_sec=_POLL_SECONDS
        ),
    }


def serializer() -> Serializer:
    """JSON: the engine's default would pickle."""
    return DBOSPortableJSONSerializer()


def engine_url(settings: Settings) -> str:
    """The jobs database as the engine wants it: plain ``postgresql://``, it picks the driver itself."""
    address = settings.jobs_database_url
    if address.startswith("sqlite"):
        return address
    return make_url(address).set(drivername="postgresql").render_as_string(hide_password=False)


class _ShortNaps:
    """The module `time`, but nobody sleeps long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, _LONGEST_NAP_SECONDS))


def nap_shortly() -> None:
    """Have the engine look for a lost database every two seconds; by itself it waits up to 90."""
    setattr(_sys_db, "time", _ShortNaps())  # noqa: B010 - not the module that its types know


def wait_for_room() -> None:
    """Have the engine try again what a full disk kept SQLite from writing, as it does with a locked file."""
    setattr(_sys_db, "retriable_sqlite_exception", _may_pass)  # noqa: B010 - a name it imports for itself


def look_lightly(engine: Any, is_busy: Callable[[], bool]) -> None:
    """Have the engine's threads cost less for looking into the queues.

    They would read limits each time, and take long to find what a question tells: that nothing waits.
    While this worker is at a unit it looks for new jobs less often: its core is the solver's.
    """
    read: Callable[..., Any] = engine.get_queue
    claim: Callable[..., Any] = engine.start_queued_workflows
    table = engine.tables.workflow_status
    of_queue = (table.c.queue_name == sa.bindparam("queue"), table.c.status == _ENQUEUED)
    one_waits = sa.select(sa.literal(1)).where(*of_queue).limit(1)
    known: dict[str, tuple[float, Any]] = {}

    def get_queue(name: str, **options: Any) -> Any:
        now = time.monotonic()
        if name not in known or now - known[name][0] > _LIMITS_SECONDS:
            known[name] = (now, read(name, **options))
        queue = known[name][1]
        if queue is not None and name == JOB_QUEUE:
            queue._polling_interval_sec = _BUSY_POLL_SECONDS if is_busy() else _POLL_SECONDS
        return queue

    def start_queued_workflows(queue: Any, *arguments: Any, **options: Any) -> Any:
        with engine.engine.connect() as connection:
            # One question needs no transaction, whose begin and end are as long a way as the question.
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            waits = connection.execute(one_waits, {"queue": queue.name}).first()
        return ([], None) if waits is None else claim(queue, *arguments, **options)

    engine.get_queue = get_queue
    engine.start_queued_workflows = start_queued_workflows


def _may_pass(error: Exception) -> bool:
    if _utils.retriable_sqlite_exception(error):
        return True
    cause = unavailable_of(error) if isinstance(error, DBAPIError) else None
    return cause is not None and cause.reason == "storage_full"


def quiet_engine_log() -> None:
    """Let the engine log through our handlers: with one in place it adds no console output of its own."""
    log = logging.getLogger("dbos")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    log.setLevel(logging.WARNING)
    log.addFilter(_is_no_cancel)


def _is_no_cancel(record: logging.LogRecord) -> bool:
    """A workflow that somebody cancelled is an error to the engine, with a traceback, but not to us."""
    return not (record.exc_info and isinstance(record.exc_info[1], DBOSAwaitedWorkflowCancelledError))
