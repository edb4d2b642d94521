"""Blobs on local disk, for queries: one folder, files named by digest, shared by all processes of a machine.

    data | CRC-32 of every 4 KiB of it | footer: magic, size, SHA-256 of the data, CRC-32 of the table and of
    the footer itself

A file is written beside its place, synced and renamed, so it is whole or not there; the SHA-256 was right
when it was written. What happens to it later is noticed: a small file is hashed at every opening, of a large
one each 4 KiB are looked at before they are used for the first time: nobody reads 2 GB for one row.
Nothing but cutting off a file in place can hurt a process that has it mapped: remove files, do not truncate.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import struct
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, TypeVar

from app.domain.errors import Unavailable
from core.errors import InvalidPackage

Fetch = Callable[[], Iterable[bytes]]
Result = TypeVar("Result")

SMALL_BYTES: Final = 1024**2
"""Up to this size a file is read and hashed whole; above, it is mapped into memory."""

BLOCK_BYTES: Final = 4096
"""A row of a head is one block or two: what a class costs to load."""

_FOOTER: Final = struct.Struct("<8sQ32sI8xI")
_MAGIC: Final = b"STMSPACK"
_SUFFIX: Final = ".packed"
_ABANDONED_SECONDS: Final = 3600.0


_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


class DamagedFile(Exception):
    """A file of the cache is not what was written."""


class CacheFull(Unavailable):
    """The disk of the cache has no room left."""

    def __init__(self) -> None:
        super().__init__("The disk of the local cache is full.", code="cache_full", retry_after=10.0)


class _Descriptor:
    """A second descriptor of an open file, closed when nobody has it any more."""

    def __init__(self, file: IO[bytes]) -> None:
        self.number = os.dup(file.fileno())

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """The bytes of one blob. They are looked at by `read`, `view` and `whole`, once.

    file: of a large one, open as long as this is.
    """

    data: memoryview
    file: _Descriptor | None = None
    sums: array[int] = field(default_factory=lambda: array("I"))
    seen: bytearray = field(default_factory=bytearray)

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes from ``start`` to ``stop``, looked at. Raises InvalidPackage when they were altered.

        Of a large file they are read instead of mapped: that costs less than a page fault, and does not count
        as memory of this process.
        """
        if self.file is None:
            return self.data[start:stop]
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        if self.seen[first] and (first == last or all(self.seen[first : last + 1])):
            found = os.pread(self.file.number, stop - start, start)
            if len(found) != stop - start:
                raise InvalidPackage("The cached file was cut off.")
            return memoryview(found)
        origin = first * BLOCK_BYTES
        blocks = memoryview(os.pread(self.file.number, (last + 1) * BLOCK_BYTES - origin, origin))
        blocks = blocks[: len(self.data) - origin]
        for block in range(first, last + 1):
            self._check(block, blocks[block * BLOCK_BYTES - origin : (block + 1) * BLOCK_BYTES - origin])
        return blocks[start - origin : stop - origin]

    def view(self, start: int, stop: int) -> memoryview:
        """As `read`, of a large file by its mapping: quicker where places are asked over and over."""
        if self.file is not None:
            for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
                if not self.seen[block]:
                    self._check(block, self.data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
        return self.data[start:stop]

    def _check(self, block: int, content: memoryview) -> None:
        if zlib.crc32(content) != self.sums[block]:
            raise InvalidPackage(f"The cached file is damaged behind byte {block * BLOCK_BYTES}.")
        self.seen[block] = 1

    def whole(self) -> memoryview:
        """All bytes, looked at. Raises InvalidPackage."""
        return self.view(0, len(self.data))


class BlobCache:
    """The folder. budget: bytes on disk beyond which the files opened longest ago go. Safe for threads."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget

    def open(self, digest: str, fetch: Fetch) -> CachedFile:
        """The blob ``digest``; what is not there, cut off or altered is fetched and written first.

        fetch: gives the bytes in pieces. One process of the machine fetches, the others wait for it.
        Raises what ``fetch`` raises, and Unavailable when it gives other bytes or they cannot be kept, also
        not after half of the other files went to make room for them.
        """
        with _os_errors_as_unavailable():
            with suppress(DamagedFile, FileNotFoundError):
                return self._opened(digest)
            with self._locked(digest):
                # Another process may have been first.
                with suppress(DamagedFile, FileNotFoundError):
                    return self._opened(digest)
                try:
                    self._fetch(digest, fetch)
                except CacheFull:
                    self._fetch(digest, fetch)
            return self._opened(digest)

    def _fetch(self, digest: str, fetch: Fetch) -> None:
        with self.writing(f"{digest}.tmp") as writer:
            for piece in fetch():
                writer.write(piece)
            if writer.digest != digest:
                raise Unavailable(f"Blob {digest} is damaged in the database.", code="blob_damaged")
            self.commit(writer)

    @contextmanager
    def writing(self, name: str) -> Iterator[FileWriter]:
        """A new file in the folder, gone after the block unless it was kept.

        When there is no room for it on the disk, half of the cache goes, so that there is the next time.
        Raises CacheFull.
        """
        path = self.folder / name
        with _os_errors_as_unavailable():
            file = path.open("w+b", buffering=0)
        with file:
            try:
                yield FileWriter(file, path)
            except CacheFull:
                os.ftruncate(file.fileno(), 0)
                self._shrink(to_half=True)
                raise
            finally:
                path.unlink(missing_ok=True)

    def commit(self, writer: FileWriter) -> None:
        """Finish, sync and rename what was written; it is in the cache from now on."""
        with _os_errors_as_unavailable():
            writer.finish()
            writer.path.rename(self.path(writer.digest))
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._shrink(self.path(writer.digest))

    def with_refetch(self, work: Callable[[], Result], *digests: str) -> Result:
        """What ``work`` gives; if it finds a file damaged, it is done once more with all ``digests`` fetched.

        Raises InvalidPackage when that does not help.
        """
        try:
            return work()
        except InvalidPackage:
            for digest in digests:
                self.discard(digest)
        return work()

    def discard(self, digest: str) -> None:
        """Remove a file; who has it open keeps what it read."""
        self.path(digest).unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Where the blob is if it is in the cache."""
        return self._folder / f"{digest}{_SUFFIX}"

    @property
    def folder(self) -> Path:
        """The folder, made if need be. Raises Unavailable."""
        with _os_errors_as_unavailable():
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _opened(self, digest: str) -> CachedFile:
        """Raises FileNotFoundError and DamagedFile."""
        path = self.path(digest)
        with path.open("rb") as file:
            size, table_sum = _footer(file, digest)
            if size <= SMALL_BYTES:
                data = file.read(size)
                if hashlib.sha256(data).hexdigest() != digest:
                    raise DamagedFile(path)
                opened = CachedFile(memoryview(data))
            else:
                opened = _mapped(file, size, table_sum)
        # By the time of the last opening the least used files are told.
        with suppress(FileNotFoundError):
            os.utime(path)
        return opened

    @contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        locks = self.folder / "locks"
        locks.mkdir(exist_ok=True)
        # Two digits of the digest: files that never go away, but few.
        with (locks / digest[:2]).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _shrink(self, newest: Path | None = None, *, to_half: bool = False) -> None:
        """Keep to the budget, or halve what there is, and remove what a crash left half written.

        The files opened longest ago go first; who has one open keeps it.
        """
        found = []
        abandoned = time.time() - _ABANDONED_SECONDS
        for path in self._folder.glob("*.*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix == _SUFFIX:
                    found.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < abandoned:
                    path.unlink()
        total = sum(size for _, size, _ in found)
        budget = total // 2 if to_half else self._budget
        for _, size, path in sorted(found):
            if total <= budget:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size


class FileWriter:
    """Writes data piece by piece, hashing on the way. digest: SHA-256 of all pieces so far."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.path = path
        self.size = 0
        self._file = file
        self._sha = hashlib.sha256()
        self._sums = array("I")
        self._rest = b""

    @property
    def digest(self) -> str:
        """SHA-256 of what was written, hexadecimal."""
        return self._sha.hexdigest()

    def write(self, piece: bytes | memoryview) -> None:
        """Append to the data. Raises CacheFull, Unavailable."""
        with _os_errors_as_unavailable():
            _write_all(self._file, piece)
        self._sha.update(piece)
        self.size += len(piece)
        view = memoryview(piece)
        if self._rest:
            missing = BLOCK_BYTES - len(self._rest)
            self._rest += bytes(view[:missing])
            view = view[missing:]
            if len(self._rest) < BLOCK_BYTES:
                return
            self._sums.append(zlib.crc32(self._rest))
        whole = len(view) // BLOCK_BYTES * BLOCK_BYTES
        self._sums.extend(zlib.crc32(view[at : at + BLOCK_BYTES]) for at in range(0, whole, BLOCK_BYTES))
        self._rest = bytes(view[whole:])

    def finish(self) -> None:
        """Write table and footer, and sync."""
        if self._rest:
            self._sums.append(zlib.crc32(self._rest))
        table = self._sums.tobytes()
        footer = _FOOTER.pack(_MAGIC, self.size, self._sha.digest(), zlib.crc32(table), 0)[:-4]
        _write_all(self._file, table + footer + struct.pack("<I", zlib.crc32(footer)))
        os.fsync(self._file.fileno())

    def chunks(self, size: int) -> Iterator[bytes]:
        """The data again, from the file, in pieces of ``size``; after `finish`, also when it was renamed."""
        for at in range(0, self.size, size):
            yield os.pread(self._file.fileno(), min(size, self.size - at), at)


def _write_all(file: IO[bytes], piece: bytes | memoryview) -> None:
    """Write to a file without a buffer, which may take less than it is given. Raises OSError."""
    rest = memoryview(piece)
    while rest:
        rest = rest[file.write(rest) :]


def _footer(file: IO[bytes], digest: str) -> tuple[int, int]:
    """Size of the data and sum of the table, from a footer that fits the file. Raises DamagedFile."""
    length = os.fstat(file.fileno()).st_size
    footer = os.pread(file.fileno(), _FOOTER.size, max(0, length - _FOOTER.size))
    if len(footer) != _FOOTER.size:
        raise DamagedFile(file.name)
    magic, size, sha, table_sum, own_sum = _FOOTER.unpack(footer)
    blocks = -(-size // BLOCK_BYTES)
    whole = own_sum == zlib.crc32(footer[:-4]) and length == size + 4 * blocks + _FOOTER.size
    if magic != _MAGIC or sha.hex() != digest or not whole:
        raise DamagedFile(file.name)
    return size, table_sum


def _mapped(file: IO[bytes], size: int, table_sum: int) -> CachedFile:
    blocks = -(-size // BLOCK_BYTES)
    table = os.pread(file.fileno(), 4 * blocks, size)
    if zlib.crc32(table) != table_sum:
        raise DamagedFile(file.name)
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return CachedFile(memoryview(mapped), _Descriptor(file), array("I", table), bytearray(blocks))


@contextmanager
def _os_errors_as_unavailable() -> Iterator[None]:
    """Errors of the disk as Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise CacheFull from error
        raise Unavailable(
            f"The model cache on disk cannot be used: {error.strerror}.", code="cache_unusable"
        ) from error
