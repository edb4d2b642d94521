"""Bytes by their SHA-256, in the database, in chunks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from math import inf
from tempfile import SpooledTemporaryFile

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import IntegrityError

from app.domain.errors import NotFound, Unavailable
from app.store.dialect import insert_once, on_postgresql
from app.store.tables import blob_chunks, blobs, metadata

CHUNK_BYTES = 1024**2

_IN_MEMORY_BYTES = 8 * CHUNK_BYTES


class DatabaseBlobs:
    """`app.domain.ports.BlobStore` over one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Store a stream; returns (sha256 hex, size in bytes). The same bytes twice are stored once.

        The name is known only at the end of the stream, so that waits in a file: memory stays bounded.
        """
        sha, size = hashlib.sha256(), 0
        with SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:
            for piece in chunks:
                sha.update(piece)
                size += len(piece)
                spool.write(piece)
            digest = sha.hexdigest()
            if self._claim(digest, size):
                spool.seek(0)
                for position, piece in enumerate(iter(lambda: spool.read(CHUNK_BYTES), b"")):
                    self._write_chunk(digest, position, piece)
        return digest, size

    def _claim(self, digest: str, size: int) -> bool:
        """Whether the blob is new, and ours to write. Its row is locked either way: no one deletes it now."""
        values = {"digest": digest, "size": size, "created_at": time.time(), "complete": True}
        unfinished = sa.delete(blobs).where(blobs.c.digest == digest, ~blobs.c.complete)
        while True:
            # What was begun step by step and never finished is written anew, whole.
            self._connection.execute(unfinished)
            if self._touch(digest, blobs.c.complete):
                return False
            if insert_once(self._connection, blobs, values):
                return True
            # Another transaction stored it between the two statements: look again.

    def _write_chunk(self, digest: str, position: int, piece: bytes) -> None:
        self._connection.execute(
            sa.insert(blob_chunks), {"digest": digest, "position": position, "data": piece}
        )

    def begin_large(self, digest: str, size: int) -> bool:
        """Begin or go on with a blob that takes several transactions; False when it is complete already."""
        values = {"digest": digest, "size": size, "created_at": time.time(), "complete": False}
        if not self._touch(digest):
            insert_once(self._connection, blobs, values)
        return not self.exists(digest)

    def put_chunk(self, digest: str, position: int, piece: bytes) -> None:
        """One more chunk of a blob that was begun; one that is there already stays.

        Raises Unavailable when the unfinished blob was collected meanwhile.
        """
        if not self._touch(digest):
            raise Unavailable(f"Blob {digest} was given up while it was stored.", code="blob_incomplete")
        insert_once(self._connection, blob_chunks, {"digest": digest, "position": position, "data": piece})

    def stored_positions(self, digest: str) -> set[int]:
        """Of the chunks that are stored."""
        query = sa.select(blob_chunks.c.position).where(blob_chunks.c.digest == digest)
        return set(self._connection.execute(query).scalars())

    def finish_large(self, digest: str) -> None:
        """From now on the blob is there. Raises Unavailable when chunks are missing."""
        stored = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(blob_chunks.c.data)), 0))
        found = self._connection.execute(stored.where(blob_chunks.c.digest == digest)).scalar_one()
        finished = self._connection.execute(
            sa.update(blobs).where(blobs.c.digest == digest, blobs.c.size == found).values(complete=True)
        )
        if not finished.rowcount:
            raise Unavailable(f"Blob {digest} was not stored whole.", code="blob_incomplete")

    def unused(
        self, before: float, *, limit: int, after: str = "", until: str = "g"
    ) -> Sequence[tuple[str, int]]:
        """(digest, bytes) of blobs between two digests that nothing stands on, not touched since ``before``.

        Also of those that were begun step by step and never finished.
        """
        query = (
            sa.select(blobs.c.digest, blobs.c.size)
            .where(blobs.c.digest > after, blobs.c.digest < until)
            .where(blobs.c.created_at < before, _nothing_stands_on())
            .order_by(blobs.c.digest)
            .limit(limit)
        )
        return [(digest, size) for digest, size in self._connection.execute(query)]

    def mark_incomplete(self, digest: str, before: float) -> bool:
        """Hide an unreferenced blob from readers. Returns False if it is referenced or was used recently.

        Its chunks stay until `delete_chunks` removes them. Storing the same bytes again makes the blob
        complete again.
        """
        if on_postgresql(self._connection):
            # First the lock, then the look: whoever is about to refer to the blob has touched it.
            self._connection.execute(
                sa.select(blobs.c.digest).where(blobs.c.digest == digest).with_for_update()
            )
        retired = self._connection.execute(
            sa.update(blobs)
            .where(blobs.c.digest == digest, blobs.c.created_at < before, _nothing_stands_on())
            .values(complete=False)
        )
        return bool(retired.rowcount)

    def delete_chunks(self, digest: str, before: float, chunks: int) -> bool:
        """Delete some chunks of an unfinished blob nobody touched since ``before``; after the last, itself.

        Returns whether there is more to delete.
        """
        held = self._connection.execute(
            sa.update(blobs)
            .where(blobs.c.digest == digest, ~blobs.c.complete, blobs.c.created_at < before)
            .values(complete=False)
        )
        if not held.rowcount:
            return False
        found = sa.select(blob_chunks.c.position).where(blob_chunks.c.digest == digest)
        last = self._connection.execute(found.order_by(blob_chunks.c.position.desc()).limit(chunks)).scalars()
        positions = last.all()
        if positions:
            self._connection.execute(
                sa.delete(blob_chunks).where(
                    blob_chunks.c.digest == digest, blob_chunks.c.position.in_(positions)
                )
            )
            return True
        self._connection.execute(sa.delete(blobs).where(blobs.c.digest == digest))
        return False

    def exists(self, digest: str) -> bool:
        """Whether the blob is stored."""
        return self._size(digest) is not None

    def size(self, digest: str) -> int:
        """Bytes of the blob. Raises NotFound."""
        size = self._size(digest)
        if size is None:
            raise NotFound(f"There is no blob {digest}.", code="blob_not_found")
        return size

    def _size(self, digest: str) -> int | None:
        query = sa.select(blobs.c.size).where(blobs.c.digest == digest, blobs.c.complete)
        return self._connection.execute(query).scalar()

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The stored pieces in order.

        Raises NotFound, and after the last piece Unavailable when the stored bytes were altered.
        """
        sha = hashlib.sha256()
        for piece in self.pieces(digest):
            sha.update(piece)
            yield piece
        if sha.hexdigest() != digest:
            raise Unavailable(f"Blob {digest} is damaged in the database.", code="blob_damaged")

    def pieces(self, digest: str) -> Iterator[bytes]:
        """As `chunks`, for a caller who verifies them. Raises NotFound."""
        self.size(digest)
        query = sa.select(blob_chunks.c.data).where(
            blob_chunks.c.digest == digest, blob_chunks.c.position == sa.bindparam("at")
        )
        for position in count():
            row = self._connection.execute(query, {"at": position}).first()
            if row is None:
                return
            yield row[0]

    def read(self, digest: str) -> bytes:
        """The whole blob, verified. Raises NotFound, or Unavailable when the stored bytes were altered."""
        return b"".join(self.chunks(digest))

    def delete(self, digest: str, before: float = inf) -> bool:
        """Forget a blob, not touched since ``before``, unless something stands on it; returns whether it did.

        In one go: for a small one. The foreign keys decide.
        """
        forgotten = sa.delete(blobs).where(blobs.c.digest == digest, blobs.c.created_at < before)
        try:
            with self._connection.begin_nested():
                return bool(self._connection.execute(forgotten).rowcount)
        except IntegrityError:
            return False

    def _touch(self, digest: str, *conditions: ColumnElement[bool]) -> bool:
        """Lock the row of a blob, if there is one, and note that somebody needs it."""
        touched = self._connection.execute(
            sa.update(blobs).where(blobs.c.digest == digest, *conditions).values(created_at=time.time())
        )
        return bool(touched.rowcount)


def _nothing_stands_on() -> ColumnElement[bool]:
    """No row of any table refers to the blob, but its own chunks."""
    references = [
        column
        for table in metadata.sorted_tables
        if table is not blob_chunks
        for column in table.columns
        if any(key.column is blobs.c.digest for key in column.foreign_keys)
    ]
    return sa.and_(*(~sa.exists().where(column == blobs.c.digest) for column in references))
