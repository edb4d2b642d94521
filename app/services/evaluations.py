"""Use cases of evaluations: ask for one, read, list, cancel and delete them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from app.domain.entities import Dataset, Job, JobState, ModelVersion, new_id
from app.domain.errors import Conflict, Overloaded, TooLarge, Unavailable, Unprocessable
from app.domain.evaluation import (
    ALPHA,
    EVALUATION_ID,
    LEAST_ROWS,
    MAX_ANSWERS,
    MAX_CLASSES,
    TOLERANCE,
    Evaluation,
    ListedEvaluation,
    Part,
    UnknownClasses,
)
from app.domain.ports import JobQueue
from app.domain.training_spec import TrainingSpec
from app.services.bundle_export import IMPORTED
from app.services.models import resolve
from app.services.quotas import check_bytes, usage
from app.services.schema_changes import row_schema
from app.settings import Settings
from app.store.unit_of_work import Store, UnitOfWork

logger = logging.getLogger(__name__)

_SHOWN: Final = 3


def create_evaluation(
    store: Store,
    queue: JobQueue,
    settings: Settings,
    *,
    version: str,
    dataset_id: str,
    created_by: str,
    part: Part = "all",
    baseline: str | None = None,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    unknown_classes: UnknownClasses = "drop",
) -> Evaluation:
    """Store an evaluation and queue it, for a worker to compute.

    version, baseline: references of versions, ``model``, ``model@alias`` or ``model@3``; an alias is resolved
    now. When the queue cannot be reached, a worker queues the stored evaluation later.

    Raises NotFound; Unprocessable if the data set has no such part or lacks columns of a version, or if it
    is unknown which of its rows a version was trained on; TooLarge for too much work and beyond the
    tenant's quota of bytes; Overloaded beyond its quota of unfinished jobs, which also applies to
    evaluations.
    """
    with store.begin() as uow:
        uow.quotas.lock(store.tenant)
        versions = [resolve(uow.models, one) for one in (version, baseline) if one is not None]
        dataset = uow.datasets.lock(dataset_id)
        _check_rows(dataset, part, versions)
        for one in versions:
            _check_columns(uow, dataset, one)
            _check_seen_rows(uow, dataset, part, one)
        _require_room(uow, settings, store.tenant)
        names = [reference_of(one) for one in versions]
        evaluation = Evaluation(
            id=new_id(EVALUATION_ID),
            version=names[0],
            baseline=names[1] if len(names) > 1 else None,
            dataset_id=dataset.id,
            part=part,
            tolerance=tolerance,
            alpha=alpha,
            unknown_classes=unknown_classes,
            state=JobState.QUEUED,
            created_at=time.time(),
            created_by=created_by,
            tenant=store.tenant,
        )
        uow.evaluations.add(evaluation)
        details = {"version": names[0], "baseline": evaluation.baseline, "dataset_id": dataset.id}
        uow.audit.append("evaluation.create", evaluation.id, details=details)
        turn = uow.units.next_turn_of(store.tenant, created_by)
    enqueue_evaluation(queue, evaluation.id, turn)
    return evaluation


def enqueue_evaluation(queue: JobQueue, evaluation_id: str, turn: int) -> None:
    """Put a stored evaluation into the queue of units. If it cannot be reached, a worker does that later."""
    try:
        queue.enqueue_evaluation(evaluation_id, turn)
    except Unavailable:
        logger.warning("evaluation %s: the queue cannot be reached; a worker will enqueue it", evaluation_id)


def get_evaluation(store: Store, evaluation_id: str) -> Evaluation:
    """One evaluation. Raises NotFound."""
    with store.read() as uow:
        return uow.evaluations.get(evaluation_id)


def list_evaluations(
    store: Store,
    *,
    limit: int,
    after: str | None = None,
    version: str | None = None,
    baseline: str | None = None,
    dataset_id: str | None = None,
) -> tuple[Sequence[ListedEvaluation], bool]:
    """Evaluations older than id ``after``, newest first; and whether more follow.

    version, baseline: only of these, by model and number. dataset_id: only on this data set.
    """
    with store.read() as uow:
        return uow.evaluations.page(
            limit=limit, after=after, version=version, baseline=baseline, dataset_id=dataset_id
        )


def cancel_evaluation(store: Store, queue: JobQueue, evaluation_id: str) -> Evaluation:
    """Cancel an evaluation; its worker stops soon. Raises NotFound, and Conflict when it has ended."""
    with store.begin() as uow:
        before = uow.evaluations.get(evaluation_id, lock=True)
        uow.evaluations.cancel(evaluation_id)
        uow.audit.append("evaluation.cancel", evaluation_id, tenant=before.tenant)
        cancelled = uow.evaluations.get(evaluation_id)
    try:
        queue.cancel(cancelled.workflow_id)
    except Unavailable:
        logger.warning("evaluation %s: the queue cannot be reached; its worker reads the state", cancelled.id)
    return cancelled


def delete_evaluation(store: Store, evaluation_id: str) -> None:
    """Delete an evaluation that has ended. Raises NotFound, and Conflict if it has not."""
    with store.begin() as uow:
        found = uow.evaluations.get(evaluation_id, lock=True)
        if not found.state.ended:
            text = f"Evaluation {evaluation_id} is {found.state}. Cancel it first."
            raise Conflict(text, code="evaluation_not_ended")
        uow.evaluations.delete(evaluation_id)
        details = {"version": found.version, "verdict": found.verdict}
        uow.audit.append("evaluation.delete", evaluation_id, details=details, tenant=found.tenant)


def was_imported(job: Job) -> bool:
    """Whether a job is the record of students from a bundle, whose training data is unknown here."""
    return IMPORTED in job.provenance


def reference_of(version: ModelVersion) -> str:
    """The name of a version that never means another one."""
    return f"{version.model}@{version.version}"


def _check_rows(dataset: Dataset, part: Part, versions: Sequence[ModelVersion]) -> None:
    """Raise Unprocessable and TooLarge for a part that is missing, too small, or too much work."""
    rows = {"train": dataset.rows, "test": dataset.test_rows, "all": dataset.rows + dataset.test_rows}[part]
    if part == "test" and not dataset.test_rows:
        raise Unprocessable(f"Data set {dataset.id} has no test part.", code="no_test_part")
    if rows < LEAST_ROWS:
        text = f"The part has {rows} rows; at least {LEAST_ROWS} are needed."
        raise Unprocessable(text, code="no_common_rows")
    classes = [version.class_count for version in versions]
    if max(classes) > MAX_CLASSES or rows * sum(classes) > MAX_ANSWERS:
        text = (
            f"{rows} rows of {' and '.join(map(str, classes))} classes are too much work: at most"
            f" {MAX_CLASSES} classes and {MAX_ANSWERS} answers."
        )
        raise TooLarge(text, code="too_much_work")


def _check_columns(uow: UnitOfWork, dataset: Dataset, version: ModelVersion) -> None:
    """Raise Unprocessable for columns that are known to be missing; the worker checks all of them."""
    listed = dataset.summary.get("schema") or dataset.summary.get("features") or ()
    names = {column.get("name") for column in listed}
    wanted = row_schema(uow, version).columns
    if wanted is None or None in names or len(names) != dataset.columns:
        if version.encoder_digest is None and dataset.columns != version.columns:
            text = f"The data set has {dataset.columns} columns, and {reference_of(version)} takes"
            raise Unprocessable(f"{text} {version.columns}.", code="wrong_columns")
        return
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(repr(name)[:80] for name in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        text = f"The data set has no column {shown}{more}, which {reference_of(version)} takes."
        raise Unprocessable(text, code="wrong_columns")


def _check_seen_rows(uow: UnitOfWork, dataset: Dataset, part: Part, version: ModelVersion) -> None:
    """Raise Unprocessable if a version may have been trained on unknown rows of the part.

    Jobs before 1.1 did not store their rows. Rows on which they were measured are not training rows.
    """
    job = None if version.job_id is None else uow.jobs.get(version.job_id)
    if job is None or was_imported(job) or job.rows_digest is not None:
        return
    measured = TrainingSpec.model_validate(job.spec).evaluation
    is_own = dataset.id == job.dataset_id and part == "test"
    if measured.dataset_id == dataset.id != job.dataset_id and part == "train":
        return
    if is_own and measured.dataset_id is None and not measured.holds_out(has_test_part=True):
        return
    text = (
        f"Job {job.id} of {reference_of(version)} did not store which rows it was trained on, as jobs do now."
        " Evaluate it on the data set and part that it was measured on itself, or train it again."
    )
    raise Unprocessable(text, code="training_rows_unknown")


def _require_room(uow: UnitOfWork, settings: Settings, tenant: str) -> None:
    found = usage(uow, settings, tenant)
    unfinished, most = uow.evaluations.count_unfinished(), found.allowed.unfinished_jobs
    if unfinished >= most:
        text = f"The tenant has {unfinished} unfinished evaluations; its quota of unfinished jobs is {most}."
        raise Overloaded(text, code="quota_unfinished_jobs", retry_after=30.0)
    check_bytes(found)
