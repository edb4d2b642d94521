"""Use cases of API keys: make, list, revoke, and recognise.

A key is ``stms_<id>_<secret>``. The secret is 256 random bits, so its plain SHA-256 is enough to store: there
is nothing to guess that a slow hash would protect.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection, Iterable, Sequence

from pydantic import TypeAdapter, ValidationError

from app.domain.entities import ApiKey, new_id
from app.domain.errors import InputFault, InvalidRequest, NotAuthenticated
from app.domain.spec import Name
from app.store.unit_of_work import Store

SCOPES = frozenset({"admin", "train", "query"})

_TEXT = re.compile(r"stms_(key_[0-9a-f]{24})_([A-Za-z0-9_-]{43})")
_MODEL_NAME: TypeAdapter[str] = TypeAdapter(Name)
_NO_DIGEST = "0" * 64


def create_key(
    store: Store, name: str, scopes: Collection[str], models: Collection[str] = ()
) -> tuple[ApiKey, str]:
    """Make a key; returns it and its text, which is stored nowhere and can never be shown again.

    models: the models a query key may ask; empty means all. Raises InvalidRequest.
    """
    _check(name, scopes, models)
    secret = secrets.token_urlsafe(32)
    key = ApiKey(
        id=new_id("key"),
        name=name,
        digest=_digest(secret),
        scopes=frozenset(scopes),
        models=frozenset(models),
        created_at=time.time(),
    )
    with store.begin() as uow:
        uow.keys.add(key)
    return key, f"stms_{key.id}_{secret}"


def list_keys(store: Store) -> Sequence[ApiKey]:
    """Every key, revoked ones too, oldest first."""
    with store.read() as uow:
        return uow.keys.all()


def revoke_key(store: Store, key_id: str) -> ApiKey:
    """Make a key useless from now on; a second time changes nothing. Raises NotFound."""
    with store.begin() as uow:
        return uow.keys.revoke(key_id)


class KeyRing:
    """All keys in memory: recognises a caller without asking the database.

    ``replace`` swaps the whole snapshot at once, so readers on other threads see the old or the new one.
    """

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys: dict[str, ApiKey] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """From now on know these keys only."""
        self._keys = {key.id: key for key in keys}

    def reload(self, store: Store) -> None:
        """From now on know the keys that the database has."""
        self.replace(list_keys(store))

    @property
    def empty(self) -> bool:
        """Whether no key was ever made. Revoked keys count: revoking the last one must not open the doors."""
        return not self._keys

    def authenticate(self, text: str) -> ApiKey:
        """The key of a caller. Raises NotAuthenticated when the text is no key, unknown or revoked."""
        parts = _TEXT.fullmatch(text)
        if parts is None:
            raise NotAuthenticated("The API key is not of the form stms_….", code="invalid_key")
        key = self._keys.get(parts[1])
        known = _NO_DIGEST if key is None else key.digest
        if not hmac.compare_digest(known, _digest(parts[2])) or key is None:
            raise NotAuthenticated("The API key is unknown.", code="invalid_key")
        if key.revoked_at is not None:
            raise NotAuthenticated("The API key has been revoked.", code="revoked_key")
        return key


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def _check(name: str, scopes: Collection[str], models: Collection[str]) -> None:
    faults = []
    if not name.strip() or len(name) > 100 or not name.isprintable():
        faults.append(InputFault("name", "bad_name", "A key's name is 1 to 100 printable characters."))
    if not scopes or not SCOPES.issuperset(scopes):
        text = f"Scopes are one or more of {', '.join(sorted(SCOPES))}."
        faults.append(InputFault("scopes", "unknown_scope", text))
    if models and set(scopes) != {"query"}:
        text = "Only a key whose one scope is query can be limited to models."
        faults.append(InputFault("models", "models_without_query", text))
    faults += [
        InputFault("models", "bad_name", f"{model!r:.120} is no name of a model.")
        for model in models
        if not _is_model_name(model)
    ]
    if faults:
        raise InvalidRequest("The API key cannot be made as asked.", faults=faults)


def _is_model_name(model: str) -> bool:
    try:
        _MODEL_NAME.validate_python(model)
    except ValidationError:
        return False
    return True
