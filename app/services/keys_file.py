"""API keys from a file, for a server with a temporary database: one JSON object per line, no secrets.

    {"id": "key_0195…", "name": "camera", "digest": "9f86d0…", "scopes": ["query"], "models": ["faces"]}

The file is authoritative: keys that it no longer has are revoked, and its changes of a key are applied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from app.domain.entities import ApiKey
from app.domain.errors import ServiceError, SetupError
from app.services.keys import check_key
from app.store.unit_of_work import Store, UnitOfWork

_MAX_BYTES: Final = 16 * 1024**2
_CHANGEABLE: Final = (
    "name",
    "digest",
    "scopes",
    "models",
    "expires_at",
    "rate_limit",
    "rate_burst",
    "samples",
    "revoked_at",
)


class BadKeysFile(SetupError):
    """The file of keys cannot be used; the keys stay as they are."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key. Other scopes would permit operations that such a server does not have."""

    id: Annotated[str, msgspec.Meta(pattern="^key_[0-9a-f]{24}$")]
    name: str
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: list[Literal["query", "download"]]
    models: list[str] = []
    expires_at: float | None = None
    rate_limit: float | None = None
    rate_burst: int | None = None
    samples: Literal["allowed", "never"] = "allowed"


class KeysFile:
    """The keys of a file, which are stored again whenever it has changed."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store, self._path = store, path
        self._version: tuple[int, int, int] | None = None

    def follow(self) -> bool:
        """Store the keys of the file if it has changed; returns whether it had. Raises BadKeysFile.

        A file without keys is refused, because it may be incomplete.
        """
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                version = status.st_ino, status.st_mtime_ns, status.st_size
                if version == self._version:
                    return False
                content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise BadKeysFile(f"{self._path} cannot be read: {error.strerror or error}.") from error
        if len(content) > _MAX_BYTES:
            raise BadKeysFile(f"{self._path} has more than {_MAX_BYTES} bytes.")
        keys = self._read(content)
        with self._store.begin() as uow:
            _replace(uow, keys)
        self._version = version
        return True

    def _read(self, content: bytes) -> dict[str, ApiKey]:
        keys: dict[str, ApiKey] = {}
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip():
                continue
            try:
                said = msgspec.json.decode(line, type=_Line)
                key = _key(said)
                check_key(key)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadKeysFile(f"{self._path}, line {number} is not a key: {error}.") from error
            except ServiceError as error:
                texts = " ".join(fault.message for fault in error.faults)
                raise BadKeysFile(f"{self._path}, line {number}: {texts}") from error
            if key.id in keys:
                raise BadKeysFile(f"{self._path} has key {key.id} twice.")
            keys[key.id] = key
        if not keys:
            raise BadKeysFile(
                f"{self._path} has no keys. Make one with `stms keys create NAME --offline FILE`."
            )
        return keys


def line_of(key: ApiKey) -> str:
    """The line of a key, with its line feed."""
    values = {name: getattr(key, name) for name in _Line.__struct_fields__}
    values |= {"scopes": sorted(key.scopes), "models": sorted(key.models)}
    return msgspec.json.encode(values).decode() + "\n"


def _key(said: _Line) -> ApiKey:
    values = msgspec.structs.asdict(said) | {
        "scopes": frozenset(said.scopes),
        "models": frozenset(said.models),
    }
    return ApiKey(**values, created_at=time.time())


def _replace(uow: UnitOfWork, keys: Mapping[str, ApiKey]) -> None:
    """Replace the keys of the database by those of a file, in one transaction."""
    present = {key.id: key for key in uow.keys.all()}
    for key_id, known in present.items():
        if key_id not in keys and known.revoked_at is None:
            uow.sessions.delete_of(key_id)
            uow.keys.revoke(key_id)
            uow.audit.append("key.revoke", key_id, details={"name": known.name})
    for key_id, key in keys.items():
        known_key = present.get(key_id)
        details = {"name": key.name, "scopes": sorted(key.scopes), "models": len(key.models)}
        if known_key is None:
            uow.keys.add(key)
            uow.audit.append("key.create", key_id, details=details)
        elif any(getattr(key, name) != getattr(known_key, name) for name in _CHANGEABLE):
            changed = {name: getattr(key, name) for name in _CHANGEABLE}
            changed |= {"scopes": sorted(key.scopes), "models": sorted(key.models)}
            uow.keys.change(key_id, **changed)
            uow.audit.append("key.change", key_id, details=details)
