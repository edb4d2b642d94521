"""Storing blobs too large for one transaction: 2 GB in one would hold every other writer up until its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from app.store.unit_of_work import Store

CHUNK_BYTES = 4 * 1024**2
"""Bytes of every chunk but the last: a blob that is begun again must be cut at the same places."""

UNFINISHED_SECONDS = 3600.0
"""What was not touched for so long has lost its writer, and is deleted by the next one."""

_CHUNKS_A_STEP = 8


def store_by_steps(
    store: Store, digest: str, size: int, chunks: Iterable[bytes], told: Callable[[int], None] | None = None
) -> None:
    """Store a blob in several transactions; it is there for nobody until ``blobs.finish_steps`` says so.

    chunks: the bytes behind ``digest``, each of `CHUNK_BYTES`. told: hears of the bytes stored so far.
    Several writers of one blob do not disturb each other, and one that comes after a crash goes on.
    Raises Unavailable.
    """
    with store.begin() as uow:
        uow.blobs.forget_unfinished(time.time() - UNFINISHED_SECONDS)
        if not uow.blobs.begin_steps(digest, size):
            return
    done = 0
    for first, step in _steps(chunks):
        with store.begin() as uow:
            for position, chunk in enumerate(step, first):
                uow.blobs.step(digest, position, chunk)
        done += sum(map(len, step))
        if told is not None:
            told(done)


def _steps(chunks: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Position of the first chunk, and the chunks of one transaction, read before it begins."""
    source, position = iter(chunks), 0
    while step := list(islice(source, _CHUNKS_A_STEP)):
        yield position, step
        position += len(step)
