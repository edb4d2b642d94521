"""The end of a training job: count what came out, publish it, set the final state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import fsum

from app.domain.entities import Dataset, Job, JobState, Json, StudentRow, StudentState
from app.domain.training_spec import TrainingSpec
from app.jobs.solver.process import Pair
from app.jobs.workflow.steps import finished_pairs, settle_cancelled
from app.services.models import publish
from app.services.training_plan import pairs_of, targets_of
from app.store.unit_of_work import UnitOfWork

_MEASURES = ("accuracy", "f1", "auc")


def finish_job(uow: UnitOfWork, job_id: str, attempt: int) -> Json:
    """Judge the students, publish a version if one is wanted and there is anything in it, end the job."""
    job = uow.jobs.lock(job_id)
    if job.state is JobState.CANCELLING:
        return settle_cancelled(uow, job_id, attempt)
    if job.attempt != attempt or job.state is not JobState.RUNNING:
        return {"state": job.state.value}
    spec = TrainingSpec.model_validate(job.spec)
    dataset = uow.datasets.get(job.dataset_id)
    pairs = pairs_of(spec, targets_of(spec, dataset.classes))
    _note_missing(uow, job, dataset, pairs)
    rows = uow.students.of_job(job_id)
    served = sum(row.method == spec.served_method and row.state is StudentState.SUCCEEDED for row in rows)
    failed = [row for row in rows if row.state is StudentState.FAILED]
    if served and spec.publish:
        _publish(uow, job, spec, dataset, rows)
    return _end(uow, job_id, attempt, served, failed, len(pairs))


def means(rows: Sequence[StudentRow]) -> dict[str, dict[str, float | int | None]]:
    """Mean of each measure by method, over the classes where it is defined, and the number of classes."""
    by_method: dict[str, list[StudentRow]] = defaultdict(list)
    for row in rows:
        if row.state is StudentState.SUCCEEDED and any(name in row.metrics for name in _MEASURES):
            by_method[row.method].append(row)
    found = {}
    for method, of_it in by_method.items():
        measured = {name: _mean(row.metrics.get(name) for row in of_it) for name in _MEASURES}
        brier = _mean(row.metrics.get("brier") for row in of_it)
        found[method] = measured | ({} if brier is None else {"brier": brier}) | {"classes": len(of_it)}
    return found


def _calibrated(rows: Sequence[StudentRow], method: str) -> Json:
    """How many of the students that answer queries give probabilities, by kind of calibration."""
    kinds = Counter(
        row.metrics["calibration"] for row in rows if row.method == method and "calibration" in row.metrics
    )
    return {"calibration": dict(kinds)} if kinds else {}


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return fsum(defined) / len(defined) if defined else None


def _note_missing(uow: UnitOfWork, job: Job, dataset: Dataset, pairs: Sequence[Pair]) -> None:
    """A student without a row is one whose chunk came to an end of its own: say so in the table."""
    finished = finished_pairs(uow, job.id, pairs)
    uow.students.save_all(
        [
            StudentRow(
                job_id=job.id,
                class_index=pair[0],
                label=dataset.classes[pair[0]],
                method=pair[1],
                state=StudentState.FAILED,
                error="It was not trained: the work on its chunk of classes failed.",
            )
            for pair in pairs
            if pair not in finished
        ]
    )


def _publish(
    uow: UnitOfWork, job: Job, spec: TrainingSpec, dataset: Dataset, rows: Sequence[StudentRow]
) -> None:
    before = uow.models.of_job(job.id)
    version = publish(
        uow,
        job,
        dataset_digest=dataset.digest,
        method=spec.served_method,
        classes=dataset.classes,
        columns=dataset.columns,
        teacher_digest=str(job.teacher_digest),
        metrics={"means": means(rows)} | _calibrated(rows, spec.served_method),
        alias=spec.alias,
    )
    if before is None:
        told = {"model": version.model, "version": version.version, "alias": spec.alias}
        uow.events.append(job.id, "version_published", told)
    else:
        # A retry added students to the version that the job has: caches must look again.
        uow.models.bump_revision()


def _end(
    uow: UnitOfWork, job_id: str, attempt: int, served: int, failed: Sequence[StudentRow], total: int
) -> Json:
    uow.units.forget(job_id, attempt)
    counts = {"students": total - len(failed), "failed": len(failed)}
    if not failed:
        uow.jobs.move(job_id, JobState.SUCCEEDED, stage="finished")
        uow.events.append(job_id, "job_succeeded", counts)
        return {"state": JobState.SUCCEEDED.value}
    state = JobState.PARTIALLY_SUCCEEDED if served else JobState.FAILED
    first = f"The first, class {failed[0].label!r}: {failed[0].error}"
    error = {"code": "students_failed", "message": f"{len(failed)} of {total} students failed. {first}"}
    uow.jobs.move(job_id, state, stage="finished", error_code=error["code"], error_message=error["message"])
    uow.events.append(job_id, f"job_{state.value}", counts | error)
    return {"state": state.value}
