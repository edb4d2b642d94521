"""The folder of the blob cache: paths of its files, the disk space that they use, and eviction.

Files are in 256 subfolders by the first two digits of their digest. A counter that all processes share holds
the used bytes, so adding a file costs the same for any number of files. The folder is listed only when the
budget is exceeded, which frees a tenth of it, and every six hours, which corrects the counter and removes
abandoned writes.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".packed"
_COUNTER: Final = struct.Struct("<qd")
_FREED_SHARE: Final = 0.1
_RESCAN_SECONDS: Final = 6 * 3600.0
_ABANDONED_SECONDS: Final = 3600.0
_BLOCK_BYTES: Final = 512
"""Unit of ``st_blocks``, on every file system."""


class CacheUsage:
    """Counts and limits the disk space of the cache in ``folder``. Thread-safe; methods raise OSError.

    budget: bytes on disk, in whole blocks as the file system allocates them.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget

    def path(self, digest: str) -> Path:
        """The file of a blob, whether or not it exists."""
        return self._folder / digest[:2] / f"{digest}{_SUFFIX}"

    def add(self, source: Path, digest: str) -> None:
        """Move a complete file into the cache; evict others if the budget is exceeded."""
        target = self.path(digest)
        # A blob that is written again replaces its file.
        size = _allocated(source) - _allocated(target)
        try:
            source.rename(target)
        except FileNotFoundError:
            target.parent.mkdir(exist_ok=True)
            source.rename(target)
        total, scanned_at = self._count(size)
        if total > self._budget or abs(time.time() - scanned_at) > _RESCAN_SECONDS:
            self._scan(newest=target)

    def remove(self, digest: str) -> None:
        """Remove a file, if it exists. Processes that have it open can still read it."""
        path = self.path(digest)
        size = _allocated(path)
        with suppress(FileNotFoundError):
            path.unlink()
            self._count(-size)

    def halve(self) -> None:
        """Evict half of the cache. The least recently opened files go first."""
        self._scan(to_half=True)

    def _scan(self, newest: Path | None = None, *, to_half: bool = False) -> None:
        """List the folder, evict what exceeds the budget, and correct the counter.

        One process scans at a time. While it does, the others only count.
        """
        with self._lock_file("scan") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if to_half else fcntl.LOCK_NB))
            except BlockingIOError:
                return
            before, _ = self._count(0)
            files = list(self._files())
            total = sum(size for _, size, _ in files)
            target = total
            if to_half:
                target = total // 2
            elif total > self._budget:
                target = int(self._budget * (1.0 - _FREED_SHARE))
            if total > target:
                total -= _evict(sorted(files), total - target, newest)
            # Files that other processes added during the scan may be counted twice, until the next scan.
            self._count(total - before, scanned_at=time.time())

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Time of last opening, allocated bytes and path of every file; abandoned writes are removed."""
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):
                if len(entry.name) == 2 and entry.is_dir(follow_symlinks=False):
                    yield from _files_in(entry.path)
                elif entry.is_file(follow_symlinks=False) and _is_abandoned(entry):
                    Path(entry.path).unlink()

    def _count(self, size: int, scanned_at: float | None = None) -> tuple[int, float]:
        """Add to the counter; returns its value and the time of the last scan, 0 before the first."""
        with self._lock_file("usage") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stored = os.pread(file, _COUNTER.size, 0)
            total, last = _COUNTER.unpack(stored) if len(stored) == _COUNTER.size else (0, 0.0)
            counted = (max(0, total + size), last if scanned_at is None else scanned_at)
            os.pwrite(file, _COUNTER.pack(*counted), 0)
        return counted

    @contextmanager
    def _lock_file(self, name: str) -> Iterator[int]:
        """A small file that is never removed, opened for locking."""
        path = self._folder / "locks" / name
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)
            file = os.open(path, flags, 0o600)
        try:
            yield file
        finally:
            os.close(file)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    return entry.stat(follow_symlinks=False).st_mtime < time.time() - _ABANDONED_SECONDS


def _files_in(folder: str) -> Iterator[tuple[float, int, str]]:
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            yield status.st_mtime, _BLOCK_BYTES * status.st_blocks, entry.path


def _evict(files: list[tuple[float, int, str]], excess: int, newest: Path | None) -> int:
    """Remove files in the given order until ``excess`` bytes are free; returns the bytes freed."""
    kept = None if newest is None else str(newest)
    freed = 0
    for _, size, path in files:
        if freed >= excess:
            break
        if path != kept:
            with suppress(FileNotFoundError):
                Path(path).unlink()
            freed += size
    return freed


def _allocated(path: Path) -> int:
    """Bytes that a file takes on disk; 0 if it does not exist."""
    try:
        return _BLOCK_BYTES * path.stat().st_blocks
    except FileNotFoundError:
        return 0
