"""Content-addressed blobs in the database, stored in chunks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from math import inf
from tempfile import SpooledTemporaryFile

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import IntegrityError

from app.domain.errors import NotFound, Unavailable
from app.store.dialect import batched, insert_once, on_postgresql
from app.store.tables import blob_chunks, blobs, metadata

CHUNK_BYTES = 1024**2

_IN_MEMORY_BYTES = 8 * CHUNK_BYTES


class DatabaseBlobs:
    """Blobs, identified by their SHA-256, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
            digest = sha.hexdigest()
            if self._claim(digest, size):
                buffer.seek(0)
                for position, chunk in enumerate(iter(lambda: buffer.read(CHUNK_BYTES), b"")):
                    self._write_chunk(digest, position, chunk)
        return digest, size

    def _claim(self, digest: str, size: int) -> bool:
        """Insert the blob's row; returns False if a complete blob exists. Either way the row is locked."""
        values = {"digest": digest, "size": size, "created_at": time.time(), "complete": True}
        unfinished = sa.delete(blobs).where(blobs.c.digest == digest, ~blobs.c.complete)
        while True:
            # An unfinished blob with this digest is replaced.
            self._connection.execute(unfinished)
            if self._touch(digest, blobs.c.complete):
                return False
            if insert_once(self._connection, blobs, values):
                return True
            # Another transaction stored it between the two statements, so try again.

    def _write_chunk(self, digest: str, position: int, chunk: bytes) -> None:
        self._connection.execute(
            sa.insert(blob_chunks), {"digest": digest, "position": position, "data": chunk}
        )

    def begin_large(self, digest: str, size: int) -> bool:
        """Begin or resume a blob that takes several transactions; False if it is already complete."""
        values = {"digest": digest, "size": size, "created_at": time.time(), "complete": False}
        if not self._touch(digest):
            insert_once(self._connection, blobs, values)
        return not self.exists(digest)

    def put_chunk(self, digest: str, position: int, chunk: bytes) -> None:
        """Store one chunk of a blob that was begun, unless that chunk is already stored.

        Raises Unavailable if the retention job has deleted the unfinished blob.
        """
        if not self._touch(digest):
            raise Unavailable(f"Blob {digest} was deleted while it was stored.", code="blob_incomplete")
        insert_once(self._connection, blob_chunks, {"digest": digest, "position": position, "data": chunk})

    def stored_positions(self, digest: str) -> set[int]:
        """Positions of the chunks that are stored."""
        query = sa.select(blob_chunks.c.position).where(blob_chunks.c.digest == digest)
        return set(self._connection.execute(query).scalars())

    def finish_large(self, digest: str) -> None:
        """Make the blob visible to readers. Raises Unavailable when chunks are missing."""
        stored = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(blob_chunks.c.data)), 0))
        size = self._connection.execute(stored.where(blob_chunks.c.digest == digest)).scalar_one()
        finished = self._connection.execute(
            sa.update(blobs).where(blobs.c.digest == digest, blobs.c.size == size).values(complete=True)
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
        """(digest, size) of unreferenced blobs that were not used since ``before``, unfinished ones included.

        after, until: only digests behind the first, and up to the second. among: only these.
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
        """Hide an unreferenced blob from readers. Returns False if it is referenced or was used recently.

        Its chunks stay until `delete_chunks` removes them. Storing the same bytes again makes the blob
        complete again.
        """
        if on_postgresql(self._connection):
            # Lock before checking: a transaction that is about to reference the blob has updated its row.
            self._connection.execute(
                sa.select(blobs.c.digest).where(blobs.c.digest == digest).with_for_update()
            )
        retired = self._connection.execute(
            sa.update(blobs)
            .where(blobs.c.digest == digest, blobs.c.created_at < before, _is_unreferenced())
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
        stored = sa.select(blob_chunks.c.position).where(blob_chunks.c.digest == digest)
        last = stored.order_by(blob_chunks.c.position.desc()).limit(chunks)
        positions = self._connection.execute(last).scalars().all()
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
        """Whether a complete blob is stored."""
        return self._size(digest) is not None

    def size(self, digest: str) -> int:
        """Bytes of the blob. Raises NotFound."""
        size = self._size(digest)
        if size is None:
            raise NotFound(f"There is no blob {digest}.", code="blob_not_found")
        return size

    def sizes(self, digests: Collection[str]) -> dict[str, int]:
        """Bytes of some blobs by digest. Raises NotFound for one that is missing or incomplete."""
        found: dict[str, int] = {}
        for some in batched(digests):
            query = sa.select(blobs.c.digest, blobs.c.size).where(blobs.c.digest.in_(some), blobs.c.complete)
            found.update((digest, size) for digest, size in self._connection.execute(query))
        missing = next((digest for digest in digests if digest not in found), None)
        if missing is not None:
            raise NotFound(f"There is no blob {missing}.", code="blob_not_found")
        return found

    def first_chunks(self, digests: Collection[str]) -> dict[str, bytes]:
        """The first chunks of complete blobs, by digest. The caller verifies the digests."""
        found: dict[str, bytes] = {}
        for some in batched(digests):
            query = sa.select(blob_chunks.c.digest, blob_chunks.c.data)
            query = query.join(blobs, blobs.c.digest == blob_chunks.c.digest).where(blobs.c.complete)
            query = query.where(blob_chunks.c.digest.in_(some), blob_chunks.c.position == 0)
            found.update((digest, data) for digest, data in self._connection.execute(query))
        return found

    def chunk(self, digest: str, position: int) -> bytes | None:
        """One stored chunk of a complete blob; None behind the last. The caller verifies the digest."""
        query = sa.select(blob_chunks.c.data).join(blobs, blobs.c.digest == blob_chunks.c.digest)
        query = query.where(blob_chunks.c.digest == digest, blob_chunks.c.position == position)
        data: bytes | None = self._connection.execute(query.where(blobs.c.complete)).scalar()
        return data

    def _size(self, digest: str) -> int | None:
        query = sa.select(blobs.c.size).where(blobs.c.digest == digest, blobs.c.complete)
        return self._connection.execute(query).scalar()

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The stored chunks in order.

        Raises NotFound, and after the last chunk Unavailable if the stored bytes do not match the digest.
        """
        sha = hashlib.sha256()
        for chunk in self.unverified_chunks(digest):
            sha.update(chunk)
            yield chunk
        if sha.hexdigest() != digest:
            raise Unavailable(f"Blob {digest} is damaged in the database.", code="blob_damaged")

    def unverified_chunks(self, digest: str) -> Iterator[bytes]:
        """As `chunks`, for a caller that verifies the digest itself. Raises NotFound."""
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
        """The whole blob, verified. Raises NotFound, or Unavailable if the stored bytes are damaged."""
        return b"".join(self.chunks(digest))

    def delete(self, digest: str, before: float = inf) -> bool:
        """Delete a small blob not used since ``before``, in one statement; returns whether it was deleted.

        Foreign keys prevent the deletion of a referenced blob.
        """
        deletion = sa.delete(blobs).where(blobs.c.digest == digest, blobs.c.created_at < before)
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


def blob_columns(table: sa.Table) -> list[sa.Column[str]]:
    """The columns of a table that refer to blobs."""
    return [
        column for column in table.columns if any(key.column is blobs.c.digest for key in column.foreign_keys)
    ]


def _is_unreferenced() -> ColumnElement[bool]:
    """No row of any table references the blob, apart from its own chunks."""
    references = [
        column
        for table in metadata.sorted_tables
        if table is not blob_chunks
        for column in blob_columns(table)
    ]
    return sa.and_(*(~sa.exists().where(column == blobs.c.digest) for column in references))
