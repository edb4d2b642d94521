"""What every place of the bytes of blobs does: the database, and an object store."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator

import pytest

from app.domain.errors import Unavailable
from app.domain.object_address import ObjectAddress
from app.store.bodies import BlobBodies, DatabaseBodies, Place, verified
from app.store.object_bodies import PART_BYTES
from app.store.opening import open_objects
from app.store.tables import blobs
from app.store.unit_of_work import Store
from tests.refusals import refused_as

LATER = 1e12
CONTENT = bytes(range(256)) * 2000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)


@pytest.fixture(params=list(Place))
def place(request: pytest.FixtureRequest) -> Place:
    place: Place = request.param
    return place


@pytest.fixture
def bodies(place: Place, store: Store, objects: BlobBodies) -> Iterator[BlobBodies]:
    """An empty place; the row of `DIGEST` says that something is there."""
    with store.begin() as uow:
        row = {"digest": DIGEST, "size": SIZE, "created_at": 1.0, "complete": False, "place": place}
        uow.connection.execute(blobs.insert(), row)
        if place is Place.OBJECTS:
            yield objects
        else:
            yield DatabaseBodies(uow.connection)


def pieces(content: bytes = CONTENT, size: int = 100_000) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


def test_what_is_put_is_there(bodies: BlobBodies):
    assert bodies.size(DIGEST) is None
    bodies.put(DIGEST, SIZE, pieces())
    assert bodies.size(DIGEST) == SIZE
    assert b"".join(bodies.chunks(DIGEST, SIZE)) == CONTENT


def test_what_is_put_twice_is_there_once(bodies: BlobBodies):
    for _ in range(2):
        bodies.put(DIGEST, SIZE, pieces())
    assert b"".join(bodies.chunks(DIGEST, SIZE)) == CONTENT


def test_chunks_of_another_size_are_refused(bodies: BlobBodies):
    with refused_as(Unavailable, "blob_incomplete"):
        bodies.put(DIGEST, SIZE + 1, pieces())


def test_what_is_not_there_is_missing(bodies: BlobBodies, place: Place):
    with refused_as(Unavailable, "blob_missing", match="database" if place is Place.DATABASE else "store"):
        list(bodies.chunks(DIGEST, SIZE))


def test_another_size_than_that_of_the_row_is_damage(bodies: BlobBodies):
    bodies.put(DIGEST, SIZE, pieces())
    with refused_as(Unavailable, "blob_damaged"):
        list(bodies.chunks(DIGEST, SIZE + 1))


def test_what_is_deleted_is_gone_and_deleting_again_changes_nothing(bodies: BlobBodies):
    bodies.put(DIGEST, SIZE, pieces())
    for _ in range(2):
        bodies.delete([DIGEST])
        assert bodies.size(DIGEST) is None
    bodies.delete([])


def test_other_bytes_are_found_by_their_digest(bodies: BlobBodies, place: Place):
    bodies.put(DIGEST, SIZE, pieces(CONTENT[::-1]))
    with refused_as(Unavailable, "blob_damaged"):
        list(verified(DIGEST, place, bodies.chunks(DIGEST, SIZE)))


def test_a_place_answers(bodies: BlobBodies):
    bodies.ping()


def test_objects_that_no_row_names_are_strays(objects: BlobBodies):
    objects.put(DIGEST, SIZE, pieces())
    assert list(objects.strays(lambda _digests: [], LATER)) == [(DIGEST, SIZE)]
    assert list(objects.strays(lambda digests: digests, LATER)) == []
    assert list(objects.strays(lambda _digests: [], time.time() - 60)) == [], "too young"


def test_chunks_whose_row_names_the_object_store_are_strays(store: Store):
    with store.begin() as uow:
        uow.connection.execute(
            blobs.insert(), {"digest": DIGEST, "size": SIZE, "created_at": 1.0, "place": "objects"}
        )
        bodies = DatabaseBodies(uow.connection)
        assert list(bodies.strays(lambda _digests: [], LATER)) == []
        bodies.put(DIGEST, SIZE, pieces())
        assert list(bodies.strays(lambda _digests: [], LATER)) == [(DIGEST, SIZE)]


def test_an_object_in_parts_is_visible_whole_or_not_at_all(objects: BlobBodies):
    content = bytes(2 * PART_BYTES) + b"rest"
    digest = hashlib.sha256(content).hexdigest()

    def interrupted() -> Iterator[bytes]:
        yield content[:PART_BYTES]
        raise InterruptedError

    with pytest.raises(InterruptedError):
        objects.put(digest, len(content), interrupted())
    assert objects.size(digest) is None
    with refused_as(Unavailable, "blob_incomplete"):
        objects.put(digest, len(content), [content[:-1]])
    assert objects.size(digest) is None
    objects.put(digest, len(content), [content])
    assert b"".join(objects.chunks(digest, len(content))) == content


@pytest.mark.parametrize("size", [SIZE, PART_BYTES + 1])
def test_writers_of_one_digest_do_not_disturb_each_other(objects: BlobBodies, size: int):
    content = (CONTENT * (size // SIZE + 1))[:size]
    digest = hashlib.sha256(content).hexdigest()
    failed: list[BaseException] = []

    def put() -> None:
        try:
            objects.put(digest, size, pieces(content))
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failed.append(error)

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert b"".join(objects.chunks(digest, size)) == content


def test_a_store_that_does_not_answer_is_unavailable(tmp_path):
    address = ObjectAddress("bucket", "", "http://127.0.0.1:1", key_id="key", secret="secret")
    nowhere = open_objects(address, seconds=0.5)
    with refused_as(Unavailable, "object_store_unavailable"):
        nowhere.ping()
    with refused_as(Unavailable, "object_store_unavailable"):
        nowhere.put(DIGEST, SIZE, pieces())
