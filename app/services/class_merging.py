"""Use case of classes that become one: a revision of the data set, and a job that trains one student."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.domain.entities import Job
from app.domain.errors import Conflict, InputFault, InvalidRequest, NotFound
from app.domain.ports import JobQueue
from app.ingest.orders import RevisionContent, RevisionOrder
from app.ingest.reading import revise_dataset
from app.services.models import find_unknown_class, get_version
from app.services.retraining import retrain
from app.services.revisions import Changes, revised_dataset
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store


def merge_classes(
    store: Store,
    files: BlobCache,
    queue: JobQueue,
    settings: Settings,
    model: str,
    base: int | str,
    *,
    name: str,
    classes: Sequence[str],
    alias: str | None,
    created_by: str,
    read: Callable[[RevisionOrder], RevisionContent] = revise_dataset,
) -> Job:
    """Submit the job that gives a version one class in place of some: the rows of all are its examples.

    The data set of the version gets a revision in which they have the new name. Of its classes the new one
    alone is trained, and the students of all others stay as they are. read: as of `revised_dataset`.

    Raises NotFound for a class that the version does not have, InvalidRequest for a name that another class
    has, Conflict for an imported version and where its data set was deleted, and what both steps raise.
    """
    version = get_version(store, model, base)
    for label in classes:
        if (unknown := find_unknown_class(store, files, version, label)) is not None:
            raise unknown
    if name not in classes and find_unknown_class(store, files, version, name) is None:
        text = (
            f"Version {version.version} of model {model!r} has a class {name!r:.100} already: name it, too."
        )
        raise InvalidRequest(text, code="class_exists", faults=[InputFault("name", "class_exists", text)])
    if version.job_id is None:
        raise Conflict("The version was imported: nobody here has its rows.", code="base_without_job")
    with store.read() as uow:
        dataset_id = uow.jobs.get(version.job_id).dataset_id
    changes = Changes(rename=dict.fromkeys(classes, name), note=f"Classes were merged as {name:.200}.")
    try:
        merged, _ = revised_dataset(
            store, files, dataset_id, changes, created_by=created_by, limits=settings, read=read
        )
    except NotFound as error:
        text = "The data set that the version was trained on was deleted: there are no rows to merge."
        raise Conflict(text, code="training_rows_gone") from error
    job, _ = retrain(
        store,
        queue,
        settings,
        model,
        version.version,
        dataset_id=merged.id,
        alias=alias,
        hyperparameters={},
        created_by=created_by,
        idempotency_key=None,
        body_digest="",
        classes="changed",
        noted={"merged": {"name": name, "classes": list(classes)}},
    )
    return job
