"""Who asks for a page of the dashboard: the session in a cookie, and the API key that it stands for.

A browser sends cookies with requests that other sites cause. So the cookie is SameSite=Strict, and a request
that changes something must come from a page of this server.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from app.auth.audit_writer import NO_SESSION
from app.auth.authenticator import Authenticator
from app.auth.places import SharedBudget
from app.auth.proxy_users import ProxyUsers
from app.domain.entities import ApiKey, Caller, Session
from app.domain.errors import NotAuthenticated, NotAuthorised
from app.http.client_address import TrustedProxies
from app.http.path_prefix import prefix_of
from app.http.types import Header, Scope
from app.services.sessions import SECONDS, end_session, find_session
from app.store.unit_of_work import Store

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_COOKIE: Final = b"stms_session"
_SECURE_COOKIE: Final = b"__Host-stms_session"
_PREFIXED_COOKIE: Final = b"__Secure-stms_session"
"""Below the prefix of a proxy, since browsers keep a cookie of the name above at the path / only."""
_SECURE: Final = (_SECURE_COOKIE, _PREFIXED_COOKIE)
_LOOPBACK: Final = re.compile(rb"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]):(\d{1,5})", re.IGNORECASE)
_MAX_COOKIES: Final = 4
"""Cookies of one request that may hold its session. Other servers of the same machine can set more."""
_REMEMBERED_SECONDS: Final = 1.0
"""For so long a session that was read counts as present; other processes may have ended it meanwhile."""
_MAX_REMEMBERED: Final = 1024
_PLACES_OF_TENANT: Final = 16
"""Sessions of one tenant that are read at the same time, besides those that were valid lately."""
_PLACES_OF_KEY: Final = 8


class Sessions:
    """Finds the key of a request by its cookie, unless a trusted proxy names the person: see `ProxyUsers`.

    Sessions are read from the database, at most once a second each, so that one that was begun by another
    process holds at once, and only for a caller who knows a key: made-up sessions are refused from memory. A
    tenant has places for reading, of which one key has a share; sessions that were valid lately need no
    place, so that people who have signed in do not wait for others. Only the thread of the event loop may use
    it.
    """

    def __init__(
        self, store: Store, authenticator: Authenticator, proxies: TrustedProxies, users: ProxyUsers
    ) -> None:
        self.users = users
        self._store = store
        self._authenticator = authenticator
        self._proxies = proxies
        self._remembered: dict[str, tuple[Session, float]] = {}
        self._reading: dict[str, asyncio.Task[Session | None]] = {}
        self._places: defaultdict[str, SharedBudget] = defaultdict(_places_of_tenant)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="stms-sessions")

    async def authenticate(self, scope: Scope) -> ApiKey:
        """Identify and charge the caller, as `Authenticator.authenticate` does.

        A server without keys needs no session. Raises NotAuthenticated, with the code `NO_SESSION` if there
        is no cookie, NotAuthorised for a change that another site has caused and as `ProxyUsers.caller_of`,
        RateLimited, Overloaded and Unavailable.
        """
        check_same_origin(scope)
        if not self._authenticator.requires_keys:
            return self._authenticator.authenticate(scope)
        user = self.users.caller_of(scope)
        if user is not None:
            return self._authenticator.authenticate_session(scope, user)
        texts = self._texts_of(scope)
        if not texts:
            raise NotAuthenticated("Sign in first.", code=NO_SESSION)
        keys = ((text, self._authenticator.key_of_session(text)) for text in texts)
        text, key = next((pair for pair in keys if pair[1] is not None), ("", None))
        if key is None:
            self._authenticator.rate_limiter.record_failure(self._authenticator.address_of(scope))
        if key is None or await self._find(text, Caller.of(key)) is None:
            raise NotAuthenticated("The session has ended: sign in again.", code="session_ended")
        return self._authenticator.authenticate_session(scope, key)

    def _texts_of(self, scope: Scope) -> list[str]:
        """The texts that may be the session of a request, the likeliest first.

        A browser sends the cookies of all servers of one machine to each of them, so the cookie of a server
        on loopback is named after its port, and others count after it.
        """
        own = self._cookie_name(scope)
        names = (own,) if own in _SECURE else (own, _COOKIE)
        pairs = [
            part.strip().partition(b"=")
            for name, value in scope["headers"]
            if name == b"cookie"
            for part in value.split(b";")
        ]
        found = [text.decode("latin-1") for name in names for key, _, text in pairs if key == name]
        return list(dict.fromkeys(found))[:_MAX_COOKIES]

    def _cookie_name(self, scope: Scope) -> bytes:
        if self.is_secure(scope):
            return _PREFIXED_COOKIE if prefix_of(scope) else _SECURE_COOKIE
        match = _LOOPBACK.fullmatch(_headers(scope).get(b"host", b""))
        return _COOKIE if match is None else b"port%s_%s" % (match[1], _COOKIE)

    def cookie(self, scope: Scope, text: str) -> Header:
        """The Set-Cookie header with a session; an empty ``text`` removes it."""
        name = self._cookie_name(scope)
        value = b"%s=%s; Path=%s; HttpOnly; SameSite=Strict; Max-Age=%d" % (
            name,
            text.encode("ascii"),
            prefix_of(scope).encode() or b"/",
            SECONDS if text else 0,
        )
        return b"set-cookie", value + (b"; Secure" if name in _SECURE else b"")

    def is_secure(self, scope: Scope) -> bool:
        """Whether the browser's connection is encrypted, as far as a trusted proxy says so."""
        client = scope.get("client")
        forwarded = _headers(scope).get(b"x-forwarded-proto", b"").split(b",")[-1].strip()
        return scope.get("scheme") == "https" or (
            client is not None and str(client[0]) in self._proxies and forwarded == b"https"
        )

    async def end(self, scope: Scope) -> None:
        """End the sessions of a request."""
        for text in self._texts_of(scope):
            self._remembered.pop(text, None)
            if self._authenticator.key_of_session(text) is not None:
                await asyncio.to_thread(end_session, self._store, text)

    def close(self) -> None:
        """Read no more sessions."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _find(self, text: str, caller: Caller) -> Session | None:
        """The session with this text, which was made with the valid key of the caller. Raises Overloaded."""
        known, now = self._remembered.get(text), time.time()
        if known is not None and known[0].expires_at <= now:
            return None
        if known is not None and now - known[1] < _REMEMBERED_SECONDS:
            return known[0]
        reading = self._reading.get(text)
        if reading is None:
            needs_place = known is None
            if needs_place:
                self._places[caller.tenant].take(caller)
            reading = self._reading[text] = asyncio.create_task(self._read(text, caller, needs_place))
        return await asyncio.shield(reading)

    async def _read(self, text: str, caller: Caller, needs_place: bool) -> Session | None:
        """Read a session, once for all requests that wait for it. needs_place: it has taken one."""
        try:
            now, loop = time.time(), asyncio.get_running_loop()
            session = await loop.run_in_executor(self._threads, find_session, self._store, text)
        finally:
            del self._reading[text]
            if needs_place:
                places = self._places[caller.tenant]
                places.release(caller)
                if not places.used:
                    del self._places[caller.tenant]
        self._remembered.pop(text, None)
        if session is not None:
            if len(self._remembered) >= _MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[text] = session, now
        return session


def _places_of_tenant() -> SharedBudget:
    return SharedBudget(_PLACES_OF_TENANT, _PLACES_OF_KEY, "sessions", "readings of sessions", {})


def check_same_origin(scope: Scope) -> None:
    """Raise NotAuthorised for a request that changes something and that no page of this server has sent.

    Browsers send Sec-Fetch-Site over TLS and on this machine, and Origin with every form and fetch.
    """
    if scope["method"] in SAFE_METHODS:
        return
    headers = _headers(scope)
    site = headers.get(b"sec-fetch-site")
    if site is None:
        origin, host = headers.get(b"origin", b"").lower(), headers.get(b"host", b"").lower()
        is_same = bool(host) and origin in {b"http://" + host, b"https://" + host}
    else:
        is_same = site == b"same-origin"
    if not is_same:
        raise NotAuthorised("Another site has caused this request; nothing was changed.", code="cross_site")


def _headers(scope: Scope) -> Mapping[bytes, bytes]:
    return dict(scope["headers"])
