"""Stores a solver's progress as events of its job, at a limited rate."""

from __future__ import annotations

import logging
import time
from typing import Final

from app.domain.entities import JobState, Json
from app.domain.errors import Unavailable
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_MIN_SECONDS: Final = 0.5
_SHARE_OF_STAGE: Final = 0.02
_STUDENT_STAGES: Final = {
    "student": "students",
    "tuning": "tuning",
    "sizes": "tuning",
    "compact_rows": "students",
}
"""Stages of the solver within the job's stage "students", which `steps.plan_chunk` announces."""


class ProgressReporter:
    """Stores stage_started and stage_progress events of one job.

    It stores at most two a second, and fewer the longer a stage lasts, so that a stage of days stores
    hundreds. Progress that cannot be stored is dropped with a warning; the work itself goes on.

    stages: whether the solver's stage is the job's. A chunk among others reports progress only: its solver
    may read the data again while others train.
    """

    def __init__(self, store: Store, job_id: str, attempt: int, *, stages: bool = True) -> None:
        self._stages = stages
        self._store = store
        self._job_id = job_id
        self._attempt = attempt
        self._stage = ""
        self._stage_began = 0.0
        self._stored_at = 0.0

    def __call__(self, progress: Json) -> None:
        """Take the header of one progress message."""
        now = time.monotonic()
        stage = shown = str(progress["stage"])
        if stage in _STUDENT_STAGES:
            # A job is in one stage, while some of its students are tuned and others fitted.
            stage, shown = "students", _STUDENT_STAGES[stage]
        data = {name: value for name, value in progress.items() if name != "type" and value is not None}
        data["stage"] = shown
        if stage != self._stage:
            self._stage, self._stage_began, self._stored_at = stage, now, now
            if stage != "students" and self._stages:
                estimate = {name: data[name] for name in ("expected_seconds",) if name in data}
                self._store_event("stage_started", {"stage": stage, **estimate}, stage)
        elif now - self._stored_at >= max(_MIN_SECONDS, _SHARE_OF_STAGE * (now - self._stage_began)):
            self._stored_at = now
            self._store_event("stage_progress", data, None)

    def _store_event(self, event: str, data: Json, stage: str | None) -> None:
        try:
            with self._store.begin() as uow:
                job = uow.jobs.lock(self._job_id)
                if job.state is not JobState.RUNNING or job.attempt != self._attempt:
                    return
                uow.events.append(self._job_id, event, data)
                if stage is not None:
                    uow.jobs.change(self._job_id, stage=stage)
        except Unavailable as error:
            logger.warning("job %s: progress not stored: %s", self._job_id, error)
