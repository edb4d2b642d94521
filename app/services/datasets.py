"""Use cases of data sets: register, look, load, delete."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from app.domain.entities import Dataset, new_id
from app.domain.errors import Conflict, InputFault, InvalidRequest, Unavailable
from app.domain.names import MAX_TITLE, is_title
from app.ingest import dataset_format
from app.ingest.formats import detect, named, read
from app.ingest.raw import DatasetLimits, RawData
from app.ingest.spool import Spooled, spooled
from app.ingest.validate import summarise, validate
from app.services.models import open_blob
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.large_blobs import LARGE_CHUNK_BYTES, delete_large, put_large
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from core.errors import InvalidPackage


def register_dataset(
    store: Store,
    files: BlobCache,
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

    The rows pass through a file of the local cache into the database, in transactions of some MiB each. Until
    the last of them there is nothing to be seen, and what a crash leaves behind is collected.

    Raises InvalidRequest naming field, row and column of what is wrong, TooLarge, UnsupportedFormat,
    Unavailable.
    """
    title = _title(name, filename)
    # Known bytes are not looked at again, but what is said of them is.
    named(file_format)
    with spooled(source, limits.max_upload_bytes) as file:
        if label_column is None and (known := _known(store, file.digest)) is not None:
            return known, False
        kind = detect(file.path, declared=file_format, filename=filename)
        raw = read(file.path, kind, _limits(limits, files), label_column)
        identity = _identity(file, raw)
        if (known := _known(store, identity)) is not None:
            return known, False
        train, test = validate(raw)
        summary = summarise(raw, train, test)
        blob = _stored(store, files, train, test)
    dataset = Dataset(
        id=new_id("ds"),
        digest=identity,
        name=title,
        source_format=kind.value,
        size_bytes=file.size,
        blob_digest=blob,
        rows=train.n,
        test_rows=0 if test is None else test.n,
        columns=train.d,
        classes=train.classes,
        summary=summary,
        created_at=time.time(),
        created_by=created_by,
    )
    with store.begin() as uow:
        uow.blobs.finish_large(blob)
        if uow.datasets.add(dataset):
            uow.audit.append("dataset.create", dataset.id, details={"digest": dataset.digest})
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
        dataset = uow.datasets.lock(dataset_id, exclusive=True)
        if uow.jobs.unfinished_for_dataset(dataset_id):
            raise Conflict(
                f"Data set {dataset_id} is in use by a training job that has not ended.",
                code="dataset_in_use",
            )
        uow.datasets.delete(dataset_id)
        uow.audit.append("dataset.delete", dataset_id, details={"digest": dataset.digest})
    # In transactions of their own: 2 GB in one would hold every other writer up.
    delete_large(store, dataset.blob_digest, before=time.time())


def load_dataset(store: Store, files: BlobCache, dataset_id: str) -> tuple[LabelledData, LabelledData | None]:
    """Training part, and test part if there is one, by way of the local cache.

    The stored bytes are verified. The arrays are views of the file, which is mapped into memory: what is not
    used takes no room, and nothing may be written to them. Raises NotFound and Unavailable.
    """
    with store.read() as uow:
        digest = uow.datasets.get(dataset_id).blob_digest
    try:
        return files.with_refetch(
            lambda: dataset_format.decode(open_blob(store, files, digest).whole()), digest
        )
    except InvalidPackage as error:
        raise Unavailable(
            f"Data set {dataset_id} is damaged in the local cache.", code="blob_damaged"
        ) from error


def _stored(store: Store, files: BlobCache, train: LabelledData, test: LabelledData | None) -> str:
    """Digest of the blob of both parts, all of it in the database but not finished."""
    with files.writing(f"dataset-{secrets.token_hex(8)}.tmp") as writer:
        for piece in dataset_format.encode(train, test):
            writer.write(piece)
        files.commit(writer)
        put_large(store, writer.digest, writer.size, writer.chunks(LARGE_CHUNK_BYTES))
        return writer.digest


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


def _limits(settings: Settings, files: BlobCache) -> DatasetLimits:
    return DatasetLimits(settings.max_rows, settings.max_columns, settings.max_dataset_bytes, files.folder)


def _title(name: str | None, filename: str | None) -> str:
    if name is None:
        stem = "".join(filter(str.isprintable, PurePath(filename or "").stem)).strip()
        return stem[:MAX_TITLE] or "data set"
    if not is_title(name, MAX_TITLE):
        text = f"A data set's name is 1 to {MAX_TITLE} printable characters."
        raise InvalidRequest(text, faults=[InputFault("name", "bad_name", text)])
    return name
