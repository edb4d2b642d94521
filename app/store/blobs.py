"""Bytes by their SHA-256, in the database, in chunks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from itertools import count
from tempfile import SpooledTemporaryFile

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from app.domain.errors import NotFound, Unavailable
from app.store.dialect import insert_once
from app.store.tables import blob_chunks, blobs

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

    def put_known(self, chunks: Iterable[bytes], digest: str, size: int) -> None:
        """As `put` for a stream whose digest and size are known, so that nothing waits in between.

        Raises ValueError when the stream is not what was said.
        """
        if not self._claim(digest, size):
            return
        sha = hashlib.sha256()
        for position, piece in enumerate(chunks):
            sha.update(piece)
            self._write_chunk(digest, position, piece)
        if sha.hexdigest() != digest:
            raise ValueError(f"The stream is not the blob {digest}.")

    def _claim(self, digest: str, size: int) -> bool:
        """Whether the blob is new, and ours to write. Its row is locked either way: no one deletes it now."""
        values = {"digest": digest, "size": size, "created_at": time.time(), "complete": True}
        unfinished = sa.delete(blobs).where(blobs.c.digest == digest, ~blobs.c.complete)
        while True:
            # What was begun step by step and never finished is written anew, whole.
            self._connection.execute(unfinished)
            touched = self._connection.execute(
                sa.update(blobs).where(blobs.c.digest == digest).values(size=size)
            )
            if touched.rowcount:
                return False
            if insert_once(self._connection, blobs, values):
                return True
            # Another transaction stored it between the two statements: look again.

    def _write_chunk(self, digest: str, position: int, piece: bytes) -> None:
        self._connection.execute(
            sa.insert(blob_chunks), {"digest": digest, "position": position, "data": piece}
        )

    def begin_steps(self, digest: str, size: int) -> bool:
        """Begin or go on with a blob that takes several transactions; False when it is complete already."""
        values = {"digest": digest, "size": size, "created_at": time.time(), "complete": False}
        insert_once(self._connection, blobs, values)
        return not self.exists(digest)

    def step(self, digest: str, position: int, piece: bytes) -> None:
        """One more chunk of a blob that was begun; one that is there already stays.

        Raises NotFound when the unfinished blob was collected meanwhile.
        """
        touched = self._connection.execute(
            sa.update(blobs).where(blobs.c.digest == digest).values(created_at=time.time())
        )
        if not touched.rowcount:
            raise NotFound(f"Blob {digest} was given up while it was stored.", code="blob_not_found")
        insert_once(self._connection, blob_chunks, {"digest": digest, "position": position, "data": piece})

    def finish_steps(self, digest: str) -> None:
        """From now on the blob is there. Raises Unavailable when chunks are missing."""
        stored = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(blob_chunks.c.data)), 0))
        found = self._connection.execute(stored.where(blob_chunks.c.digest == digest)).scalar_one()
        finished = self._connection.execute(
            sa.update(blobs).where(blobs.c.digest == digest, blobs.c.size == found).values(complete=True)
        )
        if not finished.rowcount:
            raise Unavailable(f"Blob {digest} was not stored whole.", code="blob_incomplete")

    def forget_unfinished(self, before: float) -> int:
        """Delete what was begun step by step and not touched since ``before``; returns how many blobs."""
        return self._connection.execute(
            sa.delete(blobs).where(~blobs.c.complete, blobs.c.created_at < before)
        ).rowcount

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

    def delete(self, digest: str) -> bool:
        """Forget the blob unless something still stands on it; returns whether it is gone."""
        try:
            with self._connection.begin_nested():
                self._connection.execute(sa.delete(blobs).where(blobs.c.digest == digest))
        except IntegrityError:
            return False
        return True
