"""Transfer of a solver's output to its worker: small content as bytes, large content as a cached file.

So neither the pipe nor the worker's memory ever holds a teacher of gigabytes: the worker streams the file
into the database in transactions of a few MiB each.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.domain.entities import Json
from app.domain.errors import NotFound
from app.store.blob_cache import BlobCache
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large, stage
from app.store.unit_of_work import Store, UnitOfWork

LARGE_BYTES: Final = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Transfer:
    """``data``, or None for a cached file with this digest and size in bytes."""

    data: bytes | None
    digest: str = ""
    size: int = 0

    @classmethod
    def of(cls, cache: BlobCache, content: bytes) -> Transfer:
        """Content of up to `LARGE_BYTES` as bytes, larger content as a file. Raises Unavailable."""
        if len(content) <= LARGE_BYTES:
            return cls(content)
        with cache.writing(f"transfer-{secrets.token_hex(8)}.tmp") as writer:
            view = memoryview(content)
            for start in range(0, len(view), LARGE_CHUNK_BYTES):
                writer.write(view[start : start + LARGE_CHUNK_BYTES])
            cache.commit(writer)
            return cls(None, writer.digest, writer.size)

    @property
    def header(self) -> Json | None:
        """JSON-ready reference to a file; None for bytes, which travel in the message itself."""
        return {"digest": self.digest, "size": self.size} if self.data is None else None

    @classmethod
    def from_header(cls, header: Json | None, data: bytes) -> Transfer:
        """The transfer from its header and the bytes of the message."""
        return cls(data) if header is None else cls(None, str(header["digest"]), int(header["size"]))

    def store_chunks(
        self, store: Store, cache: BlobCache, on_progress: Callable[[int], None] | None = None
    ) -> None:
        """Store the chunks of a file, as the blob's first part. It can be repeated.

        If bytes belong into the object store, they are put there first. on_progress: see `put_large`.
        Raises Unavailable, and NotFound if the file has left the cache.
        """
        if self.data is not None:
            stage(store, [self.data])
            return
        view = cache.open(self.digest, _file_missing).whole()
        starts = range(0, self.size, LARGE_CHUNK_BYTES)
        chunks = (bytes(view[start : start + LARGE_CHUNK_BYTES]) for start in starts)
        put_large(store, self.digest, self.size, chunks, on_progress)

    def finish(self, uow: UnitOfWork) -> str:
        """Make the content a blob in this transaction; returns its digest. Raises Unavailable."""
        if self.data is None:
            uow.blobs.finish_large(self.digest)
            return self.digest
        return uow.blobs.put([self.data])[0]


def _file_missing() -> list[bytes]:
    raise NotFound("The solver's output is no longer in the local cache.", code="parcel_lost")
