"""Messages between a worker and its solver process, and their values. Nothing is pickled.

A message is: length of the header (4 bytes, big endian), the header as JSON with the sizes of the byte
strings under ``"sizes"``, then the byte strings one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, TypeAlias

import msgspec

from app.domain.entities import Json
from app.domain.names import DEFAULT_TENANT
from app.domain.object_address import ObjectAddress
from app.jobs.errors import InvalidMessage

if TYPE_CHECKING:
    from app.jobs.solver.transfer import Transfer

MAX_HEADER_BYTES: Final = 256 * 1024**2
METRICS_PER_MESSAGE: Final = 10_000
"""Number of classes whose metrics one message holds, so that no header of a million classes is too large."""
MAX_BLOB_BYTES: Final = 64 * 1024**3
_LENGTH: Final = struct.Struct(">I")

StudentKey: TypeAlias = tuple[int, str]
"""(class index, method)."""


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """The job of a solver process and its surroundings. threads: 0 for one per processor.

    cache_dir, cache_disk_bytes: local cache of packed models, from which an imported teacher is read.
    cache_key: authenticates the files of the cache, hexadecimal.
    tenant: owner of the data set and models that the solver may read.
    memory_bytes: limit of the process's memory; 0 for none. stall_seconds: time without an answer and without
    processor time after which the process counts as hung; 0 for no limit. job_id: for its log, and for the
    stored scores of a remote teacher. remote_teachers: origins that may be asked, as in the setting.
    remote_token: bearer token for the job's remote teacher; empty for none. encoder_digest: blob of the
    encoder that the job has stored; empty for none. objects: the object store for large blobs.
    """

    dataset_id: str
    spec: Json
    threads: int
    log_level: str
    database_url: str = field(repr=False)
    cache_dir: str = ""
    cache_key: str = field(default="", repr=False)
    cache_disk_bytes: int = 0
    tenant: str = DEFAULT_TENANT
    memory_bytes: int = 0
    stall_seconds: float = 0.0
    job_id: str = ""
    log_format: str = "text"
    remote_teachers: str = ""
    remote_token: str = field(default="", repr=False)
    encoder_digest: str = ""
    objects: ObjectAddress | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LabellingResult:
    """report: how the labels were found, JSON-ready. labels: a package of core."""

    report: Json
    labels: Transfer


@dataclass(frozen=True, slots=True)
class PreparationResult:
    """report: the teacher's summary, seconds by stage and metrics. The transfers are packages of core.

    rows: the numbers of the training rows, see `core.data.row_identity`. encoder: of records. profile: of
    their columns in training. Both are None if rows are numbers. suspects: rows with suspect labels; None if
    the job did not look for any.
    """

    report: Json
    preparation: Transfer
    teacher: Transfer
    rows: Transfer | None = None
    encoder: Transfer | None = None
    profile: Transfer | None = None
    suspects: Transfer | None = None

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All of them."""
        found = (self.preparation, self.teacher, self.rows, self.encoder, self.profile, self.suspects)
        return tuple(transfer for transfer in found if transfer is not None)


@dataclass(frozen=True, slots=True)
class AdditionResult:
    """The student of an added class. row: its numbers; report: results about it; JSON-ready.

    base: shared by all classes that are added to the same students; None if it was stored before.
    """

    row: Json
    report: Json
    student: Transfer
    base: Transfer | None = None

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All of them."""
        return (self.student,) if self.base is None else (self.student, self.base)


@dataclass(frozen=True, slots=True)
class StudentResult:
    """A trained student, or why there is none: ``packed`` is then None and ``row`` has code and message.

    trace: compressed JSON of its hyper-parameter search; None without a search. map: the package of the map
    that ``packed`` names; None if ``packed`` contains it.
    """

    key: StudentKey
    label: str
    row: Json
    packed: bytes | None
    trace: bytes | None = None
    map: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its packages and of its trace."""
        return sum(len(part or b"") for part in (self.packed, self.map, self.trace))


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """A batch of a remote teacher's scores. data: (rows, K) float64, little endian.

    part: 0 for the training rows, 1 for the test rows. first: number of the batch's first row.
    """

    part: int
    first: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """header: JSON-ready, with a ``"type"``. blobs: byte strings that belong to it."""

    header: Json
    blobs: tuple[bytes, ...] = ()

    @property
    def type(self) -> str:
        return str(self.header["type"])

    @property
    def key(self) -> StudentKey:
        """The student that the message is about."""
        return int(self.header["class_index"]), str(self.header["method"])


def write_message(stream: IO[bytes], header: Json, blobs: Sequence[bytes] = ()) -> None:
    """Write one message and flush. Raises OSError when the other side has closed the pipe."""
    encoded = msgspec.json.encode(header | {"sizes": [len(blob) for blob in blobs]})
    stream.write(_LENGTH.pack(len(encoded)))
    stream.write(encoded)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def read_message(stream: IO[bytes]) -> Message | None:
    """The next message; None if the stream ends, even in the middle of a message. Raises InvalidMessage."""
    prefix = stream.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(prefix)
    if length > MAX_HEADER_BYTES:
        raise InvalidMessage(f"A header of {length} bytes is over the limit of {MAX_HEADER_BYTES}.")
    encoded = stream.read(length)
    if len(encoded) < length:
        return None
    header, sizes = _decode_header(encoded)
    blobs = []
    for size in sizes:
        blob = stream.read(size)
        if len(blob) < size:
            return None
        blobs.append(blob)
    return Message(header, tuple(blobs))


def _decode_header(encoded: bytes) -> tuple[Json, list[int]]:
    try:
        header = msgspec.json.decode(encoded, type=Json)
        sizes = msgspec.convert(header.pop("sizes", None), list[int])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidMessage(f"The header cannot be read: {error}") from error
    if any(not 0 <= size <= MAX_BLOB_BYTES for size in sizes):
        raise InvalidMessage(f"The sizes {sizes[:10]} are out of bounds.")
    if not isinstance(header.get("type"), str):
        raise InvalidMessage("The header has no type.")
    return header, sizes
