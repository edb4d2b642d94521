"""A solver's progress, thinned out and stored where users look for it."""

from __future__ import annotations

import logging
import time

from app.domain.entities import JobState, Json
from app.domain.errors import Unavailable
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_LEAST_SECONDS = 0.5
_SHARE_OF_STAGE = 0.02
_OF_STUDENTS = {"student": "students", "tuning": "tuning", "sizes": "tuning", "compact_rows": "students"}
"""What goes on within the stage of all students, which the step that plans them announces."""


class Reporter:
    """Stores stage_started and stage_progress events of one job.

    At most two a second, and ever fewer the longer a stage lasts, so that a stage of days stores hundreds.
    Progress that cannot be stored is dropped with a warning: the work itself goes on.

    stages: whether the job's stage is this solver's. That of one chunk among others only tells progress: it
    may read the data again while others train.
    """

    def __init__(self, store: Store, job_id: str, attempt: int, *, stages: bool = True) -> None:
        self._stages = stages
        self._store = store
        self._job_id = job_id
        self._attempt = attempt
        self._stage = ""
        self._stage_began = 0.0
        self._told_at = 0.0

    def __call__(self, progress: Json) -> None:
        """Take one progress message of the solver."""
        now = time.monotonic()
        stage = shown = str(progress["stage"])
        if stage in _OF_STUDENTS:
            # A job is in one stage, while some of its students are searched for and others fitted.
            stage, shown = "students", _OF_STUDENTS[stage]
        told = {name: value for name, value in progress.items() if name != "type" and value is not None}
        told["stage"] = shown
        if stage != self._stage:
            self._stage, self._stage_began, self._told_at = stage, now, now
            if stage != "students" and self._stages:
                self._write("stage_started", {"stage": stage}, stage)
        elif now - self._told_at >= max(_LEAST_SECONDS, _SHARE_OF_STAGE * (now - self._stage_began)):
            self._told_at = now
            self._write("stage_progress", told, None)

    def _write(self, event: str, data: Json, stage: str | None) -> None:
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
