"""The spans of one work unit: its wait in the queue, the unit itself, its stages and its students.

The request that submitted the job is the first span of the trace; its id is stored with the job. All units of
an attempt, on any worker, are children of the span of the queue, whose id is computed from job and attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from app.domain.entities import Job, Json
from app.domain.log_context import TraceContext, traced
from app.jobs.solver.messages import StudentResult
from app.jobs.workflow.running_job import STUDENT_STAGES
from app.jobs.workflow.work_units import PREPARE, WorkUnit
from app.tracing import Span, Tracer, begin, derived_id, parse_traceparent

_NUMBERS: Final = ("objective", "gap", "iterations", "seconds")


class UnitTrace:
    """Records the spans of a unit; without a tracer, or for a job that is not traced, it does nothing."""

    def __init__(self, tracer: Tracer | None = None, parent: TraceContext | None = None) -> None:
        self._tracer = None if parent is None else tracer
        self._parent = parent
        self._stage: Span | None = None

    def reporting(self, report: Callable[[Json], None]) -> Callable[[Json], None]:
        """``report``, which also begins a span for each new stage of the solver."""

        def reported(progress: Json) -> None:
            stage = progress.get("stage")
            if stage is not None:
                self.enter("students" if stage in STUDENT_STAGES else str(stage))
            report(progress)

        return reported if self._tracer is not None else report

    def enter(self, stage: str) -> None:
        """End the span of the current stage and begin another, unless it is the same."""
        if self._tracer is None or self._parent is None or (self._stage and self._stage.name == stage):
            return
        self.leave()
        self._stage = begin(stage, self._parent)

    def leave(self) -> None:
        """End the span of the current stage."""
        if self._tracer is not None and self._stage is not None:
            self._tracer.finish(self._stage)
        self._stage = None

    def trained(self, results: Sequence[StudentResult]) -> None:
        """Record students that have just finished, as children of the stage "students"."""
        if self._tracer is None:
            return
        self.enter("students")
        assert self._stage is not None  # noqa: S101 - `enter` has set it
        now = time.time()
        for result in results:
            attributes: dict[str, Any] = {f"stms.{name}": result.row.get(name) for name in _NUMBERS}
            attributes |= {"stms.class": result.label, "stms.method": result.key[1]}
            span = begin("student", self._stage.context, attributes)
            span.start = now - float(result.row.get("seconds") or 0.0)
            if result.packed is None:
                span.error = str(result.row.get("code"))
            self._tracer.finish(span)


@contextmanager
def unit_trace(
    tracer: Tracer | None, job: Job, unit: WorkUnit, executor: str, *, is_first: bool
) -> Iterator[UnitTrace]:
    """The trace of a unit while the block runs it. is_first: whether no worker has begun it before."""
    request = None if tracer is None or job.traceparent is None else parse_traceparent(job.traceparent)
    if tracer is None or request is None:
        yield UnitTrace()
        return
    queue_id = derived_id(f"{job.id}.{unit.attempt}")
    if unit.number == PREPARE and is_first:
        waited = begin("queue", request, {"stms.job.id": job.id}, span_id=queue_id)
        waited.start = job.queued_at or job.created_at
        tracer.finish(waited)
    attributes: dict[str, Any] = {"stms.job.id": job.id, "stms.attempt": unit.attempt}
    attributes |= {"stms.unit": unit.number, "stms.worker": executor}
    span = begin("unit", TraceContext(request.trace_id, queue_id), attributes)
    trace = UnitTrace(tracer, span.context)
    try:
        with traced(span.context):
            yield trace
    except BaseException as error:
        span.error = type(error).__name__
        raise
    finally:
        trace.leave()
        tracer.finish(span)
