"""Use case of a version that is trained again: a job with the specification of the one that trained it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.domain.entities import Dataset, Job, Json, ModelVersion
from app.domain.errors import Conflict, InputFault, Unprocessable
from app.domain.near_names import listed
from app.domain.parameter_faults import parameter_faults
from app.domain.ports import JobQueue
from app.domain.spec_changes import changes, merged
from app.domain.training_spec import TrainingSpec
from app.services.evaluations import reference_of, was_imported
from app.services.models import get_version
from app.services.training import submit_job
from app.services.training_plan import listed_columns
from app.settings import Settings
from app.store.unit_of_work import Store

NOT_REPEATED: Final = "not_repeated"
"""Code of the warnings, and their place in the provenance of a job."""


def retrain(
    store: Store,
    queue: JobQueue,
    settings: Settings,
    model: str,
    base: int | str,
    *,
    dataset_id: str | None,
    alias: str | None,
    hyperparameters: Json,
    created_by: str,
    idempotency_key: str | None,
    body_digest: str,
) -> tuple[Job, bool]:
    """Submit a job that trains the version of a model that ``base`` names again; returns the job and whether
    it is new.

    dataset_id: None for the data set that the version was trained on. alias: to move to the new version.
    hyperparameters: those that differ from the version's job. The job is like the version, unless they say
    otherwise. If the version was made from another one without training (other thresholds, classes), the
    warnings of the job say what is not repeated.

    Raises as `submit_job`, NotFound for the version, Conflict for an imported one, and Unprocessable for
    hyper-parameters that a job does not accept.
    """
    version = get_version(store, model, base)
    with store.read() as uow:
        job = None if version.job_id is None else uow.jobs.get(version.job_id)
        if job is None or was_imported(job):
            text = f"{reference_of(version)} was imported: nobody here knows how it was trained."
            raise Conflict(text, code="base_without_job")
        dataset = uow.datasets.get(job.dataset_id if dataset_id is None else dataset_id)
    noted: Json = {"retrained_from": {"model": model, "version": version.version, "job_id": job.id}}
    if warnings := _not_repeated(job):
        noted[NOT_REPEATED] = warnings
    return submit_job(
        store,
        queue,
        dataset_id=dataset.id,
        model=model,
        spec=_specification(job, version, dataset, alias, hyperparameters),
        created_by=created_by,
        idempotency_key=idempotency_key,
        body_digest=body_digest,
        settings=settings,
        noted=noted,
        audited={"retrained_from": version.version},
    )


def _specification(
    job: Job, version: ModelVersion, dataset: Dataset, alias: str | None, given: Json
) -> TrainingSpec:
    """The specification of a version's job with the differences. Raises Unprocessable."""
    if "alias" in given:
        text = "alias stands beside the hyper-parameters, and not among them"
        raise _unfit([InputFault("hyperparameters.alias", "given_twice", text)])
    kept = changes(job.spec)
    columns = kept.get("inputs", {}).get("columns")
    names = {one.get("name") for one in listed_columns(dataset)}
    if columns and None not in names and len(names) == dataset.columns:
        # Settings of the version's job for a column do not apply to data without it: `like` warns of these.
        said = {name: one for name, one in columns.items() if name in names}
        kept["inputs"] = {**kept["inputs"], "columns": said}
    values = merged(kept | {"alias": alias, "like": reference_of(version)}, given)
    if faults := parameter_faults(values):
        raise _unfit(
            [InputFault(f"hyperparameters.{one.field}".rstrip("."), one.code, one.message) for one in faults]
        )
    return TrainingSpec.model_validate(values)


def _unfit(faults: Sequence[InputFault]) -> Unprocessable:
    text = f"{faults[0].field}: {faults[0].message}."
    return Unprocessable(text, code="invalid_body", faults=faults)


def _not_repeated(job: Job) -> list[Json]:
    """Warnings about properties of a version that no training gave it, from its job's record."""
    provenance = job.provenance
    texts = []
    if thresholds := provenance.get("thresholds"):
        texts.append(
            f"The thresholds that were given for {_classes(thresholds)} are not repeated: the new students"
            " get theirs by the rule of the job."
        )
    if added := provenance.get("added"):
        texts.append(
            f"The examples from which {_classes(added)} had been added are not trained on again: the new"
            " version has such a class only if the data set has rows of it."
        )
    renamed: Json = {}
    removed: list[str] = []
    for change in provenance.get("class_changes", ()):
        renamed |= change["renamed"]
        removed += change["removed"]
    if renamed:
        texts.append(
            f"The new names of {_classes(renamed)} are not repeated: classes are called as in the data set."
        )
    if removed:
        texts.append(
            f"That {_classes(removed)} had been taken away is not repeated: the new version has such a class"
            " if the data set has it."
        )
    return [{"code": NOT_REPEATED, "message": text} for text in texts]


def _classes(names: Sequence[str] | Json) -> str:
    return f"{'class' if len(names) == 1 else 'classes'} {listed([*names])}"
