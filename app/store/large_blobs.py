"""Stores and deletes large blobs in several transactions, so that other writers are not blocked for long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from app.store.unit_of_work import Store

LARGE_CHUNK_BYTES = 4 * 1024**2
"""Size of every chunk except the last. Fixed, because a resumed upload must have the same chunk borders."""

_CHUNKS_PER_TRANSACTION = 8


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
        stored = uow.blobs.stored_positions(digest)
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


def _batches(chunks: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The chunks of each transaction with the position of the first; they are read before it begins."""
    source, position = iter(chunks), 0
    while batch := list(islice(source, _CHUNKS_PER_TRANSACTION)):
        yield position, batch
        position += len(batch)
