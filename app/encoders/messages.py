"""What a server process and a child that encodes say to each other, over one socket.

The server sends an `Order`, then the file of the encoder if it has one, then questions: each a length (4
bytes, little-endian) and so many bytes. The child answers the order and each question by a kind (1 byte), a
length (4 bytes) and so many bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from app.encoders.sandbox import Sandbox
from app.encoders.specification import EncoderSpecification

LENGTH: Final = struct.Struct("<I")
HEAD: Final = struct.Struct("<BI")
VECTOR: Final = 0
"""The answer has the numbers of a vector, float32 and little-endian."""
FAULT: Final = 1
"""The answer has a `Fault`: of the picture, or of the encoder's file if it answers the order."""
READY: Final = 2
"""The answer has a `Ready`."""
FAILED: Final = 3
"""The answer has a `Fault` of the encoder, which is not the picture's."""
MAX_ANSWER: Final = 256 * 1024


class Order(msgspec.Struct, frozen=True):
    """What a child shall be. memory: bytes beyond what its libraries take.

    seconds: of the processor that a question may take. is_trial: whether the encoder is examined: its width
    and its probe are not known yet.
    """

    encoder: EncoderSpecification
    memory: int
    seconds: float
    sandbox: Sandbox
    is_trial: bool = False


class Ready(msgspec.Struct, frozen=True):
    """The child waits for questions. probe: see `EncoderSpecification`. width: numbers of a vector.

    sandbox: what it could give up. libraries: names and versions of what computes. seconds: of the processor
    that the slowest probe took.
    """

    probe: str
    width: int
    sandbox: Sandbox
    libraries: str
    seconds: float = 0.0


class Fault(msgspec.Struct, frozen=True):
    """Why there is no vector, or no encoder. code and message: for programs and for people."""

    code: str
    message: str


ORDER: Final = msgspec.json.Decoder(Order)
READY_ANSWER: Final = msgspec.json.Decoder(Ready)
FAULT_ANSWER: Final = msgspec.json.Decoder(Fault)
