"""Folders and files that only the user of the service may read, and secrets in such files."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_KEY_FILE: Final = "cache.key"
_KEY_BYTES: Final = 32
_MAX_BYTES: Final = 200
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path) -> None:
    """Create a folder with mode 0700, or remove the rights of others from an own folder. Raises OSError.

    A folder that is meant to be shared, such as /tmp, stays unchanged.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    is_shared = bool(status.st_mode & stat.S_ISVTX)
    if status.st_uid == os.geteuid() and status.st_mode & _OF_OTHERS and not is_shared:
        folder.chmod(0o700)


def check_own(folder: Path) -> None:
    """Raise PermissionError if a folder belongs to another user or others may write to it."""
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "its folder belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "other users may write to its folder (chmod 700)")


def create_once(path: Path, content: bytes) -> tuple[bytes, bool]:
    """The content of a private file, and whether this call created it with ``content``.

    It appears complete or not at all, and never replaces a file, e.g. of another process that creates it at
    the same time. Raises PermissionError if the file is not private, and other OSErrors.
    """
    with suppress(FileNotFoundError):
        return _read(path), False
    temporary = write_beside(path, content)
    try:
        # Unlike a rename, a link never replaces a file.
        path.hardlink_to(temporary)
    except FileExistsError:
        return _read(path), False
    finally:
        temporary.unlink()
        sync_folder(path.parent)
    return content, True


def write_beside(path: Path, content: bytes) -> Path:
    """Write and sync a new private file beside ``path``; returns its path. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def installation_key(data_dir: Path) -> bytes:
    """The secret with which this installation authenticates its cache files; made at the first call.

    It is kept in the data folder and never in the cache. Raises OSError.
    """
    return random_secret(data_dir, _KEY_FILE)


def random_secret(data_dir: Path, name: str) -> bytes:
    """The 32 random bytes in a file of the data folder, which the first call makes. Raises OSError."""
    make_private(data_dir)
    return create_once(data_dir / name, secrets.token_bytes(_KEY_BYTES))[0]


def _read(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & _OF_OTHERS:
            raise PermissionError(errno.EPERM, "the file exists and is not private to the user of the server")
        return file.read(_MAX_BYTES)
