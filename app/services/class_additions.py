"""Use case: add a class to a version from a few examples, by a job that trains one student.

The job is the record of the new version (`app.services.derived_versions`), with one student of its own. The
base that all classes added to the same students share is stored once, with the job that trained these
students.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import WAITING, Caller, Job, JobState, Json, ModelVersion, Priority
from app.domain.errors import Conflict, InputFault, InvalidRequest, NotFound, TooLarge
from app.domain.installation import require_training
from app.domain.ports import JobQueue
from app.services.admission import admit_jobs, enqueue_jobs
from app.services.derived_versions import record_job, trained_version
from app.services.models import find_unknown_class
from app.services.training import require_room_for
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store, UnitOfWork
from app.tracing import traceparent
from core.packed.codec import Buffer, decode, encode, take, take_array

FEWEST: Final = 5
MOST: Final = 10_000
"""Examples of a class."""
MOST_ADDED: Final = 200
"""Classes that are added one after the other: the others do not know them."""
_MOST_VALUES: Final = 2**24
"""Largest number of values of all examples, 128 MiB."""
_FORMAT: Final = "stms.examples.1"


def base_of_addition(store: Store, files: BlobCache, model: str, base: int | str, name: str) -> ModelVersion:
    """The version to which a class is to be added. Raises NotFound, InvalidRequest, Conflict, Unavailable."""
    version = trained_version(store, model, base, "classes")
    if find_unknown_class(store, files, version, name) is None:
        text = f"Version {version.version} of model {model!r} has a class {name!r:.100} already."
        raise InvalidRequest(text, code="class_exists", faults=[InputFault("name", "class_exists", text)])
    return version


def submit_addition(
    store: Store,
    queue: JobQueue,
    settings: Settings,
    version: ModelVersion,
    name: str,
    examples: NDArray[np.float64] | str,
    *,
    budget: float,
    confidence: float | None,
    alias: str | None,
    created_by: str,
) -> Job:
    """Store and enqueue the job that adds a class to a version, and publishes the next one.

    version: the result of `base_of_addition`. examples: of the class, as numbers (q, d), or the id of a data
    set, all of whose rows are examples. budget, confidence: of false positives, as in ``threshold``
    for the rule fpr. alias: to move to the new version.

    Raises NotFound, InvalidRequest for too few or too many examples, TooLarge, Overloaded, and Conflict if
    the training rows are deleted, if too many classes were added, or beyond a quota.
    """
    require_training()
    content = None if isinstance(examples, str) else pack_examples(examples)
    admitted: list[tuple[str, int]] = []
    with store.begin() as uow:
        require_room_for(uow, Caller(store.tenant, created_by), settings)
        source = uow.jobs.lock(str(version.job_id))
        if isinstance(examples, str):
            given = uow.datasets.get(examples)
            examples, count = given.id, given.rows
        else:
            count = len(examples)
        _check_count(count)
        _require_rows(uow, source)
        order: Json = {"class": name, "examples": count, "max_false_positive_rate": budget}
        order |= {"confidence": confidence}
        if isinstance(examples, str):
            order["dataset_id"] = examples
        said = {"addition": order, "added": _with_one_more(source, name)}
        job = dataclasses.replace(
            _queued(record_job(source, version, said, created_by)),
            alias_revision=0 if alias is None else uow.models.alias_revision(version.model, alias),
            spec=source.spec | {"alias": alias},
            examples_digest=None if content is None else uow.blobs.put([content])[0],
        )
        uow.jobs.add(job)
        about: Json = {"model": job.model, "dataset_id": job.dataset_id}
        uow.events.append(job.id, "job_queued", about)
        details = about | {"class": name, "base": version.version}
        uow.audit.append("job.submit", job.id, details=details)
        admitted += admit_jobs(uow)
        job = uow.jobs.get(job.id)
    enqueue_jobs(queue, admitted)
    return job


def _queued(record: Job) -> Job:
    """A record as a job that is still to be done. Its version has no teacher, which knows all classes."""
    return dataclasses.replace(
        record,
        state=JobState.QUEUED,
        stage=WAITING,
        progress_done=0,
        progress_total=1,
        started_at=None,
        finished_at=None,
        queued_at=time.time(),
        priority=Priority.NORMAL,
        traceparent=traceparent(),
        teacher_digest=None,
    )


def _with_one_more(source: Job, name: str) -> list[str]:
    """The classes that were added to a version, and this one. Raises Conflict if these are too many."""
    added = [*source.provenance.get("added", ()), name]
    if len(added) > MOST_ADDED:
        text = f"{MOST_ADDED} classes were added to this version, and the others do not know them."
        text += " Train all of them again, on a data set with their rows."
        raise Conflict(text, code="retrain_first")
    return added


def pack_examples(table: NDArray[np.float64]) -> bytes:
    """Examples as numbers (q, d), in which zeros take no space. Raises TooLarge."""
    if table.size > _MOST_VALUES:
        text = f"The examples have {table.size} values; at most {_MOST_VALUES} are taken."
        raise TooLarge(text, code="too_many_values")
    rows, columns = table.nonzero()
    arrays: dict[str, NDArray[Any]] = {
        "rows": rows.astype(np.int32),
        "columns": columns.astype(np.int32),
        "values": np.ascontiguousarray(table[rows, columns], dtype=np.float64),
    }
    return encode({"format": _FORMAT, "shape": list(table.shape)}, arrays)


def unpack_examples(stored: Buffer) -> NDArray[np.float64]:
    """The examples that `pack_examples` packed. Raises InvalidPackage."""
    header, arrays = decode(stored, _FORMAT)
    table = np.zeros(take(header, "shape", list))
    table[take_array(arrays, "rows"), take_array(arrays, "columns")] = take_array(arrays, "values")
    return table


def _check_count(count: int) -> None:
    code = "too_few_examples" if count < FEWEST else "too_many_examples" if count > MOST else None
    if code is not None:
        text = f"A class is added from {FEWEST} to {MOST} examples, and there are {count}."
        raise InvalidRequest(text, code=code, faults=[InputFault("examples", code, text)])


def _require_rows(uow: UnitOfWork, source: Job) -> None:
    """Raise Conflict unless the rows that the version was trained on are there still."""
    try:
        uow.datasets.lock(source.dataset_id)
    except NotFound as error:
        text = (
            "The data set that the version was trained on was deleted: without its rows nobody knows to how"
            " many of them the new class would say yes. Upload it again and train, or train on another one."
        )
        raise Conflict(text, code="training_rows_gone") from error
