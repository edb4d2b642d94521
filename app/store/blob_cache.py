"""Content-addressed disk cache of blobs: files named by digest, shared by all processes of a machine.

File format:

    data | MAC of each 4 KiB block of the data | footer

The footer holds magic, size, SHA-256 of the data, and a MAC of the table and the footer itself. MACs are
BLAKE2b with a key that is stored outside of the cache, so a file that another program wrote counts as
damaged.

A file is written under a temporary name and renamed, so it is either complete or absent, and its SHA-256 was
verified when it was written. Later damage is detected: a small file is hashed each time it is opened, so it
need not be synced. A large file is synced, and each 4 KiB block is verified before its first use, so that
reading one row does not need reading 2 GB. Remove files, but never truncate them: a process that has mapped
the file would get SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, TypeVar

from app.domain.errors import Unavailable
from app.settings import Settings
from app.store.cache_usage import CacheUsage
from app.store.large_blobs import fetch_blob
from app.store.private_files import check_own, installation_key, make_private
from app.store.unit_of_work import Store
from core.errors import InvalidPackage

Fetch = Callable[[], Iterable[bytes]]
Result = TypeVar("Result")

SMALL_BYTES: Final = 1024**2
"""Files up to this size are read and hashed whole; larger ones are mapped into memory."""

BLOCK_BYTES: Final = 4096
"""Unit of verification. A row of a head takes one or two blocks, so loading one class stays cheap."""

_MAC_BYTES: Final = 16
_FOOTER: Final = struct.Struct(f"<8sQ32s{_MAC_BYTES}s")
_MAGIC: Final = b"STMSPAC2"
_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_DISK_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


class DamagedFile(Exception):
    """A file of the cache differs from the bytes that were written."""


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

    file, key, macs, verified: set for a large file only: its descriptor, the key of the MACs, the MACs of its
    blocks one after the other, and a flag for each block.
    """

    data: memoryview
    file: _Descriptor | None = None
    key: bytes = b""
    macs: bytes = b""
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
        expected = self.macs[_MAC_BYTES * block : _MAC_BYTES * (block + 1)]
        if not hmac.compare_digest(expected, _mac(self.key, content)):
            raise InvalidPackage(f"The cached file is damaged after byte {block * BLOCK_BYTES}.")
        self.verified[block] = 1

    def whole(self) -> memoryview:
        """All bytes, verified. Raises InvalidPackage."""
        return self.view(0, len(self.data))


class BlobCache:
    """The cache in one folder. Thread-safe.

    budget: bytes on disk; above it, the least recently opened files are removed.
    key: authenticates the files, see `installation_key`; without one only damage is detected.
    """

    def __init__(self, folder: Path, budget: int, key: bytes = b"") -> None:
        self._folder = folder
        self._key = key
        self._usage = CacheUsage(folder, budget)

    @classmethod
    def of(cls, settings: Settings) -> BlobCache:
        """The cache of an installation. Raises Unavailable if its key can neither be read nor made.

        A cache folder inside the data folder is made private; any other folder must already be private.
        """
        with _os_errors_as_unavailable():
            key = installation_key(settings.data_dir)
            if settings.cache_dir is None:
                make_private(settings.cache_folder)
        return cls(settings.cache_folder, settings.cache_disk_bytes, key)

    def open(self, digest: str, fetch: Fetch) -> CachedFile:
        """Open the blob ``digest``. A file that is missing or damaged is first fetched and written.

        fetch: returns the bytes in chunks. One process of the machine fetches while the others wait.
        If the disk is full, half of the cache is removed and the fetch is repeated. Raises the errors of
        ``fetch``, and Unavailable if it returns other bytes or if they cannot be stored.
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
                raise Unavailable(f"Blob {digest} is damaged where it is stored.", code="blob_damaged")
            self.commit(writer)

    @contextmanager
    def writing(self, name: str) -> Iterator[FileWriter]:
        """A new file in the folder, removed after the block unless it was committed.

        Raises CacheFull when the disk is full; half of the cache is then removed, so a retry can succeed.
        """
        path = self.folder / name
        with _os_errors_as_unavailable():
            # A leftover of a process that died, or a link that another user has put there, is not followed.
            path.unlink(missing_ok=True)
            file = open(path, "x+b", buffering=0, opener=_private)  # noqa: SIM115
        with file:
            try:
                yield FileWriter(file, path, self._key)
            except CacheFull:
                os.ftruncate(file.fileno(), 0)
                self._usage.halve()
                raise
            finally:
                path.unlink(missing_ok=True)

    def commit(self, writer: FileWriter) -> None:
        """Finish the file of a writer and add it to the cache."""
        with _os_errors_as_unavailable():
            writer.finish()
            self._usage.add(writer.path, writer.digest)

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
        with _os_errors_as_unavailable():
            self._usage.remove(digest)

    def path(self, digest: str) -> Path:
        """The file of a blob, whether or not it is in the cache."""
        return self._usage.path(digest)

    @property
    def folder(self) -> Path:
        """The folder, created if it does not exist. Raises Unavailable, also if others may write to it."""
        with _os_errors_as_unavailable():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_own(self._folder)
        return self._folder

    def _open_existing(self, digest: str) -> CachedFile:
        """Raises FileNotFoundError and DamagedFile."""
        path = self.path(digest)
        with open(path, "rb", opener=_private) as file:
            size, macs = _table(file, digest, self._key)
            if size <= SMALL_BYTES:
                data = file.read(size)
                if hashlib.sha256(data).hexdigest() != digest:
                    raise DamagedFile(path)
                opened = CachedFile(memoryview(data))
            else:
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                flags = bytearray(-(-size // BLOCK_BYTES))
                opened = CachedFile(memoryview(mapped), _Descriptor(file), self._key, macs, flags)
        # mtime records the last open; eviction removes the oldest first.
        with suppress(FileNotFoundError):
            os.utime(path)
        return opened

    @contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        locks = self.folder / "locks"
        locks.mkdir(mode=0o700, exist_ok=True)
        # One lock file per two-digit prefix: lock files are never removed, so there must be few of them.
        lock = os.open(locks / digest[:2], _LOCK_FILE, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def open_blob(store: Store, files: BlobCache, digest: str) -> CachedFile:
    """A blob through the cache, from the database or the object store. Raises NotFound and Unavailable."""
    return files.open(digest, lambda: fetch_blob(store, digest))


class FileWriter:
    """Writes data in chunks and hashes it on the way. digest: SHA-256 of all data so far."""

    def __init__(self, file: IO[bytes], path: Path, key: bytes) -> None:
        self._key = key
        self.path = path
        self.size = 0
        self._file = file
        self._sha = hashlib.sha256()
        self._macs = bytearray()
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
            self._macs += _mac(self._key, self._rest)
        whole = len(view) // BLOCK_BYTES * BLOCK_BYTES
        for at in range(0, whole, BLOCK_BYTES):
            self._macs += _mac(self._key, view[at : at + BLOCK_BYTES])
        self._rest = bytes(view[whole:])

    def finish(self) -> None:
        """Write the table and the footer, and sync a large file, which is not hashed when it is opened."""
        if self._rest:
            self._macs += _mac(self._key, self._rest)
        _write_all(self._file, _sealed(self._key, bytes(self._macs), self.size, self._sha.digest()))
        if self.size > SMALL_BYTES:
            os.fsync(self._file.fileno())

    def chunks(self, size: int) -> Iterator[bytes]:
        """Read the data back in chunks of ``size`` bytes. Works after `finish` and after a rename."""
        for at in range(0, self.size, size):
            yield os.pread(self._file.fileno(), min(size, self.size - at), at)


def _private(path: str, flags: int) -> int:
    """Open a file without following a link; a new file is readable by its owner only."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _write_all(file: IO[bytes], chunk: bytes | memoryview) -> None:
    """Write everything to an unbuffered file, whose `write` may be partial. Raises OSError."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


def _table(file: IO[bytes], digest: str, key: bytes) -> tuple[int, bytes]:
    """Size of the data and the MACs of its blocks. Raises DamagedFile."""
    length = os.fstat(file.fileno()).st_size
    footer = os.pread(file.fileno(), _FOOTER.size, max(0, length - _FOOTER.size))
    if len(footer) != _FOOTER.size:
        raise DamagedFile(file.name)
    magic, size, sha, _ = _FOOTER.unpack(footer)
    table_bytes = _MAC_BYTES * -(-size // BLOCK_BYTES)
    if magic != _MAGIC or sha.hex() != digest or length != size + table_bytes + _FOOTER.size:
        raise DamagedFile(file.name)
    table = os.pread(file.fileno(), table_bytes, size)
    if not hmac.compare_digest(_sealed(key, table, size, sha), table + footer):
        raise DamagedFile(file.name)
    return size, table


def _sealed(key: bytes, table: bytes, size: int, sha: bytes) -> bytes:
    """The table of MACs and the footer, whose MAC covers the table, the size and the digest."""
    head = _FOOTER.pack(_MAGIC, size, sha, b"")[:-_MAC_BYTES]
    return table + head + _mac(key, table + head)


def _mac(key: bytes, content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_MAC_BYTES, key=key).digest()


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
