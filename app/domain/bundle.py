"""The bundle of one version of a model: what its documents say, and the members of its tar file in order.

    manifest.json       the version, and the digests and sizes of everything below
    students.jsonl      one line for each student, by the number of its class, if it was trained
    blobs/<SHA-256>     teacher or head, class table, encoder, profile, and maps that students name, by digest
    blobs/<SHA-256>     the students, in the order of their lines
    model.sig           a signature of the folder by OpenSSF model signing, which an export never has

Documents are canonical JSON, so that the same version always gives the same bytes. Blobs are those of the
database, and their digests stay what they are wherever the version is imported. A bundle without maps has the
format `FORMAT`, in which all bundles of earlier releases are; with maps it has `SHARING`.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec

FORMAT: Final = "stms.bundle.1"
SHARING: Final = "stms.bundle.2"
MANIFEST: Final = "manifest.json"
STUDENTS: Final = "students.jsonl"
BLOBS: Final = "blobs/"
SIGNATURE: Final = "model.sig"

BLOCK: Final = 512
"""Bytes of a header of tar; contents are padded to a multiple of it."""
END: Final = bytes(2 * BLOCK)
"""What ends a tar file."""
MAX_MANIFEST_BYTES: Final = 8 * 1024**2
MAX_LINE_BYTES: Final = 256 * 1024
"""Most bytes of the line of one student."""
MAX_SIGNATURE_BYTES: Final = 16 * 1024**2
MAX_SPEC_BYTES: Final = 64 * 1024
MAX_MEMBER_BYTES: Final = 8**11 - 1
"""Largest size that a header of ustar can say."""

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMBER_BYTES)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Number = int | float | None
Json = dict[str, Any]

_PIECE: Final = 1 << 20
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class StudentList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The member with the lines of the students. count: of lines. digest, size: of the member, in bytes."""

    count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    digest: Digest
    size: Size


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a bundle contains, and what the version says of itself.

    program: that wrote it. model, version, created_at: of the version where it was made. classes: all labels
    in order if they are few, otherwise none: they are in the blob `class_table`. teacher: digest of the
    packed teacher, None if it was left out, or of the packed head of a version that was imported. spec:
    hyper-parameters of the job without what names machines, keys and data sets; None without a job.
    provenance: seed and versions of the libraries. files: bytes of the blobs that the manifest names, by
    digest. maps: digests of the maps that packages of students name, ascending.
    """

    format: str
    program: str
    model: str
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    created_at: Annotated[float, msgspec.Meta(ge=0, le=253402300799.0)]
    method: Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
    columns: Annotated[int, msgspec.Meta(ge=1)]
    class_count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    classes: list[str]
    class_table: Digest | None
    teacher: Digest | None
    encoder: Digest | None
    profile: Digest | None
    dataset_digest: Digest | None
    metrics: Json
    spec: Json | None
    provenance: Json
    students: StudentList | None
    files: dict[str, Size]
    maps: list[Digest] = []

    def to_bytes(self) -> bytes:
        """The manifest as canonical JSON."""
        return canonical(self)

    @property
    def blobs(self) -> list[str]:
        """Digests of the blobs that the manifest names, in the order of their members."""
        return sorted({digest for _, digest in self.named_blobs})

    @property
    def named_blobs(self) -> list[tuple[str, str]]:
        """What each of these blobs is, with its digest."""
        names = ("teacher", "class_table", "encoder", "profile")
        named = [(name, digest) for name in names if (digest := getattr(self, name)) is not None]
        return named + [("map", digest) for digest in self.maps]


class StudentLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The student of one class: its blob, and what the job found of it, as `StudentRow` has it.

    map: digest of the map that its package names; None if the package holds it.
    """

    class_index: Count
    label: Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
    digest: Digest
    size: Size
    threshold: float | None
    objective: float | None
    gap: float | None
    iterations: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None
    seconds: float | None
    status: Annotated[str, msgspec.Meta(max_length=24)] | None
    metrics: Json
    chosen: Json | None
    map: Digest | None = None

    def to_bytes(self) -> bytes:
        """The line as canonical JSON, with its line feed."""
        return canonical(self) + b"\n"


class StudentWarning(msgspec.Struct, frozen=True):
    """A warning of a student."""

    code: str
    label: str
    class_index: int
    message: str


class Inputs(msgspec.Struct, frozen=True):
    """The columns of a version, see `Dataset.inputs`."""

    columns: list[str] | None = None
    label_column: str | None = None
    ranges: list[Annotated[list[float], msgspec.Meta(min_length=2, max_length=2)]] | None = None
    index_base: int | None = None


class VersionMetrics(msgspec.Struct, frozen=True):
    """The metrics of a version that pages and lists read, to check those of a bundle."""

    means: dict[str, dict[str, Number]] = {}
    calibration: dict[str, int] = {}
    warnings: list[StudentWarning] = []
    students_warned: int = 0
    inputs: Inputs | None = None


class StudentMetrics(msgspec.Struct, frozen=True):
    """The metrics of a student that pages and lists read, likewise."""

    f1: Number = None
    auc: Number = None
    accuracy: Number = None
    brier: Number = None
    base_brier: Number = None
    calibration_error: Number = None
    tp: Number = None
    fp: Number = None
    tn: Number = None
    fn: Number = None
    calibration: str | None = None
    guard: Json = {}
    false_positives: Json = {}
    own_rows: Json = {}
    reliability: list[Json] | None = None
    beside_teacher: Json | None = None


def canonical(value: object) -> bytes:
    """JSON with sorted keys and nothing that could be left out. Raises ValueError for NaN and infinities."""
    plain = msgspec.to_builtins(value)
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def has_nul(document: bytes) -> bool:
    """Whether a JSON document has a text with U+0000, which PostgreSQL does not store."""
    return _NUL.search(document) is not None


def digest_of(data: bytes) -> str:
    """SHA-256, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def blob_name(digest: str) -> str:
    """The member of a blob."""
    return f"{BLOBS}{digest}"


def member_header(name: str, size: int) -> bytes:
    """The header of a member, 512 bytes; the same name and size always give the same.

    size: at most `MAX_MEMBER_BYTES`. Raises ValueError beyond it.
    """
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def padding_of(size: int) -> int:
    """Bytes of zeros behind a content of ``size`` bytes."""
    return -size % BLOCK


def member_bytes(size: int) -> int:
    """Bytes of a member with a content of ``size`` bytes."""
    return BLOCK + size + padding_of(size)


def read_line(content: bytes) -> StudentLine:
    """The line of a student. Raises ValueError."""
    return msgspec.json.decode(content, type=StudentLine)


def lines_of(read: Iterator[bytes]) -> Iterator[bytes]:
    """Lines, without their line feeds, of the pieces of a text. Raises ValueError for a long one."""
    rest = b""
    for piece in read:
        *whole, rest = (rest + piece).split(b"\n")
        if max(map(len, (*whole, rest))) > MAX_LINE_BYTES:
            raise ValueError(f"A line has more than {MAX_LINE_BYTES} bytes.")
        yield from whole
    if rest:
        raise ValueError("The last line does not end.")


def pack(folder: Path) -> Iterator[bytes]:
    """The tar file of the folder that a bundle was unpacked to: the bytes that it was unpacked from.

    A signature in the folder is its last member; other files are left out. Raises OSError and ValueError.
    """
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    names = [MANIFEST, *([STUDENTS] if manifest.students else []), *map(blob_name, manifest.blobs)]
    for name in names:
        yield from _packed(folder, name)
    if manifest.students:
        with (folder / STUDENTS).open("rb") as lines:
            for content in lines_of(iter(lambda: lines.read(_PIECE), b"")):
                yield from _packed(folder, blob_name(read_line(content).digest))
    if (folder / SIGNATURE).is_file():
        yield from _packed(folder, SIGNATURE)
    yield END


def attach(file: IO[bytes], signature: bytes) -> None:
    """Make a signature the last member of the bundle in an open file, in place of the one that it has.

    Raises OSError, and ValueError for what is no tar file.
    """
    at = 0
    while True:
        file.seek(at)
        header = file.read(BLOCK)
        if not any(header):
            break
        try:
            member = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        except tarfile.HeaderError as error:
            raise ValueError(f"at byte {at} is no header of a tar file ({error})") from error
        if member.name == SIGNATURE:
            break
        at += member_bytes(member.size)
    if not at:
        raise ValueError("it is empty")
    file.seek(at)
    file.write(member_header(SIGNATURE, len(signature)) + signature + bytes(padding_of(len(signature))) + END)
    file.truncate()


def _packed(folder: Path, name: str) -> Iterator[bytes]:
    """A member of the tar file."""
    with (folder / name).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        yield member_header(name, size)
        yield from iter(lambda: file.read(_PIECE), b"")
    yield bytes(padding_of(size))
