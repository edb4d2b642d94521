"""Use cases of data sets: register, look, load, delete."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from app.domain.entities import Dataset, new_id
from app.domain.errors import Conflict, InputFault, InvalidRequest
from app.ingest.assemble import assemble, summarise
from app.ingest.canonical import digest_of, parse, pieces
from app.ingest.formats import detect, read
from app.ingest.raw import Limits, RawData
from app.ingest.spool import Spooled, spooled
from app.settings import Settings
from app.store.unit_of_work import Store, UnitOfWork
from core.dataset import LabelledData

MAX_NAME_LENGTH = 200


def register_dataset(
    store: Store,
    source: Iterable[bytes] | Path,
    *,
    created_by: str,
    limits: Settings,
    name: str | None = None,
    filename: str | None = None,
    file_format: str | None = None,
    label_column: str | None = None,
) -> tuple[Dataset, bool]:
    """Check a file and keep what it holds; returns the data set and whether it is new.

    The same bytes are the same data set, whatever they are called, unless read with another label column.
    source: the file, or the pieces of an upload. file_format: csv, svmlight, npz, npy or parquet; else the
    ending of ``filename`` and the content decide. label_column: name or zero-based index; else the last.

    Raises InvalidRequest naming field, row and column of what is wrong, TooLarge, UnsupportedFormat.
    """
    title = _title(name, filename)
    with spooled(source, limits.max_upload_bytes) as file:
        if label_column is None and (known := _known(store, file.digest)) is not None:
            return known, False
        kind = detect(file.path, declared=file_format, filename=filename)
        raw = read(file.path, kind, _limits(limits), label_column)
        identity = _identity(file, raw)
        if (known := _known(store, identity)) is not None:
            return known, False
        train, test = assemble(raw)
    digest, size = digest_of(pieces(train, test))
    dataset = Dataset(
        id=new_id("ds"),
        digest=identity,
        name=title,
        source_format=kind.value,
        size_bytes=file.size,
        blob_digest=digest,
        rows=train.n,
        test_rows=0 if test is None else test.n,
        columns=train.d,
        classes=train.classes,
        summary=summarise(raw, train, test),
        created_at=time.time(),
        created_by=created_by,
    )
    with store.begin() as uow:
        uow.blobs.put_known(pieces(train, test), digest, size)
        if uow.datasets.add(dataset):
            return dataset, True
    # The same bytes were registered by someone else while these were read.
    return _existing(store, identity), False


def get_dataset(store: Store, dataset_id: str) -> Dataset:
    """One data set. Raises NotFound."""
    with store.read() as uow:
        return uow.datasets.get(dataset_id)


def list_datasets(store: Store, *, limit: int, after: str | None = None) -> tuple[Sequence[Dataset], bool]:
    """Data sets newest first, those older than id ``after``; and whether there are more."""
    with store.read() as uow:
        return uow.datasets.page(limit=limit, after=after)


def delete_dataset(store: Store, dataset_id: str) -> None:
    """Forget a data set and its rows; jobs and models made from it stay.

    Raises NotFound, and Conflict while a job that has not ended trains or tests on it.
    """
    with store.begin() as uow:
        dataset = uow.datasets.hold(dataset_id, exclusive=True)
        if uow.jobs.unfinished_for_dataset(dataset_id):
            raise Conflict(
                f"Data set {dataset_id} is in use by a training job that has not ended.",
                code="dataset_in_use",
            )
        uow.datasets.delete(dataset_id)
        uow.blobs.delete(dataset.blob_digest)


def load_dataset(store: Store, dataset_id: str) -> tuple[LabelledData, LabelledData | None]:
    """Training part, and test part if there is one; the stored bytes are verified. Raises NotFound."""
    with store.read() as uow:
        return parse(_blob(uow, uow.datasets.get(dataset_id).blob_digest))


def _blob(uow: UnitOfWork, digest: str) -> bytearray:
    """The whole blob in one buffer, once."""
    buffer = bytearray(uow.blobs.size(digest))
    position = 0
    for chunk in uow.blobs.chunks(digest):
        buffer[position : position + len(chunk)] = chunk
        position += len(chunk)
    return buffer


def _known(store: Store, digest: str) -> Dataset | None:
    with store.read() as uow:
        return uow.datasets.by_digest(digest)


def _existing(store: Store, digest: str) -> Dataset:
    known = _known(store, digest)
    if known is None:
        raise Conflict("The data set was deleted while it was being registered.", code="dataset_deleted")
    return known


def _identity(file: Spooled, raw: RawData) -> str:
    """The digest a data set is known by: that of its file, unless an unusual label column was chosen."""
    if raw.label_is_default:
        return file.digest
    return hashlib.sha256(f"{file.digest} label_column={raw.label_column}".encode()).hexdigest()


def _limits(settings: Settings) -> Limits:
    return Limits(settings.max_rows, settings.max_columns, settings.max_dataset_bytes)


def _title(name: str | None, filename: str | None) -> str:
    if name is None:
        stem = "".join(filter(str.isprintable, PurePath(filename or "").stem)).strip()
        return stem[:MAX_NAME_LENGTH] or "data set"
    if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        text = f"A data set's name is 1 to {MAX_NAME_LENGTH} printable characters."
        raise InvalidRequest(text, faults=[InputFault("name", "bad_name", text)])
    return name
