"""Who may do what: callers recognised from memory, without a database read."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.auth.rate_limit import Budget, Limits, TrustedProxies
from app.domain.audit_context import UNKNOWN, Actor, current_context
from app.domain.entities import ApiKey
from app.domain.errors import NotAuthenticated, NotAuthorised, ServiceError, Unavailable
from app.http.body import Scope
from app.services.keys import KeyRing, is_over, list_keys
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

FOREVER: Final = math.inf
_AUTHORIZATION, _API_KEY = b"authorization", b"x-api-key"
_MAX_REMEMBERED: Final = 4096
_LONG: Final = 256


class UnsafeExposure(Exception):
    """The server would listen beyond this machine with nobody to keep it shut."""


class KeyGate:
    """Recognises callers by the newest snapshot of all keys, and sees that none asks too often.

    Keys are asked for when ``require_keys`` says so, and when it says nothing: as soon as one key was ever
    made, or the server listens beyond loopback.

    An Authorization header that was found good is remembered as it came, until the next snapshot, so that a
    warm query does without parsing, hashing and comparing. That is safe: only good headers are remembered,
    a bounded number of them, and none beyond the time its key has left; every change of keys, a revocation
    too, is a new snapshot that forgets them all; and the look-up tells a guesser nothing by its time, since
    Python compares the bytes of a key of a dictionary only once its whole 64-bit SipHash agrees, which a
    guess cannot work towards.
    """

    def __init__(self, settings: Settings, limits: Limits | None = None) -> None:
        self._ring = KeyRing()
        self._known = False
        self._always = settings.require_keys or not is_loopback(settings.host)
        self._never = settings.require_keys is False and is_loopback(settings.host)
        self._good: dict[bytes, tuple[ApiKey, float]] = {}
        self._used: dict[str, float] = {}
        self._proxies = TrustedProxies(settings.proxies)
        self.limits = limits or Limits(settings)

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """From now on know these keys only."""
        self._good = {}
        self._ring.replace(keys)
        self.limits.follow(keys)
        self._known = True

    def admit(
        self,
        scope: Scope,
        needed: str,
        model: str | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> ApiKey:
        """The key of a request that may be answered now; its context under way is the key's from now on.

        scope: of ASGI. needed, model: as for `authorise`. headers: by name, where that is known.

        Raises NotAuthenticated, NotAuthorised, RateLimited, and Unavailable while no snapshot could be read.
        """
        try:
            key = self.caller_of(dict(scope["headers"]) if headers is None else headers)
        except NotAuthenticated as error:
            if error.reason != "key_required":
                self.limits.fail(self.address_of(scope))
            raise
        current_context().actor = Actor.of(key)
        if self.limits.any:
            budget = self.budget(key, scope.get("client"), scope["headers"])
            if budget is not None:
                self.limits.charge(budget, "This API key" if key is not ANONYMOUS else "This address")
        authorise(key, needed, model)
        return key

    def budget(
        self, key: ApiKey, client: Sequence[object] | None, headers: Iterable[tuple[bytes, bytes]]
    ) -> Budget | None:
        """Out of which a request is to be paid; None if there is no limit. client: (host, port)."""
        if key is ANONYMOUS:
            return self.limits.of_anonymous(self._proxies.address_of(client, headers))
        return self.limits.of_key(key)

    def address_of(self, scope: Scope) -> str:
        """Where a request comes from, as far as it can be believed."""
        return self._proxies.address_of(scope.get("client"), scope["headers"])

    def actor_of(self, headers: Iterable[tuple[bytes, bytes]]) -> Actor:
        """Who shows a key, if it is one."""
        try:
            return Actor.of(self.caller(headers))
        except ServiceError:
            return UNKNOWN

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey:
        """The key of a request: ``Authorization: Bearer …`` or ``X-API-Key``.

        Raises NotAuthenticated, and Unavailable while no snapshot could be read yet.
        """
        return self.caller_of(dict(headers))

    def caller_of(self, headers: Mapping[bytes, bytes]) -> ApiKey:
        """The same, from headers by name."""
        authorization = headers.get(_AUTHORIZATION)
        if authorization is None:
            return self._recognise(headers.get(_API_KEY))[0]
        found = self._good.get(authorization)
        if found is None or (found[1] is not FOREVER and found[1] <= time.time()):
            if authorization[:7].lower() != b"bearer ":
                raise NotAuthenticated(
                    "Authorization must be of the form: Bearer stms_….", code="invalid_key"
                )
            good = self._good
            found = self._recognise(authorization[7:].strip())
            if found[0] is not ANONYMOUS and len(good) < _MAX_REMEMBERED and len(authorization) < _LONG:
                good[authorization] = found
        return found[0]

    def uses(self) -> Mapping[str, float]:
        """Keys by id that were used since this was asked last, and when, to as much as lies between.

        Good headers are forgotten: by that the next use of each is seen, and no warm query needs to tell.
        """
        self._good = {}
        used, self._used = self._used, {}
        return used

    def _recognise(self, text: bytes | None) -> tuple[ApiKey, float]:
        if self._never:
            return ANONYMOUS, FOREVER
        if not self._known:
            raise Unavailable("The API keys could not be read yet.", code="keys_unavailable")
        if not self._always and self._ring.empty:
            return ANONYMOUS, FOREVER
        if text is None:
            raise NotAuthenticated("An API key is needed: Authorization: Bearer stms_….", code="key_required")
        found = self._ring.recognise(text.decode("latin-1"))
        self._used[found[0].id] = time.time()
        return found


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
    now = time.time()
    if not any(key.revoked_at is None and not is_over(key.expires_at, now) for key in list_keys(store)):
        raise UnsafeExposure(
            f"Listening at {settings.host} needs at least one API key. Make one first: "
            "stms keys create NAME --scope admin"
        )
