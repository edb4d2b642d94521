"""Key sets of issuers: which keys are taken, and when they are read again."""

from __future__ import annotations

import json
import logging
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from app.auth import jwks
from app.auth.jwks import BadKeys, IssuerKeys, check_files, parse_keys, reader_of
from app.domain.caller_rules import TokenIssuer
from app.remote.connection import Answer
from app.remote.errors import RemoteFailed
from tests.system.token_issuer import issuer_setting, key_set, private_key, public_jwk, serving


def issuer(where: str | Path) -> TokenIssuer:
    return TokenIssuer.model_validate(issuer_setting(where))


def test_a_key_is_for_the_algorithm_of_its_type():
    keys = parse_keys(key_set(public_jwk("RS256"), public_jwk("ES256"), public_jwk("EdDSA")))
    assert {kid: key.algorithm for kid, key in keys.items()} == {
        "RS256-0": "RS256",
        "ES256-0": "ES256",
        "EdDSA-0": "EdDSA",
    }
    assert parse_keys(key_set(public_jwk("RS256", alg=None)))["RS256-0"].algorithm == "RS256"


def short_rsa() -> dict[str, Any]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    return {"kid": "short", "use": "sig", **json.loads(RSAAlgorithm.to_jwk(key))}


@pytest.mark.parametrize(
    "jwk",
    [
        public_jwk("RS256", use="enc"),
        public_jwk("RS256", alg="PS256"),
        public_jwk("RS256", alg="HS256"),
        public_jwk("RS256") | {"key_ops": ["encrypt"]},
        public_jwk("RS256", n="!"),
        public_jwk("ES256", crv="P-384"),
        public_jwk("ES256", x="AAAA"),
        public_jwk("EdDSA", crv="Ed448"),
        {name: value for name, value in public_jwk("ES256").items() if name != "kid"},
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"},
        public_jwk("ES256", kid=7),
        short_rsa(),
    ],
)
def test_other_keys_are_left_out(jwk: dict[str, Any]):
    assert list(parse_keys(key_set(jwk, public_jwk("ES256", 1)))) == ["ES256-1"]
    with pytest.raises(BadKeys, match="no key with a kid"):
        parse_keys(key_set(jwk))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_key_set_is_refused(data: bytes):
    with pytest.raises(BadKeys, match="not a JSON Web Key Set"):
        parse_keys(data)


def test_a_set_has_at_most_a_hundred_keys():
    with pytest.raises(BadKeys, match="more than 100"):
        parse_keys(key_set(*[public_jwk("ES256")] * 101))


def test_of_a_private_key_only_the_public_part_is_taken():
    numbers = private_key("RS256").private_numbers()
    leaked = public_jwk("RS256", d=format(numbers.d, "x"))
    assert parse_keys(key_set(leaked))["RS256-0"].verifies(b"text", b"no signature") is False


def test_keys_are_read_from_a_file_and_from_an_address(tmp_path: Path):
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(public_jwk("ES256")))
    assert reader_of(issuer(path))() == path.read_bytes()
    with serving(path.read_bytes()) as server:
        assert reader_of(issuer(server.url))() == path.read_bytes()
        server.body = None
        with pytest.raises(BadKeys, match="answers with status 503"):
            reader_of(issuer(server.url))()


@pytest.mark.parametrize(("address", "is_asked"), [("10.0.0.7", True), ("169.254.169.254", False)])
def test_a_listed_address_may_be_private_but_none_of_a_cloud_s_credentials(
    monkeypatch: pytest.MonkeyPatch, address: str, is_asked: bool
):
    asked: list[list[str]] = []

    class Connection:
        def __init__(self, _origin: Any, addresses: list[str], *_rest: Any, **_options: Any) -> None:
            asked.append(addresses)

        def request(self, *_arguments: Any) -> Answer:
            return Answer(200, b"{}")

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr("app.remote.addresses._resolve", lambda _host, _port: [address])
    monkeypatch.setattr(jwks, "RemoteConnection", Connection)
    read = reader_of(issuer("https://issuer.internal/keys"))
    with nullcontext() if is_asked else pytest.raises(RemoteFailed, match="at which no server may be asked"):
        read()
    assert asked == ([[address]] if is_asked else [])


def test_a_bad_file_stops_the_start_and_an_address_that_does_not_answer_does_not(tmp_path: Path):
    check_files((issuer("https://gone.example.com/keys"),))
    for content, text in (
        (None, "No such file"),
        (b"{}", "not a JSON Web Key Set"),
        (b" " * 300_000, "bytes"),
    ):
        path = tmp_path / "keys.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BadKeys, match=f"STMS_TOKEN_ISSUERS: the keys of .* cannot be read from .*{text}"):
            check_files((issuer(path),))


def test_a_reading_that_fails_keeps_the_keys_and_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture):
    sets = [key_set(public_jwk("ES256")), b"{}", b"{}", b"{}", key_set(public_jwk("ES256", 1))]
    keys = IssuerKeys(issuer("https://issuer.example.com/keys"), iter(sets).__next__)
    assert not keys.were_read
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        for _ in range(4):
            keys.read_once()
            assert keys.find("ES256-0") is not None
        assert (keys.failures, keys.were_read, keys.ask()) == (3, True, True)
        keys.read_once()
    assert not keys.ask()
    assert keys.find("ES256-0") is None
    assert keys.find("ES256-1") is not None
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_missing_key_has_the_set_read_again_at_most_once_a_minute(monkeypatch: pytest.MonkeyPatch):
    with serving(key_set(public_jwk("ES256"))) as server:
        keys = IssuerKeys(issuer(server.url))
        keys.start()
        keys.wait(10)
        assert (server.asked, keys.ask()) == (1, False)
        monkeypatch.setattr(jwks, "WANTED_SECONDS", 0.0)
        server.body = key_set(public_jwk("ES256", 1))
        assert keys.ask()
        deadline = time.monotonic() + 10
        while keys.find("ES256-1") is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert keys.find("ES256-1") is not None
        keys.stop()
        assert server.asked == 2
