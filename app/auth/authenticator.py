"""Authentication and authorisation of callers from memory, without a database read."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from app.auth.local_requests import check_local
from app.auth.rate_limit import Quota, RateLimiter
from app.domain.audit_context import UNKNOWN, Actor, current_context
from app.domain.entities import ApiKey, Priority, TokenRevocation
from app.domain.errors import (
    NotAuthenticated,
    NotAuthorised,
    RateLimited,
    ServiceError,
    SetupError,
    Unavailable,
)
from app.http.client_address import TrustedProxies
from app.http.types import HeaderList, Scope
from app.services.first_key import FIRST_KEY_ID
from app.services.keys import KeyRing, known_keys
from app.settings import Settings
from app.store.unit_of_work import Store

if TYPE_CHECKING:
    from app.auth.tokens import Tokens

ANONYMOUS: Final = ApiKey(
    id="anonymous",
    name="anonymous",
    digest="",
    scopes=frozenset({"admin", "operator"}),
    models=frozenset(),
    created_at=0.0,
)
"""The caller of a server that requires no keys."""

FOREVER: Final = math.inf
_AUTHORIZATION, _API_KEY = b"authorization", b"x-api-key"
_MAX_CACHED: Final = 4096
_MAX_CACHED_BYTES: Final = 4 * 1024**2
_MAX_HEADER: Final = 4352
"""Cached headers: their number, their bytes in all, and those of one."""
_DOTS: Final = 2
"""In a JSON Web Token; the text of an API key has none."""


class InsecureBinding(SetupError):
    """Other machines would reach the server and need no API key."""


class Authenticator:
    """Identifies callers by the newest snapshot of all API keys, or by tokens, and enforces rate limits.

    Keys are required unless ``require_keys`` is false and the server listens on loopback, not behind trusted
    proxies. Without keys only requests of this machine are answered, see `check_local`.

    A valid Authorization header is cached as raw bytes until keys change, so that a warm query needs no
    parsing, hashing and comparing. That is safe: only valid headers are cached, a bounded number of them, and
    none beyond the expiry of its key; every change of keys, also a revocation, clears the cache; and the time
    of a lookup reveals nothing, since Python compares the bytes of a dictionary key only if its whole 64-bit
    SipHash agrees, which a guess cannot approach step by step.

    `Tokens` knows tokens beyond such changes. A token that it does not know yet is verified only for `charge`
    and where a request is prepared, which know the address that the verification is counted for.

    tokens: None if no tokens are accepted. requires_keys: whether requests need an API key. rate_work:
    multiply-adds that are charged as one request, 0 if none are. on_change: called when what a request head
    means may have changed: keys changed, or their use has to be recorded again.
    """

    def __init__(
        self, settings: Settings, rate_limiter: RateLimiter | None = None, tokens: Tokens | None = None
    ) -> None:
        tenants = [one.tenant for one in settings.token_issuers]
        self._ring = KeyRing(tenants=[*tenants, *(rule.tenant for rule in settings.proxy_rules)])
        self._tokens = tokens
        self._has_snapshot = False
        is_private = is_loopback(settings.host) and not settings.proxies
        self.requires_keys = bool(settings.require_keys) or not is_private
        self.on_change: Callable[[], None] = lambda: None
        self._cached: dict[bytes, tuple[ApiKey, float]] = {}
        self._cached_bytes = 0
        self._used: dict[str, float] = {}
        self.rate_work = settings.rate_work
        self._proxies = TrustedProxies(settings.proxies)
        self.rate_limiter = rate_limiter or RateLimiter(settings)

    def replace(self, keys: Sequence[ApiKey], revocations: Sequence[TokenRevocation] = ()) -> None:
        """Accept these keys and no others from now on, and no tokens that these revocations concern."""
        self._forget()
        self._ring.replace(keys)
        self.rate_limiter.replace_keys(keys)
        if self._tokens is not None:
            self._tokens.replace_revocations(revocations)
        self._has_snapshot = True

    def update(self, keys: Sequence[ApiKey], revocations: Sequence[TokenRevocation] = ()) -> None:
        """Accept the new state of some keys, and no tokens that these revocations concern either."""
        self._forget()
        self._ring.update(keys)
        self.rate_limiter.update_keys(keys)
        if self._tokens is not None:
            self._tokens.revoke(revocations)
        self._sweep()

    def authenticate(self, scope: Scope, headers: Mapping[bytes, bytes] | None = None) -> ApiKey:
        """Identify and charge the caller of a request, and make the key its audit actor.

        scope: of ASGI; its state gets the key as ``caller``. headers: by name, if the caller has them.

        Raises NotAuthenticated, NotAuthorised, RateLimited, and Unavailable before the first snapshot.
        """
        by_name = dict(scope["headers"]) if headers is None else headers
        if not self.requires_keys:
            check_local(by_name, scope.get("http_version", "1.1"))
        try:
            key, _ = self.charge(by_name, scope.get("client"), scope["headers"])
        except NotAuthenticated as error:
            if error.reason != "key_required":
                self.rate_limiter.record_failure(self.address_of(scope))
            raise
        except RateLimited as error:
            is_known = error.reason != "too_many_failures"
            self.rate_limiter.refused["rate_limited" if is_known else "auth_failures"] += 1
            current_context().actor = self._actor_of(by_name)
            raise
        current_context().actor = Actor.of(key)
        scope.setdefault("state", {})["caller"] = key
        return key

    def key_of_session(self, text: str) -> ApiKey | None:
        """The key that a session with this text stands for, from memory; None if there is none.

        Raises Unavailable before the first snapshot.
        """
        self._require_snapshot()
        return self._ring.of_session(text)

    def authenticate_session(self, scope: Scope, key: ApiKey) -> ApiKey:
        """As `authenticate`, for the key that a session of the dashboard stands for. Raises RateLimited."""
        current_context().actor = Actor.of(key)
        scope.setdefault("state", {})["caller"] = key
        if key.digest:
            self._used[key.id] = time.time()
        quota = self.quota_of(key, None, ())
        wait = 0.0 if quota is None else quota.take()
        if quota is not None and wait:
            self.rate_limiter.refused["rate_limited"] += 1
            raise quota.refusal(wait, "This API key")
        return key

    def caller_of(self, headers: HeaderList) -> ApiKey | None:
        """The key in the headers of a request; None without a valid key."""
        try:
            return self.identify(dict(headers))
        except ServiceError:
            return None

    def charge(
        self, by_name: Mapping[bytes, bytes], client: Sequence[object] | None, headers: HeaderList
    ) -> tuple[ApiKey, Quota | None]:
        """The key of a request, and the quota that was charged; None if the caller has no limit.

        by_name: headers by name. client: (host, port) of the connection. headers: as they arrived. A refusal
        has no side effect, so that the fast path can leave it to `authenticate`.

        Raises NotAuthenticated, NotAuthorised, RateLimited, and Unavailable before the first snapshot.
        """
        key, _ = self.identify_until(by_name, client, headers)
        quota = self.quota_of(key, client, headers)
        if quota is not None:
            wait = quota.take()
            if wait:
                raise quota.refusal(wait, "This address" if key is ANONYMOUS else "This API key")
        return key, quota

    def quota_of(self, key: ApiKey, client: Sequence[object] | None, headers: HeaderList) -> Quota | None:
        """The quota that the requests of a caller are charged to; None without a limit. See `charge`."""
        limiter = self.rate_limiter
        if not limiter.enabled:
            return None
        if key is ANONYMOUS:
            return limiter.of_address(self._proxies.address_of(client, headers))
        return limiter.of_key(key)

    def charge_work(self, scope: Scope, key: ApiKey, work: int) -> None:
        """Charge the caller's rate limit for ``work`` multiply-adds; ``STMS_RATE_WORK`` are one request."""
        requests = work // self.rate_work if self.rate_work else 0
        quota = self.quota_of(key, scope.get("client"), scope["headers"]) if requests else None
        if quota is not None:
            quota.charge(requests)

    def identify(self, headers: Mapping[bytes, bytes]) -> ApiKey:
        """The key of a request: ``Authorization: Bearer …`` or ``X-API-Key``. headers: by name.

        Of tokens only those are recognised that were verified before. Raises NotAuthenticated, Unavailable
        before the first snapshot, and NotAuthorised for a request from elsewhere to a server without keys.
        """
        return self.identify_until(headers)[0]

    def identify_until(
        self,
        headers: Mapping[bytes, bytes],
        client: Sequence[object] | None = None,
        arrived: HeaderList | None = None,
    ) -> tuple[ApiKey, float]:
        """As `identify`, with the time until which the key is valid, in seconds since the epoch.

        client, arrived: (host, port) of the connection, and the headers as they arrived, to verify a token
        that is not known yet; then it also raises RateLimited.
        """
        if not self.requires_keys:
            check_local(headers)
            return ANONYMOUS, FOREVER
        authorization = headers.get(_AUTHORIZATION)
        if authorization is None:
            return self._recognise(headers.get(_API_KEY), client, arrived)
        match = self._cached.get(authorization)
        if match is None or (match[1] is not FOREVER and match[1] <= time.time()):
            if authorization[:7].lower() != b"bearer ":
                raise NotAuthenticated(
                    "Authorization must be of the form: Bearer stms_….", code="invalid_key"
                )
            match = self._recognise(authorization[7:].strip(), client, arrived)
            cached, size = self._cached, len(authorization)
            fits = size <= _MAX_HEADER and self._cached_bytes + size <= _MAX_CACHED_BYTES
            if fits and len(cached) < _MAX_CACHED:
                cached[authorization] = match
                self._cached_bytes += size
        return match

    def proof(self, key_id: str, nonce: str, port: int) -> str | None:
        """As `KeyRing.proof`. Raises Unavailable before the first snapshot."""
        self._require_snapshot()
        return self._ring.proof(key_id, nonce, port)

    def is_valid(self, key_id: str) -> bool:
        """Whether a caller that was identified earlier may still go on."""
        if key_id == ANONYMOUS.id or self._ring.is_valid(key_id):
            return True
        return self._tokens is not None and self._tokens.is_valid(key_id)

    def address_of(self, scope: Scope) -> str:
        """The address of a request's client; empty if it is unknown."""
        return self._proxies.address_of(scope.get("client"), scope["headers"])

    def actor_of(self, headers: Iterable[tuple[bytes, bytes]]) -> Actor:
        """The audit actor of a request; `UNKNOWN` without a valid key."""
        return self._actor_of(dict(headers))

    def drain_usage(self) -> Mapping[str, float]:
        """Ids of the keys used since the last call, with the time of use in seconds since the epoch.

        Clears the cached headers, so that the next use of each key is recorded again; a warm query in between
        records nothing. So times are exact to the interval between two calls.
        """
        self._forget()
        self._sweep()
        used, self._used = self._used, {}
        return used

    @property
    def has_customers(self) -> bool:
        """Whether there are keys of other tenants than the default one."""
        return self._ring.has_customers

    @property
    def has_tenants(self) -> bool:
        """Whether keys of several tenants exist, so that none may take all of what they share."""
        return self._ring.has_tenants

    def _actor_of(self, headers: Mapping[bytes, bytes]) -> Actor:
        try:
            return Actor.of(self.identify(headers))
        except ServiceError:
            return UNKNOWN

    def _forget(self) -> None:
        """Look at every head anew."""
        self._cached, self._cached_bytes = {}, 0
        self.on_change()

    def _sweep(self) -> None:
        """Keys and tokens expire without a change of the registry."""
        for key in self._ring.sweep():
            self.rate_limiter.forget(key.id)
        if self._tokens is not None:
            self._tokens.sweep()

    def _require_snapshot(self) -> None:
        if not self._has_snapshot:
            raise Unavailable("The API keys could not be read yet.", code="keys_unavailable")

    def _recognise(
        self, text: bytes | None, client: Sequence[object] | None, arrived: HeaderList | None
    ) -> tuple[ApiKey, float]:
        """The key or caller with this text, and the time until which the text is valid."""
        self._require_snapshot()
        if text is None:
            raise NotAuthenticated("An API key is needed: Authorization: Bearer stms_….", code="key_required")
        if self._tokens is not None and text.count(b".") == _DOTS:
            check = None if arrived is None else partial(self._check_failures, client, arrived)
            return self._tokens.recognise(text, check)
        match = self._ring.recognise(text.decode("latin-1"))
        self._used[match[0].id] = time.time()
        return match

    def _check_failures(self, client: Sequence[object] | None, headers: HeaderList) -> None:
        """Raise RateLimited if too many wrong keys or tokens came from the address of a request."""
        self.rate_limiter.check_failures(self._proxies.address_of(client, headers))


def authorise_priority(key: ApiKey, priority: Priority) -> None:
    """Raise NotAuthorised unless ``key`` may submit jobs of this priority: the high one is for operators."""
    if priority is Priority.HIGH:
        authorise(key, "operator")


def authorise(key: ApiKey, required_scope: str, model: str | None = None) -> None:
    """Raise NotAuthorised unless ``key`` has ``required_scope``, for ``model`` if one is named.

    Scope operator permits everything, admin everything except what requires operator, train everything except
    what requires admin, download that models are taken away, and query only queries; the last two of the
    key's models, or of all models if the key names none.
    All this holds for the key's tenant; only an operator reaches another one.
    """
    if "operator" in key.scopes:
        return
    if required_scope != "operator" and (
        "admin" in key.scopes or (required_scope != "admin" and "train" in key.scopes)
    ):
        return
    if required_scope not in {"query", "download"} or required_scope not in key.scopes:
        raise NotAuthorised(
            f"This API key does not have the scope {required_scope!r}.", code="scope_required"
        )
    if model is not None and key.models and model not in key.models:
        raise NotAuthorised(
            f"This API key may not {required_scope} model {model!r}.", code="model_not_allowed"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_binding(settings: Settings, store: Store) -> None:
    """Raise InsecureBinding if others than this machine would reach the server without API keys.

    They do if it listens beyond loopback, if reverse proxies forward requests to it, or if pages of other
    origins may ask it. A server without keys
    does not start either on a database for which keys were made: their owners count on being asked for them.
    The first key does not count, because every database has one that was ever started with keys.
    """
    if not settings.require_keys:
        _check_no_keys(store)
    if not is_loopback(settings.host):
        reason = f"Listening at {settings.host}"
    elif settings.proxies:
        reason = "Trusting the proxies of STMS_TRUSTED_PROXIES"
    elif settings.cors_origins:
        reason = "Answering the pages of STMS_CORS_ORIGINS"
    else:
        return
    if not settings.require_keys:
        raise InsecureBinding(f"{reason} needs API keys, but STMS_REQUIRE_KEYS is false.")
    if not _valid_keys(store):
        raise InsecureBinding(
            f"{reason} needs at least one API key. Make one first: stms keys create NAME --scope admin"
        )


def _check_no_keys(store: Store) -> None:
    """Raise InsecureBinding if a valid key but the first one exists."""
    made = [key for key in _valid_keys(store) if key.id != FIRST_KEY_ID]
    if made:
        raise InsecureBinding(
            f"The database has API keys ({len(made)} besides the first, such as {made[0].id} "
            f"{made[0].name!r}), but --no-keys or STMS_REQUIRE_KEYS=false would let every program of this "
            "machine in as administrator. Start without that option; admin.key in the data folder or `stms "
            "keys create NAME --scope operator` gives you a key. Or revoke the keys: stms keys list, "
            "stms keys revoke ID."
        )


def _valid_keys(store: Store) -> list[ApiKey]:
    now = time.time()
    return [key for key in known_keys(store) if key.ends_at > now]
