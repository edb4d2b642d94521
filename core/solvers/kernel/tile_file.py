"""A file of finished columns of tiles, from which a factorisation continues after its process was killed.

    for each column: its tiles in float32, from the diagonal down | their MAC, 32 bytes

The name is a digest of what is factored. A column is appended when it is finished, so a killed process loses
only the current column. Columns are read until one is incomplete or its MAC (BLAKE2b with the key of the
folder) is wrong. The process that writes the file locks it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from core.run import Scratch
from core.types import FloatArray

logger = logging.getLogger(__name__)

Singles = NDArray[np.float32]

_MAC_BYTES: Final = 32
_FREE_SHARE: Final = 2
"""A file is started if the disk has this many times its final size free."""
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(slots=True)
class TileFile:
    """The file of one factorisation, open and locked; ``close`` keeps it, ``remove`` deletes it.

    key: of the MACs. path, file: its name and descriptor; the file is None after the disk was full.
    """

    key: bytes
    path: Path
    file: int | None

    @classmethod
    def open(cls, scratch: Scratch, rows: FloatArray, facts: str, size: int) -> Self | None:
        """The file for rows (n, d) and ``facts`` about their matrix; None if no file can be kept.

        size: its final number of bytes. None if there is too little space, or another process writes the
        file.
        """
        digest = hashlib.blake2b(np.ascontiguousarray(rows).data, digest_size=16, key=scratch.key)
        digest.update(f"{rows.shape} {facts}".encode())
        path = scratch.folder / f"{digest.hexdigest()}.tiles"
        if shutil.disk_usage(scratch.folder).free < _FREE_SHARE * size:
            logger.warning("too little space to keep the progress of a factorisation of %d bytes", size)
            return None
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        return cls(scratch.key, path, file)

    def read(self, column: int, tiles: Sequence[Singles]) -> bool:
        """Read the tiles of a column, in order; if it is incomplete, cut off the rest and return False.

        Columns are read in their order from 0 on. After False, or after the last, columns are appended.
        """
        if self.file is None:
            return False
        start = os.lseek(self.file, 0, os.SEEK_CUR)
        mac = self._mac(column)
        found = [np.empty(tile.shape, dtype=np.float32) for tile in tiles]
        whole = all(_fill(self.file, tile.data.cast("B")) for tile in found)
        for tile in found:
            mac.update(tile.data)
        stored = bytearray(_MAC_BYTES)
        whole = whole and _fill(self.file, memoryview(stored)) and stored == mac.digest()
        if not whole:
            os.ftruncate(self.file, start)
            os.lseek(self.file, start, os.SEEK_SET)
            return False
        for tile, content in zip(tiles, found, strict=True):
            tile[...] = content
        return True

    def append(self, column: int, tiles: Sequence[Singles]) -> None:
        """Add a finished column. If the disk is full, the file is removed and no further one is kept."""
        if self.file is None:
            return
        mac = self._mac(column)
        try:
            for tile in tiles:
                content = np.ascontiguousarray(tile)
                mac.update(content.data)
                _write(self.file, content.data.cast("B"))
            _write(self.file, memoryview(mac.digest()))
        except OSError as error:
            self.remove()
            if error.errno not in _FULL:
                raise
            logger.warning("the disk is full: the progress of a factorisation is no longer kept")

    def remove(self) -> None:
        """Remove the file, which is not needed any more."""
        if self.file is not None:
            with suppress(FileNotFoundError):
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file; it stays for the next process."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def _mac(self, column: int) -> hashlib.blake2b:
        mac = hashlib.blake2b(digest_size=_MAC_BYTES, key=self.key)
        mac.update(f"{self.path.name} {column}".encode())
        return mac


def _fill(file: int, content: memoryview) -> bool:
    """Read until ``content`` is full; False at the end of the file."""
    while content:
        count = os.readv(file, [content])
        if not count:
            return False
        content = content[count:]
    return True


def _write(file: int, content: memoryview) -> None:
    while content:
        content = content[os.write(file, content) :]
