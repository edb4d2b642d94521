"""ZIP archives of .npy arrays, opened without believing them."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from app.domain.errors import TooLarge, UnsupportedFormat
from app.ingest.npy import ArrayHeader, read_header
from app.ingest.raw import invalid_file

_MAX_ARRAYS = 1000
_MAX_DIRECTORY = 512 * 1024
"""Bytes of the list of entries: enough for all that are taken, with long names."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What NumPy writes. Others take far more memory, or time, than their size tells."""


@dataclass(frozen=True, slots=True)
class NpzArchive:
    """The entries of an archive by the names of their arrays."""

    archive: zipfile.ZipFile
    entries: Mapping[str, zipfile.ZipInfo]

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
        """What an array is, and its bytes as they are inflated. Raises InvalidRequest."""
        info = self.entries[name]
        with self.archive.open(info) as stream:
            declared = read_header(stream, name)
            # The header must agree with the archive's own size: neither may promise what the other does not.
            if declared.size != info.file_size - stream.tell():
                raise invalid_file(f"Array {name!r:.80} is not as long as it says.", code="unreadable_file")
            yield declared, stream


@contextmanager
def npz_archive(path: Path) -> Iterator[NpzArchive]:
    """The archive at ``path``; what goes wrong with it in the block is told as InvalidRequest.

    Raises TooLarge for very many entries, UnsupportedFormat for an archive of other things than arrays.
    """
    try:
        with _Guarded(path.open("rb")) as file, zipfile.ZipFile(file) as archive:
            file.opened = True
            yield NpzArchive(archive, _entries(archive))
    except zipfile.BadZipFile as error:
        raise invalid_file(
            f"The .npz file is cut off or damaged: {error}.", code="truncated_upload"
        ) from error
    except (EOFError, OSError, zlib.error, NotImplementedError, RuntimeError) as error:
        # Offsets that lead nowhere, other compressions, passwords.
        raise invalid_file(f"The .npz file cannot be unpacked: {error}.", code="unreadable_file") from error


class _Guarded(io.BufferedReader):
    """A file that is not read in large pieces before the archive in it is open.

    The list of entries is read at once and made into objects, before anybody could count them.
    """

    opened = False

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file.detach())

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.opened and size is not None and size > _MAX_DIRECTORY:
            message = f"The archive's list of entries has {size} bytes; the limit is {_MAX_DIRECTORY}."
            raise TooLarge(message, code="too_many_arrays")
        return super().read(size)


def _entries(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MAX_ARRAYS:
        raise TooLarge(
            f"The archive has {len(infos)} entries; the limit is {_MAX_ARRAYS}.", code="too_many_arrays"
        )
    if not infos or not all(info.filename.endswith(".npy") for info in infos):
        raise UnsupportedFormat("The file is a ZIP archive, but not one of NumPy arrays (.npz).")
    if not all(info.compress_type in _METHODS for info in infos):
        raise invalid_file("The archive is not compressed as NumPy does it.", code="unreadable_file")
    entries = {info.filename.removesuffix(".npy"): info for info in infos}
    if len(entries) != len(infos):
        raise invalid_file("The archive has two arrays of the same name.", code="ambiguous_array")
    return entries
