"""An upload on its way to disk: hashed, counted and never whole in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from app.domain.errors import InvalidRequest, TooLarge

_PIECE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Spooled:
    """A file at rest. digest: SHA-256 hex of its ``size`` bytes."""

    path: Path
    digest: str
    size: int


@contextmanager
def spooled(source: Iterable[bytes] | Path, max_bytes: int) -> Iterator[Spooled]:
    """The source as a file for the length of the block: a Path is used where it is, a stream is written to a
    temporary file. Raises TooLarge as soon as it passes ``max_bytes``, InvalidRequest when it is empty.
    """
    if isinstance(source, Path):
        digest, size = _hashed(_pieces(source), max_bytes, None)
        yield Spooled(source, digest, size)
        return
    with NamedTemporaryFile(prefix="stms-upload-") as file:
        digest, size = _hashed(source, max_bytes, file.write)
        file.flush()
        yield Spooled(Path(file.name), digest, size)


def _hashed(
    pieces: Iterable[bytes], max_bytes: int, write: Callable[[bytes], object] | None
) -> tuple[str, int]:
    sha, size = hashlib.sha256(), 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise TooLarge(f"The file is larger than the limit of {max_bytes} bytes.", code="file_too_large")
        sha.update(piece)
        if write is not None:
            write(piece)
    if size == 0:
        raise InvalidRequest("The file is empty.", code="empty_file")
    return sha.hexdigest(), size


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
