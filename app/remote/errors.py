"""What can be wrong with a remote teacher, the receiver of a webhook, or the source of a data set."""

from __future__ import annotations

from typing import ClassVar

from app.domain.errors import ServiceError


class RemoteFailed(ServiceError):
    """The server cannot be asked, or its answer not used; for a job, asking again would not help."""

    code: ClassVar[str] = "remote_failed"


class RemoteUnavailable(Exception):
    """The server did not answer, or asked to be asked later. wait: seconds that it asked for, or None."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait
