"""Messages between a server process and the process that reads its files: one line of JSON each way."""

from __future__ import annotations

from typing import Final

import msgspec

from app.domain.errors import (
    InputFault,
    InvalidRequest,
    ServiceError,
    TooLarge,
    Unavailable,
    Unprocessable,
    UnsupportedFormat,
)
from app.ingest.orders import Content, Order

EXIT_MEMORY: Final = 3
"""Exit code of a child that ran out of memory."""
EXIT_STORAGE: Final = 5
"""Exit code of a child that could not write its result."""
CANCEL: Final = b"\n"
"""Line that tells the child to kill the process of the present job; without a job it has no effect."""

_ERRORS: Final[dict[str, type[ServiceError]]] = {
    "InvalidRequest": InvalidRequest,
    "TooLarge": TooLarge,
    "UnsupportedFormat": UnsupportedFormat,
    "Unavailable": Unavailable,
    "Unprocessable": Unprocessable,
}


class Job(msgspec.Struct, frozen=True):
    """One line to the child. outcome: file for a `Content` or a `Failure`. memory: bytes. seconds: of CPU."""

    order: Order
    outcome: str
    memory: int
    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """One line from the child: how the process of one file ended.

    peak_bytes: its largest resident size. seconds: of processor time.
    """

    exit_code: int
    peak_bytes: int
    seconds: float


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """A ServiceError of the child."""

    kind: str
    message: str
    code: str
    faults: list[InputFault]

    def as_error(self) -> ServiceError:
        """The error to raise here."""
        kind = _ERRORS[self.kind]
        if issubclass(kind, Unavailable):
            return kind(self.message, code=self.code)
        return kind(self.message, code=self.code, faults=self.faults)


OUTCOME: Final = msgspec.json.Decoder(Content | Failure)
ANSWER: Final = msgspec.json.Decoder(Answer)
