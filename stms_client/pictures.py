"""Pictures to be sent: one as base64, and a folder of class folders as one ZIP archive."""

from __future__ import annotations

import base64
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from stms_client.errors import InvalidInput

ENDINGS: Final = (".jpg", ".jpeg", ".png", ".webp")
"""Endings of pictures, by which a folder of them is told from one of tables."""
_LEFT_OUT: Final = frozenset({"thumbs.db", "desktop.ini", "__macosx"})
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = 0o100644 << 16
_UNIX: Final = 3


def encoded(image: str | os.PathLike[str] | bytes) -> str:
    """The picture of a file, or its bytes, as base64. Raises InvalidInput where there is no such file."""
    if isinstance(image, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(image)).decode()
    try:
        return base64.b64encode(Path(image).read_bytes()).decode()
    except OSError as error:
        raise InvalidInput(f"The picture {str(image)!r:.200} cannot be read: {error.strerror}.") from error


def is_folder_of_pictures(folder: Path) -> bool:
    """Whether a folder has pictures in it, or in folders in it."""
    return folder.is_dir() and any(path.suffix.lower() in ENDINGS for path in _files(folder))


@contextmanager
def sendable(path: Path) -> Iterator[Path]:
    """The file itself, or for a folder of pictures a temporary ZIP archive of the same name."""
    if not path.is_dir():
        yield path
        return
    with TemporaryDirectory() as folder:
        archive = Path(folder) / f"{path.resolve().name}.zip"
        pack_folder(path, archive)
        yield archive


def pack_folder(folder: Path, archive: Path) -> int:
    """Write the files of a folder to a ZIP archive, the same for the same files; returns their count.

    They are stored as they are, in the order of their names and without their times. Hidden files and links
    are left out. Raises InvalidInput where no file is left.
    """
    count = 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED, strict_timestamps=False) as packed:
        for path in sorted(_files(folder), key=lambda one: one.relative_to(folder).as_posix()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _TIME)
            info.external_attr, info.create_system = _MODE, _UNIX
            packed.writestr(info, path.read_bytes())
            count += 1
    if not count:
        raise InvalidInput(f"The folder {str(folder)!r:.200} has no files.")
    return count


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder and the folders in it, without hidden ones and links."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_left_out(name))
        for name in names:
            path = Path(root) / name
            if not _is_left_out(name) and path.is_file() and not path.is_symlink():
                yield path


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LEFT_OUT
