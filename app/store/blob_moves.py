"""Moves the bytes of blobs between the database and the object store, and looks for missing objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from app.domain.errors import NotFound, Unavailable
from app.store.blobs import references
from app.store.bodies import OBJECT_BYTES, BlobBodies, DatabaseBodies, Place, verified, without_store
from app.store.large_blobs import LARGE_CHUNK_BYTES, read_large
from app.store.unit_of_work import Store

_PAGE: Final = 200
_CHUNKS_PER_TRANSACTION: Final = 8


@dataclass(frozen=True, slots=True)
class Moved:
    """Numbers of moved blobs so far, and in total. Blobs that were deleted in the meantime count, too."""

    blobs: int
    bytes: int
    total_blobs: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class MissingBlob:
    """A blob whose object is missing, or has another size. used_by: tables that refer to the blob."""

    digest: str
    size: int
    used_by: tuple[str, ...]


def move_blobs(store: Store, to: Place, report: Callable[[Moved], None]) -> Moved:
    """Move all blobs that belong into a place; the service may be running with the same object store.

    Each blob is copied, read back and compared with its digest, and then its row gets the new place. The old
    bytes are deleted: chunks at once, objects by the retention job. An interrupted move continues where it
    stopped. Raises Unavailable, also for a blob that is damaged in its old place.
    """
    if store.objects is None:
        raise without_store()
    store = store.of_all_tenants()
    least = OBJECT_BYTES if to is Place.OBJECTS else 0
    source = Place.DATABASE if to is Place.OBJECTS else Place.OBJECTS
    with store.read() as uow:
        total_blobs, total_bytes = uow.blobs.total_of(source, least=least)
    done, size_done, after = 0, 0, ""
    _delete_chunks_of_moved(store)
    while True:
        with store.read() as uow:
            page = uow.blobs.page_of(source, after=after, limit=_PAGE, least=least)
        if not page:
            return Moved(done, size_done, total_blobs, total_bytes)
        for digest, size in page:
            # The blob may be deleted in the meantime.
            with suppress(NotFound):
                _move(store, digest, size, to)
            done, size_done = done + 1, size_done + size
            report(Moved(done, size_done, total_blobs, total_bytes))
        after = page[-1][0]


def missing_objects(store: Store) -> Iterator[MissingBlob]:
    """The complete blobs in the object store whose objects are missing or cut off. Raises Unavailable."""
    if store.objects is None:
        raise without_store()
    present, after = all_objects(store.objects), ""
    while True:
        with store.read() as uow:
            page = uow.blobs.page_of(Place.OBJECTS, after=after, limit=_PAGE)
        for digest, size in page:
            if present.get(digest) != size:
                with store.read() as uow:
                    yield MissingBlob(digest, size, tuple(references(uow.connection, digest)))
        if not page:
            return
        after = page[-1][0]


def all_objects(objects: BlobBodies) -> dict[str, int]:
    """The size of every object by its digest. Raises Unavailable."""
    return dict(objects.strays(lambda _digests: (), inf))


def _move(store: Store, digest: str, size: int, to: Place) -> None:
    """Copy and verify one blob, and change its place.

    Raises NotFound if it was deleted meanwhile, Unavailable.
    """
    if store.objects is None:
        raise without_store()
    if to is Place.OBJECTS:
        _copy_to_objects(store, store.objects, digest, size)
    else:
        _delete_chunks(store, digest)
        _copy_to_database(store, digest, size)
    with store.begin() as uow:
        if not uow.blobs.set_place(digest, size, to):
            return
    if to is Place.OBJECTS:
        _delete_chunks(store, digest)


def _copy_to_objects(store: Store, objects: BlobBodies, digest: str, size: int) -> None:
    def copy() -> None:
        objects.put(digest, size, verified(digest, Place.DATABASE, read_large(store, digest)))
        for _ in verified(digest, Place.OBJECTS, objects.chunks(digest, size)):
            pass

    try:
        copy()
    except Unavailable as error:
        if error.reason != "blob_damaged":
            raise
        # A damaged object of an earlier time, which no row has referred to.
        objects.delete([digest])
        copy()


def _copy_to_database(store: Store, digest: str, size: int) -> None:
    chunks = verified(digest, Place.OBJECTS, read_large(store, digest))
    for position, chunk in enumerate(_pieces(chunks)):
        with store.begin() as uow:
            uow.blobs.put_chunk(digest, position, chunk)
    with store.read() as uow:
        for _ in verified(digest, Place.DATABASE, DatabaseBodies(uow.connection).chunks(digest, size)):
            pass


def _pieces(chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), LARGE_CHUNK_BYTES):
            yield chunk[start : start + LARGE_CHUNK_BYTES]


def _delete_chunks_of_moved(store: Store) -> None:
    """Delete chunks that an interrupted move has left."""
    with store.read() as uow:
        left = [digest for digest, _ in DatabaseBodies(uow.connection).strays(lambda _digests: (), inf)]
    for digest in left:
        _delete_chunks(store, digest)


def _delete_chunks(store: Store, digest: str) -> None:
    more = True
    while more:
        with store.begin() as uow:
            more = DatabaseBodies(uow.connection).delete_some(digest, _CHUNKS_PER_TRANSACTION)
