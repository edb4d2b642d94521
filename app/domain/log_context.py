"""What log lines name besides their message: the job in progress and the trace, held in ContextVars.

The request and its API key are in `app.domain.audit_context`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple


class TraceContext(NamedTuple):
    """Ids of a trace and of its span in progress, 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str


_JOB: Final[ContextVar[str | None]] = ContextVar("stms_job", default=None)
_TRACE: Final[ContextVar[TraceContext | None]] = ContextVar("stms_trace", default=None)


def current_job() -> str | None:
    """Id of the job that this thread works on."""
    return _JOB.get() or None


def current_trace() -> TraceContext | None:
    """The recorded span in progress; None if nothing is recorded."""
    return _TRACE.get()


def work_on(job_id: str) -> None:
    """From now on this thread works on a job; for processes that work on one job only."""
    _JOB.set(job_id)


@contextmanager
def working_on(job_id: str) -> Iterator[None]:
    """Within the block, this thread works on a job."""
    token = _JOB.set(job_id)
    try:
        yield
    finally:
        _JOB.reset(token)


@contextmanager
def traced(context: TraceContext | None) -> Iterator[None]:
    """Within the block, and in the threads that it starts, ``context`` is the span in progress."""
    token = _TRACE.set(context)
    try:
        yield
    finally:
        _TRACE.reset(token)
