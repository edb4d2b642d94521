"""Callers that show a token of an issuer (JSON Web Tokens, RFC 7519 and 8725) instead of an API key.

Nothing in a token is believed before its signature is verified; ``iss`` and ``kid`` only choose the key that
it is verified with. A verification takes as long as a query, so it is made once for each token, and for the
address of a caller only as long as that has not failed too often.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from app.auth.jwks import ALGORITHMS, IssuerKeys, PublicKey
from app.domain.caller_rules import TokenIssuer, caller_id, first_rule, is_subject
from app.domain.entities import ApiKey, TokenRevocation
from app.domain.errors import NotAuthenticated, Unavailable

T = TypeVar("T")

LEEWAY_SECONDS: Final = 30.0
"""How far the clock of an issuer may be ahead."""
_MAX_TOKEN: Final = 4096
_FORM: Final = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_MAX_NAME: Final = 100

_MAX_KNOWN: Final = 2048
_MAX_KNOWN_BYTES: Final = 4 * 1024**2
_MAX_OF_CALLER: Final = 16
"""Verified tokens that are kept: their number, their bytes, and their number for one caller."""
_MAX_REFUSED: Final = 256
_REFUSED_SECONDS: Final = 2.0
"""For so long a refused token is refused again without a verification, which several steps ask for."""

Check: TypeAlias = Callable[[], None]
"""Called before a token is verified. Raises RateLimited."""


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: Any = msgspec.UNSET


class _Claims(msgspec.Struct):
    sub: str
    aud: str | list[str]
    exp: float
    iat: float
    nbf: float | None = None
    jti: str | None = None


@dataclass(frozen=True, slots=True)
class _Token:
    """A verified token. until: when it ceases to be valid, in seconds since the epoch."""

    caller: ApiKey
    issuer: str
    sub: str
    jti: str | None
    issued: float
    until: float


class Tokens:
    """Recognises callers by tokens, and remembers the tokens that it has verified. Not thread-safe.

    issuers: with the keys of each. outcomes: numbers of verifications since the start, by their outcome.
    """

    def __init__(self, issuers: Sequence[tuple[TokenIssuer, IssuerKeys]]) -> None:
        self._issuers = {issuer.issuer: (issuer, keys) for issuer, keys in issuers}
        self._known: dict[bytes, _Token] = {}
        self._known_bytes = 0
        self._refused: dict[bytes, tuple[str, str, float]] = {}
        self._revoked: dict[tuple[str, str, str | None, str | None], TokenRevocation] = {}
        self.outcomes = {"verified": 0, "refused": 0}

    @property
    def failures(self) -> int:
        """Readings of keys that failed since the start."""
        return sum(keys.failures for _, keys in self._issuers.values())

    def start(self) -> None:
        """Begin to read the keys of the issuers."""
        for _, keys in self._issuers.values():
            keys.start()

    def stop(self) -> None:
        """Read no more keys."""
        for _, keys in self._issuers.values():
            keys.stop()

    def wait(self, seconds: float) -> None:
        """Wait until all keys were read once, but not longer. Blocks."""
        deadline = time.monotonic() + seconds
        for _, keys in self._issuers.values():
            keys.wait(max(0.0, deadline - time.monotonic()))

    def recognise(self, text: bytes, check: Check | None) -> tuple[ApiKey, float]:
        """The caller with this token, and the time until which it is valid, in seconds since the epoch.

        check: None to recognise only tokens that were verified before. Raises NotAuthenticated, RateLimited
        from ``check``, and Unavailable while the keys of its issuer are being read.
        """
        now = time.time()
        if len(text) > _MAX_TOKEN:
            raise _invalid(f"The token has more than {_MAX_TOKEN} bytes.")
        known = self._known.get(text)
        if known is not None:
            if known.until > now:
                return known.caller, known.until
            self._drop(text)
        message, code, until = self._refused.get(text, ("", "", 0.0))
        if until > now:
            raise NotAuthenticated(message, code=code)
        if check is None:
            raise _invalid("The token has not been verified.")
        check()
        try:
            token = self._verified(text, now)
        except NotAuthenticated as error:
            self.outcomes["refused"] += 1
            if len(self._refused) >= _MAX_REFUSED:
                self._refused = {}
            self._refused[text] = error.message, error.reason, now + _REFUSED_SECONDS
            raise
        self.outcomes["verified"] += 1
        self._keep(text, token)
        return token.caller, token.until

    def is_valid(self, caller: str) -> bool:
        """Whether a token of the caller with this id was recognised lately and is still valid."""
        now = time.time()
        return any(token.caller.id == caller and token.until > now for token in self._known.values())

    def replace_revocations(self, revocations: Sequence[TokenRevocation]) -> None:
        """Know these revocations and no others."""
        self._revoked = {}
        self.revoke(revocations)

    def revoke(self, revocations: Sequence[TokenRevocation]) -> None:
        """Know more revocations. Tokens that they concern are not valid any more."""
        for one in sorted(revocations, key=lambda one: one.created_at):
            self._revoked[one.tenant, one.issuer, one.sub, one.jti] = one
        self._refused = {}
        for text in [text for text, token in self._known.items() if self._is_revoked(token)]:
            self._drop(text)

    def sweep(self) -> None:
        """Forget what has expired."""
        now = time.time()
        for text in [text for text, token in self._known.items() if token.until <= now]:
            self._drop(text)
        self._revoked = {name: one for name, one in self._revoked.items() if one.expires_at > now}

    def _verified(self, text: bytes, now: float) -> _Token:
        """The token in a text. Raises NotAuthenticated and Unavailable."""
        parts = _FORM.fullmatch(text)
        if parts is None:
            raise _invalid("The token does not have the form of a JSON Web Token.")
        payload = _decoded(parts[2], dict[str, Any])
        name = payload.get("iss")
        issuer, keys = self._issuers.get(name if isinstance(name, str) else "", (None, None))
        if issuer is None or keys is None:
            raise _invalid("The issuer of the token is not one of those whose tokens are accepted.")
        key = _key_of(_decoded(parts[1], _Header), keys)
        if not key.verifies(text[: parts.end(2)], _bytes_of(parts[3])):
            raise _invalid("The signature of the token is wrong.")
        token = _token_of(payload, issuer, now)
        if self._is_revoked(token):
            raise NotAuthenticated("The token has been revoked.", code="revoked_token")
        return token

    def _is_revoked(self, token: _Token) -> bool:
        tenant, issuer = token.caller.tenant, token.issuer
        of_subject = self._revoked.get((tenant, issuer, token.sub, None))
        if of_subject is not None and token.issued <= of_subject.created_at + LEEWAY_SECONDS:
            return True
        return token.jti is not None and (tenant, issuer, None, token.jti) in self._revoked

    def _keep(self, text: bytes, token: _Token) -> None:
        """Remember a token; the oldest give way, first of all those of the same caller."""
        own = [known for known, one in self._known.items() if one.caller.id == token.caller.id]
        if len(own) >= _MAX_OF_CALLER:
            self._drop(own[0])
        while len(self._known) >= _MAX_KNOWN or self._known_bytes + len(text) > _MAX_KNOWN_BYTES:
            self._drop(next(iter(self._known)))
        self._known[text] = token
        self._known_bytes += len(text)

    def _drop(self, text: bytes) -> None:
        del self._known[text]
        self._known_bytes -= len(text)


def _key_of(header: _Header, keys: IssuerKeys) -> PublicKey:
    """The key that a token with this header is verified with. Raises NotAuthenticated and Unavailable."""
    if header.alg not in ALGORITHMS:
        raise _invalid(f"Tokens are signed with {', '.join(ALGORITHMS)}, and not with {header.alg!r:.20}.")
    if header.typ is not None and header.typ.lower() not in _TYPES:
        raise _invalid(f"The type of the token is {header.typ!r:.40}, and not JWT or at+jwt.")
    if header.crit is not msgspec.UNSET:
        raise _invalid("The token has critical extensions (crit), of which none is known.")
    if header.kid is None:
        raise _invalid("The token does not name the key that has signed it (kid).")
    key = keys.find(header.kid)
    if key is None and not keys.were_read:
        raise Unavailable("The keys of the token's issuer could not be read yet.", code="token_keys_unread")
    if key is None and keys.ask():
        message = "The key of the token is unknown; the keys of its issuer are being read again."
        raise Unavailable(message, code="token_keys_unread", retry_after=1.0)
    if key is None:
        raise _invalid("The token is signed with an unknown key (kid).")
    if key.algorithm != header.alg:
        raise _invalid(f"The key of the token is for {key.algorithm}, and not for {header.alg}.")
    return key


def _token_of(payload: Mapping[str, Any], issuer: TokenIssuer, now: float) -> _Token:
    """A token whose signature is right. Raises NotAuthenticated, also without a rule for it."""
    try:
        claims = msgspec.convert(payload, _Claims)
    except msgspec.ValidationError as error:
        raise _invalid(f"The claims of the token are not complete: {error}.") from None
    if issuer.audience not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud):
        raise _invalid("The token is for another audience (aud).")
    if not is_subject(claims.sub):
        raise _invalid("The subject of the token (sub) is too long, or cannot be shown.")
    until = min(claims.exp, claims.iat + issuer.max_age)
    if until <= now:
        raise NotAuthenticated(
            f"The token has expired; it is valid for at most {issuer.max_age} seconds.", code="expired_token"
        )
    if max(claims.iat, claims.nbf or 0.0) > now + LEEWAY_SECONDS:
        raise _invalid("The token is not valid yet (nbf, iat).")
    rule = first_rule(issuer.rules, payload)
    if rule is None:
        raise NotAuthenticated("No rule of this server is for the token.", code="token_without_rule")
    caller = ApiKey(
        id=caller_id("jwt", f"{issuer.issuer}:{claims.sub}"),
        name=claims.sub[:_MAX_NAME],
        digest="",
        scopes=rule.scopes,
        models=rule.models,
        created_at=claims.iat,
        expires_at=until,
        tenant=issuer.tenant,
    )
    return _Token(caller, issuer.issuer, claims.sub, claims.jti, claims.iat, until)


def _decoded(part: bytes, kind: type[T]) -> T:
    """The JSON in a part of a token. Raises NotAuthenticated."""
    try:
        return msgspec.json.decode(_bytes_of(part), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _invalid("The token cannot be read.") from None


def _bytes_of(part: bytes) -> bytes:
    """The bytes in a part of a token (base64url without padding). Raises NotAuthenticated."""
    try:
        return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except ValueError:
        raise _invalid("The token cannot be read.") from None


def _invalid(message: str) -> NotAuthenticated:
    return NotAuthenticated(message, code="invalid_token")
