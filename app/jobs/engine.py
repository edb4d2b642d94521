"""The job engine's names and addresses: what the client in an API process and a worker must agree on."""

from __future__ import annotations

import logging
from typing import TypedDict

from dbos import DBOSPortableJSONSerializer, Serializer
from dbos._error import DBOSAwaitedWorkflowCancelledError
from sqlalchemy.engine import make_url

from app.settings import Settings

APPLICATION = "stms"
APPLICATION_VERSION = "1"
"""A constant: the engine's default hashes the source and would strand unfinished jobs at every upgrade."""
JOB_QUEUE = "stms-jobs"
CHUNK_QUEUE = "stms-chunks"
TRAIN_MODEL = "train_model"
TRAIN_CHUNK = "train_chunk"
SCHEMA = "dbos"


class Limits(TypedDict):
    """Of one queue: items a worker runs at once, and how often it looks for new ones."""

    worker_concurrency: int
    polling_interval_sec: float


def queue_limits(settings: Settings) -> dict[str, Limits]:
    """Every queue. Jobs and their chunks wait in two, so that no job waits for a slot it holds itself."""
    limits = Limits(worker_concurrency=settings.worker_concurrency, polling_interval_sec=0.1)
    return {JOB_QUEUE: limits, CHUNK_QUEUE: limits}


def serializer() -> Serializer:
    """JSON: the engine's default would pickle."""
    return DBOSPortableJSONSerializer()


def engine_url(settings: Settings) -> str:
    """The jobs database as the engine wants it: plain ``postgresql://``, it picks the driver itself."""
    address = settings.jobs_database_url
    if address.startswith("sqlite"):
        return address
    return make_url(address).set(drivername="postgresql").render_as_string(hide_password=False)


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
