"""What the use cases need from outside, as protocols; the composition root supplies them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class JobQueue(Protocol):
    """The durable queue behind training jobs. All methods raise `Unavailable` when it cannot be reached."""

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        """Put the job's workflow in the queue; a second call with the same workflow_id changes nothing."""
        ...

    def cancel(self, workflow_id: str) -> None:
        """Stop the workflow and its children; unknown or ended ones are left alone."""
        ...

    def ping(self) -> None:
        """Return when the queue answers."""
        ...


class BlobStore(Protocol):
    """Bytes by their SHA-256."""

    def put(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Store a stream; returns (digest, size). The same bytes twice are stored once."""
        ...

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The stored stream, in order. Raises NotFound."""
        ...

    def read(self, digest: str) -> bytes:
        """The whole blob, its digest verified. Raises NotFound."""
        ...
