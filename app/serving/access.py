"""Who may do what: callers recognised from memory, without a database read."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.domain.entities import ApiKey
from app.domain.errors import NotAuthenticated, NotAuthorised, Unavailable
from app.services.keys import KeyRing, list_keys
from app.settings import Settings
from app.store.unit_of_work import Store

ANONYMOUS: Final = ApiKey(
    id="anonymous",
    name="anonymous",
    digest="",
    scopes=frozenset({"admin"}),
    models=frozenset(),
    created_at=0.0,
)
"""The caller of a server that asks for no keys."""

_AUTHORIZATION, _API_KEY = b"authorization", b"x-api-key"
_MAX_REMEMBERED: Final = 4096
_LONG: Final = 256


class UnsafeExposure(Exception):
    """The server would listen beyond this machine with nobody to keep it shut."""


class KeyGate:
    """Recognises callers by the newest snapshot of all keys.

    Keys are asked for when ``require_keys`` says so, and when it says nothing: as soon as one key was ever
    made, or the server listens beyond loopback.

    An Authorization header that was found good is remembered as it came, until the next snapshot, so that a
    warm query does without parsing, hashing and comparing. That is safe: only good headers are remembered,
    a bounded number of them; every change of keys, a revocation too, is a new snapshot that forgets them all;
    and the look-up tells a guesser nothing by its time, since Python compares the bytes of a key of a
    dictionary only once its whole 64-bit SipHash agrees, which a guess cannot work towards.
    """

    def __init__(self, settings: Settings) -> None:
        self._ring = KeyRing()
        self._known = False
        self._always = settings.require_keys or not is_loopback(settings.host)
        self._never = settings.require_keys is False and is_loopback(settings.host)
        self._good: dict[bytes, ApiKey] = {}

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """From now on know these keys only."""
        self._good = {}
        self._ring.replace(keys)
        self._known = True

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey:
        """The key of a request: ``Authorization: Bearer …`` or ``X-API-Key``.

        Raises NotAuthenticated, and Unavailable while no snapshot could be read yet.
        """
        return self.caller_of(dict(headers))

    def caller_of(self, headers: Mapping[bytes, bytes]) -> ApiKey:
        """The same, from headers by name."""
        authorization = headers.get(_AUTHORIZATION)
        if authorization is None:
            return self._recognise(headers.get(_API_KEY))
        key = self._good.get(authorization)
        if key is None:
            if authorization[:7].lower() != b"bearer ":
                raise NotAuthenticated(
                    "Authorization must be of the form: Bearer stms_….", code="invalid_key"
                )
            good = self._good
            key = self._recognise(authorization[7:].strip())
            if key is not ANONYMOUS and len(good) < _MAX_REMEMBERED and len(authorization) < _LONG:
                good[authorization] = key
        return key

    def _recognise(self, text: bytes | None) -> ApiKey:
        if self._never:
            return ANONYMOUS
        if not self._known:
            raise Unavailable("The API keys could not be read yet.", code="keys_unavailable")
        if not self._always and self._ring.empty:
            return ANONYMOUS
        if text is None:
            raise NotAuthenticated("An API key is needed: Authorization: Bearer stms_….", code="key_required")
        return self._ring.authenticate(text.decode("latin-1"))


def authorise(key: ApiKey, scope: str, model: str | None = None) -> None:
    """Raise NotAuthorised unless ``key`` has ``scope``, for ``model`` if one is named.

    admin may everything; train may everything but administer; query may ask its models only.
    """
    if "admin" in key.scopes or (scope != "admin" and "train" in key.scopes):
        return
    if scope != "query" or "query" not in key.scopes:
        raise NotAuthorised(f"This API key does not have the scope {scope!r}.", code="scope_required")
    if model is not None and key.models and model not in key.models:
        raise NotAuthorised(f"This API key may not ask model {model!r}.", code="model_not_allowed")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings, store: Store) -> None:
    """Raise UnsafeExposure when the server would listen beyond loopback without asking for API keys."""
    if is_loopback(settings.host):
        return
    if settings.require_keys is False:
        raise UnsafeExposure(f"Listening at {settings.host} needs API keys, but STMS_REQUIRE_KEYS is false.")
    if not any(key.revoked_at is None for key in list_keys(store)):
        raise UnsafeExposure(
            f"Listening at {settings.host} needs at least one API key. Make one first: "
            "stms keys create NAME --scope admin"
        )
