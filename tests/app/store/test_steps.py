"""Blobs stored step by step: there for nobody until they are whole, resumed after a crash, collected."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from app.domain.errors import NotFound, Unavailable
from app.store import steps
from app.store.steps import store_by_steps
from app.store.tables import blob_chunks, blobs
from app.store.unit_of_work import Store

DATA = [bytes([number]) * 100 for number in range(20)]
DIGEST = hashlib.sha256(b"".join(DATA)).hexdigest()
SIZE = 2000


def finish(store: Store) -> None:
    with store.begin() as uow:
        uow.blobs.finish_steps(DIGEST)


def test_a_blob_is_there_only_when_it_is_finished(store: Store):
    told: list[int] = []
    store_by_steps(store, DIGEST, SIZE, DATA, told.append)
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
    store_by_steps(store, DIGEST, SIZE, (pytest.fail("not read again") for _ in range(1)))


def test_others_write_between_the_steps(store: Store):
    def chunks() -> Iterator[bytes]:
        for number, chunk in enumerate(DATA):
            with store.begin() as uow:
                uow.blobs.put([b"another %d" % number])
            yield chunk

    store_by_steps(store, DIGEST, SIZE, chunks())
    finish(store)


def test_what_a_crash_cut_off_is_gone_on_with(store: Store):
    def cut() -> Iterator[bytes]:
        yield from DATA[:12]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_by_steps(store, DIGEST, SIZE, cut())
    with pytest.raises(Unavailable, match="not stored whole"):
        finish(store)
    store_by_steps(store, DIGEST, SIZE, DATA)
    finish(store)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)


def test_two_writers_of_one_blob_do_not_disturb_each_other(store: Store):
    threads = [
        threading.Thread(target=store_by_steps, args=(store, DIGEST, SIZE, iter(DATA))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(store)
    finish(store)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)


def test_an_abandoned_blob_is_collected_by_the_next_writer(store: Store, monkeypatch: pytest.MonkeyPatch):
    store_by_steps(store, DIGEST, SIZE, DATA)
    other = hashlib.sha256(b"other").hexdigest()
    store_by_steps(store, other, 5, [b"other"])
    monkeypatch.setattr(steps, "UNFINISHED_SECONDS", -10.0)
    store_by_steps(store, hashlib.sha256(b"third").hexdigest(), 5, [])
    with store.read() as uow:
        count = sa.select(sa.func.count())
        assert uow.connection.execute(count.select_from(blobs)).scalar() == 1
        assert uow.connection.execute(count.select_from(blob_chunks)).scalar() == 0


def test_a_blob_collected_under_its_writer_is_an_error(store: Store):
    with store.begin() as uow:
        uow.blobs.begin_steps(DIGEST, SIZE)
        uow.blobs.forget_unfinished(2e12)
        with pytest.raises(NotFound, match="given up"):
            uow.blobs.step(DIGEST, 0, DATA[0])


def test_an_unfinished_blob_is_stored_whole_by_who_has_it_whole(store: Store):
    store_by_steps(store, DIGEST, SIZE, DATA[:12])
    with store.begin() as uow:
        assert uow.blobs.put([b"".join(DATA)]) == (DIGEST, SIZE)
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == b"".join(DATA)
