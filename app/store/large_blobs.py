"""Stores and deletes large blobs in several transactions, so that other writers are not blocked for long."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice

from app.store.bodies import OBJECT_BYTES, BlobBodies, DatabaseBodies, Place, without_store
from app.store.unit_of_work import Store

LARGE_CHUNK_BYTES = 4 * 1024**2
"""Size of every chunk except the last. Fixed, because a resumed upload must have the same chunk borders."""

_CHUNKS_PER_TRANSACTION = 8
_TOUCH_SECONDS = 60.0
"""How often a blob that is being put into the object store is marked as in use."""


def put_large(
    store: Store,
    digest: str,
    size: int,
    chunks: Iterable[bytes],
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Store a blob in several transactions; readers do not see it before ``blobs.finish_large``.

    chunks: the content, in chunks of `LARGE_CHUNK_BYTES`. on_progress: called with the bytes stored so far.
    Concurrent writers of one blob do not conflict, and a writer after a crash resumes. ``blobs.unused`` lists
    blobs that are never finished. Raises Unavailable.
    """
    with store.begin() as uow:
        if not uow.blobs.begin_large(digest, size):
            return
        place = uow.blobs.place_for(size)
        stored = uow.blobs.stored_positions(digest) if place is Place.DATABASE else set()
    if place is Place.OBJECTS and store.objects is not None:
        store.objects.put(digest, size, _in_use(store, digest, chunks, on_progress))
        return
    done = 0
    for first, batch in _batches(chunks):
        missing = [(position, chunk) for position, chunk in enumerate(batch, first) if position not in stored]
        if missing:
            with store.begin() as uow:
                for position, chunk in missing:
                    uow.blobs.put_chunk(digest, position, chunk)
        done += sum(map(len, batch))
        if on_progress is not None:
            on_progress(done)


def stage(store: Store, contents: Iterable[bytes]) -> None:
    """Put contents that belong into the object store there, before the transaction that makes them blobs.

    This keeps that transaction short. If it does not commit, the retention job deletes the contents. Raises
    Unavailable.
    """
    if store.objects is None:
        return
    for content in contents:
        if len(content) >= OBJECT_BYTES:
            store.objects.put(hashlib.sha256(content).hexdigest(), len(content), [content])


def read_large(store: Store, digest: str) -> Iterator[bytes]:
    """The content of a blob, not verified, without a transaction that a slow reader would hold open.

    Raises NotFound, Unavailable.
    """
    with store.read() as uow:
        place, size = uow.blobs.where(digest)
    if place is Place.OBJECTS:
        yield from _objects(store).chunks(digest, size)
        return
    for position in count():
        with store.read() as uow:
            chunk = uow.blobs.chunk(digest, position)
        if chunk is None:
            return
        yield chunk


def fetch_blob(store: Store, digest: str) -> Iterator[bytes]:
    """Like `read_large`, for a fast reader: one transaction reads all bytes that are in the database."""
    with store.read() as uow:
        place, size = uow.blobs.where(digest)
        if place is Place.DATABASE:
            yield from DatabaseBodies(uow.connection).chunks(digest, size)
            return
    yield from _objects(store).chunks(digest, size)


def _objects(store: Store) -> BlobBodies:
    """The object store. Raises Unavailable if the settings name none."""
    if store.objects is None:
        raise without_store()
    return store.objects


def delete_large(store: Store, digest: str, *, before: float) -> bool:
    """Delete an unreferenced blob that was not used since ``before``, in several transactions.

    Returns False if it is referenced or in use. Raises Unavailable; ``blobs.unused`` then lists the rest.
    """
    with store.begin() as uow:
        if not uow.blobs.mark_incomplete(digest, before):
            return False
    more = True
    while more:
        with store.begin() as uow:
            more = uow.blobs.delete_chunks(digest, before, _CHUNKS_PER_TRANSACTION)
    return True


def _in_use(
    store: Store, digest: str, chunks: Iterable[bytes], on_progress: Callable[[int], None] | None
) -> Iterator[bytes]:
    """The chunks of an unfinished blob; its row is touched regularly, so that nothing deletes it."""
    done, touched = 0, time.monotonic()
    for chunk in chunks:
        if time.monotonic() - touched > _TOUCH_SECONDS:
            with store.begin() as uow:
                uow.blobs.keep_large(digest)
            touched = time.monotonic()
        yield chunk
        done += len(chunk)
        if on_progress is not None:
            on_progress(done)


def _batches(chunks: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The chunks of each transaction with the position of the first; they are read before it begins."""
    source, position = iter(chunks), 0
    while batch := list(islice(source, _CHUNKS_PER_TRANSACTION)):
        yield position, batch
        position += len(batch)
