"""Use case of a version that is trained again: a job with the specification of the one that trained it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from app.domain.entities import Dataset, Job, Json, ModelVersion
from app.domain.errors import Conflict, InputFault, NotFound, TooLarge, Unprocessable
from app.domain.near_names import listed
from app.domain.parameter_faults import parameter_faults
from app.domain.ports import JobQueue
from app.domain.spec_changes import changes, merged
from app.domain.training_spec import TrainingSpec
from app.services.evaluations import reference_of, was_imported
from app.services.models import LISTED_CLASSES, get_version
from app.services.training import submit_job
from app.services.training_plan import listed_columns
from app.settings import Settings
from app.store.unit_of_work import Store, UnitOfWork

NOT_REPEATED: Final = "not_repeated"
"""Code of the warnings, and their place in the provenance of a job."""
_NOTED: Final = 100
"""Classes that the provenance names; the specification has all."""
_MOST_REVISIONS: Final = 1000


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
    classes: Literal["all", "changed"] | Sequence[str] = "all",
    noted: Json | None = None,
) -> tuple[Job, bool]:
    """Submit a job that trains the version of a model that ``base`` names again; returns the job and whether
    it is new.

    dataset_id: None for the data set that the version was trained on. alias: to move to the new version.
    hyperparameters: those that differ from the version's job. The job is like the version, unless they say
    otherwise. Where the version was made of another one without a training (other thresholds, classes), the
    warnings of the job say what is not repeated. classes: whose students are trained; "changed": of those
    whose rows differ from the ones that the version was trained on. The new version has the students of all
    other classes as they are, byte by byte. noted: more for the provenance of the job.

    Raises as `submit_job`, NotFound for the version, Conflict for an imported one, and where the data set is
    no revision of the one that the version was trained on or no class has changed, and Unprocessable for
    hyper-parameters that a job does not take.
    """
    version = get_version(store, model, base)
    with store.read() as uow:
        job = None if version.job_id is None else uow.jobs.get(version.job_id)
        if job is None or was_imported(job):
            text = f"{reference_of(version)} was imported: nobody here knows how it was trained."
            raise Conflict(text, code="base_without_job")
        dataset = uow.datasets.get(job.dataset_id if dataset_id is None else dataset_id)
        trained = None if classes == "all" else _trained(uow, version, job, dataset, classes)
    source: Json = {"model": model, "version": version.version, "job_id": job.id}
    provenance: Json = {"retrained_from": source} | (noted or {})
    if trained is not None:
        if hyperparameters:
            text = "other hyper-parameters are for all classes, and the others keep their students"
            raise _unfit([InputFault("hyperparameters", "contradiction", text)])
        hyperparameters = {"classes": list(trained)}
        source["classes"] = list(trained[:_NOTED])
    elif warnings := _not_repeated(job):
        provenance[NOT_REPEATED] = warnings
    return submit_job(
        store,
        queue,
        dataset_id=dataset.id,
        model=model,
        spec=_specification(job, version, dataset, alias, hyperparameters),
        encoder=None if trained is None else (version.encoder_digest, version.profile_digest),
        created_by=created_by,
        idempotency_key=idempotency_key,
        body_digest=body_digest,
        settings=settings,
        noted=provenance,
        audited={"retrained_from": version.version},
    )


def _trained(
    uow: UnitOfWork,
    version: ModelVersion,
    job: Job,
    dataset: Dataset,
    classes: Literal["all", "changed"] | Sequence[str],
) -> Sequence[str]:
    """The classes of a data set that get a new student, where those of the version's others are kept.

    These are classes that are named, or whose rows have changed, and those of which the version has no
    student. Raises Conflict, TooLarge.
    """
    if max(dataset.class_count, version.class_count) > LISTED_CLASSES:
        text = f"Of at most {LISTED_CLASSES} classes some can be trained alone; train all of them."
        raise TooLarge(text, code="too_many_classes")
    wanted = _changed(uow, job, dataset) if isinstance(classes, str) else set(classes)
    rows = uow.students.of_job(job.id, method=version.method)
    kept = {row.label for row in rows if row.digest is not None} - wanted
    known = uow.datasets.classes(dataset.id)
    trained = [label for label in known if label not in kept]
    unknown = sorted(wanted.difference(known))
    if unknown and not isinstance(classes, str):
        raise _unfit([InputFault("classes", "unknown_class", f"there is no class {unknown[0]!r:.100}")])
    if not trained:
        text = (
            "No class has other rows than those that the version was trained on: there is nothing to train."
        )
        raise Conflict(text, code="nothing_changed")
    return trained


def _changed(uow: UnitOfWork, job: Job, dataset: Dataset) -> set[str]:
    """The classes that have gained or lost rows since the data set of a job. Raises Conflict."""
    changed: set[str] = set()
    current: Dataset | None = dataset
    for _ in range(_MOST_REVISIONS):
        if current is None or current.id == job.dataset_id:
            break
        named = (current.change or {}).get("classes_changed", ())
        if current.parent is None or len(named) >= LISTED_CLASSES:
            current = None
            break
        changed.update(named)
        try:
            current = uow.datasets.get(current.parent)
        except NotFound:
            # It was deleted; its own data set may be the one that the job was trained on.
            current = None if current.parent != job.dataset_id else current
            break
    if current is None:
        text = (
            f"Data set {dataset.id} is no revision of {job.dataset_id}, which the version was trained on, or"
            " the revisions between them were deleted: nobody knows which classes have changed. Train all of"
            " them, or name some."
        )
        raise Conflict(text, code="not_a_revision")
    return changed


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
