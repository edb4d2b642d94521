"""ZIP archives of .npy arrays, opened without believing them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from app.domain.errors import TooLarge, UnsupportedFormat
from app.ingest.npy_stream import Declared, read_header
from app.ingest.raw import unusable

_MAX_ARRAYS = 1000


@dataclass(frozen=True, slots=True)
class NpzArchive:
    """The entries of an archive by the names of their arrays."""

    archive: zipfile.ZipFile
    entries: Mapping[str, zipfile.ZipInfo]

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[Declared, IO[bytes]]]:
        """What an array is, and its bytes as they are inflated. Raises InvalidRequest."""
        info = self.entries[name]
        with self.archive.open(info) as stream:
            declared = read_header(stream, name)
            # The header must agree with the archive's own size: neither may promise what the other does not.
            if declared.size != info.file_size - stream.tell():
                raise unusable(f"Array {name!r:.80} is not as long as it says.", code="unreadable_file")
            yield declared, stream


@contextmanager
def npz_archive(path: Path) -> Iterator[NpzArchive]:
    """The archive at ``path``; what goes wrong with it in the block is told as InvalidRequest.

    Raises TooLarge for very many entries, UnsupportedFormat for an archive of other things than arrays.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield NpzArchive(archive, _entries(archive))
    except zipfile.BadZipFile as error:
        raise unusable(f"The .npz file is cut off or damaged: {error}.", code="truncated_upload") from error
    except (EOFError, OSError, zlib.error, NotImplementedError, RuntimeError) as error:
        # Offsets that lead nowhere, other compressions, passwords.
        raise unusable(f"The .npz file cannot be unpacked: {error}.", code="unreadable_file") from error


def _entries(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MAX_ARRAYS:
        raise TooLarge(
            f"The archive has {len(infos)} entries; the limit is {_MAX_ARRAYS}.", code="too_many_arrays"
        )
    if not infos or not all(info.filename.endswith(".npy") for info in infos):
        raise UnsupportedFormat("The file is a ZIP archive, but not one of NumPy arrays (.npz).")
    return {info.filename.removesuffix(".npy"): info for info in infos}
