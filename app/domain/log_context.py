"""The context of log lines: the job in progress and the trace, held in ContextVars.

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
    """Set the job of this thread, for processes that work on one job only."""
    _JOB.set(job_id)


@contextmanager
def working_on(job_id: str) -> Iterator[None]:
    """Set the job of this thread for the block."""
    token = _JOB.set(job_id)
    try:
        yield
    finally:
        _JOB.reset(token)


@contextmanager
def traced(context: TraceContext | None) -> Iterator[None]:
    """Make ``context`` the span in progress for the block, also in the threads that it starts."""
    token = _TRACE.set(context)
    try:
        yield
    finally:
        _TRACE.reset(token)
