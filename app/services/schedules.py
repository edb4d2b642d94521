"""Use cases of schedules: when a model is trained again by itself, and whether an alias moves afterwards."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from app.domain.entities import Job, JobState, Json, new_id
from app.domain.errors import (
    Conflict,
    NotFound,
    Overloaded,
    PreconditionFailed,
    PreconditionRequired,
    ServiceError,
    Unavailable,
)
from app.domain.ports import JobQueue
from app.domain.schedules import (
    EVERY_SECONDS,
    LEAST_PAUSE,
    MAX_SCHEDULES,
    Schedule,
    ScheduleSettings,
)
from app.services.evaluations import create_evaluation
from app.services.models import get_version, point_alias
from app.services.quotas import require_bytes
from app.services.retraining import retrain
from app.settings import Settings
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_TOLD: Final = 500


def get_schedule(store: Store, model: str) -> Schedule:
    """The schedule of a model. Raises NotFound."""
    with store.read() as uow:
        return uow.schedules.get(model)


def put_schedule(
    store: Store,
    settings: Settings,
    model: str,
    wanted: ScheduleSettings,
    expected_revision: int | None,
    created_by: str,
) -> Schedule:
    """Give a model a schedule, or change it. It has trained nothing yet, as it stands.

    expected_revision: that the caller read; 0 for a new one; None for either, which an existing one does not
    allow. Raises NotFound for a model, an alias or a data set that there is not, Conflict for an alias whose
    version nobody here knows how to train and beyond `MAX_SCHEDULES`, TooLarge beyond the tenant's bytes,
    PreconditionFailed and PreconditionRequired.
    """
    version = get_version(store, model, wanted.base)
    if version.job_id is None:
        text = f"Version {version.version} of model {model!r} was imported: nobody here knows its training."
        raise Conflict(text, code="base_without_job")
    now = time.time()
    with store.begin() as uow:
        require_bytes(uow, settings, store.tenant)
        trained_on = uow.jobs.get(version.job_id).dataset_id
        if wanted.dataset_id is not None:
            uow.datasets.get(wanted.dataset_id)
        present = uow.schedules.find(model, lock=True)
        schedule = Schedule(
            id=new_id("sch") if present is None else present.id,
            tenant=store.tenant,
            model=model,
            settings=wanted,
            revision=1 if present is None else present.revision + 1,
            created_by=created_by,
            created_at=now if present is None else present.created_at,
            updated_at=now,
            next_at=None if wanted.every is None else now + EVERY_SECONDS[wanted.every],
            dataset_id=trained_on,
            # Alarms of before are not what it waits for.
            alarm_at=uow.schedules.newest_alarm(model),
            started_at=0.0 if present is None else present.started_at,
            job_id=None,
            evaluation_id=None,
            outcome=None,
            failures=0,
            stopped=False,
        )
        _check_revision(model, present, expected_revision)
        if present is None:
            if uow.schedules.count() >= MAX_SCHEDULES:
                text = f"The tenant has {MAX_SCHEDULES} schedules, which is the most."
                raise Conflict(text, code="too_many_schedules")
            uow.schedules.add(schedule)
        else:
            uow.schedules.replace(schedule, expected_revision=present.revision)
        details = wanted.model_dump(mode="json")
        uow.audit.append("schedule.set", model, details=details)
    return schedule


def delete_schedule(store: Store, model: str, expected_revision: int | None) -> None:
    """Delete the schedule of a model; a job that it has begun goes on.

    Raises NotFound, PreconditionFailed and PreconditionRequired.
    """
    with store.begin() as uow:
        present = uow.schedules.find(model, lock=True)
        if present is None:
            raise NotFound(f"Model {model!r} has no schedule.", code="schedule_not_found")
        _check_revision(model, present, expected_revision)
        uow.schedules.delete(model)
        uow.audit.append("schedule.delete", model)


def run_schedules(store: Store, queue: JobQueue, settings: Settings, now: float) -> int:
    """Begin what is due, and go on with what has begun; returns how many jobs were begun.

    Called by the elected worker. What a schedule does has an id that is made of what made it due, so that a
    worker that dies in between, or a second one, begins one job and tells of one event. Raises Unavailable.
    """
    with store.read() as uow:
        active = uow.schedules.active()
    begun = 0
    for tenant, model in active:
        try:
            begun += _Run(store.of_tenant(tenant), queue, settings, model, now).step()
        except Unavailable:
            raise
        except ServiceError as error:
            logger.warning("schedule of model %r of tenant %r: %s", model, tenant, error)
    return begun


class _Run:
    """One schedule at one time."""

    def __init__(self, store: Store, queue: JobQueue, settings: Settings, model: str, now: float) -> None:
        self._store, self._queue, self._settings = store, queue, settings
        self._model, self._now = model, now

    def step(self) -> int:
        """What is next; returns whether it was the beginning of a job."""
        with self._store.read() as uow:
            schedule = uow.schedules.find(self._model)
        if schedule is None or schedule.stopped:
            return 0
        if schedule.outcome == "queued":
            return self._after_job(schedule)
        if schedule.outcome == "evaluating":
            return self._after_evaluation(schedule)
        due = self._due(schedule)
        return 0 if due is None else self._begin(schedule, *due)

    def _due(self, schedule: Schedule) -> tuple[str, str, dict[str, Any]] | None:
        """What makes a schedule due, the same text for the same occasion, and what is noted of it then."""
        wanted = schedule.settings
        if schedule.next_at is not None and wanted.every is not None and schedule.next_at <= self._now:
            period = EVERY_SECONDS[wanted.every]
            # Times that were missed are made up for once.
            missed = (self._now - schedule.next_at) // period
            following = schedule.next_at + (missed + 1) * period
            return wanted.every, f"time {schedule.next_at}", {"next_at": following}
        if self._now - schedule.started_at < LEAST_PAUSE:
            return None
        with self._store.read() as uow:
            if wanted.alarm and (alarm_at := uow.schedules.newest_alarm(self._model)) > schedule.alarm_at:
                return "alarm", f"alarm {alarm_at}", {"alarm_at": alarm_at}
            if wanted.new_rows is None or schedule.dataset_id is None:
                return None
            name = wanted.dataset_id or schedule.dataset_id
            try:
                newest = uow.datasets.get(f"{name.removesuffix('@latest')}@latest")
                before = uow.datasets.get(schedule.dataset_id).rows
            except NotFound:
                return None
        if newest.id == schedule.dataset_id or newest.rows - before < wanted.new_rows:
            return None
        return "new_rows", f"rows {newest.id}", {"dataset_id": newest.id}

    def _begin(self, schedule: Schedule, reason: str, occasion: str, noted: dict[str, Any]) -> int:
        wanted = schedule.settings
        key = _digest(schedule.id, schedule.revision, occasion)
        name = wanted.dataset_id or schedule.dataset_id
        try:
            job, _ = retrain(
                self._store,
                self._queue,
                self._settings,
                self._model,
                wanted.base,
                dataset_id=None if name is None else f"{name.removesuffix('@latest')}@latest",
                alias=None,
                hyperparameters={},
                created_by=schedule.created_by,
                idempotency_key=f"schedule-{key}",
                body_digest=key,
                classes=wanted.classes,
                noted={"scheduled": {"schedule": schedule.id, "reason": reason}},
            )
        except ServiceError as error:
            if isinstance(error, Unavailable):
                raise
            self._skipped(schedule, reason, key, error, noted)
            return 0
        changes = {"job_id": job.id, "evaluation_id": None, "started_at": self._now, "outcome": "queued"}
        told = {"reason": reason, "job_id": job.id, "links": {"job": f"/v1/training-jobs/{job.id}"}}
        self._note(schedule, noted | changes | {"dataset_id": job.dataset_id}, "schedule.queued", key, told)
        return 1

    def _skipped(
        self, schedule: Schedule, reason: str, key: str, error: ServiceError, noted: dict[str, Any]
    ) -> None:
        """Tell once why nothing was begun. What may be possible soon stays due."""
        kept = {} if isinstance(error, Overloaded) else noted
        told = {"reason": reason, "code": error.reason, "message": error.message[:_TOLD]}
        outcome = f"skipped:{error.reason}"
        self._note(schedule, kept | {"outcome": outcome}, "schedule.skipped", key, told)

    def _after_job(self, schedule: Schedule) -> int:
        try:
            with self._store.read() as uow:
                job = uow.jobs.get(str(schedule.job_id))
        except NotFound:
            self._note(schedule, {"outcome": "failed"})
            return 0
        if not job.state.ended:
            return 0
        if job.version is None or job.state is not JobState.SUCCEEDED:
            self._failed(schedule, job)
            return 0
        if schedule.settings.promote == "never":
            self._note(schedule, {"outcome": "trained", "failures": 0})
            return 0
        self._evaluate(schedule, job.version)
        return 0

    def _failed(self, schedule: Schedule, job: Job) -> None:
        failures = schedule.failures + (job.state is not JobState.CANCELLED)
        stops = failures >= schedule.settings.stop_after_failures
        changes = {"outcome": "failed", "failures": failures, "stopped": stops}
        if not stops:
            self._note(schedule, changes)
            return
        told = {"failures": failures, "job_id": job.id}
        self._note(schedule, changes, "schedule.stopped", _digest(schedule.id, "stopped", job.id), told)

    def _evaluate(self, schedule: Schedule, version: int) -> None:
        """Evaluate the new version as the gate of its alias wants it."""
        alias = str(schedule.settings.alias)
        with self._store.read() as uow:
            present, gate = uow.models.find_alias(self._model, alias), uow.gates.find(self._model, alias)
        if gate is None or present is None:
            self._note(schedule, {"outcome": "not_promoted:no_gate", "failures": 0})
            return
        if present.version == version:
            self._note(schedule, {"outcome": "promoted", "failures": 0})
            return
        names = f"{self._model}@{version}", f"{self._model}@{present.version}"
        with self._store.read() as uow:
            known, _ = uow.evaluations.page(
                limit=1, version=names[0], baseline=names[1], dataset_id=gate.dataset_id
            )
        if known:
            evaluation_id = known[0].id
        else:
            try:
                evaluation_id = create_evaluation(
                    self._store,
                    self._queue,
                    self._settings,
                    version=names[0],
                    baseline=names[1],
                    dataset_id=gate.dataset_id,
                    part="all",
                    tolerance=gate.tolerance,
                    alpha=gate.alpha,
                    unknown_classes="drop",
                    created_by=schedule.created_by,
                ).id
            except Overloaded:
                # There will be room later.
                return
            except ServiceError as error:
                if isinstance(error, Unavailable):
                    raise
                self._note(schedule, {"outcome": f"not_promoted:{error.reason}", "failures": 0})
                return
        self._note(schedule, {"outcome": "evaluating", "evaluation_id": evaluation_id, "failures": 0})

    def _after_evaluation(self, schedule: Schedule) -> int:
        alias = str(schedule.settings.alias)
        try:
            with self._store.read() as uow:
                found = uow.evaluations.get(str(schedule.evaluation_id))
                present = uow.models.alias(self._model, alias)
                gate = uow.gates.find(self._model, alias)
        except NotFound as error:
            self._note(schedule, {"outcome": f"not_promoted:{error.reason}"})
            return 0
        if not found.state.ended:
            return 0
        version = int(found.version.rpartition("@")[2])
        outcome = "promoted"
        if gate is None:
            outcome = "not_promoted:no_gate"
        elif found.baseline != f"{self._model}@{present.version}":
            # A person has moved it in the meantime, and knows better.
            outcome = "promoted" if present.version == version else "not_promoted:alias_moved"
        else:
            try:
                point_alias(self._store, self._settings, self._model, alias, version, present.revision)
            except (Conflict, PreconditionFailed) as error:
                outcome = f"not_promoted:{error.reason}"
        told = {"version": version, "alias": alias, "outcome": outcome, "evaluation": found.id}
        self._note(schedule, {"outcome": outcome}, "schedule.evaluated", _digest(schedule.id, found.id), told)
        return 0

    def _note(
        self,
        schedule: Schedule,
        changes: Mapping[str, Any],
        event: str | None = None,
        key: str = "",
        told: Json | None = None,
    ) -> None:
        """Store what a schedule did, unless somebody has changed it; with an event that has one id."""
        with self._store.begin() as uow:
            present = uow.schedules.find(self._model, lock=True)
            if present is None or present.revision != schedule.revision:
                return
            uow.schedules.note(schedule.id, **changes)
            if event is not None:
                data = {"model": self._model} | (told or {})
                event_id = f"evt_{_digest(event, key)[:24]}"
                uow.outbox.announce(
                    event, self._store.tenant, self._model, data, model=self._model, event_id=event_id
                )


def _check_revision(model: str, present: Schedule | None, expected: int | None) -> None:
    if present is not None and expected is None:
        text = f"Model {model!r} has a schedule: send If-Match with its revision, {present.revision}."
        raise PreconditionRequired(text)
    if expected is not None and expected != (0 if present is None else present.revision):
        raise PreconditionFailed(f"The schedule of model {model!r} has changed since it was read.")


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(one) for one in parts]).encode()).hexdigest()[:40]
