"""Revisions of data sets: the rows of one without some of them, followed by those of another one.

Each is a data set of its own, which never changes. ``change`` of it has ``added``, ``deleted``,
``equal_rows_skipped`` (numbers of rows), ``classes_changed`` (the first 1000 names), ``appended`` (the id of
the other data set) and ``note``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
import numpy as np

from app.domain.entities import Dataset, Json, new_id
from app.domain.errors import InputFault, InvalidRequest, Unprocessable
from app.domain.installation import require_training
from app.ingest.options import Decision
from app.ingest.orders import RevisionContent, RevisionOrder
from app.ingest.reading import revise_dataset, temporary_paths
from app.services.datasets import add_dataset, copy_rows, find_dataset, get_dataset, store_rows
from app.services.labels import refuse_scores
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.data.labels import listed_names

MAX_DELETED: Final = 100_000
"""Largest number of rows that are deleted in one request."""
MAX_NOTE: Final = 500
"""Characters of the note of a revision."""
_COPIED_BYTES: Final = 1024**2
_MAX_FAULTS: Final = 10


def revised_dataset(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    *,
    append: str | None,
    delete: Collection[int],
    note: str | None,
    created_by: str,
    limits: Settings,
    read: Callable[[RevisionOrder], RevisionContent] = revise_dataset,
) -> tuple[Dataset, bool]:
    """A data set without some rows, followed by those of another one, and whether it is new.

    append: id of the other data set, whose training rows are appended, except rows that equal a kept row
    in all values, in the label and in privileged columns. delete: numbers of training rows. The test
    part stays. The same changes of the same data set give the same data set. read: as in `register_dataset`.

    Raises NotFound, InvalidRequest, Unprocessable, TooLarge, Conflict beyond the tenant's quota, OnlyServes,
    Unavailable.
    """
    require_training()
    source = get_dataset(store, dataset_id)
    other = None if append is None else get_dataset(store, append)
    rows = sorted(set(delete))
    _check(source, other, rows)
    identity = _identity(source, other, rows)
    if (known := find_dataset(store, identity)) is not None:
        return known, False
    revised, blob, size = _stored(store, files, source, other, rows, limits, read)
    content = revised.content
    dataset = Dataset(
        id=new_id("ds"),
        digest=identity,
        name=source.name,
        source_format=source.source_format,
        size_bytes=size,
        blob_digest=blob,
        rows=content.rows,
        test_rows=content.test_rows,
        columns=content.columns,
        class_count=len(content.classes),
        summary=content.summary | _confirmed(source, rows),
        created_at=time.time(),
        created_by=created_by,
        tenant=store.tenant,
        series=source.first,
        revision=source.revision,
        parent=source.id,
        change={
            "added": revised.added,
            "deleted": len(rows),
            "equal_rows_skipped": revised.equal,
            "classes_changed": list(listed_names(revised.changed)),
            "appended": append,
            "note": note,
        },
    )
    return add_dataset(store, dataset, content.classes, size, limits)


def _stored(
    store: Store,
    files: BlobCache,
    source: Dataset,
    other: Dataset | None,
    deleted: Sequence[int],
    limits: Settings,
    read: Callable[[RevisionOrder], RevisionContent],
) -> tuple[RevisionContent, str, int]:
    """The contents of a revision, and the digest and size of the blob with its rows."""
    with temporary_paths(files.folder, "source", "added", "rows") as (of_source, of_other, path):
        copy_rows(store, files, source, of_source)
        if other is not None:
            copy_rows(store, files, other, of_other)
        order = RevisionOrder(
            source=str(of_source),
            rows=str(path),
            deleted=tuple(deleted),
            added=None if other is None else str(of_other),
            kind=source.source_format,
            label_column=source.summary.get("label_column"),
            reading=tuple(msgspec.convert(source.reading, list[Decision])),
            min_per_class=1 if "single_row_classes" in source.summary else 2,
            max_rows=limits.max_rows,
            max_columns=limits.max_columns,
            max_bytes=limits.max_dataset_bytes,
        )
        revised = read(order)
        with path.open("rb") as file:
            pieces = iter(lambda: file.read(_COPIED_BYTES), b"")
            return revised, *store_rows(store, files, pieces, limits)


def _check(source: Dataset, other: Dataset | None, rows: Sequence[int]) -> None:
    """Raises InvalidRequest, Unprocessable."""
    faults = [
        InputFault(
            "delete.rows", "unknown_row", f"There is no row {row}: rows are 0 to {source.rows - 1}.", row=row
        )
        for row in rows
        if not 0 <= row < source.rows
    ]
    if faults:
        raise InvalidRequest(faults[0].message, code=faults[0].code, faults=faults[:_MAX_FAULTS])
    if other is None and not rows:
        raise Unprocessable("There are neither rows to append nor rows to delete.", code="empty_change")
    for dataset in (source, other):
        if dataset is not None:
            refuse_scores(dataset)


def _identity(source: Dataset, other: Dataset | None, rows: Sequence[int]) -> str:
    text = json.dumps(["revision", source.digest, None if other is None else other.digest, rows])
    return hashlib.sha256(text.encode()).hexdigest()


def _confirmed(source: Dataset, deleted: Sequence[int]) -> Json:
    """The confirmed rows of the data set that were kept, by their numbers in the revision."""
    confirmed = np.array(source.confirmed_rows, dtype=np.int64)
    kept = confirmed[~np.isin(confirmed, deleted)]
    # A row moves up by as many as were deleted before it.
    moved: list[int] = (kept - np.searchsorted(deleted, kept)).tolist()
    return {"confirmed_rows": moved} if moved else {}
