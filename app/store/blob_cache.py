"""Content-addressed disk cache of blobs: one folder with files named by digest, shared by all processes.

File format:

    data | CRC-32 of each 4 KiB block of the data | footer

The footer holds magic, size, SHA-256 of the data, and the CRC-32 of the table and of the footer itself.

A file is written under a temporary name, synced and renamed, so it is either complete or absent, and its
SHA-256 was verified when it was written. Later damage is detected: a small file is hashed each time it is
opened; of a large file each 4 KiB block is verified before its first use, so that one row does not cost
reading 2 GB. Remove files, but never truncate them: a process that has one mapped would get SIGBUS.
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
from app.store.unit_of_work import Store
from core.errors import InvalidPackage

Fetch = Callable[[], Iterable[bytes]]
Result = TypeVar("Result")

SMALL_BYTES: Final = 1024**2
"""Files up to this size are read and hashed whole; larger ones are mapped into memory."""

BLOCK_BYTES: Final = 4096
"""Unit of verification. A row of a head takes one or two blocks, so loading one class stays cheap."""

_FOOTER: Final = struct.Struct("<8sQ32sI8xI")
_MAGIC: Final = b"STMSPACK"
_SUFFIX: Final = ".packed"
_ABANDONED_SECONDS: Final = 3600.0
_DISK_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


class DamagedFile(Exception):
    """A file of the cache differs from what was written."""


class CacheFull(Unavailable):
    """The disk of the cache is full."""

    def __init__(self) -> None:
        super().__init__("The disk of the local cache is full.", code="cache_full", retry_after=10.0)


class _Descriptor:
    """A duplicated file descriptor, closed when the object is garbage-collected."""

    def __init__(self, file: IO[bytes]) -> None:
        self.number = os.dup(file.fileno())

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """The bytes of one blob. `read`, `view` and `whole` verify each block once.

    file, sums, verified: only of a large file: its descriptor, and CRC-32 and a flag of each block.
    """

    data: memoryview
    file: _Descriptor | None = None
    sums: array[int] = field(default_factory=lambda: array("I"))
    verified: bytearray = field(default_factory=bytearray)

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes from ``start`` to ``stop``, verified. Raises InvalidPackage when they are damaged.

        A large file is read with pread and not through its mapping: that is cheaper than a page fault, and
        does not count as memory of this process.
        """
        if self.file is None:
            return self.data[start:stop]
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        if self.verified[first] and (first == last or all(self.verified[first : last + 1])):
            content = os.pread(self.file.number, stop - start, start)
            if len(content) != stop - start:
                raise InvalidPackage("The cached file was cut off.")
            return memoryview(content)
        origin = first * BLOCK_BYTES
        blocks = memoryview(os.pread(self.file.number, (last + 1) * BLOCK_BYTES - origin, origin))
        blocks = blocks[: len(self.data) - origin]
        for block in range(first, last + 1):
            self._check(block, blocks[block * BLOCK_BYTES - origin : (block + 1) * BLOCK_BYTES - origin])
        return blocks[start - origin : stop - origin]

    def view(self, start: int, stop: int) -> memoryview:
        """As `read`, but through the mapping of a large file: faster for ranges that are read repeatedly."""
        if self.file is not None:
            for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
                if not self.verified[block]:
                    self._check(block, self.data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
        return self.data[start:stop]

    def _check(self, block: int, content: memoryview) -> None:
        if zlib.crc32(content) != self.sums[block]:
            raise InvalidPackage(f"The cached file is damaged after byte {block * BLOCK_BYTES}.")
        self.verified[block] = 1

    def whole(self) -> memoryview:
        """All bytes, verified. Raises InvalidPackage."""
        return self.view(0, len(self.data))


class BlobCache:
    """The cache in one folder. Thread-safe.

    budget: bytes on disk; above it, the least recently opened files are removed.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget

    def open(self, digest: str, fetch: Fetch) -> CachedFile:
        """Open the blob ``digest``. A file that is missing or damaged is first fetched and written.

        fetch: returns the bytes in chunks. One process of the machine fetches while the others wait.
        If the disk is full, half of the cache is removed and the fetch is repeated. Raises what ``fetch``
        raises, and Unavailable if it returns other bytes or if they cannot be stored.
        """
        with _os_errors_as_unavailable():
            with suppress(DamagedFile, FileNotFoundError):
                return self._open_existing(digest)
            with self._locked(digest):
                # Another process may have written the file in the meantime.
                with suppress(DamagedFile, FileNotFoundError):
                    return self._open_existing(digest)
                try:
                    self._fetch(digest, fetch)
                except CacheFull:
                    self._fetch(digest, fetch)
            return self._open_existing(digest)

    def _fetch(self, digest: str, fetch: Fetch) -> None:
        with self.writing(f"{digest}.tmp") as writer:
            for chunk in fetch():
                writer.write(chunk)
            if writer.digest != digest:
                raise Unavailable(f"Blob {digest} is damaged in the database.", code="blob_damaged")
            self.commit(writer)

    @contextmanager
    def writing(self, name: str) -> Iterator[FileWriter]:
        """A new file in the folder, removed after the block unless it was committed.

        Raises CacheFull when the disk is full; half of the cache is then removed, so a retry can succeed.
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
        """Finish, sync and rename the file of a writer, which adds it to the cache."""
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
        """Return ``work()``. If it raises InvalidPackage, discard all ``digests`` and call it once more."""
        try:
            return work()
        except InvalidPackage:
            for digest in digests:
                self.discard(digest)
        return work()

    def discard(self, digest: str) -> None:
        """Remove a file. Processes that have it open can still read it."""
        self.path(digest).unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """The file of a blob, whether or not it is in the cache."""
        return self._folder / f"{digest}{_SUFFIX}"

    @property
    def folder(self) -> Path:
        """The folder, created if it does not exist. Raises Unavailable."""
        with _os_errors_as_unavailable():
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _open_existing(self, digest: str) -> CachedFile:
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
        # mtime records the last open; eviction removes the oldest first.
        with suppress(FileNotFoundError):
            os.utime(path)
        return opened

    @contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        locks = self.folder / "locks"
        locks.mkdir(exist_ok=True)
        # One lock file per two-digit prefix: lock files are never removed, so there must be few of them.
        with (locks / digest[:2]).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _shrink(self, newest: Path | None = None, *, to_half: bool = False) -> None:
        """Evict files until the cache is within its budget or at half its size; remove abandoned writes.

        The least recently opened files go first. Processes that have a file open can still read it.
        """
        files = []
        abandoned = time.time() - _ABANDONED_SECONDS
        for path in self._folder.glob("*.*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix == _SUFFIX:
                    files.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < abandoned:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        budget = total // 2 if to_half else self._budget
        for _, size, path in sorted(files):
            if total <= budget:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size


def open_blob(store: Store, files: BlobCache, digest: str) -> CachedFile:
    """A blob of the database through the cache. Raises NotFound and Unavailable."""

    def fetch() -> Iterator[bytes]:
        with store.read() as uow:
            yield from uow.blobs.unverified_chunks(digest)

    return files.open(digest, fetch)


class FileWriter:
    """Writes data in chunks and hashes it on the way. digest: SHA-256 of all data so far."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.path = path
        self.size = 0
        self._file = file
        self._sha = hashlib.sha256()
        self._sums = array("I")
        self._rest = b""

    @property
    def digest(self) -> str:
        """SHA-256 of the data written so far, hexadecimal."""
        return self._sha.hexdigest()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append to the data. Raises CacheFull, Unavailable."""
        with _os_errors_as_unavailable():
            _write_all(self._file, chunk)
        self._sha.update(chunk)
        self.size += len(chunk)
        view = memoryview(chunk)
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
        """Write the table and the footer, then sync the file."""
        if self._rest:
            self._sums.append(zlib.crc32(self._rest))
        table = self._sums.tobytes()
        footer = _FOOTER.pack(_MAGIC, self.size, self._sha.digest(), zlib.crc32(table), 0)[:-4]
        _write_all(self._file, table + footer + struct.pack("<I", zlib.crc32(footer)))
        os.fsync(self._file.fileno())

    def chunks(self, size: int) -> Iterator[bytes]:
        """Read the data back in chunks of ``size`` bytes. Works after `finish` and after a rename."""
        for at in range(0, self.size, size):
            yield os.pread(self._file.fileno(), min(size, self.size - at), at)


def _write_all(file: IO[bytes], chunk: bytes | memoryview) -> None:
    """Write everything to an unbuffered file, whose `write` may be partial. Raises OSError."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


def _footer(file: IO[bytes], digest: str) -> tuple[int, int]:
    """Size of the data and CRC-32 of the table, from a valid footer. Raises DamagedFile."""
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
    """Convert OSError to Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise CacheFull from error
        raise Unavailable(
            f"The model cache on disk cannot be used: {error.strerror}.", code="cache_unusable"
        ) from error
