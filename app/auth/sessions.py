"""Who asks for a page of the dashboard: the session in a cookie, and the API key that it stands for.

A browser sends cookies with requests that other sites cause. So the cookie is SameSite=Strict, and a request
that changes something must come from a page of this server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from app.auth.audit_writer import NO_SESSION
from app.auth.authenticator import Authenticator
from app.domain.entities import ApiKey, Session
from app.domain.errors import NotAuthenticated, NotAuthorised, Overloaded
from app.http.client_address import TrustedProxies
from app.http.types import Header, Scope
from app.services.sessions import SECONDS, end_session, find_session, session_id_of
from app.store.unit_of_work import Store

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_COOKIE: Final = b"stms_session"
_SECURE_COOKIE: Final = b"__Host-stms_session"
_REMEMBERED_SECONDS: Final = 1.0
"""For so long a session that was read counts as present; other processes may have ended it meanwhile."""
_MAX_REMEMBERED: Final = 1024
_MAX_READING: Final = 64


class Sessions:
    """Finds the key of a request by its cookie.

    Sessions are read from the database, at most once a second each, so that one that was begun by another
    process holds at once. Only the thread of the event loop may use it.
    """

    def __init__(self, store: Store, authenticator: Authenticator, proxies: TrustedProxies) -> None:
        self._store = store
        self._authenticator = authenticator
        self._proxies = proxies
        self._remembered: dict[str, tuple[Session, float]] = {}
        self._reading = 0
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="stms-sessions")

    async def authenticate(self, scope: Scope) -> ApiKey:
        """Identify and charge the caller, as `Authenticator.authenticate` does.

        A server without keys needs no session. Raises NotAuthenticated, with the code `NO_SESSION` if there
        is no cookie, NotAuthorised for a change that another site has caused, RateLimited, Overloaded and
        Unavailable.
        """
        check_same_origin(scope)
        if not self._authenticator.requires_keys:
            return self._authenticator.authenticate(scope)
        text = self.text_of(scope)
        if text is None:
            raise NotAuthenticated("Sign in first.", code=NO_SESSION)
        session = await self._find(text)
        if session is None:
            self._authenticator.rate_limiter.record_failure(self._authenticator.address_of(scope))
            raise NotAuthenticated("The session has ended: sign in again.", code="session_ended")
        return self._authenticator.authenticate_session(scope, session)

    def text_of(self, scope: Scope) -> str | None:
        """The text of the session in the cookies of a request."""
        wanted = _SECURE_COOKIE if self.is_secure(scope) else _COOKIE
        for name, value in scope["headers"]:
            if name == b"cookie":
                for part in value.split(b";"):
                    key, _, text = part.strip().partition(b"=")
                    if key == wanted:
                        return str(text.decode("latin-1"))
        return None

    def cookie(self, scope: Scope, text: str) -> Header:
        """The Set-Cookie header with a session; an empty ``text`` removes it."""
        secure = self.is_secure(scope)
        name = _SECURE_COOKIE if secure else _COOKIE
        value = b"%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%d" % (
            name,
            text.encode("ascii"),
            SECONDS if text else 0,
        )
        return b"set-cookie", value + (b"; Secure" if secure else b"")

    def is_secure(self, scope: Scope) -> bool:
        """Whether the browser's connection is encrypted, as far as a trusted proxy says so."""
        client = scope.get("client")
        forwarded = _headers(scope).get(b"x-forwarded-proto", b"").split(b",")[-1].strip()
        return scope.get("scheme") == "https" or (
            client is not None and str(client[0]) in self._proxies and forwarded == b"https"
        )

    async def end(self, scope: Scope) -> None:
        """End the session of a request, if there is one."""
        text = self.text_of(scope)
        if text is not None:
            self._remembered.pop(text, None)
            await asyncio.to_thread(end_session, self._store, text)

    def close(self) -> None:
        """Read no more sessions."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _find(self, text: str) -> Session | None:
        if session_id_of(text) is None:
            return None
        known, now = self._remembered.get(text), time.time()
        if known is not None and now - known[1] < _REMEMBERED_SECONDS and known[0].expires_at > now:
            return known[0]
        if self._reading >= _MAX_READING:
            raise Overloaded("Too many sessions are being read already.")
        self._reading += 1
        try:
            loop = asyncio.get_running_loop()
            session = await loop.run_in_executor(self._threads, find_session, self._store, text)
        finally:
            self._reading -= 1
        self._remembered.pop(text, None)
        if session is not None:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[text] = session, now
        return session


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
