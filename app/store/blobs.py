"""Content-addressed blobs: their rows are in the database, their bytes there or in an object store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from tempfile import SpooledTemporaryFile

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import IntegrityError

from app.domain.errors import NotFound, Unavailable
from app.store.bodies import (
    OBJECT_BYTES,
    BlobBodies,
    DatabaseBodies,
    Place,
    in_objects,
    verified,
    without_store,
)
from app.store.dialect import batched, insert_once, on_postgresql
from app.store.tables import blob_chunks, blobs, metadata

CHUNK_BYTES = 1024**2

_IN_MEMORY_BYTES = 8 * CHUNK_BYTES


class Blobs:
    """Blobs, identified by their SHA-256, in one transaction.

    objects: the object store, which has the bytes of blobs of at least `OBJECT_BYTES`. An object is put
    before its row is visible. A hidden row stays until its object has been deleted: a transaction that stores
    the same bytes waits for the lock of the row, and so never refers to an object that is being deleted.
    """

    def __init__(self, connection: Connection, objects: BlobBodies | None = None) -> None:
        self._connection = connection
        self._database = DatabaseBodies(connection)
        self._objects = objects

    def put(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Store a stream; returns (SHA-256 in hexadecimal, size in bytes). Equal bytes are stored once.

        The digest is known only at the end of the stream, so the stream is buffered in a temporary file.
        """
        sha, size = hashlib.sha256(), 0
        with SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as buffer:
            for chunk in chunks:
                sha.update(chunk)
                size += len(chunk)
                buffer.write(chunk)
            digest, place = sha.hexdigest(), self.place_for(size)
            if self._claim(digest, size, place):
                buffer.seek(0)
                pieces = iter(lambda: buffer.read(CHUNK_BYTES), b"")
                self._bodies(place).put(digest, size, pieces)
        return digest, size

    def place_for(self, size: int) -> Place:
        """Where a new blob of this size is stored."""
        return Place.OBJECTS if self._objects is not None and size >= OBJECT_BYTES else Place.DATABASE

    def _bodies(self, place: Place) -> BlobBodies:
        """The bytes in a place. Raises Unavailable for the object store if the settings name none."""
        if place is Place.DATABASE:
            return self._database
        if self._objects is None:
            raise without_store()
        return self._objects

    def _claim(self, digest: str, size: int, place: Place) -> bool:
        """Insert the blob's row; returns False if a complete blob exists. Either way the row is locked."""
        values = {
            "digest": digest, "size": size, "created_at": time.time(), "complete": True, "place": place
        }  # fmt: skip
        unfinished = sa.delete(blobs).where(blobs.c.digest == digest, ~blobs.c.complete)
        while True:
            # An unfinished blob with this digest is replaced.
            self._connection.execute(unfinished)
            if self._touch(digest, blobs.c.complete):
                return False
            if insert_once(self._connection, blobs, values):
                return True
            # Another transaction stored it between the two statements, so try again.

    def begin_large(self, digest: str, size: int) -> bool:
        """Begin or resume a blob that takes several transactions; False if it is already complete."""
        place = self.place_for(size)
        values = {
            "digest": digest, "size": size, "created_at": time.time(), "complete": False, "place": place
        }  # fmt: skip
        if not self._touch(digest):
            insert_once(self._connection, blobs, values)
        # One that was begun or hidden before the settings changed may be in the other place.
        began = sa.update(blobs).where(blobs.c.digest == digest, ~blobs.c.complete)
        self._connection.execute(began.values(place=place))
        return not self.exists(digest)

    def keep_large(self, digest: str) -> None:
        """Set the time of last use of a blob that was begun.

        Raises Unavailable if the retention job has deleted the unfinished blob.
        """
        if not self._touch(digest):
            raise Unavailable(f"Blob {digest} was deleted while it was stored.", code="blob_incomplete")

    def put_chunk(self, digest: str, position: int, chunk: bytes) -> None:
        """Store one chunk of a blob that was begun, unless that chunk is already stored.

        Raises Unavailable if the retention job has deleted the unfinished blob.
        """
        self.keep_large(digest)
        self._database.put_chunk(digest, position, chunk)

    def stored_positions(self, digest: str) -> set[int]:
        """Positions of the chunks that are stored in the database."""
        return self._database.positions(digest)

    def finish_large(self, digest: str) -> None:
        """Make the blob visible to readers. Raises Unavailable when bytes are missing."""
        query = sa.select(blobs.c.place).where(blobs.c.digest == digest)
        place = Place(self._connection.execute(query).scalar() or Place.DATABASE)
        size = self._bodies(place).size(digest) or 0
        finished = self._connection.execute(
            sa.update(blobs)
            .where(blobs.c.digest == digest, blobs.c.size == size, blobs.c.place == place)
            .values(complete=True)
        )
        if not finished.rowcount:
            raise Unavailable(f"Blob {digest} was not stored completely.", code="blob_incomplete")

    def digest_after(self, digest: str, count: int) -> str | None:
        """The digest of the ``count``-th blob after ``digest``, in their order; None if fewer follow."""
        query = sa.select(blobs.c.digest).where(blobs.c.digest > digest).order_by(blobs.c.digest)
        found: str | None = self._connection.execute(query.offset(count - 1).limit(1)).scalar()
        return found

    def unused(
        self,
        before: float,
        *,
        after: str = "",
        until: str | None = None,
        among: Collection[str] | None = None,
    ) -> Sequence[tuple[str, int]]:
        """(digest, size) of unreferenced blobs that were not used since ``before``, also unfinished ones.

        after, until: only digests after the first, and up to the second. among: only these digests.
        """
        query = (
            sa.select(blobs.c.digest, blobs.c.size)
            .where(blobs.c.digest > after, blobs.c.created_at < before, _is_unreferenced())
            .order_by(blobs.c.digest)
        )
        if until is not None:
            query = query.where(blobs.c.digest <= until)
        if among is not None:
            query = query.where(blobs.c.digest.in_(among))
        return [(digest, size) for digest, size in self._connection.execute(query)]

    def mark_incomplete(self, digest: str, before: float) -> bool:
        """Hide an unreferenced blob of the database from readers.

        Returns False if it is referenced, was used recently, or is in the object store. Its chunks stay
        until `delete_chunks` removes them. Storing the same bytes again makes the blob complete again.
        """
        self._lock([digest])
        retired = self._connection.execute(
            sa.update(blobs)
            .where(blobs.c.digest == digest, ~in_objects(), blobs.c.created_at < before, _is_unreferenced())
            .values(complete=False)
        )
        return bool(retired.rowcount)

    def delete_chunks(self, digest: str, before: float, chunks: int) -> bool:
        """Delete some chunks of an incomplete blob not used since ``before``, and finally its row.

        Returns whether there is more to delete.
        """
        locked = self._connection.execute(
            sa.update(blobs)
            .where(blobs.c.digest == digest, ~blobs.c.complete, blobs.c.created_at < before)
            .values(complete=False)
        )
        if not locked.rowcount:
            return False
        if self._database.delete_some(digest, chunks):
            return True
        self._connection.execute(sa.delete(blobs).where(blobs.c.digest == digest))
        return False

    def hide_objects(self, digests: Collection[str], before: float) -> None:
        """Hide those of ``digests`` that are in the object store, unreferenced, and unused since ``before``.

        `remove_hidden` deletes them later. Storing the same bytes again makes a blob complete again.
        """
        self._lock(digests)
        for some in batched(digests):
            self._connection.execute(
                sa.update(blobs)
                .where(blobs.c.digest.in_(some), in_objects(), blobs.c.complete)
                .where(blobs.c.created_at < before, _is_unreferenced())
                .values(complete=False, created_at=time.time())
            )

    def remove_hidden(self, digests: Collection[str], before: float) -> set[str]:
        """Delete objects and rows of those of ``digests`` that were hidden or abandoned before ``before``.

        The rows are locked until the objects are deleted. Returns the deleted digests. Raises Unavailable.
        """
        removed: set[str] = set()
        for some in batched(digests):
            unfinished = sa.and_(in_objects(), ~blobs.c.complete, blobs.c.created_at < before)
            locked = sa.update(blobs).where(blobs.c.digest.in_(some), unfinished, _is_unreferenced())
            locked = locked.values(complete=False)
            gone = set(self._connection.execute(locked.returning(blobs.c.digest)).scalars())
            if gone:
                self._bodies(Place.OBJECTS).delete(gone)
                self._connection.execute(sa.delete(blobs).where(blobs.c.digest.in_(gone)))
                removed |= gone
        return removed

    def among_objects(self, digests: Collection[str]) -> set[str]:
        """Those of ``digests`` whose rows place their bytes in the object store, complete or not."""
        stored: set[str] = set()
        for some in batched(digests):
            query = sa.select(blobs.c.digest).where(blobs.c.digest.in_(some), in_objects())
            stored.update(self._connection.execute(query).scalars())
        return stored

    def bury_strays(self, strays: Collection[tuple[str, int]]) -> None:
        """Delete objects (digest, size) that belong to no row of the object store.

        An object without any row gets a hidden row, with which `remove_hidden` deletes it later. If its row
        places the bytes in the database, the object is deleted at once while its row is locked. Raises
        Unavailable.
        """
        hidden = {"created_at": time.time(), "complete": False, "place": Place.OBJECTS}
        for digest, size in strays:
            insert_once(self._connection, blobs, {"digest": digest, "size": size, **hidden})
        for some in batched([digest for digest, _ in strays]):
            locked = sa.update(blobs).where(blobs.c.digest.in_(some), ~in_objects())
            locked = locked.values(place=Place.DATABASE)
            moved = list(self._connection.execute(locked.returning(blobs.c.digest)).scalars())
            if moved:
                self._bodies(Place.OBJECTS).delete(moved)

    def count_objects(self) -> int:
        """Complete blobs whose bytes are in the object store."""
        query = sa.select(sa.func.count()).select_from(blobs).where(in_objects(), blobs.c.complete)
        return int(self._connection.execute(query).scalar_one())

    def page_of(self, place: Place, *, after: str, limit: int, least: int = 0) -> Sequence[tuple[str, int]]:
        """(digest, size) of complete blobs of at least ``least`` bytes in a place, in order of digest."""
        query = sa.select(blobs.c.digest, blobs.c.size).where(blobs.c.digest > after, blobs.c.complete)
        query = query.where(blobs.c.size >= least)
        query = query.where(in_objects() if place is Place.OBJECTS else ~in_objects())
        rows = self._connection.execute(query.order_by(blobs.c.digest).limit(limit))
        return [(digest, size) for digest, size in rows]

    def total_of(self, place: Place, *, least: int = 0) -> tuple[int, int]:
        """Number and bytes of the complete blobs of at least ``least`` bytes in a place."""
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(blobs.c.size), 0))
        query = query.where(blobs.c.complete, blobs.c.size >= least)
        query = query.where(in_objects() if place is Place.OBJECTS else ~in_objects())
        number, size = self._connection.execute(query).one()
        return int(number), int(size)

    def set_place(self, digest: str, size: int, place: Place) -> bool:
        """Set the place of a complete blob's bytes; False if the blob was deleted in the meantime.

        The row is locked before the bytes are checked, so that nothing deletes them in between. Raises
        Unavailable if they are missing.
        """
        if not self._touch(digest, blobs.c.complete):
            return False
        if (self._bodies(place).size(digest) or 0) != size:
            raise Unavailable(f"Blob {digest} was not stored completely.", code="blob_incomplete")
        self._connection.execute(sa.update(blobs).where(blobs.c.digest == digest).values(place=place))
        return True

    def exists(self, digest: str) -> bool:
        """Whether a complete blob is stored."""
        return self._size(digest) is not None

    def size(self, digest: str) -> int:
        """Bytes of the blob. Raises NotFound."""
        size = self._size(digest)
        if size is None:
            raise _not_found(digest)
        return size

    def sizes(self, digests: Collection[str]) -> dict[str, int]:
        """Bytes of some blobs by digest. Raises NotFound for one that is missing or incomplete."""
        found: dict[str, int] = {}
        for some in batched(digests):
            query = sa.select(blobs.c.digest, blobs.c.size).where(blobs.c.digest.in_(some), blobs.c.complete)
            found.update((digest, size) for digest, size in self._connection.execute(query))
        missing = next((digest for digest in digests if digest not in found), None)
        if missing is not None:
            raise _not_found(missing)
        return found

    def first_chunks(self, digests: Collection[str]) -> dict[str, bytes]:
        """The first chunks of complete blobs by digest; blobs in the object store are returned as a whole.

        The caller verifies the digests. Raises Unavailable.
        """
        found: dict[str, bytes] = {}
        for some in batched(digests):
            query = sa.select(blob_chunks.c.digest, blob_chunks.c.data)
            query = query.join(blobs, blobs.c.digest == blob_chunks.c.digest)
            query = query.where(blobs.c.complete, ~in_objects())
            query = query.where(blob_chunks.c.digest.in_(some), blob_chunks.c.position == 0)
            found.update((digest, data) for digest, data in self._connection.execute(query))
            objects = sa.select(blobs.c.digest, blobs.c.size).where(blobs.c.digest.in_(some), in_objects())
            for digest, size in self._connection.execute(objects.where(blobs.c.complete)).all():
                found[digest] = b"".join(self._bodies(Place.OBJECTS).chunks(digest, size))
        return found

    def chunk(self, digest: str, position: int) -> bytes | None:
        """One stored chunk of a complete blob of the database; None behind the last, and for other blobs.

        The caller verifies the digest.
        """
        query = sa.select(blob_chunks.c.data).join(blobs, blobs.c.digest == blob_chunks.c.digest)
        query = query.where(blob_chunks.c.digest == digest, blob_chunks.c.position == position)
        data: bytes | None = self._connection.execute(query.where(blobs.c.complete, ~in_objects())).scalar()
        return data

    def where(self, digest: str) -> tuple[Place, int]:
        """Place and size of a complete blob. Raises NotFound."""
        query = sa.select(blobs.c.place, blobs.c.size).where(blobs.c.digest == digest, blobs.c.complete)
        row = self._connection.execute(query).first()
        if row is None:
            raise _not_found(digest)
        return Place(row[0]), row[1]

    def _size(self, digest: str) -> int | None:
        query = sa.select(blobs.c.size).where(blobs.c.digest == digest, blobs.c.complete)
        return self._connection.execute(query).scalar()

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The stored chunks in order.

        Raises NotFound, and Unavailable: after the last chunk if the stored bytes do not match the digest.
        """
        place, _ = self.where(digest)
        return verified(digest, place, self.unverified_chunks(digest))

    def unverified_chunks(self, digest: str) -> Iterator[bytes]:
        """Like `chunks`, for a caller that verifies the digest itself. Raises NotFound, Unavailable."""
        place, size = self.where(digest)
        yield from self._bodies(place).chunks(digest, size)

    def read(self, digest: str) -> bytes:
        """The whole blob, verified. Raises NotFound, or Unavailable if the stored bytes are damaged."""
        return b"".join(self.chunks(digest))

    def delete(self, digest: str, before: float = inf) -> bool:
        """Delete a small blob of the database not used since ``before``, in one statement.

        Returns whether it was deleted. Foreign keys prevent the deletion of a referenced blob.
        """
        deletion = sa.delete(blobs).where(
            blobs.c.digest == digest, ~in_objects(), blobs.c.created_at < before
        )
        try:
            with self._connection.begin_nested():
                return bool(self._connection.execute(deletion).rowcount)
        except IntegrityError:
            return False

    def _touch(self, digest: str, *conditions: ColumnElement[bool]) -> bool:
        """Lock the row of a blob and set its time of last use; returns whether the row exists."""
        touched = self._connection.execute(
            sa.update(blobs).where(blobs.c.digest == digest, *conditions).values(created_at=time.time())
        )
        return bool(touched.rowcount)

    def _lock(self, digests: Collection[str]) -> None:
        """Lock rows before checking: a transaction that is about to reference a blob has updated its row."""
        if on_postgresql(self._connection):
            for some in batched(sorted(digests)):
                chosen = sa.select(blobs.c.digest).where(blobs.c.digest.in_(some)).order_by(blobs.c.digest)
                self._connection.execute(chosen.with_for_update())


def _not_found(digest: str) -> NotFound:
    return NotFound(f"There is no blob {digest}.", code="blob_not_found")


def blob_columns(table: sa.Table) -> list[sa.Column[str]]:
    """The columns of a table that refer to blobs."""
    return [
        column for column in table.columns if any(key.column is blobs.c.digest for key in column.foreign_keys)
    ]


def references(connection: Connection, digest: str) -> list[str]:
    """The tables whose rows refer to a blob, apart from its own chunks."""
    return sorted(
        {
            column.table.name
            for column in _references()
            if connection.execute(sa.select(sa.literal(1)).where(column == digest).limit(1)).first()
        }
    )


def _references() -> list[sa.Column[str]]:
    return [
        column
        for table in metadata.sorted_tables
        if table is not blob_chunks
        for column in blob_columns(table)
    ]


def _is_unreferenced() -> ColumnElement[bool]:
    """No row of any table references the blob, apart from its own chunks."""
    return sa.and_(*(~sa.exists().where(column == blobs.c.digest) for column in _references()))
