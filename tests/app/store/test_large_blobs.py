"""Large blobs: invisible until complete, resumed after a crash, deleted in several transactions."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.errors import NotFound, Unavailable
from app.store.large_blobs import delete_large, put_large
from app.store.tables import blob_chunks, blobs
from app.store.unit_of_work import Store
from tests.refusals import refused_as

DATA = [bytes([number]) * 100 for number in range(20)]
DIGEST = hashlib.sha256(b"".join(DATA)).hexdigest()
SIZE = 2000


def finish(store: Store) -> None:
    with store.begin() as uow:
        uow.blobs.finish_large(DIGEST)


def test_a_blob_is_there_only_when_it_is_finished(store: Store):
    told: list[int] = []
    put_large(store, DIGEST, SIZE, DATA, told.append)
    assert told == [800, 1600, 2000]
    with store.read() as uow:
        assert not uow.blobs.exists(DIGEST)
        with pytest.raises(NotFound):
            uow.blobs.read(DIGEST)
        with pytest.raises(NotFound):
            uow.blobs.size(DIGEST)
    finish(store)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)
        assert uow.blobs.size(DIGEST) == SIZE
    put_large(store, DIGEST, SIZE, (pytest.fail("not read again") for _ in range(1)))


def test_other_transactions_write_between_the_chunks(store: Store):
    def chunks() -> Iterator[bytes]:
        for number, chunk in enumerate(DATA):
            with store.begin() as uow:
                uow.blobs.put([b"another %d" % number])
            yield chunk

    put_large(store, DIGEST, SIZE, chunks())
    finish(store)


def test_an_interrupted_upload_is_resumed(store: Store):
    def cut() -> Iterator[bytes]:
        yield from DATA[:12]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_large(store, DIGEST, SIZE, cut())
    with refused_as(Unavailable, "blob_incomplete", match="not stored completely"):
        finish(store)
    put_large(store, DIGEST, SIZE, DATA)
    finish(store)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)


def test_concurrent_writers_of_one_blob_do_not_conflict(store: Store):
    threads = [threading.Thread(target=put_large, args=(store, DIGEST, SIZE, iter(DATA))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(store)
    finish(store)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)


def test_storing_a_chunk_of_a_deleted_blob_is_an_error(store: Store):
    with store.begin() as uow:
        uow.blobs.begin_large(DIGEST, SIZE)
        assert not uow.blobs.delete_chunks(DIGEST, 2e12, 1)
        with pytest.raises(Unavailable, match="was deleted"):
            uow.blobs.put_chunk(DIGEST, 0, DATA[0])


def count(store: Store, table: sa.Table) -> int:
    with store.read() as uow:
        return int(uow.connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


@pytest.mark.parametrize("whole", [True, False])
def test_an_unreferenced_blob_is_deleted_in_several_transactions(store: Store, whole: bool):
    put_large(store, DIGEST, SIZE, DATA)
    if whole:
        finish(store)
    assert not delete_large(store, DIGEST, before=1.0), "it was touched since"
    assert count(store, blob_chunks) == len(DATA)
    assert delete_large(store, DIGEST, before=2e12)
    assert (count(store, blobs), count(store, blob_chunks)) == (0, 0)
    assert not delete_large(store, DIGEST, before=2e12)


def test_a_blob_that_something_stands_on_is_not_deleted_by_steps(store: Store, add_dataset: Any):
    with store.begin() as uow:
        dataset = add_dataset(uow)
    assert not delete_large(store, dataset.blob_digest, before=2e12)
    with store.read() as uow:
        assert uow.blobs.read(dataset.blob_digest)


def test_who_stores_a_blob_again_takes_it_out_of_its_deletion(store: Store):
    now = time.time()
    put_large(store, DIGEST, SIZE, DATA)
    finish(store)
    with store.begin() as uow:
        uow.connection.execute(sa.update(blobs).values(created_at=now - 10))
        assert uow.blobs.mark_incomplete(DIGEST, now - 5)
        assert uow.blobs.delete_chunks(DIGEST, now - 5, 3)
    with store.read() as uow:
        assert not uow.blobs.exists(DIGEST)
    put_large(store, DIGEST, SIZE, DATA)
    with store.begin() as uow:
        assert not uow.blobs.delete_chunks(DIGEST, now - 5, 3)
    finish(store)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)


def test_a_blob_about_to_be_used_is_not_retired(store: Store):
    """On PostgreSQL the collector waits for the row; on SQLite for the database."""
    put_large(store, DIGEST, SIZE, DATA)
    finish(store)
    before = time.time()
    with store.begin() as uow:
        uow.connection.execute(sa.update(blobs).values(created_at=before - 10))
    gone: list[bool] = []
    collector = threading.Thread(target=lambda: gone.append(delete_large(store, DIGEST, before=before)))
    with store.begin() as uow:
        uow.blobs.put([b"".join(DATA)])
        collector.start()
        collector.join(0.3)
        assert collector.is_alive()
    collector.join()
    assert gone == [False]
    assert count(store, blob_chunks) == len(DATA)


def test_an_unfinished_blob_is_stored_whole_by_who_has_it_whole(store: Store):
    put_large(store, DIGEST, SIZE, DATA[:12])
    with store.begin() as uow:
        assert uow.blobs.put([b"".join(DATA)]) == (DIGEST, SIZE)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)
