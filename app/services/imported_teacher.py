"""Use cases of an imported head as the teacher of a training job: validating it and reading its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Dataset, ModelVersion
from app.domain.errors import InputFault, InvalidRequest, NotFound, Unavailable
from app.services.models import open_head, resolve, unknown_class, unknown_classes
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.errors import InvalidPackage
from core.packed import PackedHead

_FIELD = "hyperparameters.teacher.model"
_MAX_FAULTS = 10


def pin_teacher_version(store: Store, files: BlobCache, reference: str, dataset: Dataset) -> str:
    """The version that ``reference`` currently means, as ``name@number``, so that a job keeps its teacher.

    Raises InvalidRequest when the version does not exist, is not an imported head, has other columns than the
    data set, or lacks one of its classes.
    """
    try:
        with store.read() as uow:
            version = resolve(uow.models, reference)
            classes = uow.datasets.classes(dataset.id)
    except NotFound as error:
        raise _unfit("unknown_model", error.message) from error
    if version.method != "head":
        text = f"Model {reference!r} is not an imported head; omit teacher.model to train a teacher."
        raise _unfit("no_head", text)
    if version.columns != dataset.columns:
        text = f"The teacher has {version.columns} columns, the data set {dataset.columns}."
        raise _unfit("wrong_columns", text)
    unknown = unknown_classes(store, files, version, classes)
    if unknown:
        faults = [
            InputFault(_FIELD, "unknown_class", f"The teacher has no class {label!r} of the data set.")
            for label in unknown[:_MAX_FAULTS]
        ]
        raise InvalidRequest(faults[0].message, code="unknown_class", faults=faults)
    return f"{version.model}@{version.version}"


def teacher_rows(
    store: Store, files: BlobCache, reference: str, classes: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (K, d) and bias (K,) of the head's rows of ``classes``, in their order.

    Raises NotFound, also for a class that the head does not have, and Unavailable when it cannot be read.
    """
    with store.read() as uow:
        version = resolve(uow.models, reference)
    try:
        return files.with_refetch(
            lambda: _rows(open_head(store, files, version), version, classes),
            str(version.teacher_digest),
            str(version.class_table),
        )
    except InvalidPackage as error:
        raise Unavailable(f"The head of {reference!r} is damaged in the database.") from error


def _rows(
    head: PackedHead, version: ModelVersion, classes: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = [head.labels.find(label) for label in classes]
    if None in rows:
        label = classes[rows.index(None)]
        raise unknown_class(version, label, head.labels)
    return head.linear([row for row in rows if row is not None])


def _unfit(code: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, code=code, faults=[InputFault(_FIELD, code, text)])
