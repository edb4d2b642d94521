"""The end of a job: counts and scores of its students, then the step that publishes its version.

The students are read in pages, each in its own transaction, because a job may have millions, and the database
ends a transaction in which a worker computes for seconds. Only the last step makes decisions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from app.domain.entities import (
    STAGES,
    STARVES,
    Job,
    JobState,
    Json,
    ModelVersion,
    StudentRow,
    StudentState,
)
from app.domain.remote_teacher import RemoteScores
from app.jobs.engine.client import RECORDS_LOST
from app.jobs.engine.step_runner import StepRunner, durable_step
from app.jobs.errors import AttemptLost
from app.jobs.workflow.running_job import CancellationCheck, JobPlan
from app.jobs.workflow.steps import lock_job, settle_cancelled
from app.services.derived_versions import Change, publish_record, store_changed_students, totals_of
from app.services.models import list_classes, moved_alias, pack_labels, publish
from app.services.version_metrics import StudentTotals
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store, UnitOfWork

_CLASSES_PER_PAGE: Final = 2000
_ENDED: Final = (StudentState.SUCCEEDED, StudentState.FAILED)
_NOT_TRAINED: Final = "It was not trained: the work on its chunk of classes failed."


def finish(
    runner: StepRunner,
    check: CancellationCheck,
    attempt: tuple[str, int],
    plan: JobPlan,
    *,
    is_complete: bool = False,
) -> None:
    """Count the students, then publish and end the job.

    is_complete: whether all work units have succeeded, so that no student may be missing. Raises what the
    check raises, and AttemptLost if one is missing nevertheless.
    """
    totals = total_students(runner.store, check, attempt, plan, is_complete=is_complete)
    totals.add(check.retry_while_unavailable(partial(_kept_students, runner.store, attempt[0], plan)))
    labels = pack_labels(plan.classes) if totals.is_served and plan.spec.publish else None
    runner.run(finish_job, *attempt, plan, totals, labels)


def total_students(
    store: Store,
    check: CancellationCheck,
    attempt: tuple[str, int],
    plan: JobPlan,
    *,
    is_complete: bool = False,
) -> StudentTotals:
    """Totals of all students. Those without a result get a failed row. Raises as `finish`."""
    totals = StudentTotals(plan.spec.served_method)
    for first in range(0, len(plan.targets), _CLASSES_PER_PAGE):
        check()
        stop = min(first + _CLASSES_PER_PAGE, len(plan.targets))
        page = partial(_ended_students, store, attempt, plan, first, stop, is_complete=is_complete)
        totals.add(check.retry_while_unavailable(page))
    return totals


def _ended_students(
    store: Store, attempt: tuple[str, int], plan: JobPlan, first: int, stop: int, *, is_complete: bool
) -> list[StudentRow]:
    """The rows of targets ``first`` to ``stop``.

    Rows are missing if the workflow of a chunk ended by itself.
    """
    job_id = attempt[0]
    with store.read() as uow:
        rows = uow.students.results(job_id, plan.targets[first], plan.targets[stop - 1], _ENDED)
    ended = {(row.class_index, row.method) for row in rows}
    missing = [
        StudentRow(job_id, index, plan.classes[index], method, StudentState.FAILED, error=_NOT_TRAINED)
        for index, method in plan.keys(first, stop)
        if (index, method) not in ended
    ]
    if missing and is_complete:
        raise AttemptLost(*RECORDS_LOST)
    if missing:
        with store.begin() as uow:
            lock_job(uow, *attempt)
            uow.students.save_all(missing)
        rows = sorted([*rows, *missing], key=lambda row: (row.class_index, row.method))
    return rows


@durable_step("finish_job")
def finish_job(
    uow: UnitOfWork, job_id: str, attempt: int, plan: JobPlan, totals: StudentTotals, labels: bytes | None
) -> Json:
    """Publish a version if the job asks for one and a student succeeded, and set the job's final state.

    Students are published with their warnings; `guard.on_failure` says whether the job has then succeeded.
    labels: packed labels of the classes, for a version that does not list them.
    """
    job = uow.jobs.lock(job_id)
    if job.state is JobState.CANCELLING:
        return settle_cancelled(uow, job_id, attempt)
    if job.attempt != attempt or job.state is not JobState.RUNNING:
        return {"state": job.state.value}
    if totals.is_served and plan.spec.publish:
        _keep_students(uow, job, plan)
        _publish(uow, job, plan, totals, labels)
    uow.units.forget(job_id, attempt)
    counts = {"students": plan.students - totals.failed, "failed": totals.failed, **totals.warning_fields()}
    provenance = {
        name: value
        for name, value in uow.jobs.get(job_id).provenance.items()
        if name not in ("warnings", "done_before", STAGES, STARVES)
    }
    provenance |= {"warnings": totals.warnings} if totals.warnings else {}
    error = _error(plan, totals)
    if error is None:
        if isinstance(plan.spec.teacher.spec, RemoteScores):
            uow.remote_scores.forget(job_id)
        uow.jobs.move(job_id, JobState.SUCCEEDED, stage="finished", provenance=provenance)
        uow.events.append(job_id, "job_succeeded", counts)
        return {"state": JobState.SUCCEEDED.value}
    state = JobState.PARTIALLY_SUCCEEDED if totals.is_served else JobState.FAILED
    uow.jobs.move(
        job_id,
        state,
        stage="finished",
        provenance=provenance,
        error_code=error["code"],
        error_message=error["message"],
    )
    uow.events.append(job_id, f"job_{state.value}", counts | error)
    return {"state": state.value}


def finish_addition(
    runner: StepRunner,
    check: CancellationCheck,
    files: BlobCache,
    attempt: tuple[str, int],
    base: ModelVersion,
) -> None:
    """Publish the version with the class that a job has added, and end the job. Raises as `finish`."""

    def change() -> Change:
        store = runner.store.of_tenant(base.tenant)
        [added] = _own_students(store, attempt[0], base.class_count)
        listed, _ = list_classes(store, files, base, limit=base.class_count)
        return Change(
            students=[],
            labels=[*(label for _, label in listed), added.label],
            metrics=totals_of(store, base, [added]).metrics(),
            said=("class_added", {}),
            audited={"added": added.label},
            teacher=None,
        )

    runner.run(finish_added, *attempt, check.retry_while_unavailable(change), base)


@durable_step("finish_addition")
def finish_added(uow: UnitOfWork, job_id: str, attempt: int, change: Change, base: ModelVersion) -> Json:
    """Publish the version of a job that has added a class, and set the job's final state."""
    job = uow.jobs.lock(job_id)
    if job.state is JobState.CANCELLING:
        return settle_cancelled(uow, job_id, attempt)
    if job.attempt != attempt or job.state is not JobState.RUNNING:
        return {"state": job.state.value}
    before = uow.models.of_job(job_id)
    if before is None:
        source = uow.jobs.get(str(base.job_id))
        store_changed_students(uow, source, job, change)
    version = publish_record(uow, job, base, change, alias=job.spec["alias"])
    uow.units.forget(job_id, attempt)
    if before is None:
        unmoved = uow.jobs.get(job_id).provenance.get("alias_not_moved")
        data = {"model": version.model, "version": version.version}
        uow.events.append(
            job_id, "version_published", data | {"alias": moved_alias(job.spec["alias"], unmoved)}
        )
        if unmoved:
            uow.events.append(job_id, "alias_not_moved", unmoved)
    kept = uow.jobs.get(job_id).provenance
    provenance = {name: value for name, value in kept.items() if name not in (STAGES, STARVES)}
    uow.jobs.move(job_id, JobState.SUCCEEDED, stage="finished", provenance=provenance)
    uow.events.append(job_id, "job_succeeded", {"students": 1, "failed": 0})
    return {"state": JobState.SUCCEEDED.value}


def _own_students(store: Store, job_id: str, class_index: int) -> list[StudentRow]:
    with store.read() as uow:
        return [row for row in uow.students.own(job_id) if row.class_index == class_index]


def _kept_students(store: Store, job_id: str, plan: JobPlan) -> list[StudentRow]:
    """The students of another version that the job's version has, too, with the numbers of its classes."""
    with store.read() as uow:
        return _kept_of(uow, uow.jobs.get(job_id), plan)


def _kept_of(uow: UnitOfWork, job: Job, plan: JobPlan) -> list[StudentRow]:
    source = job.provenance.get("retrained_from", {})
    if "classes" not in source:
        return []
    place = {label: number for number, label in enumerate(plan.classes)}
    trained = {plan.classes[target] for target in plan.targets}
    return [
        replace(row, job_id=job.id, class_index=place[row.label])
        for row in uow.students.of_job(source["job_id"], method=plan.spec.served_method)
        if row.label in place and row.label not in trained and row.digest is not None
    ]


def _keep_students(uow: UnitOfWork, job: Job, plan: JobPlan) -> None:
    """Store the students that the job's version has of another one, with their curves and searches."""
    kept = _kept_of(uow, job, plan)
    if not kept:
        return
    source = job.provenance["retrained_from"]["job_id"]
    before = {row.label: row.class_index for row in uow.students.of_job(source, method=kept[0].method)}
    numbers = {before[row.label]: row.class_index for row in kept}
    uow.students.save_all(kept)
    method = kept[0].method
    curves = uow.students.all_curves(source)
    uow.students.keep_curves(
        [((numbers[k], name), one) for (k, name), one in curves.items() if k in numbers and name == method],
        job.id,
    )
    for (number, name), trace in uow.students.all_traces(source).items():
        if number in numbers and name == method:
            uow.students.keep_trace(job.id, numbers[number], method, trace)


def _error(plan: JobPlan, totals: StudentTotals) -> dict[str, str] | None:
    """Why the job has not fully succeeded, or None."""
    first = totals.first_failure
    if first is not None:
        failed = f"{totals.failed} of {plan.students} students failed."
        message = f"{failed} The first, class {first.label!r}: {first.error}"
        return {"code": "students_failed", "message": message}
    if totals.warned and plan.spec.guard.on_failure == "partial":
        one = totals.warnings[0]
        warned = f"{totals.warned} of {len(plan.targets)} students have warnings."
        message = f"{warned} The first, class {one['label']!r}: {one['message']}"
        return {"code": "students_not_good_enough", "message": message}
    return None


def _publish(uow: UnitOfWork, job: Job, plan: JobPlan, totals: StudentTotals, labels: bytes | None) -> None:
    before, inputs = uow.models.of_job(job.id), plan.dataset.inputs
    facts = {"inputs": inputs, "test_part": job.provenance.get("test_part")}
    version = publish(
        uow,
        job,
        dataset_digest=plan.dataset.digest,
        method=plan.spec.served_method,
        classes=plan.classes,
        columns=plan.dataset.columns,
        teacher_digest=str(job.teacher_digest),
        encoder_digest=job.encoder_digest,
        profile_digest=job.profile_digest,
        metrics=totals.metrics() | {name: value for name, value in facts.items() if value},
        alias=plan.spec.alias,
        packed_labels=labels,
        allow_schema_change=plan.spec.allow_schema_change,
    )
    if before is None:
        unmoved = uow.jobs.get(job.id).provenance.get("alias_not_moved")
        alias = moved_alias(plan.spec.alias, unmoved)
        data = {"model": version.model, "version": version.version, "alias": alias}
        uow.events.append(job.id, "version_published", data)
        if unmoved:
            uow.events.append(job.id, "alias_not_moved", unmoved)
    else:
        # A retry has added students to the job's version, so caches must read the version again.
        uow.registry.model_changed(version.tenant, version.model)
