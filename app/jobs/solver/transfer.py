"""What a solver process hands to its worker: small as bytes, large as a file in the cache that both see.

So neither the pipe between them nor the worker's memory ever holds a teacher of gigabytes: the worker streams
the file into the database in transactions of some MiB each.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from app.domain.errors import NotFound
from app.store.blob_cache import BlobCache
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large
from app.store.unit_of_work import Store, UnitOfWork

LARGE_BYTES: Final = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Parcel:
    """Content under way: ``data``, or None for a file of the cache of this digest and size."""

    data: bytes | None
    digest: str = ""
    size: int = 0

    @classmethod
    def pack(cls, files: BlobCache, content: bytes) -> Parcel:
        """Content of up to `LARGE_BYTES` as it is, more as a file. Raises Unavailable."""
        if len(content) <= LARGE_BYTES:
            return cls(content)
        with files.writing(f"parcel-{secrets.token_hex(8)}.tmp") as writer:
            view = memoryview(content)
            for start in range(0, len(view), LARGE_CHUNK_BYTES):
                writer.write(view[start : start + LARGE_CHUNK_BYTES])
            files.commit(writer)
            return cls(None, writer.digest, writer.size)

    @property
    def label(self) -> dict[str, Any] | None:
        """What is said of a file, JSON-ready; None of bytes, which travel themselves."""
        return {"digest": self.digest, "size": self.size} if self.data is None else None

    @classmethod
    def unpack(cls, label: dict[str, Any] | None, data: bytes) -> Parcel:
        """The parcel again from its label and the bytes that came with it."""
        return cls(data) if label is None else cls(None, str(label["digest"]), int(label["size"]))

    def bring(self, store: Store, files: BlobCache, told: Callable[[int], None] | None = None) -> None:
        """Store the chunks of a file, without finishing; of bytes nothing yet. May be done again.

        told: as of `put_large`. Raises Unavailable, and NotFound when the file has left the cache.
        """
        if self.data is not None:
            return
        view = files.open(self.digest, _gone).whole()
        chunks = (
            bytes(view[start : start + LARGE_CHUNK_BYTES]) for start in range(0, self.size, LARGE_CHUNK_BYTES)
        )
        put_large(store, self.digest, self.size, chunks, told)

    def keep(self, uow: UnitOfWork) -> str:
        """Make it a blob of the transaction; returns its digest. Raises Unavailable if it was not brought."""
        if self.data is None:
            uow.blobs.finish_large(self.digest)
            return self.digest
        return uow.blobs.put([self.data])[0]


def _gone() -> list[bytes]:
    raise NotFound("What the solver made is not in the local cache any more.", code="parcel_lost")
