"""Tokens of issuers: which are accepted, why the others are refused, and what is remembered of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from app.auth import jwks, tokens
from app.auth.authenticator import Authenticator
from app.auth.jwks import IssuerKeys
from app.auth.tokens import Tokens
from app.domain.caller_rules import TokenIssuer
from app.domain.entities import ApiKey, TokenRevocation
from app.domain.errors import NotAuthenticated, RateLimited, Unavailable
from app.settings import Settings
from tests.refusals import refused_as
from tests.system.token_issuer import (
    NAME,
    QUERY_RULE,
    issuer_setting,
    key_set,
    private_key,
    public_jwk,
    token,
)

SUBJECT = "repo:acme/app:ref:main"
CALLER = f"jwt:{NAME}:{SUBJECT}"
KEYS = key_set(public_jwk("RS256"), public_jwk("ES256"), public_jwk("EdDSA"))


def pass_check() -> None:
    """No address has failed too often."""


def make(read: Callable[[], bytes] = lambda: KEYS, **changed: Any) -> Tokens:
    issuer = TokenIssuer.model_validate(issuer_setting("https://issuer.example.com/keys", **changed))
    keys = IssuerKeys(issuer, read)
    keys.read_once()
    return Tokens([(issuer, keys)])


def known(text: str | bytes, found: Tokens | None = None) -> ApiKey:
    text = text.encode() if isinstance(text, str) else text
    return (found or make()).recognise(text, pass_check)[0]


def refusal(text: str | bytes, found: Tokens | None = None) -> tuple[str, str]:
    with pytest.raises(NotAuthenticated) as error:
        known(text, found)
    return error.value.reason, error.value.message


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_token_is_a_caller_until_it_expires(algorithm: str):
    expiry = int(time.time()) + 100
    caller, until = make().recognise(token(algorithm, exp=expiry).encode(), pass_check)
    assert (caller.id, caller.name, caller.tenant, caller.digest) == (CALLER, SUBJECT, "default", "")
    assert (caller.scopes, caller.models) == ({"query"}, frozenset())
    assert until == caller.expires_at == expiry


def test_scopes_are_those_of_the_first_rule_that_applies():
    rules = [
        {"claim": "groups", "equals": "ops", "scopes": ["admin"]},
        {"claim": "sub", "equals": SUBJECT, "scopes": ["query", "download"], "models": ["pets"]},
        QUERY_RULE,
    ]
    found = make(rules=rules, tenant="acme")
    assert known(token(groups=["dev", "ops"]), found).scopes == {"admin"}
    assert known(token(groups="ops"), found).scopes == {"admin"}
    caller = known(token(groups=["devops", 1]), found)
    assert (caller.scopes, caller.models, caller.tenant) == ({"query", "download"}, {"pets"}, "acme")
    assert known(token(sub="repo:acme/other"), found).scopes == {"query"}
    assert refusal(token(sub="repo:acmeevil/app"), found)[0] == "token_without_rule"


def test_a_token_lives_no_longer_than_its_issuer_may_let_it():
    now = int(time.time())
    found = make(max_age=60)
    assert known(token(iat=now - 30, exp=now + 999), found).expires_at == now + 30
    assert refusal(token(iat=now - 60, exp=now + 999), found) == (
        "expired_token",
        "The token has expired; it is valid for at most 60 seconds.",
    )


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(header: dict[str, Any], signature: bytes = b"x") -> str:
    payload = jwt.decode(token(), options={"verify_signature": False})
    return f"{part(header)}.{part(payload)}.{part(signature)}"


def signed_with_public_key() -> str:
    """HS256 with the published RSA key as its secret."""
    public = private_key("RS256").public_key()
    secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = unsigned({"alg": "HS256", "typ": "JWT", "kid": "RS256-0"}).rpartition(".")[0]
    return f"{text}.{part(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def forged() -> str:
    head, payload, signature = token("RS256").split(".")
    other = part(jwt.decode(token(sub="repo:acme/root"), options={"verify_signature": False}))
    assert payload != other
    return f"{head}.{other}.{signature}"


REFUSED = {
    "forged": (forged, "The signature of the token is wrong."),
    "of another key": (
        lambda: token("ES256", 5, {"kid": "ES256-0"}),
        "The signature of the token is wrong.",
    ),
    "no signature": (
        lambda: unsigned({"alg": "ES256", "kid": "ES256-0"}),
        "The signature of the token is wrong.",
    ),
    "alg none": (
        lambda: unsigned({"alg": "none", "kid": "RS256-0"}),
        "Tokens are signed with RS256, ES256, EdDSA, and not with 'none'.",
    ),
    "alg none and nothing behind it": (
        lambda: unsigned({"alg": "none", "kid": "RS256-0"}, b""),
        "The token does not have the form of a JSON Web Token.",
    ),
    "HS256 with the public key": (
        signed_with_public_key,
        "Tokens are signed with RS256, ES256, EdDSA, and not with 'HS256'.",
    ),
    "key of another algorithm": (
        lambda: token("ES256", 0, {"kid": "RS256-0"}),
        "The key of the token is for RS256, and not for ES256.",
    ),
    "type": (
        lambda: token(header={"typ": "logout+jwt"}),
        "The type of the token is 'logout+jwt', and not JWT or at+jwt.",
    ),
    "crit": (
        lambda: token(header={"crit": ["exp2"], "exp2": 1}),
        "The token has critical extensions (crit), of which none is known.",
    ),
    "empty crit": (
        lambda: token(header={"crit": None}),
        "The token has critical extensions (crit), of which none is known.",
    ),
    "no kid": (
        lambda: token(header={"kid": None}),
        "The token does not name the key that has signed it (kid).",
    ),
    "unknown kid": (
        lambda: token(header={"kid": "gone"}),
        "The token is signed with an unknown key (kid).",
    ),
    "issuer": (
        lambda: token(iss="https://evil.example.com"),
        "The issuer of the token is not one of those whose tokens are accepted.",
    ),
    "issuer that is a list": (
        lambda: unsigned({"alg": "ES256", "kid": "ES256-0"}).replace(
            unsigned({}).split(".")[1], part({"iss": [NAME]})
        ),
        "The issuer of the token is not one of those whose tokens are accepted.",
    ),
    "audience": (lambda: token(aud="https://other.example.com"), "The token is for another audience (aud)."),
    "audiences": (lambda: token(aud=["a", "b"]), "The token is for another audience (aud)."),
    "nbf": (lambda: token(nbf=int(time.time()) + 900), "The token is not valid yet (nbf, iat)."),
    "iat": (lambda: token(iat=int(time.time()) + 900), "The token is not valid yet (nbf, iat)."),
    "subject": (
        lambda: token(sub="x" * 256),
        "The subject of the token (sub) is too long, or cannot be shown.",
    ),
    "line break": (
        lambda: token(sub="repo:acme/\n"),
        "The subject of the token (sub) is too long, or cannot be shown.",
    ),
    **{
        f"without {name}": (
            lambda name=name: token(**{name: None}),
            f"The claims of the token are not complete: Object missing required field `{name}`.",
        )
        for name in ("aud", "sub", "exp", "iat")
    },
    "exp that is a text": (
        lambda: raw_claims(exp="soon"),
        "The claims of the token are not complete: Expected `float`, got `str` - at `$.exp`.",
    ),
    "oversized": (
        lambda: token(padding="x" * 4000),
        "The token has more than 4096 bytes.",
    ),
    "other characters": (
        lambda: token() + "=",
        "The token does not have the form of a JSON Web Token.",
    ),
}


def raw_claims(**claims: Any) -> str:
    """A signed token with claims that a library would not write."""
    payload = jwt.decode(token(), options={"verify_signature": False}) | claims
    header = {"kid": "ES256-0"}
    return jwt.api_jws.encode(json.dumps(payload).encode(), private_key("ES256"), "ES256", headers=header)


@pytest.mark.parametrize("name", REFUSED)
def test_a_token_that_is_not_right_is_refused_with_the_reason(name: str):
    text, message = REFUSED[name]
    assert refusal(text()) == ("invalid_token", message)


def test_an_expired_token_is_refused():
    assert refusal(token(exp=int(time.time()) - 1)) == (
        "expired_token",
        "The token has expired; it is valid for at most 3600 seconds.",
    )


def test_the_types_of_access_tokens_and_none_are_accepted():
    for typ in ("JWT", "jwt", "at+jwt", "application/at+JWT", None):
        assert known(token(header={"typ": typ})).id == CALLER


def test_audiences_and_a_clock_that_is_ahead_are_accepted():
    now = int(time.time())
    assert known(token(aud=["a", "https://stms.example.com"], nbf=None)).id == CALLER
    assert known(token(iat=now + 20, nbf=now + 20, exp=now + 60)).id == CALLER


def test_a_long_name_keeps_its_beginning_and_gets_a_digest():
    callers = {known(token(sub=f"repo:acme/{'x' * 200}{end}")).id for end in "ab"}
    assert len(callers) == 2
    assert {len(caller) for caller in callers} == {100}
    assert all(caller.startswith("jwt~") and f":{NAME}:repo:acme/xxx" in caller for caller in callers)


PIECES = st.sampled_from(
    [
        token().split(".")[1],
        *(part(value) for value in (b"[" * 2000, b'{"iss":1e999}', {"alg": 1}, b"\xff", {})),
    ]
) | st.binary(max_size=40).map(part)


@given(st.lists(PIECES | st.text(max_size=20), min_size=3, max_size=3))
def test_no_text_leads_to_another_error(pieces: list[str]):
    assert refusal(".".join(pieces).encode("utf-8", "surrogatepass"))[0] == "invalid_token"


@pytest.mark.parametrize("value", [10**400, 1e308, -1e308, -1, 2**63, 0])
@pytest.mark.parametrize("claim", ["exp", "iat", "nbf"])
def test_times_beyond_all_bounds_lead_to_no_other_error(claim: str, value: float):
    text = raw_claims(**{claim: value})
    if (claim, value) in {("exp", 1e308), ("exp", 2**63), ("nbf", 0), ("nbf", -1), ("nbf", -1e308)}:
        assert known(text).expires_at <= time.time() + 3600
    else:
        assert refusal(text)[0] in {"invalid_token", "expired_token"}


class Counting:
    """Counts the verifications that are asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_a_token_is_verified_once_whether_it_is_right_or_not(monkeypatch: pytest.MonkeyPatch):
    found, count = make(), Counting()
    good, bad = token().encode(), forged().encode()
    for _ in range(3):
        assert found.recognise(good, count)[0].id == CALLER
        assert found.recognise(good, None)[0].id == CALLER
        with pytest.raises(NotAuthenticated):
            found.recognise(bad, count)
        with pytest.raises(NotAuthenticated, match="signature"):
            found.recognise(bad, None)
    assert (count.count, found.outcomes) == (2, {"verified": 1, "refused": 1})
    monkeypatch.setattr(tokens, "_REFUSED_SECONDS", -1.0)
    found = make()
    for _ in range(2):
        with pytest.raises(NotAuthenticated, match="signature"):
            found.recognise(bad, count)
    assert found.outcomes["refused"] == 2, "after some seconds it is looked at again"


def test_without_an_address_no_token_is_verified():
    found = make()
    with pytest.raises(NotAuthenticated, match="has not been verified"):
        found.recognise(token().encode(), None)
    assert found.outcomes == {"verified": 0, "refused": 0}


def test_a_known_token_ends_at_its_expiry(monkeypatch: pytest.MonkeyPatch):
    found, expiry = make(), int(time.time()) + 50
    text = token(exp=expiry).encode()
    known(text, found)
    assert found.is_valid(CALLER)
    monkeypatch.setattr(time, "time", lambda: float(expiry))
    assert not found.is_valid(CALLER)
    assert refusal(text, found)[0] == "expired_token"


def test_a_flood_of_wrong_tokens_evicts_no_valid_one_and_keeps_little():
    found, good = make(), token().encode()
    known(good, found)
    head, payload, _ = forged().split(".")
    for number in range(600):
        refusal(f"{head}.{payload}.{part(b'%d' % number)}", found)
    assert found.recognise(good, None)[0].id == CALLER
    assert len(found._refused) <= 256


def test_of_verified_tokens_a_bounded_number_is_kept_for_each_caller_and_in_all(
    monkeypatch: pytest.MonkeyPatch,
):
    found, mine = make(), token(sub="repo:acme/mine").encode()
    known(mine, found)
    many = [token("EdDSA", jti=str(number)).encode() for number in range(20)]
    for text in many:
        known(text, found)
    assert found.recognise(mine, None)[0].name == "repo:acme/mine", "another caller takes nothing of it"
    assert [text in found._known for text in many] == [False] * 4 + [True] * 16
    monkeypatch.setattr(tokens, "_MAX_KNOWN", 10)
    known(token(sub="repo:acme/new"), found)
    assert len(found._known) == 10
    monkeypatch.setattr(tokens, "_MAX_KNOWN_BYTES", 1500)
    known(token(sub="repo:acme/newer"), found)
    assert found._known_bytes == sum(map(len, found._known)) <= 1500


def revocation(at: float, **changed: Any) -> TokenRevocation:
    usual = {"id": "rev_1", "tenant": "default", "issuer": NAME, "sub": SUBJECT, "jti": None, "reason": ""}
    return TokenRevocation(**(usual | changed), created_by="key_1", created_at=at, expires_at=at + 3660)


def test_a_revoked_subject_needs_a_token_that_was_issued_later():
    found, now = make(), int(time.time())
    before, after = token(iat=now - 100).encode(), token(iat=now).encode()
    known(before, found)
    known(after, found)
    found.revoke([revocation(now - 50)])
    assert refusal(before, found) == ("revoked_token", "The token has been revoked.")
    assert known(after, found).id == CALLER
    found.revoke([revocation(now - 80, id="rev_0")])
    assert refusal(before, found)[0] == "revoked_token"
    found.replace_revocations([])
    assert known(before, found).id == CALLER


@pytest.mark.parametrize(
    ("changed", "is_revoked"),
    [
        ({"sub": None, "jti": "token-1"}, True),
        ({"sub": None, "jti": "token-2"}, False),
        ({"sub": "repo:acme/app"}, False),
        ({"issuer": "https://other.example.com"}, False),
        ({"tenant": "acme"}, False),
    ],
)
def test_a_revocation_concerns_one_token_or_subject_of_one_issuer_and_tenant(
    changed: dict[str, Any], is_revoked: bool
):
    found, text = make(), token()
    known(text, found)
    found.revoke([revocation(time.time(), **changed)])
    if is_revoked:
        assert refusal(text, found)[0] == "revoked_token"
    else:
        assert known(text, found).id == CALLER


def test_what_has_expired_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    found, now = make(), time.time()
    known(token(), found)
    found.revoke([revocation(now, sub="repo:acme/other")])
    found.sweep()
    assert (len(found._known), len(found._revoked)) == (1, 1)
    monkeypatch.setattr(time, "time", lambda: now + 4000)
    found.sweep()
    assert (found._known, found._known_bytes, found._revoked) == ({}, 0, {})


def test_an_unknown_key_is_waited_for_while_it_is_read(monkeypatch: pytest.MonkeyPatch):
    sets = iter([KEYS, key_set(public_jwk("ES256", 1))])
    issuer = TokenIssuer.model_validate(issuer_setting("https://issuer.example.com/keys"))
    keys = IssuerKeys(issuer, sets.__next__)
    found = Tokens([(issuer, keys)])
    new, old = token("ES256", 1), token()
    with refused_as(Unavailable, "token_keys_unread"):
        known(old, found)
    keys.read_once()
    assert known(old, found).id == CALLER
    assert refusal(new, found)[1] == "The token is signed with an unknown key (kid)."
    found._refused = {}
    monkeypatch.setattr(jwks, "WANTED_SECONDS", 0.0)
    with pytest.raises(Unavailable) as error:
        known(new, found)
    assert (error.value.reason, error.value.retry_after) == ("token_keys_unread", 1.0)
    keys.read_once()
    monkeypatch.setattr(jwks, "WANTED_SECONDS", 60.0)
    assert known(new, found).id == CALLER
    assert known(old, found).id == CALLER, "until it expires, although its key is gone"
    assert refusal(token(jti="another"), found)[1] == "The token is signed with an unknown key (kid)."


def authenticator(**changed: Any) -> Authenticator:
    entry = issuer_setting("https://issuer.example.com/keys", tenant="acme")
    settings = Settings(require_keys=True, token_issuers=[entry], **changed)
    found = Authenticator(settings, tokens=make(tenant="acme"))
    found.replace([])
    return found


def request(text: str, address: str = "192.0.2.1") -> Any:
    headers = [(b"authorization", b"Bearer " + text.encode())]
    return {"type": "http", "headers": headers, "client": (address, 1), "state": {}}


def test_an_authenticator_takes_tokens_and_knows_their_tenants():
    found = authenticator()
    scope = request(token())
    assert found.authenticate(scope) is scope["state"]["caller"]
    assert found.caller_of(scope["headers"]).id == CALLER
    assert found.is_valid(CALLER)
    assert not found.is_valid("jwt:other")
    assert (found.has_customers, found.has_tenants) == (True, False)
    assert found.drain_usage() == {}, "only keys have rows"
    key = {b"x-api-key": token().encode()}
    assert found.identify_until(key, ("192.0.2.1", 1), [])[0].id == CALLER


def test_without_issuers_a_token_is_a_malformed_key():
    found = Authenticator(Settings(require_keys=True))
    found.replace([])
    with refused_as(NotAuthenticated, "invalid_key", match="does not have the form stms_"):
        found.authenticate(request(token()))


def test_an_address_with_too_many_wrong_tokens_has_no_more_of_them_verified():
    found, good = authenticator(auth_failure_rate=2), token()
    head, payload, _ = forged().split(".")
    codes = []
    for number in range(20):
        with pytest.raises((NotAuthenticated, RateLimited)) as error:
            found.authenticate(request(f"{head}.{payload}.{part(b'%d' % number)}"))
        codes.append(error.value.reason)
    verified = found._tokens.outcomes["refused"]
    assert codes[:2] == ["invalid_token"] * 2
    assert set(codes[5:]) == {"too_many_failures"}
    assert verified <= 4
    assert found.rate_limiter.refused["auth_failures"] >= 15
    assert found.rate_limiter.refused["rate_limited"] == 0
    assert found.authenticate(request(good, "198.51.100.7")).id == CALLER, "another address"
    assert found.authenticate(request(good)).id == CALLER, "a known token"
    with pytest.raises(RateLimited, match="Too many wrong"):
        found.authenticate(request(token(jti="new")))


def test_the_rate_limit_is_that_of_the_subject():
    found = authenticator(rate_limit=0.001, rate_burst=2)
    found.authenticate(request(token(jti="1")))
    found.authenticate(request(token(jti="2")))
    with pytest.raises(RateLimited, match="This API key may make"):
        found.authenticate(request(token(jti="3")))
    assert found.authenticate(request(token(sub="repo:acme/other"))).name == "repo:acme/other"
