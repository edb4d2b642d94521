"""The places of the bytes of blobs: the database, or an object store. Their rows are in `blobs`."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.errors import Unavailable
from app.store.dialect import batched, insert_once
from app.store.tables import blob_chunks, blobs

OBJECT_BYTES: Final = 256 * 1024
"""Blobs of at least this size are stored in the object store, if there is one. Smaller ones stay in the
database, so that a student is read in the same transaction as its row.
"""


class Place(StrEnum):
    """Where the bytes of a blob are."""

    DATABASE = "database"
    OBJECTS = "objects"


class Inbox(ABC):
    """Files that clients put into the object store themselves, under a token, at a presigned address.

    They are not trusted until they are read. All methods raise Unavailable.
    """

    @abstractmethod
    def address(self, token: str, seconds: float) -> str:
        """The address for one PUT of the file, valid for ``seconds``."""

    @abstractmethod
    def size(self, token: str) -> int | None:
        """Bytes of the file; None before it has arrived."""

    @abstractmethod
    def chunks(self, token: str, size: int) -> Iterator[bytes]:
        """The file in order. size: the result of `size`."""

    @abstractmethod
    def delete(self, tokens: Collection[str]) -> None:
        """Delete files, as far as they are there."""

    @abstractmethod
    def left(self, before: float) -> Iterator[str]:
        """Tokens of the files that arrived before this time, in seconds since the epoch."""


class BlobBodies(ABC):
    """The bytes of blobs by their SHA-256. A row of `blobs` says which are complete, and in which place.

    All methods raise Unavailable if the place cannot be reached. inbox: None if clients cannot put files.
    """

    inbox: Inbox | None = None

    @abstractmethod
    def put(self, digest: str, size: int, chunks: Iterable[bytes]) -> None:
        """Store content of ``size`` bytes. Existing content stays; several callers may put the same at once.

        Raises Unavailable if the chunks have another total size.
        """

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Number of stored bytes; None if nothing is stored."""

    @abstractmethod
    def chunks(self, digest: str, size: int) -> Iterator[bytes]:
        """The content of ``size`` bytes in order, not verified.

        Raises Unavailable with the code blob_missing if it is not there, blob_damaged if its size differs.
        """

    @abstractmethod
    def delete(self, digests: Collection[str]) -> None:
        """Delete contents, as far as they are there."""

    @abstractmethod
    def strays(
        self, named: Callable[[Collection[str]], Collection[str]], before: float
    ) -> Iterator[tuple[str, int]]:
        """(digest, size) of contents that no row refers to, for example after a crash.

        named: returns those of some digests that rows place here. before: only contents stored before this
        time, in seconds since the epoch, if the place knows these times.
        """

    @abstractmethod
    def ping(self) -> None:
        """Raise Unavailable if the place cannot be reached."""


class DatabaseBodies(BlobBodies):
    """Contents in chunks in the table `blob_chunks`, in one transaction; each needs its row in `blobs`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, digest: str, size: int, chunks: Iterable[bytes]) -> None:
        for position, chunk in enumerate(exactly(digest, size, chunks)):
            self.put_chunk(digest, position, chunk)

    def put_chunk(self, digest: str, position: int, chunk: bytes) -> None:
        """Store one chunk, unless it is stored."""
        insert_once(self._connection, blob_chunks, {"digest": digest, "position": position, "data": chunk})

    def size(self, digest: str) -> int | None:
        total = sa.select(sa.func.sum(sa.func.length(blob_chunks.c.data)))
        size = self._connection.execute(total.where(blob_chunks.c.digest == digest)).scalar()
        return None if size is None else int(size)

    def chunks(self, digest: str, size: int) -> Iterator[bytes]:
        done = position = 0
        while done < size:
            chunk = self.chunk(digest, position)
            if chunk is None:
                raise damaged(digest, Place.DATABASE) if done else missing(digest, Place.DATABASE)
            done, position = done + len(chunk), position + 1
            yield chunk
        if done > size:
            raise damaged(digest, Place.DATABASE)

    def chunk(self, digest: str, position: int) -> bytes | None:
        """One stored chunk; None behind the last."""
        query = sa.select(blob_chunks.c.data).where(
            blob_chunks.c.digest == sa.bindparam("of"), blob_chunks.c.position == sa.bindparam("at")
        )
        data: bytes | None = self._connection.execute(query, {"of": digest, "at": position}).scalar()
        return data

    def positions(self, digest: str) -> set[int]:
        """Positions of the chunks that are stored."""
        query = sa.select(blob_chunks.c.position).where(blob_chunks.c.digest == digest)
        return set(self._connection.execute(query).scalars())

    def delete(self, digests: Collection[str]) -> None:
        for some in batched(digests):
            self._connection.execute(sa.delete(blob_chunks).where(blob_chunks.c.digest.in_(some)))

    def delete_some(self, digest: str, chunks: int) -> bool:
        """Delete the last chunks of a content; returns whether there were any."""
        stored = sa.select(blob_chunks.c.position).where(blob_chunks.c.digest == digest)
        last = stored.order_by(blob_chunks.c.position.desc()).limit(chunks)
        positions = self._connection.execute(last).scalars().all()
        if positions:
            self._connection.execute(
                sa.delete(blob_chunks).where(
                    blob_chunks.c.digest == digest, blob_chunks.c.position.in_(positions)
                )
            )
        return bool(positions)

    def strays(
        self, named: Callable[[Collection[str]], Collection[str]], before: float
    ) -> Iterator[tuple[str, int]]:
        # Every chunk has a row; after an interrupted move the row names another place.
        chunks = sa.exists().where(blob_chunks.c.digest == blobs.c.digest)
        elsewhere = sa.select(blobs.c.digest, blobs.c.size).where(in_objects(), chunks)
        rows = self._connection.execute(elsewhere.where(blobs.c.created_at < before)).all()
        kept = set(named([digest for digest, _ in rows]))
        yield from ((digest, size) for digest, size in rows if digest not in kept)

    def ping(self) -> None:
        self._connection.execute(sa.select(sa.literal(1)))


def in_objects() -> sa.ColumnElement[bool]:
    """Whether the bytes of a row of `blobs` are in the object store; the text of the partial index."""
    return blobs.c.place == sa.literal_column(f"'{Place.OBJECTS}'")


def exactly(digest: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks. Raises Unavailable at their end if they have another size than ``size`` together."""
    done = 0
    for chunk in chunks:
        done += len(chunk)
        yield chunk
    if done != size:
        raise Unavailable(f"Blob {digest} was not stored completely.", code="blob_incomplete")


def verified(digest: str, place: Place, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks. Raises Unavailable at their end if they have another digest."""
    sha = hashlib.sha256()
    for chunk in chunks:
        sha.update(chunk)
        yield chunk
    if sha.hexdigest() != digest:
        raise damaged(digest, place)


def damaged(digest: str, place: Place) -> Unavailable:
    """The error for bytes that differ from the stored ones."""
    return Unavailable(f"Blob {digest} is damaged in the {_NAMES[place]}.", code="blob_damaged")


def missing(digest: str, place: Place) -> Unavailable:
    """The error for bytes that are not in the place that their row names."""
    return Unavailable(f"Blob {digest} is missing in the {_NAMES[place]}.", code="blob_missing")


def without_store() -> Unavailable:
    """The error for bytes in an object store that the settings do not name."""
    text = "The blob is in an object store, and STMS_BLOBS names none."
    return Unavailable(text, code="object_store_unavailable")


_NAMES: Final = {Place.DATABASE: "database", Place.OBJECTS: "object store"}
