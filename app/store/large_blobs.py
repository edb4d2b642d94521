"""Storing and deleting blobs too large for one transaction: 2 GB in one would hold every other writer up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from app.store.unit_of_work import Store

LARGE_CHUNK_BYTES = 4 * 1024**2
"""Bytes of every chunk but the last: a blob that is begun again must be cut at the same places."""

_CHUNKS_A_STEP = 8


def put_large(
    store: Store, digest: str, size: int, chunks: Iterable[bytes], told: Callable[[int], None] | None = None
) -> None:
    """Store a blob in several transactions; it is there for nobody until ``blobs.finish_large`` says so.

    chunks: the bytes behind ``digest``, each of `LARGE_CHUNK_BYTES`. told: hears of the bytes stored so far.
    Several writers of one blob do not disturb each other, and one that comes after a crash goes on. What
    nobody goes on with is found by ``blobs.unused``.
    Raises Unavailable.
    """
    with store.begin() as uow:
        if not uow.blobs.begin_large(digest, size):
            return
        there = uow.blobs.stored_positions(digest)
    done = 0
    for first, step in _steps(chunks):
        missing = [(first + place, chunk) for place, chunk in enumerate(step) if first + place not in there]
        if missing:
            with store.begin() as uow:
                for position, chunk in missing:
                    uow.blobs.put_chunk(digest, position, chunk)
        done += sum(map(len, step))
        if told is not None:
            told(done)


def delete_large(store: Store, digest: str, *, before: float) -> bool:
    """Delete a blob nobody touched since ``before``, in several transactions, unless something stands on it.

    Returns whether it is gone. Raises Unavailable; what is left then is found by ``blobs.unused``.
    """
    with store.begin() as uow:
        if not uow.blobs.mark_incomplete(digest, before):
            return False
    more = True
    while more:
        with store.begin() as uow:
            more = uow.blobs.delete_chunks(digest, before, _CHUNKS_A_STEP)
    return True


def _steps(chunks: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Position of the first chunk, and the chunks of one transaction, read before it begins."""
    source, position = iter(chunks), 0
    while step := list(islice(source, _CHUNKS_A_STEP)):
        yield position, step
        position += len(step)
