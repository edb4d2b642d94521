"""What a solver hands over reaches the database, as bytes or by way of a file; what does not is collected."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from app.domain.errors import NotFound, Unavailable
from app.jobs.solver.transfer import Parcel
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store

CONTENT = os.urandom(9 * 1024**2)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


def sent(parcel: Parcel) -> Parcel:
    """As it arrives at the other end of the pipe."""
    return Parcel.unpack(parcel.label, parcel.data or b"")


def test_a_small_one_travels_as_bytes(store: Store, files: BlobCache):
    parcel = sent(Parcel.pack(files, b"small"))
    assert parcel == Parcel(b"small")
    parcel.bring(store, files)
    with store.begin() as uow:
        digest = parcel.keep(uow)
        assert uow.blobs.read(digest) == b"small"
    assert list(files.folder.glob("*")) == []


def test_a_large_one_travels_as_a_file(store: Store, files: BlobCache):
    parcel = sent(Parcel.pack(files, CONTENT))
    assert parcel == Parcel(None, DIGEST, len(CONTENT))
    told: list[int] = []
    for _ in range(2):
        parcel.bring(store, files, told.append)
    assert told == [len(CONTENT)] * 2
    with store.read() as uow:
        assert not uow.blobs.exists(DIGEST), "it is there for nobody until it is kept"
        [(found, _)] = uow.blobs.unused(2e12, limit=5)
        assert found == DIGEST
    with store.begin() as uow:
        assert parcel.keep(uow) == DIGEST
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == CONTENT


def test_one_that_was_not_brought_is_not_kept(store: Store, files: BlobCache):
    parcel = Parcel.pack(files, CONTENT)
    with pytest.raises(Unavailable), store.begin() as uow:
        parcel.keep(uow)


def test_one_that_left_the_cache_is_told(store: Store, files: BlobCache):
    parcel = Parcel.pack(files, CONTENT)
    files.discard(DIGEST)
    with pytest.raises(NotFound) as caught:
        parcel.bring(store, files)
    assert caught.value.reason == "parcel_lost"
