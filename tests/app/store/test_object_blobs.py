"""Blobs whose bytes are in an object store: stored, read, deleted, moved, and found if a crash left them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from app.domain.errors import NotFound, Unavailable
from app.domain.object_address import ObjectAddress
from app.services import retention
from app.services.retention import clean, delete_unused
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.blob_moves import Moved, missing_objects, move_blobs
from app.store.bodies import OBJECT_BYTES, BlobBodies, Place
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large, read_large, stage
from app.store.opening import NoObjectStore, open_objects, require_objects
from app.store.tables import blob_chunks, blobs
from app.store.unit_of_work import Store
from tests.refusals import refused_as
from tests.system.deployment import ROOT

LATER = 1e12
LARGE = b"large" * 400_000
LARGE_DIGEST = hashlib.sha256(LARGE).hexdigest()
SMALL = b"small"


def chunks(content: bytes = LARGE) -> Iterator[bytes]:
    return (content[at : at + LARGE_CHUNK_BYTES] for at in range(0, len(content), LARGE_CHUNK_BYTES))


def put_whole(store: Store, content: bytes = LARGE) -> str:
    """Store a blob that nothing refers to."""
    digest = hashlib.sha256(content).hexdigest()
    put_large(store, digest, len(content), chunks(content))
    with store.begin() as uow:
        uow.blobs.finish_large(digest)
    return digest


def age(store: Store, seconds: float) -> None:
    with store.begin() as uow:
        uow.connection.execute(sa.update(blobs).values(created_at=blobs.c.created_at - seconds))


def rows(store: Store) -> list[tuple[str, str, bool]]:
    with store.read() as uow:
        found = uow.connection.execute(sa.select(blobs.c.digest, blobs.c.place, blobs.c.complete))
        return [tuple(row) for row in found]


def stored_chunks(store: Store) -> int:
    with store.read() as uow:
        return uow.connection.execute(sa.select(sa.func.count()).select_from(blob_chunks)).scalar_one()


def overwrite(objects: BlobBodies, digest: str, content: bytes) -> None:
    objects.delete([digest])
    objects.put(digest, len(content), [content])


def test_large_contents_are_objects_and_small_ones_stay_in_the_database(
    object_backed: Store, objects: BlobBodies
):
    with object_backed.begin() as uow:
        small, _ = uow.blobs.put([SMALL])
        border, size = uow.blobs.put([bytes(OBJECT_BYTES)])
        assert uow.blobs.where(small) == (Place.DATABASE, len(SMALL))
        assert uow.blobs.where(border) == (Place.OBJECTS, size)
        assert uow.blobs.read(border) == bytes(OBJECT_BYTES)
        assert uow.blobs.first_chunks([small, border]) == {small: SMALL, border: bytes(OBJECT_BYTES)}
    assert objects.size(border) == OBJECT_BYTES
    assert objects.size(small) is None
    assert stored_chunks(object_backed) == 1


def test_an_object_is_a_blob_only_when_it_is_finished(object_backed: Store, objects: BlobBodies):
    told: list[int] = []
    put_large(object_backed, LARGE_DIGEST, len(LARGE), chunks(), told.append)
    assert told[-1] == len(LARGE)
    assert objects.size(LARGE_DIGEST) == len(LARGE)
    with object_backed.read() as uow, pytest.raises(NotFound):
        uow.blobs.size(LARGE_DIGEST)
    with object_backed.begin() as uow:
        uow.blobs.finish_large(LARGE_DIGEST)
    assert b"".join(read_large(object_backed, LARGE_DIGEST)) == LARGE
    put_large(object_backed, LARGE_DIGEST, len(LARGE), (pytest.fail("not read again") for _ in range(1)))


def test_a_blob_without_its_object_is_not_finished(object_backed: Store, objects: BlobBodies):
    put_large(object_backed, LARGE_DIGEST, len(LARGE), chunks())
    objects.delete([LARGE_DIGEST])
    with refused_as(Unavailable, "blob_incomplete"), object_backed.begin() as uow:
        uow.blobs.finish_large(LARGE_DIGEST)


def test_a_missing_object_and_a_damaged_one_are_errors(object_backed: Store, objects: BlobBodies):
    digest = put_whole(object_backed)
    overwrite(objects, digest, LARGE[::-1])
    with refused_as(Unavailable, "blob_damaged", match="object store"), object_backed.read() as uow:
        uow.blobs.read(digest)
    objects.delete([digest])
    with refused_as(Unavailable, "blob_missing", match="object store"), object_backed.read() as uow:
        uow.blobs.read(digest)


def test_the_cache_takes_no_damaged_object_and_fetches_a_damaged_file_again(
    object_backed: Store, objects: BlobBodies, tmp_path
):
    digest = put_whole(object_backed)
    files = BlobCache(tmp_path / "cache", 1 << 30)
    overwrite(objects, digest, LARGE[::-1])
    with refused_as(Unavailable, "blob_damaged"):
        open_blob(object_backed, files, digest)
    overwrite(objects, digest, LARGE)
    assert bytes(open_blob(object_backed, files, digest).whole()) == LARGE
    path = files.path(digest)
    path.write_bytes(path.read_bytes()[:-1])
    assert bytes(open_blob(object_backed, files, digest).whole()) == LARGE


def test_a_deleted_object_is_hidden_at_once_and_gone_an_hour_later(
    object_backed: Store, objects: BlobBodies, tmp_path
):
    digest = put_whole(object_backed)
    settings = Settings(data_dir=tmp_path)
    delete_unused(object_backed, [digest])
    with object_backed.read() as uow:
        assert not uow.blobs.exists(digest)
    assert objects.size(digest) == len(LARGE), "it may be read at this moment"
    assert clean(object_backed, settings).blobs == 0
    assert objects.size(digest) == len(LARGE)
    age(object_backed, 2 * retention.GRACE_SECONDS)
    assert clean(object_backed, settings).bytes == len(LARGE)
    assert objects.size(digest) is None
    assert rows(object_backed) == []


def test_a_hidden_blob_that_is_stored_again_keeps_its_object(
    object_backed: Store, objects: BlobBodies, tmp_path
):
    digest = put_whole(object_backed)
    delete_unused(object_backed, [digest])
    age(object_backed, 2 * retention.GRACE_SECONDS)
    put_whole(object_backed)
    clean(object_backed, Settings(data_dir=tmp_path))
    assert objects.size(digest) == len(LARGE)
    assert b"".join(read_large(object_backed, digest)) == LARGE


KILLED = """
import os, sys
from app.store.engine import open_engine
from app.domain.object_address import ObjectAddress
from app.store.opening import open_objects
from app.store.unit_of_work import Store

address, *parts = sys.argv[1:]
store = Store(open_engine(address), objects=open_objects(ObjectAddress(*parts)))
with store.begin() as uow:
    uow.blobs.put([b"large" * 400_000])
    os.kill(os.getpid(), 9)
"""


@pytest.mark.long
def test_a_process_that_is_killed_between_object_and_row_leaves_a_stray(
    store: Store, s3_address: ObjectAddress, monkeypatch, tmp_path
):
    objects = open_objects(s3_address)
    object_backed = Store(store.engine, objects=objects)
    parts = [getattr(s3_address, name) for name in s3_address.__dataclass_fields__]
    address = object_backed.engine.url.render_as_string(hide_password=False)
    killed = subprocess.run([sys.executable, "-P", "-c", KILLED, address, *parts], cwd=ROOT, check=False,
                            env={"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert killed.returncode == -9
    assert objects.size(LARGE_DIGEST) == len(LARGE)
    assert rows(object_backed) == []
    settings = Settings(data_dir=tmp_path)
    clean(object_backed, settings)
    assert objects.size(LARGE_DIGEST) == len(LARGE), "it may belong to a transaction in progress"
    monkeypatch.setattr(retention, "STRAY_SECONDS", -60.0)
    clean(object_backed, settings)
    age(object_backed, 2 * retention.GRACE_SECONDS)
    clean(object_backed, settings)
    assert objects.size(LARGE_DIGEST) is None
    assert rows(object_backed) == []


def test_what_was_begun_and_left_is_deleted(object_backed: Store, objects: BlobBodies, tmp_path):
    put_large(object_backed, LARGE_DIGEST, len(LARGE), chunks())
    age(object_backed, 2 * retention.GRACE_SECONDS)
    clean(object_backed, Settings(data_dir=tmp_path))
    assert objects.size(LARGE_DIGEST) is None
    assert rows(object_backed) == []


def test_a_stray_that_becomes_a_blob_meanwhile_stays(
    object_backed: Store, objects: BlobBodies, monkeypatch, tmp_path
):
    stage(object_backed, [LARGE, SMALL])
    assert objects.size(LARGE_DIGEST) == len(LARGE)
    monkeypatch.setattr(retention, "STRAY_SECONDS", -60.0)
    clean(object_backed, Settings(data_dir=tmp_path))
    with object_backed.begin() as uow:
        uow.blobs.put([LARGE])
    age(object_backed, 2 * retention.GRACE_SECONDS)
    with object_backed.begin() as uow:
        uow.blobs.put([LARGE])
    clean(object_backed, Settings(data_dir=tmp_path))
    assert b"".join(read_large(object_backed, LARGE_DIGEST)) == LARGE


def test_blobs_move_to_the_object_store_and_back(store: Store, objects: BlobBodies, monkeypatch, tmp_path):
    with_objects = Store(store.engine, objects=objects)
    digests = [put_whole(store, bytes([number]) * 5_000_000) for number in range(3)]
    with store.begin() as uow:
        uow.blobs.put([SMALL])
    told: list[Moved] = []
    moved = move_blobs(with_objects, Place.OBJECTS, told.append)
    assert moved == Moved(3, 15_000_000, 3, 15_000_000)
    assert [one.blobs for one in told] == [1, 2, 3]
    assert stored_chunks(store) == 1
    for number, digest in enumerate(digests):
        assert set(b"".join(read_large(with_objects, digest))) == {number}
        assert objects.size(digest) == 5_000_000
    assert list(missing_objects(with_objects)) == []
    assert move_blobs(with_objects, Place.OBJECTS, told.append).blobs == 0
    assert move_blobs(with_objects, Place.DATABASE, told.append).blobs == 3
    assert b"".join(read_large(store, digests[2])) == bytes([2]) * 5_000_000
    monkeypatch.setattr(retention, "STRAY_SECONDS", -60.0)
    clean(with_objects, Settings(data_dir=tmp_path, retain_jobs_days=0))
    assert [objects.size(digest) for digest in digests] == [None] * 3
    assert b"".join(read_large(store, digests[1])) == bytes([1]) * 5_000_000


def test_an_interrupted_move_goes_on(store: Store, objects: BlobBodies):
    with_objects = Store(store.engine, objects=objects)
    digests = sorted(put_whole(store, bytes([number]) * 1_000_000) for number in range(3))

    def interrupt(moved: Moved) -> None:
        if moved.blobs == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move_blobs(with_objects, Place.OBJECTS, interrupt)
    assert [place for _, place, _ in sorted(rows(store))] == ["objects", "database", "database"]
    # As if it had been killed after the second object, and after the third row.
    objects.put(digests[1], 1_000_000, read_large(store, digests[1]))
    objects.put(digests[2], 1_000_000, read_large(store, digests[2]))
    with with_objects.begin() as uow:
        assert uow.blobs.set_place(digests[2], 1_000_000, Place.OBJECTS)
    assert move_blobs(with_objects, Place.OBJECTS, lambda _: None).blobs == 1
    assert stored_chunks(store) == 0
    for digest in digests:
        assert hashlib.sha256(b"".join(read_large(with_objects, digest))).hexdigest() == digest


def test_a_damaged_object_of_before_is_exchanged_by_a_move(store: Store, objects: BlobBodies):
    digest = put_whole(store)
    objects.put(digest, len(LARGE), [LARGE[::-1]])
    with_objects = Store(store.engine, objects=objects)
    move_blobs(with_objects, Place.OBJECTS, lambda _: None)
    assert b"".join(read_large(with_objects, digest)) == LARGE


def test_missing_objects_are_named_with_what_needs_them(
    object_backed: Store, objects: BlobBodies, add_dataset
):
    digest = put_whole(object_backed)
    put_whole(object_backed, LARGE + b"other")
    with object_backed.begin() as uow:
        dataset = add_dataset(uow)
        uow.connection.execute(sa.text("UPDATE datasets SET blob_digest = :to"), {"to": digest})
    assert dataset.blob_digest != digest
    objects.delete([digest])
    [missing] = missing_objects(object_backed)
    assert (missing.digest, missing.size, missing.used_by) == (digest, len(LARGE), ("datasets",))


def test_blobs_in_an_object_store_need_its_setting(object_backed: Store, store: Store):
    require_objects(store)
    digest = put_whole(object_backed)
    require_objects(object_backed)
    with pytest.raises(NoObjectStore, match="1 blobs are in an object store: set STMS_BLOBS"):
        require_objects(store)
    with refused_as(Unavailable, "object_store_unavailable"):
        list(read_large(store, digest))
    with refused_as(Unavailable, "object_store_unavailable"), store.read() as uow:
        uow.blobs.read(digest)


def test_a_long_upload_is_marked_as_in_use(object_backed: Store, monkeypatch):
    monkeypatch.setattr("app.store.large_blobs._TOUCH_SECONDS", 0.0)
    began = time.time()

    def slowly() -> Iterator[bytes]:
        for number, chunk in enumerate(chunks(LARGE * 10)):
            if number == 1:
                age(object_backed, 2 * retention.GRACE_SECONDS)
            yield chunk

    content = LARGE * 10
    put_large(object_backed, hashlib.sha256(content).hexdigest(), len(content), slowly())
    with object_backed.read() as uow:
        assert uow.connection.execute(sa.select(blobs.c.created_at)).scalar_one() >= began
