"""Use cases of API keys: create, list, rotate, revoke and authenticate.

A key is ``stms_<id>_<secret>``. The secret is 256 random bits that cannot be guessed, so storing its plain
SHA-256 is safe, and a slow hash would add nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from app.domain.entities import ApiKey, new_id
from app.domain.errors import (
    Conflict,
    InputFault,
    InvalidRequest,
    NotAuthenticated,
    NotAuthorised,
    Overloaded,
)
from app.domain.names import DEFAULT_TENANT, is_display_name, is_model_name
from app.services.quotas import require_one_more, require_room
from app.services.sessions import is_begun_with, key_id_of
from app.settings import Settings
from app.store.repositories.keys import MAX_REMEMBERED, REMEMBERED_SECONDS, row_bytes
from app.store.unit_of_work import Store, UnitOfWork

SCOPES = frozenset({"operator", "admin", "train", "download", "query"})

_TEXT = re.compile(r"stms_(key_[0-9a-f]{24})_([A-Za-z0-9_-]{43})")
_NO_DIGEST = "0" * 64
_DAY: Final = 86400.0

MAX_RATE: Final = 1e6
"""Largest rate limit of a key, in requests per second or in a burst."""
MAX_OVERLAP_SECONDS: Final = 30 * 86400.0
"""Longest time for which the previous text of a rotated key may stay valid."""
KEYS_PER_DAY: Final = 10_000
"""Keys that a tenant may make in 24 hours."""
MAX_MODELS: Final = 1000
"""Models that a key may be limited to."""
MAX_MODELS_BYTES: Final = 32 * 1024
"""Bytes of their names together: every server has the keys in use in memory."""
_SWEEP_SECONDS: Final = 60.0
_MAX_TIME: Final = 253402300799.0
"""The end of the year 9999."""


def create_key(
    store: Store,
    name: str,
    scopes: Collection[str],
    models: Collection[str] = (),
    *,
    expires_at: float | None = None,
    rate_limit: float | None = None,
    rate_burst: int | None = None,
    samples: Literal["allowed", "never"] = "allowed",
    settings: Settings | None = None,
    by_operator: bool = True,
) -> tuple[ApiKey, str]:
    """Create a key; returns it and its text, which is not stored and cannot be shown again.

    models: the models that a query key may query; empty means all. expires_at, rate_limit, rate_burst,
    samples: as in `ApiKey`. settings: those of the installation, whose quota of keys then holds, and whose
    rate limit is the highest that a key may have unless ``by_operator`` is true. Raises InvalidRequest,
    Overloaded after too many keys in a day, Conflict and TooLarge beyond the tenant's quota.
    """
    key, text = make_key(
        name,
        scopes,
        models,
        expires_at=expires_at,
        rate_limit=rate_limit,
        rate_burst=rate_burst,
        samples=samples,
        tenant=store.tenant,
    )
    check_key(key, None if by_operator else settings)
    with store.begin() as uow:
        if settings is not None:
            uow.quotas.lock(store.tenant)
            require_one_more(uow, settings, store.tenant, "keys")
            if key.models:
                require_room(uow, settings, store.tenant, "keys", row_bytes(key))
            _check_daily(uow, key)
        key = uow.keys.add(key)
        details = {"name": key.name, "scopes": sorted(key.scopes), "models": len(key.models)}
        uow.audit.append("key.create", key.id, details=details)
    return key, text


def make_key(
    name: str, scopes: Collection[str], models: Collection[str], **options: Any
) -> tuple[ApiKey, str]:
    """A new key and its text; it is neither checked nor stored. options: as in `ApiKey`."""
    secret = secrets.token_urlsafe(32)
    key = ApiKey(
        id=new_id("key"),
        name=name,
        digest=_digest(secret),
        scopes=frozenset(scopes),
        models=frozenset(models),
        created_at=time.time(),
        **options,
    )
    return key, _text(key, secret)


def check_key(key: ApiKey, settings: Settings | None = None) -> None:
    """Raise InvalidRequest for a key that cannot be created.

    settings: of the installation, if its rate limit is the highest that the key may have.
    """
    faults = _faults(key.tenant, key.name, key.scopes, key.models)
    faults += _limit_faults(key.expires_at, key.rate_limit, key.rate_burst)
    if settings is not None:
        faults += _share_faults(settings, key.rate_limit, key.rate_burst)
    if faults:
        raise InvalidRequest("The API key cannot be created.", faults=faults)


def key_names(store: Store, key_ids: Iterable[str]) -> dict[str, str]:
    """Names of those of ``key_ids`` that exist in the tenant, by id; revoked keys included."""
    with store.read() as uow:
        return uow.keys.names(sorted(set(key_ids)))


def list_keys(store: Store, *, limit: int, after: str | None = None) -> tuple[Sequence[ApiKey], bool]:
    """Keys newer than id ``after``, including revoked ones, oldest first; and whether more follow."""
    with store.read() as uow:
        return uow.keys.page(limit=limit, after=after)


def all_keys(store: Store) -> Sequence[ApiKey]:
    """The keys of all tenants, including revoked ones, oldest first."""
    with store.of_all_tenants().read() as uow:
        return uow.keys.all()


def known_keys(store: Store) -> Sequence[ApiKey]:
    """The keys of all tenants that a server reads, see `Keys.known`."""
    with store.of_all_tenants().read() as uow:
        return uow.keys.known()


def revoke_key(store: Store, key_id: str, *, by_operator: bool = True) -> ApiKey:
    """Revoke a key; a second call changes nothing.

    Raises NotFound, and NotAuthorised for an operator's key unless ``by_operator`` is true.
    """
    with store.begin() as uow:
        before = uow.keys.get(key_id, lock=True)
        _check_operator(before, by_operator)
        if before.revoked_at is not None:
            return before
        uow.sessions.delete_of(key_id)
        uow.audit.append("key.revoke", key_id, details={"name": before.name}, tenant=before.tenant)
        return uow.keys.revoke(key_id)


def rotate_key(
    store: Store, key_id: str, overlap_seconds: float = 0.0, *, by_operator: bool = True
) -> tuple[ApiKey, str]:
    """Replace the secret of a key; returns the key and its new text, which cannot be shown again.

    overlap_seconds: how long the previous text stays valid; older texts are always invalid. Raises NotFound,
    InvalidRequest, Conflict for a key that was revoked or has expired, and NotAuthorised for the key of an
    operator unless ``by_operator`` is true.
    """
    if not 0 <= overlap_seconds <= MAX_OVERLAP_SECONDS:
        message = f"The overlap must be 0 to {MAX_OVERLAP_SECONDS:.0f} seconds."
        fault = InputFault("overlap_seconds", "out_of_range", message)
        raise InvalidRequest(message, faults=[fault])
    now, secret = time.time(), secrets.token_urlsafe(32)
    with store.begin() as uow:
        before = uow.keys.get(key_id, lock=True)
        _check_operator(before, by_operator)
        if before.revoked_at is not None or is_over(before.expires_at, now):
            raise Conflict(
                f"API key {key_id} was revoked or has expired: create a new one.", code="key_ended"
            )
        uow.keys.change(
            key_id,
            digest=_digest(secret),
            rotated_at=now,
            previous_digest=before.digest if overlap_seconds else None,
            previous_until=now + overlap_seconds if overlap_seconds else None,
        )
        if not overlap_seconds:
            uow.sessions.delete_of(key_id)
        details = {"overlap_seconds": overlap_seconds}
        uow.audit.append("key.rotate", key_id, details=details, tenant=before.tenant)
        key = uow.keys.get(key_id)
    return key, _text(key, secret)


def note_uses(store: Store, moments: Mapping[str, float]) -> None:
    """Store when keys were last used: their ids, with seconds since the epoch."""
    if moments:
        with store.begin() as uow:
            uow.keys.used(moments)


class KeyRing:
    """All keys in memory, to authenticate callers without the database.

    `replace` swaps the whole snapshot, and `update` single keys, so readers on other threads see either the
    old or the new state of a key. Only the last `MAX_REMEMBERED` ended keys are kept, for a day and without
    their permissions, so that their callers learn what happened to them.

    tenants: those that have callers without keys.
    has_customers: whether a key, even an ended one, belongs to another tenant than the default one.
    """

    def __init__(self, keys: Iterable[ApiKey] = (), tenants: Iterable[str] = ()) -> None:
        self._keys: dict[str, ApiKey] = {}
        self._ended: dict[str, ApiKey] = {}
        self._swept_at = -math.inf
        self._tenants = frozenset(tenants)
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Replace the snapshot by these keys."""
        found, now = list(keys), time.time()
        self._keys = {key.id: key for key in found if key.ends_at > now}
        self._ended = {}
        self.update(key for key in found if key.ends_at <= now)
        self._tenants |= {key.tenant for key in found}

    def update(self, keys: Iterable[ApiKey]) -> None:
        """Add these keys to the snapshot, or replace their earlier state."""
        found, now = list(keys), time.time()
        for key in found:
            if key.ends_at > now:
                self._keys[key.id] = key
            else:
                self._end(key)
        self._tenants |= {key.tenant for key in found}

    def sweep(self) -> Sequence[ApiKey]:
        """At most once a minute, return the keys that have expired, and forget those that ended a day ago."""
        now = time.time()
        if 0 <= now - self._swept_at < _SWEEP_SECONDS:
            return []
        self._swept_at = now
        expired = [key for key in self._keys.values() if key.ends_at <= now]
        for key in expired:
            self._end(key)
        oldest = now - REMEMBERED_SECONDS
        self._ended = {key.id: key for key in self._ended.values() if key.ends_at > oldest}
        return expired

    def known(self, key_id: str) -> ApiKey | None:
        """The key with this id, also one that ended lately."""
        return self._keys.get(key_id) or self._ended.get(key_id)

    def _end(self, key: ApiKey) -> None:
        if key.ends_at > time.time() - REMEMBERED_SECONDS:
            self._ended[key.id] = dataclasses.replace(key, scopes=frozenset(), models=frozenset())
        self._keys.pop(key.id, None)
        while len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    @property
    def has_customers(self) -> bool:
        """Whether a key, even an ended one, belongs to another tenant than the default one."""
        return bool(self._tenants - {DEFAULT_TENANT})

    @property
    def has_tenants(self) -> bool:
        """Whether keys, including ended ones, belong to several tenants."""
        return len(self._tenants) > 1

    def reload(self, store: Store) -> None:
        """Replace the snapshot by the keys in the database."""
        self.replace(known_keys(store))

    def authenticate(self, text: str) -> ApiKey:
        """The key with this text. Raises NotAuthenticated if it is malformed, unknown, revoked or expired."""
        return self.recognise(text)[0]

    def is_valid(self, key_id: str) -> bool:
        """Whether the key with this id exists, and is neither revoked nor expired."""
        key = self._keys.get(key_id)
        return key is not None and key.revoked_at is None and not is_over(key.expires_at, time.time())

    def of_session(self, text: str) -> ApiKey | None:
        """The key of a session, by the session's text; None if the text of the key is no longer valid.

        This needs no database, and does not tell whether the session has been ended.
        """
        key = self._keys.get(key_id_of(text) or "")
        if key is None or not self.is_valid(key.id):
            return None
        overlaps = key.previous_digest is not None and not is_over(key.previous_until, time.time())
        digests = (key.digest, key.previous_digest if overlaps else None)
        is_known = [digest is not None and is_begun_with(text, digest) for digest in digests]
        return key if any(is_known) else None

    def proof(self, key_id: str, nonce: str, port: int) -> str | None:
        """Shows one who knows the key that this server, which listens at ``port``, knows it; None if not."""
        key = self._keys.get(key_id)
        if key is None:
            return None
        message = f"identity {nonce} {port}".encode("ascii")
        return hmac.digest(key.digest.encode("ascii"), message, "sha256").hex()

    def recognise(self, text: str) -> tuple[ApiKey, float]:
        """As `authenticate`, and when this text expires, in seconds since the epoch."""
        parts = _TEXT.fullmatch(text)
        if parts is None:
            raise NotAuthenticated("The API key does not have the form stms_….", code="invalid_key")
        key, digest, now = self.known(parts[1]), _digest(parts[2]), time.time()
        # Both are always compared, so that the duration reveals nothing.
        is_new = hmac.compare_digest(_NO_DIGEST if key is None else key.digest, digest)
        is_old = hmac.compare_digest((key and key.previous_digest) or _NO_DIGEST, digest)
        if key is None or not (is_new or (is_old and not is_over(key.previous_until, now))):
            raise NotAuthenticated("The API key is unknown.", code="invalid_key")
        if key.revoked_at is not None:
            raise NotAuthenticated("The API key has been revoked.", code="revoked_key")
        if is_over(key.expires_at, now):
            raise NotAuthenticated("The API key has expired.", code="expired_key")
        ends = math.inf if key.expires_at is None else key.expires_at
        return key, ends if is_new else min(ends, key.previous_until or 0.0)


def new_text(key_id: str) -> str:
    """The text of a key with a new random secret."""
    return f"stms_{key_id}_{secrets.token_urlsafe(32)}"


def digest_of(text: str) -> tuple[str, str] | None:
    """Id and digest of a key's text; None if it does not have the form of one."""
    parts = _TEXT.fullmatch(text)
    return None if parts is None else (parts[1], _digest(parts[2]))


def is_over(moment: float | None, now: float) -> bool:
    """Whether ``moment`` has passed; None never does."""
    return moment is not None and moment <= now


def _check_daily(uow: UnitOfWork, key: ApiKey) -> None:
    """Each key leaves a row until it is deleted, and servers remember it for a day. Raises Overloaded."""
    keys = uow.keys.of_tenant(key.tenant)
    if keys.count_made_since(key.created_at - _DAY) >= KEYS_PER_DAY:
        message = f"The tenant made {KEYS_PER_DAY} API keys in the last 24 hours, which is the most."
        raise Overloaded(message, code="keys_per_day", retry_after=3600.0)


def _check_operator(key: ApiKey, by_operator: bool) -> None:
    """Raise for the key of an operator: an administrator who could rotate it would become an operator."""
    if "operator" in key.scopes and not by_operator:
        raise NotAuthorised("Only an operator may change the key of an operator.", code="scope_required")


def _text(key: ApiKey, secret: str) -> str:
    return f"stms_{key.id}_{secret}"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def _faults(tenant: str, name: str, scopes: Collection[str], models: Collection[str]) -> list[InputFault]:
    faults = []
    if not is_display_name(name, 100):
        faults.append(
            InputFault("name", "bad_name", "The name of a key must have 1 to 100 printable characters.")
        )
    if not is_model_name(tenant):
        text = "The name of a tenant has the form of a model's name."
        faults.append(InputFault("tenant", "bad_name", text))
    if not scopes or not SCOPES.issuperset(scopes):
        text = f"Scopes must be one or more of {', '.join(sorted(SCOPES))}."
        faults.append(InputFault("scopes", "unknown_scope", text))
    if models and not {"query", "download"}.issuperset(scopes):
        text = "Only a key with no other scopes than query and download can be limited to models."
        faults.append(InputFault("models", "models_without_query", text))
    if len(models) > MAX_MODELS or sum(map(len, models)) > MAX_MODELS_BYTES:
        text = f"A key has at most {MAX_MODELS} models, whose names have {MAX_MODELS_BYTES} characters."
        return [*faults, InputFault("models", "too_long", text)]
    return faults + [
        InputFault("models", "bad_name", f"{model!r:.120} is not the name of a model.")
        for model in models
        if not is_model_name(model)
    ]


def _limit_faults(
    expires_at: float | None, rate_limit: float | None, rate_burst: int | None
) -> list[InputFault]:
    faults = []
    if expires_at is not None and not time.time() < expires_at <= _MAX_TIME:
        text = "The expiry of a key must be in the future."
        faults.append(InputFault("expires_at", "out_of_range", text))
    if rate_limit is not None and not 0 <= rate_limit <= MAX_RATE:
        text = f"A rate limit must be 0 (none) to {MAX_RATE:.0f} requests per second."
        faults.append(InputFault("rate_limit", "out_of_range", text))
    if rate_burst is not None and not 1 <= rate_burst <= MAX_RATE:
        text = f"A burst must be 1 to {MAX_RATE:.0f} requests."
        faults.append(InputFault("rate_burst", "out_of_range", text))
    return faults


def _share_faults(settings: Settings, rate_limit: float | None, rate_burst: int | None) -> list[InputFault]:
    """Faults of limits above those of the installation, which only an operator may set."""
    highest = settings.rate_limit
    if not highest:
        return []
    faults = []
    if rate_limit is not None and not 0 < rate_limit <= highest:
        text = f"Only an operator may set a rate limit above {highest:g} requests per second, or none."
        faults.append(InputFault("rate_limit", "out_of_range", text))
    burst = settings.rate_burst or math.ceil(highest)
    if rate_burst is not None and rate_burst > burst:
        text = f"Only an operator may set a burst above {burst} requests."
        faults.append(InputFault("rate_burst", "out_of_range", text))
    return faults
