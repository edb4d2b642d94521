"""Output of a solver reaches the database as bytes or through a file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from app.domain.errors import NotFound, Unavailable
from app.jobs.solver.transfer import Transfer
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from tests.refusals import refused_as

CONTENT = os.urandom(9 * 1024**2)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


def sent(transfer: Transfer) -> Transfer:
    """The transfer as the worker receives it."""
    return Transfer.from_header(transfer.header, transfer.data or b"")


def test_small_content_is_transferred_as_bytes(store: Store, files: BlobCache):
    transfer = sent(Transfer.of(files, b"small"))
    assert transfer == Transfer(b"small")
    transfer.store_chunks(store, files)
    with store.begin() as uow:
        digest = transfer.finish(uow)
        assert uow.blobs.read(digest) == b"small"
    assert list(files.folder.glob("*")) == []


def test_large_content_is_transferred_as_a_file(store: Store, files: BlobCache):
    transfer = sent(Transfer.of(files, CONTENT))
    assert transfer == Transfer(None, DIGEST, len(CONTENT))
    progress: list[int] = []
    for _ in range(2):
        transfer.store_chunks(store, files, progress.append)
    assert progress == [len(CONTENT)] * 2
    with store.read() as uow:
        assert not uow.blobs.exists(DIGEST), "no reader sees it before finish"
        [(digest, _)] = uow.blobs.unused(2e12)
        assert digest == DIGEST
    with store.begin() as uow:
        assert transfer.finish(uow) == DIGEST
    with store.read() as uow:
        assert uow.blobs.read(DIGEST) == CONTENT


def test_content_without_stored_chunks_cannot_be_finished(store: Store, files: BlobCache):
    transfer = Transfer.of(files, CONTENT)
    with pytest.raises(Unavailable), store.begin() as uow:
        transfer.finish(uow)


def test_a_file_that_left_the_cache_is_an_error(store: Store, files: BlobCache):
    transfer = Transfer.of(files, CONTENT)
    files.discard(DIGEST)
    with refused_as(NotFound, "parcel_lost"):
        transfer.store_chunks(store, files)
