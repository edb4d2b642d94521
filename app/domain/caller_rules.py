"""Callers identified by a token issuer or a proxy, and the rules for what they may do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from app.domain.names import DEFAULT_TENANT, DISPLAY_NAME, ModelName, TenantName, is_display_name
from app.domain.origins import Origin

MAX_SUBJECT: Final = 255
"""Characters of the name that an issuer or a proxy gives a caller; OpenID Connect limits ``sub`` to this."""
MAX_ISSUER: Final = 200
MAX_AGE_SECONDS: Final = 3600
"""Longest validity of a token after it was issued."""
_MAX_ID: Final = 100
"""Characters in the id of a caller, as the audit log stores them."""
_DIGITS: Final = 24

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SUBJECT)]
Scope: TypeAlias = Literal["admin", "train", "download", "query"]
"""Scopes that a rule can give. No rule can make an operator, who has access to all tenants."""


class Rule(BaseModel):
    """Gives scopes to the callers one of whose claims equals a text, or begins with one.

    Of a claim that is a list of texts, one text has to. models: as in `ApiKey`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: Text
    equals: Text | None = None
    prefix: Text | None = None
    scopes: frozenset[Scope] = Field(min_length=1)
    models: frozenset[ModelName] = Field(frozenset(), max_length=1000)

    @model_validator(mode="after")
    def _is_one_rule(self) -> Self:
        if (self.equals is None) == (self.prefix is None):
            raise ValueError("a rule has either equals or prefix")
        if self.prefix is not None and self.prefix[-1].isalnum():
            # What follows could continue the last name: prod also begins production.
            raise ValueError("a prefix ends with the sign behind a name, such as : or /")
        if self.models and not self.scopes <= {"query", "download"}:
            raise ValueError("only the scopes query and download can be limited to models")
        return self

    def applies(self, claims: Mapping[str, object]) -> bool:
        """Whether the rule applies to a caller with these claims."""
        claim = claims.get(self.claim)
        texts = claim if isinstance(claim, list) else [claim]
        return any(isinstance(text, str) and self._fits(text) for text in texts)

    def _fits(self, text: str) -> bool:
        return text == self.equals if self.prefix is None else text.startswith(self.prefix)


class ProxyRule(Rule):
    """A rule for people whom a proxy has signed in. claim: ``user`` or ``groups``."""

    claim: Literal["user", "groups"]
    tenant: TenantName = DEFAULT_TENANT


class TokenIssuer(BaseModel):
    """Who issues tokens for callers of one tenant.

    issuer, audience: what ``iss`` and ``aud`` of its tokens say. jwks: where its public keys are, an https
    address or the path of a file. rules: the first that applies gives the scopes. max_age: seconds after
    ``iat`` beyond which a token is not valid, also if its ``exp`` is later.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(max_length=MAX_ISSUER, pattern=DISPLAY_NAME)
    audience: Text
    jwks: str = Field(max_length=2000)
    tenant: TenantName = DEFAULT_TENANT
    rules: list[Rule] = Field(min_length=1, max_length=100)
    max_age: int = Field(MAX_AGE_SECONDS, ge=60, le=MAX_AGE_SECONDS)

    @field_validator("jwks")
    @classmethod
    def _is_address_or_file(cls, value: str) -> str:
        if "://" not in value:
            if not Path(value).is_absolute():
                raise ValueError("jwks is an https address, or the absolute path of a file")
            return value
        origin, _ = split_address(value)
        is_local = origin.host == "localhost" or (origin.number is not None and origin.number.is_loopback)
        if origin.scheme != "https" and not is_local:
            raise ValueError("the address of jwks must begin with https://")
        return value


def split_address(address: str) -> tuple[Origin, str]:
    """Origin, and path with query, of an address without a fragment. Raises ValueError."""
    parts = urlsplit(address)
    if parts.fragment or not address.isascii() or not address.isprintable() or " " in address:
        raise ValueError("jwks is not an address")
    path = parts.path or "/"
    return Origin.of(f"{parts.scheme}://{parts.netloc}"), f"{path}?{parts.query}" if parts.query else path


AnyRule = TypeVar("AnyRule", bound=Rule)


def first_rule(rules: Iterable[AnyRule], claims: Mapping[str, object]) -> AnyRule | None:
    """The first rule for a caller with these claims."""
    return next((rule for rule in rules if rule.applies(claims)), None)


def is_subject(text: str) -> bool:
    """Whether a text can be the name that an issuer or a proxy gives a caller."""
    return is_display_name(text, MAX_SUBJECT)


def caller_id(kind: str, name: str) -> str:
    """The id of a caller: kind and name; if they are too long for an id, it begins with a digest of them."""
    whole = f"{kind}:{name}"
    if len(whole) <= _MAX_ID:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGITS]
    return f"{kind}~{digest}:{name}"[:_MAX_ID]
