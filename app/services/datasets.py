"""Use cases of data sets: register, list, load, delete."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Dataset, ListedDataset, new_id
from app.domain.errors import Conflict, InputFault, InvalidRequest, NotFound, TooLarge, Unavailable
from app.domain.names import MAX_DISPLAY_NAME, is_display_name
from app.domain.near_names import known_names
from app.ingest.dataset_rows import StoredPart, StoredRow
from app.ingest.formats import named
from app.ingest.options import ReadingOptions
from app.ingest.orders import DatasetContent, DatasetOrder
from app.ingest.raw import disk_full_as_unavailable
from app.ingest.reading import read_dataset, temporary_paths
from app.services.quotas import require_room, room_for
from app.services.retention import delete_unused, discarding_if_refused
from app.services.subject_keys import key_of
from app.settings import Settings
from app.store.blob_cache import BlobCache, FileWriter, open_blob
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large
from app.store.repositories.datasets import row_bytes
from app.store.unit_of_work import Store
from core.errors import InvalidPackage

if TYPE_CHECKING:
    from app.ingest.dataset_format import Parts

Result = TypeVar("Result")

_COPIED_BYTES = 1024**2
_COMPARED_CLASSES: Final = 200
"""The first classes of a data set, among which a near name is looked for."""
_EXAMPLES: Final = 50
"""Number of rows among which one of another class is searched."""


def register_dataset(
    store: Store,
    files: BlobCache,
    file: FileWriter,
    *,
    created_by: str,
    limits: Settings,
    name: str | None = None,
    filename: str | None = None,
    file_format: str | None = None,
    read: Callable[[DatasetOrder], DatasetContent] = read_dataset,
    **said: str | None,
) -> tuple[Dataset, bool]:
    """Validate an uploaded file and store its rows; returns the data set and whether it is new.

    In one tenant the same bytes are the same data set under any name, unless they are read in another way.

    file: the complete upload, on disk and hashed while it arrived (see `BlobCache.writing`).
    file_format: see `app.domain.file_formats`; by default the ending of ``filename`` and the content decide.
    read: carries out the reading, by default in this process. said: what
    `app.ingest.options.ReadingOptions.parse` takes.

    The rows pass through a file of the local cache into the database, in transactions of a few MiB each.
    Readers see nothing before the last of them; garbage collection removes what a crash leaves behind.

    Raises InvalidRequest naming field, row and column of each fault, TooLarge, UnsupportedFormat,
    Unavailable, and Conflict beyond the tenant's quota.
    """
    title = _title(name, filename)
    # The parameters are checked even when the bytes are known and are not parsed again.
    order = _order(files, file, limits, filename, file_format, said)
    if order.options.subject_column is not None:
        order = msgspec.structs.replace(order, subject_key=key_of(store).hex())
    known = find_dataset(store, file.digest)
    if known is not None and not order.options.said:
        return known, False
    with temporary_paths(files.folder, "rows") as (rows,):
        content = read(msgspec.structs.replace(order, rows=str(rows)))
        identity = _identity(file.digest, content)
        known = find_dataset(store, identity)
        if known is not None:
            return known, False
        with rows.open("rb") as source:
            blob, size = store_rows(store, files, iter(partial(source.read, _COPIED_BYTES), b""), limits)
    dataset = Dataset(
        id=new_id("ds"),
        digest=identity,
        name=title,
        source_format=content.source_format,
        size_bytes=file.size,
        blob_digest=blob,
        rows=content.rows,
        test_rows=content.test_rows,
        columns=content.columns,
        class_count=len(content.classes),
        summary=content.summary,
        created_at=time.time(),
        created_by=created_by,
        tenant=store.tenant,
    )
    return add_dataset(store, dataset, content.classes, size, limits)


def inspect_file(
    files: BlobCache,
    file: FileWriter,
    *,
    limits: Settings,
    name: str | None = None,
    filename: str | None = None,
    file_format: str | None = None,
    read: Callable[[DatasetOrder], DatasetContent] = read_dataset,
    **said: str | None,
) -> DatasetContent:
    """The data set that `register_dataset` would store; nothing is stored. Raises as it does."""
    _title(name, filename)
    order = _order(files, file, limits, filename, file_format, said)
    return read(msgspec.structs.replace(order, is_dry=True))


def get_dataset(store: Store, dataset_id: str) -> Dataset:
    """One data set. Raises NotFound."""
    with store.read() as uow:
        return uow.datasets.get(dataset_id)


def dataset_name(store: Store, dataset_id: str) -> str | None:
    """The name of a data set; None if no data set has this id, or if it was deleted."""
    with store.read() as uow:
        return uow.datasets.name(dataset_id)


def find_dataset(store: Store, digest: str) -> Dataset | None:
    """The data set with this digest; None if there is none, or if it was deleted."""
    with store.read() as uow:
        return uow.datasets.by_digest(digest)


def latest_revision(store: Store, dataset: Dataset) -> str:
    """The id of the newest data set of the series."""
    with store.read() as uow:
        latest = uow.datasets.latest(dataset.first)
    return dataset.id if latest is None else latest[0]


def list_datasets(
    store: Store, *, limit: int, after: str | None = None
) -> tuple[Sequence[ListedDataset], bool]:
    """Data sets newest first, those older than id ``after``; and whether there are more."""
    with store.read() as uow:
        return uow.datasets.page(limit=limit, after=after)


def dataset_classes(store: Store, dataset_id: str, *, limit: int, after: int = -1) -> Sequence[str]:
    """The names of at most ``limit`` classes with numbers above ``after``, in their order."""
    with store.read() as uow:
        return uow.datasets.classes(dataset_id, limit=limit, after=after)


def class_names(store: Store, dataset_id: str, numbers: Collection[int]) -> Mapping[int, str]:
    """The names of those of ``numbers`` that the data set has, by class number."""
    with store.read() as uow:
        return uow.datasets.class_names(dataset_id, numbers)


def delete_dataset(store: Store, dataset_id: str) -> None:
    """Delete a data set and its rows; jobs and models trained on it stay.

    Raises NotFound, and Conflict while a job that has not ended trains or tests on it, or an evaluation
    reads it.
    """
    with store.begin() as uow:
        dataset = uow.datasets.lock(dataset_id, exclusive=True)
        if uow.jobs.unfinished_for_dataset(dataset_id):
            raise Conflict(
                f"Data set {dataset_id} is in use by a training job that has not ended.",
                code="dataset_in_use",
            )
        if uow.evaluations.unfinished_on(dataset_id):
            text = f"Data set {dataset_id} is in use by an evaluation that has not ended."
            raise Conflict(text, code="dataset_in_use")
        uow.datasets.delete(dataset_id)
        uow.audit.append("dataset.delete", dataset_id, details={"digest": dataset.digest})
    # In separate transactions, because a single one of 2 GB would block every other writer.
    delete_unused(store, [dataset.blob_digest])


def stored_rows(
    store: Store,
    files: BlobCache,
    dataset: Dataset,
    *,
    part: str = "train",
    label: str | None = None,
    after: int = -1,
    limit: int = 20,
) -> tuple[Sequence[StoredRow], bool]:
    """Some rows of a data set with numbers above ``after``, and whether there are more.

    part: train or test. label: of one class only. Raises NotFound, also for a class or part that the data set
    does not have, and Unavailable.
    """
    code = None
    if label is not None and (code := _class_number(store, dataset, label)) is None:
        first = class_names(store, dataset.id, range(_COMPARED_CLASSES))
        known = [first[number] for number in sorted(first)]
        names = known_names(label, known, "classes", count=dataset.class_count)
        message = f"Data set {dataset.id} has no class {label!r:.100}; {names}"
        raise NotFound(message, code="class_not_found")
    if part == "test" and not dataset.test_rows:
        raise NotFound(f"Data set {dataset.id} has no test part.", code="no_test_part")
    digest = dataset.blob_digest

    def read() -> tuple[Sequence[StoredRow], bool]:
        rows = StoredPart(open_blob(store, files, digest).read, part)
        return rows.rows(code=code, after=after, limit=limit)

    return _undamaged(files, dataset, read)


def rows_at(store: Store, files: BlobCache, dataset: Dataset, numbers: Sequence[int]) -> Sequence[StoredRow]:
    """The training rows with these numbers, as `StoredPart.rows_at` gives them. Raises Unavailable."""
    digest = dataset.blob_digest
    return _undamaged(
        files,
        dataset,
        lambda: StoredPart(open_blob(store, files, digest).read, "train").rows_at(numbers),
    )


def row_codes(store: Store, files: BlobCache, dataset: Dataset) -> NDArray[np.int32]:
    """The classes of all training rows, (n,), −1 without a label. Raises Unavailable."""
    digest = dataset.blob_digest
    return _undamaged(
        files, dataset, lambda: StoredPart(open_blob(store, files, digest).read, "train").codes()
    )


def find_subjects(store: Store, files: BlobCache, dataset: Dataset) -> list[NDArray[np.uint8]]:
    """The pseudonyms of whom the rows of each part are about, (n, 16) each. Raises Unavailable."""
    digest = dataset.blob_digest
    parts = ["train", "test"] if dataset.test_rows else ["train"]
    return _undamaged(
        files,
        dataset,
        lambda: [StoredPart(open_blob(store, files, digest).read, part).subjects() for part in parts],
    )


def example_row(store: Store, files: BlobCache, dataset: Dataset, label: str, *, is_class: bool) -> StoredRow:
    """A random row of a class, or one of another class; of the test part if there is one.

    Raises InvalidRequest if there is no such row, NotFound and Unavailable.
    """
    part = "test" if dataset.test_rows else "train"
    code = _class_number(store, dataset, label)
    start = secrets.randbelow(dataset.test_rows or dataset.rows) - 1
    for after in (start, -1):
        wanted, limit = (label, 1) if is_class else (None, _EXAMPLES)
        found, _ = stored_rows(store, files, dataset, part=part, label=wanted, after=after, limit=limit)
        for row in found:
            if is_class or row.code not in (code, -1):
                return row
    text = f"The {part} part of data set {dataset.id} has no such row."
    raise InvalidRequest(text, faults=[InputFault("class", "no_example", text)])


def load_dataset(store: Store, files: BlobCache, dataset_id: str) -> Parts:
    """Training part and test part (None if the data set has none), read through the local cache.

    The stored bytes are verified. The arrays are read-only views of the memory-mapped file, so rows that are
    not used take no memory. Raises NotFound and Unavailable.
    """
    dataset = get_dataset(store, dataset_id)
    # Imported here because it loads SciPy, which a server process does not need.
    from app.ingest import dataset_format

    return _undamaged(
        files,
        dataset,
        lambda: dataset_format.decode(open_blob(store, files, dataset.blob_digest).whole()),
    )


def copy_rows(store: Store, files: BlobCache, dataset: Dataset, path: Path) -> None:
    """Write the file of a data set's rows for a reader process, after which the cache may lose it.

    Raises Unavailable.
    """
    content = _undamaged(files, dataset, lambda: open_blob(store, files, dataset.blob_digest).whole())
    with disk_full_as_unavailable(), path.open("wb") as file:
        file.write(content)


def _class_number(store: Store, dataset: Dataset, label: str) -> int | None:
    with store.read() as uow:
        return uow.datasets.class_number(dataset.id, label)


def _undamaged(files: BlobCache, dataset: Dataset, read: Callable[[], Result]) -> Result:
    """Return ``read()``; damaged bytes are fetched again once. Raises Unavailable."""
    try:
        return files.with_refetch(read, dataset.blob_digest)
    except InvalidPackage as error:
        raise Unavailable(
            f"Data set {dataset.id} is damaged in the local cache.", code="blob_damaged"
        ) from error


def store_rows(store: Store, files: BlobCache, pieces: Iterable[bytes], limits: Settings) -> tuple[str, int]:
    """Store the pieces of a file as one blob that is not published yet; returns its digest and size.

    Raises Conflict beyond the tenant's quota, Unavailable.
    """
    with files.writing(f"dataset-{secrets.token_hex(8)}.tmp") as writer:
        for piece in pieces:
            writer.write(piece)
        room_for(store, limits, "datasets", writer.size)
        files.commit(writer)
        put_large(store, writer.digest, writer.size, writer.chunks(LARGE_CHUNK_BYTES))
        return writer.digest, writer.size


def add_dataset(
    store: Store, dataset: Dataset, classes: Sequence[str], size: int, limits: Settings
) -> tuple[Dataset, bool]:
    """Publish a data set whose rows are a blob of ``size`` bytes; returns it and whether it is new.

    Raises Conflict beyond the tenant's quota, Unavailable.
    """
    added = _add(store, dataset, classes, size, limits)
    if added is not None:
        return added, True
    # Another request registered the same bytes in the meantime.
    return _existing(store, dataset.digest), False


def _add(
    store: Store, dataset: Dataset, classes: Sequence[str], size: int, limits: Settings
) -> Dataset | None:
    """Publish the blob of ``size`` bytes and the data set; returns None if the tenant has it already.

    A revision gets the number after that of the newest of its series; its ``revision`` is that of its parent.
    """
    with discarding_if_refused(store, [dataset.blob_digest]), store.begin() as uow:
        uow.quotas.lock(store.tenant)
        if dataset.series is not None:
            # Two revisions of one data set get successive numbers, whichever was begun first.
            latest = uow.datasets.latest(dataset.series)
            dataset = replace(dataset, revision=1 + (dataset.revision if latest is None else latest[1]))
        if uow.datasets.by_digest(dataset.digest) is None:
            require_room(uow, limits, store.tenant, "datasets", size + row_bytes(dataset, classes))
        uow.blobs.finish_large(dataset.blob_digest)
        added = uow.datasets.add(dataset, classes)
        if added:
            uow.audit.append("dataset.create", dataset.id, details={"digest": dataset.digest})
    return dataset if added else None


def _existing(store: Store, digest: str) -> Dataset:
    known = find_dataset(store, digest)
    if known is None:
        raise Conflict("The data set was deleted while it was being registered.", code="dataset_deleted")
    return known


def _order(
    files: BlobCache,
    file: FileWriter,
    limits: Settings,
    filename: str | None,
    file_format: str | None,
    said: Mapping[str, str | None],
) -> DatasetOrder:
    """The order to read a file, without the path of its rows. Raises InvalidRequest, TooLarge."""
    named(file_format)
    options = ReadingOptions.parse(**said)
    _check_size(file, limits.max_upload_bytes)
    return DatasetOrder(
        source=str(file.path),
        rows="",
        declared=file_format,
        filename=filename,
        max_rows=limits.max_rows,
        max_columns=limits.max_columns,
        max_bytes=limits.max_dataset_bytes,
        temp_folder=str(files.folder),
        options=options,
    )


def _check_size(file: FileWriter, max_bytes: int) -> None:
    if file.size > max_bytes:
        raise TooLarge(f"The file is larger than the limit of {max_bytes} bytes.", code="file_too_large")
    if file.size == 0:
        raise InvalidRequest("The file is empty.", code="empty_file")


def _identity(digest: str, content: DatasetContent) -> str:
    """The digest that identifies a data set: that of its file, unless it was read in another way."""
    if not content.variant:
        return digest
    return hashlib.sha256(f"{digest} {' '.join(content.variant)}".encode()).hexdigest()


def _title(name: str | None, filename: str | None) -> str:
    if name is None:
        stem = "".join(filter(str.isprintable, PurePath(filename or "").stem)).strip()
        return stem[:MAX_DISPLAY_NAME] or "data set"
    if not is_display_name(name, MAX_DISPLAY_NAME):
        text = f"A data set's name is 1 to {MAX_DISPLAY_NAME} printable characters."
        raise InvalidRequest(text, faults=[InputFault("name", "bad_name", text)])
    return name
