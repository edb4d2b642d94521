from __future__ import annotations

import hashlib
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.domain.errors import NotFound, Unavailable
from app.store.blobs import CHUNK_BYTES
from app.store.tables import blob_chunks
from app.store.unit_of_work import Store
from tests.refusals import refused_as


def random_pieces(n_bytes: int, piece: int) -> Iterator[bytes]:
    data = np.random.default_rng(0).bytes(n_bytes)
    return (data[start : start + piece] for start in range(0, n_bytes, piece))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 17])
def test_a_blob_comes_back_as_it_was_under_its_sha256(store: Store, size: int) -> None:
    data = b"".join(random_pieces(size, 10_007))
    with store.begin() as uow:
        digest, stored = uow.blobs.put(random_pieces(size, 10_007))
    with store.read() as uow:
        assert (digest, stored) == (hashlib.sha256(data).hexdigest(), size)
        assert uow.blobs.read(digest) == data
        assert uow.blobs.size(digest) == size
        assert all(len(chunk) <= CHUNK_BYTES for chunk in uow.blobs.chunks(digest))


def test_the_same_bytes_twice_are_stored_once(store: Store) -> None:
    with store.begin() as uow:
        first = uow.blobs.put([b"one", b"two"])
        assert uow.blobs.put([b"onetwo"]) == first
        assert uow.connection.execute(sa.select(sa.func.count()).select_from(blob_chunks)).scalar() == 1


def test_an_unknown_blob_is_not_found(store: Store) -> None:
    with store.read() as uow:
        assert not uow.blobs.exists("0" * 64)
        for ask in (uow.blobs.read, uow.blobs.size, lambda digest: uow.blobs.sizes([digest])):
            with refused_as(NotFound, "blob_not_found"):
                ask("0" * 64)


def test_altered_bytes_are_noticed(store: Store) -> None:
    with store.begin() as uow:
        digest, _ = uow.blobs.put([b"true"])
        uow.connection.execute(sa.update(blob_chunks).values(data=b"fals"))
    with store.read() as uow, pytest.raises(Unavailable, match="damaged"):
        uow.blobs.read(digest)


def test_a_blob_that_something_stands_on_is_not_deleted(store: Store, add_dataset: Any) -> None:
    with store.begin() as uow:
        dataset = add_dataset(uow)
        assert not uow.blobs.delete(dataset.blob_digest)
        assert uow.blobs.exists(dataset.blob_digest)
        uow.datasets.delete(dataset.id)
        assert uow.blobs.delete(dataset.blob_digest)
        assert uow.connection.execute(sa.select(blob_chunks)).first() is None


def test_many_may_put_the_same_blob_at_once(store: Store) -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def put() -> None:
        barrier.wait()
        try:
            with store.begin() as uow:
                uow.blobs.put([b"x" * CHUNK_BYTES, b"y"])
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with store.read() as uow:
        assert uow.connection.execute(sa.select(sa.func.count()).select_from(blob_chunks)).scalar() == 2


def test_putting_a_large_blob_takes_little_memory(sqlite_store: Store) -> None:
    tracemalloc.start()
    with sqlite_store.begin() as uow:
        uow.blobs.put(bytes(CHUNK_BYTES) for _ in range(64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * CHUNK_BYTES
