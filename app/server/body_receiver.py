"""Receives the body of a large request in place: into the memory from which it is scored."""

from __future__ import annotations

import asyncio
from typing import Protocol

import numpy as np

from app.server.fast_path import Prepared


class Owner(Protocol):
    """The connection whose body is received."""

    def body_progressed(self, size: int) -> None:
        """Note ``size`` more bytes."""
        ...

    def body_received(self) -> None:
        """Go on with the complete body."""
        ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> bool | None: ...


class BodyReceiver(asyncio.BufferedProtocol):
    """The protocol of a connection while a body of known length arrives.

    owner: gets all other events. head: of the request. body: memory for the body, whose first ``filled``
    bytes have arrived. answerer: answers the body once all of it has arrived.
    """

    def __init__(self, owner: Owner, prepared: Prepared, head: bytes, first: bytes) -> None:
        self._owner = owner
        self.prepared, self.head = prepared, head
        # The memory is not zeroed, because all of it is written.
        self.body = np.empty(prepared.length, np.uint8).data
        self.filled = len(first)
        self.body[: self.filled] = first
        self._arriving = prepared.arriving(self.body)
        self.answerer = self._arriving or prepared

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the kernel may fill all of it
        """The rest of the memory."""
        return self.body[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Note that the next bytes have arrived."""
        self.filled += nbytes
        self._owner.body_progressed(nbytes)
        if self._arriving is not None:
            self._arriving.progress(self.filled)
        if self.filled == len(self.body):
            self._owner.body_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def eof_received(self) -> bool | None:
        return self._owner.eof_received()
