"""The first API key of an installation, in a file that programs of the same user on this machine read.

The server makes it at its first start, so that it never runs without keys unless asked to. The file is
written before the key is stored: after a crash in between, the next start finds the file and stores the key
that it names. An operator may provide the key instead, in the file of STMS_FIRST_KEY_FILE.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.domain.entities import ApiKey
from app.domain.errors import SetupError
from app.secret_files import BadSecretFile, ExposedSecretFile, read_secret
from app.services.keys import digest_of, is_over, new_text
from app.settings import Settings
from app.store.private_files import create_once, make_private, sync_folder, write_beside
from app.store.unit_of_work import Store

FILE_NAME: Final = "admin.key"
FIRST_KEY_ID: Final = "key_000000000000000000000001"
"""The id is the same everywhere, so that the database accepts one first key from several processes."""
FIRST_KEY_SCOPES: Final = frozenset({"admin", "operator"})


class NoFirstKey(SetupError):
    """There is no API key yet, and the first one cannot be made."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"There is no API key yet, and the first one cannot be kept in {path}: {reason}. "
            "Make one by hand: stms keys create NAME --scope operator"
        )


@dataclass(frozen=True, slots=True)
class FirstKey:
    """What a start did about the first key.

    made: file of the key that it made. note: a sentence for the log.
    """

    made: Path | None = None
    note: str | None = None


def provide_first_key(store: Store, settings: Settings) -> FirstKey:
    """Make or store the first key if keys are required and none was ever created.

    Raises NoFirstKey, and BadSecretFile for the file of STMS_FIRST_KEY_FILE. That file is not needed once
    there are keys, but ExposedSecretFile is raised even then.
    """
    if settings.first_key_file is None:
        return FirstKey(ensure_first_key(store, settings.data_dir) if settings.require_keys else None)
    if not settings.require_keys:
        return FirstKey(note="STMS_FIRST_KEY_FILE is ignored, since STMS_REQUIRE_KEYS is false.")
    return FirstKey(note=_store_given_key(store, settings.first_key_file))


def _store_given_key(store: Store, path: Path) -> str:
    """Store the key in the file, unless there is a key; returns a sentence about what was done."""
    with store.of_all_tenants().read() as uow:
        has_keys = uow.keys.exist()
    try:
        key_id, digest = digest_of(read_secret(path).strip()) or ("", "")
        if key_id != FIRST_KEY_ID:
            raise BadSecretFile(
                f"{path} does not have the text of a first key, such as `stms keys new-text` makes."
            )
    except BadSecretFile as error:
        if isinstance(error, ExposedSecretFile) or not has_keys:
            raise
        return f"STMS_FIRST_KEY_FILE is ignored, since there are API keys. {error}"
    if not has_keys and _add_first(store, digest):
        return f"There was no API key: the one in {path} is now stored, with scopes admin and operator."
    if _is_valid(store, digest):
        return f"STMS_FIRST_KEY_FILE is ignored, since there are API keys, among them the one in {path}."
    return f"STMS_FIRST_KEY_FILE is ignored, since there are API keys. The one in {path} is not valid."


def ensure_first_key(store: Store, folder: Path) -> Path | None:
    """Make the first key if no key was ever created; returns its file if this call stored the key.

    folder: the data folder, created if necessary. Several processes may call this at once, also on several
    machines: one key results, and only folders that have its text keep a file. Raises NoFirstKey.
    """
    with store.of_all_tenants().read() as uow:
        if uow.keys.exist():
            return None
    path = folder / FILE_NAME
    try:
        make_private(folder)
        content, is_new = create_once(path, f"{new_text(FIRST_KEY_ID)}\n".encode("ascii"))
    except OSError as error:
        raise NoFirstKey(path, error.strerror or str(error)) from error
    key_id, digest = digest_of(content.decode("latin-1").strip()) or ("", "")
    if key_id != FIRST_KEY_ID:
        raise NoFirstKey(path, "the file exists and does not hold a first key")
    added = _add_first(store, digest)
    if not added and is_new and not _is_stored(store, digest):
        # Another machine made the first key; it is in that machine's folder.
        path.unlink(missing_ok=True)
    return path if added else None


def replace_all_keys(store: Store, folder: Path) -> Path:
    """Revoke the keys of all tenants and give the first key a new text, in its file; returns the file.

    The first key is made if there is none. Raises OSError if the file cannot be written; all keys are revoked
    then, and the next call can make the first one.
    """
    path, text, now = folder / FILE_NAME, new_text(FIRST_KEY_ID), time.time()
    _, digest = digest_of(text) or ("", "")
    with store.of_all_tenants().begin() as uow:
        keys = uow.keys.all()
        for key in keys:
            uow.sessions.delete_of(key.id)
            if key.revoked_at is None:
                uow.keys.revoke(key.id)
                uow.audit.append("key.revoke", key.id, details={"name": key.name}, tenant=key.tenant)
    with store.begin() as uow:
        if any(key.id == FIRST_KEY_ID for key in keys):
            uow.keys.change(FIRST_KEY_ID, digest=digest, rotated_at=now, revoked_at=None, expires_at=None)
            uow.audit.append("key.rotate", FIRST_KEY_ID, details={"overlap_seconds": 0.0})
        else:
            uow.keys.add(ApiKey(FIRST_KEY_ID, "first", digest, FIRST_KEY_SCOPES, frozenset(), now))
            uow.audit.append("key.create", FIRST_KEY_ID, details={"name": "first"})
        make_private(folder)
        write_beside(path, f"{text}\n".encode("ascii")).rename(path)
        sync_folder(folder)
    return path


def replace_first_key(folder: Path, text: str) -> bool:
    """Put the new text of the rotated first key into its file; returns False if there is no such file."""
    path = folder / FILE_NAME
    if not path.exists():
        return False
    write_beside(path, f"{text}\n".encode("ascii")).rename(path)
    sync_folder(folder)
    return True


def _add_first(store: Store, digest: str) -> bool:
    """Store the first key unless there is a key; returns whether this call stored it."""
    key = ApiKey(FIRST_KEY_ID, "first", digest, FIRST_KEY_SCOPES, frozenset(), time.time())
    with store.begin() as uow:
        added = uow.keys.add_first(key)
        if added:
            details = {"name": key.name, "scopes": sorted(key.scopes), "models": 0}
            uow.audit.append("key.create", key.id, details=details)
    return added


def _is_stored(store: Store, digest: str) -> bool:
    with store.of_all_tenants().read() as uow:
        return any(key.digest == digest for key in uow.keys.some([FIRST_KEY_ID]))


def _is_valid(store: Store, digest: str) -> bool:
    with store.of_all_tenants().read() as uow:
        keys = uow.keys.some([FIRST_KEY_ID])
    now = time.time()
    return any(
        key.digest == digest and key.revoked_at is None and not is_over(key.expires_at, now) for key in keys
    )
