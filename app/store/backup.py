"""Backup and restore of the two SQLite databases. A backup can be made while the service runs.

A backup is a folder with consistent copies of both files, and ``manifest.json`` with their digests, which is
written last. For PostgreSQL use pg_dump and pg_restore.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from sqlalchemy.engine import make_url

from app.domain.errors import Conflict, InvalidRequest
from app.settings import Settings
from app.store.blob_moves import all_objects
from app.store.migrate import is_before_first, is_known_revision
from app.store.opening import objects_of
from app.store.private_files import sync_folder
from app.store.restored_keys import ValidKey, end_what_was_ended, valid_keys

MANIFEST: Final = "manifest.json"

_FORMAT: Final = "stms.backup.1"
_BUSY_SECONDS: Final = 30.0
_READ_BYTES: Final = 1024**2


class BackupFile(msgspec.Struct, frozen=True):
    """Size and digest of one file of a backup."""

    size: int
    sha256: str


class Restored(NamedTuple):
    """The result of `restore`.

    ended: keys that were revoked or rotated after the backup, and stay so; None if that is unknown.
    valid: the keys that the restored database accepts. missing: digests of blobs in the object store that
    are missing, or have another size.
    """

    manifest: Manifest
    ended: int | None
    valid: list[ValidKey]
    missing: list[str]


class Manifest(msgspec.Struct, frozen=True):
    """Content of a backup.

    created_at: seconds since the epoch. program: version of the program that made the backup.
    schema: migration revision of the service's tables. files: by name.
    """

    format: str
    created_at: float
    program: str
    schema: str
    files: dict[str, BackupFile]


def back_up(settings: Settings, folder: Path) -> Manifest:
    """Copy the databases into a new or empty folder. The service may be running.

    Writers are blocked for a few milliseconds while the snapshots of both files are taken, so the copies are
    consistent with each other. Raises InvalidRequest if the service does not use SQLite or has no database,
    and Conflict if the folder is not empty.
    """
    sources = sqlite_files(settings)
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"The folder {folder} is not empty.", code="backup_exists")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _snapshots([path for path in sources.values() if path.exists()]) as snapshots:
        created_at = time.time()
        files = {
            name: _copy(snapshots[path], folder / name) for name, path in sources.items() if path in snapshots
        }
    manifest = Manifest(_FORMAT, created_at, metadata.version("stms"), _schema(folder / "stms.sqlite"), files)
    _write(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


def restore(settings: Settings, folder: Path, *, overwrite: bool = False) -> Restored:
    """Copy a backup to the database paths of the settings. The service must be stopped.

    The whole backup is verified before any database is replaced, and each is replaced by renaming: after a
    crash in between, one or both databases are still the old ones, and the restore can be repeated.
    Sessions are not restored, nor texts of keys that the replaced database knows as revoked or rotated.
    A backup does not contain objects of an object store; those that the restored database needs and that are
    missing are named. Raises InvalidRequest if the backup is incomplete, damaged, made by a newer program or
    by one before 1.0.0, or needs an object store that the settings do not name; Unavailable if the object
    store cannot be reached; Conflict if databases exist and ``overwrite`` is false or another process has
    them open.
    """
    targets = sqlite_files(settings, must_exist=False)
    manifest = _read(folder)
    present = [path for path in targets.values() if path.exists()]
    if present and not overwrite:
        text = f"{present[0]} already exists; use --overwrite to replace it."
        raise Conflict(text, code="database_exists")
    for path in present:
        check_not_in_use(path)
    with ExitStack() as stack:
        copies = []
        for name, expected in manifest.files.items():
            targets[name].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = targets[name].with_name(f"{name}.restoring")
            stack.callback(temporary.unlink, missing_ok=True)
            shutil.copyfile(folder / name, temporary)
            if _describe(temporary) != expected:
                raise InvalidRequest(f"The backup's file {name} is damaged.", code="backup_damaged")
            copies.append((temporary, targets[name]))
        main = targets["stms.sqlite"]
        restored = next(temporary for temporary, target in copies if target == main)
        missing = _missing_objects(settings, restored)
        ended = end_what_was_ended(restored, main)
        _describe(restored)
        for path in targets.values():
            # `check_not_in_use` has merged the write-ahead log of a healthy database, so only
            # damaged databases
            # still have a log, which must not be applied to the restored file.
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        for temporary, target in copies:
            temporary.rename(target)
            sync_folder(target.parent)
        for path in set(targets.values()) - {target for _, target in copies}:
            path.unlink(missing_ok=True)
    return Restored(manifest, ended, valid_keys(main, time.time()), missing)


def _missing_objects(settings: Settings, path: Path) -> list[str]:
    """Digests of the blobs of a database whose objects are missing in the object store of the settings."""
    with closing(_connect(path)) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(blobs)")]
        if "place" not in columns:
            return []
        needed = connection.execute("SELECT digest, size FROM blobs WHERE place = 'objects' AND complete")
        sizes = dict(needed.fetchall())
    if not sizes:
        return []
    objects = objects_of(settings)
    if objects is None:
        text = (
            f"The bytes of {len(sizes)} blobs of the backup are in an object store. Set STMS_BLOBS, and"
            " restore again."
        )
        raise InvalidRequest(text, code="backup_needs_objects")
    present = all_objects(objects)
    return sorted(digest for digest, size in sizes.items() if present.get(digest) != size)


def sqlite_files(settings: Settings, *, must_exist: bool = True) -> dict[str, Path]:
    """Database files by their names in a backup. The job engine's file exists only after the first job.

    Raises InvalidRequest if the service does not use SQLite, or has no database and ``must_exist``.
    """
    if not settings.embedded:
        text = "The service uses PostgreSQL; back it up with pg_dump and restore it with pg_restore."
        raise InvalidRequest(text, code="not_embedded")
    paths = {
        "stms.sqlite": Path(str(make_url(settings.app_database_url).database)),
        "jobs.sqlite": Path(str(make_url(settings.jobs_database_url).database)),
    }
    if must_exist and not paths["stms.sqlite"].exists():
        raise InvalidRequest(f"There is no database {paths['stms.sqlite']}.", code="no_database")
    return paths


@contextmanager
def _snapshots(paths: list[Path]) -> Iterator[dict[Path, sqlite3.Connection]]:
    """Connections whose read transactions all began while no process could write."""
    with ExitStack() as stack:
        readers = {path: stack.enter_context(closing(_connect(path))) for path in paths}
        with ExitStack() as locks:
            for path in paths:
                locks.enter_context(closing(_connect(path))).execute("BEGIN IMMEDIATE")
            for reader in readers.values():
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield readers


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)


def _copy(snapshot: sqlite3.Connection, target: Path) -> BackupFile:
    with closing(_connect(target)) as connection:
        # All pages in one call within the snapshot's transaction: writers are not blocked and not visible.
        snapshot.backup(connection)
        # Merge the write-ahead log into the file. The service switches back to WAL when it opens the file.
        connection.execute("PRAGMA journal_mode=DELETE")
    sync_folder(target.parent)
    return _describe(target)


def _describe(path: Path) -> BackupFile:
    """Size and digest of a file, which is synced to disk."""
    sha, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            sha.update(block)
            size += len(block)
        os.fsync(file.fileno())
    return BackupFile(size, sha.hexdigest())


def _schema(path: Path) -> str:
    with closing(_connect(path)) as connection:
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError as error:
            raise InvalidRequest(
                f"{path.name} is not a database of the service.", code="no_database"
            ) from error
    return str(row[0])


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def _read(folder: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        text = f"{folder} is not a complete backup: it has no {MANIFEST}."
        raise InvalidRequest(text, code="no_backup") from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{MANIFEST} cannot be read: {error}.", code="backup_damaged") from error
    if manifest.format != _FORMAT or not {"stms.sqlite"} <= set(manifest.files) <= {
        "stms.sqlite",
        "jobs.sqlite",
    }:
        raise InvalidRequest(f"{MANIFEST} is not of format {_FORMAT}.", code="backup_damaged")
    if is_before_first(manifest.schema):
        text = (
            f"The backup was made by version {manifest.program}. Restore it with the last release before"
            " 1.0.0, run `stms db upgrade` of that release, and make a new backup."
        )
        raise InvalidRequest(text, code="backup_too_old")
    if not is_known_revision(manifest.schema):
        text = f"The backup was made by a newer program, version {manifest.program}."
        raise InvalidRequest(text, code="backup_too_new")
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.exists() or path.stat().st_size != expected.size:
            raise InvalidRequest(f"The backup's file {name} is missing or cut off.", code="backup_damaged")
    return manifest


def check_not_in_use(path: Path) -> None:
    """Raise Conflict if another process has the database open. A damaged database cannot be in use."""
    with closing(sqlite3.connect(path, timeout=1.0, isolation_level=None)) as connection:
        try:
            # SQLite refuses to leave WAL mode while another connection exists.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith("SQLITE_BUSY"):
                text = f"{path} is in use: stop the service first."
                raise Conflict(text, code="database_in_use") from error
            raise
        except sqlite3.DatabaseError:
            return
