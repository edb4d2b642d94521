"""Issuers of tokens at the start, and the revocation of their tokens, on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.token_issuer import NAME, issuer_setting, key_set, public_jwk


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(public_jwk("ES256")))
    return path


def issuers(*entries: dict[str, Any]) -> dict[str, str]:
    return {"STMS_TOKEN_ISSUERS": json.dumps(entries)}


def started(run: Any, entry: dict[str, Any], command: str = "api") -> str:
    """What a server says that does not start."""
    result = run(command, **issuers(entry))
    assert result.exit_code == 1
    return str(result.stderr)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"audience": None}, "STMS_TOKEN_ISSUERS[0].audience: Input should be a valid string"),
        ({"jwks": "keys.json"}, "jwks is an https address, or the absolute path of a file"),
        ({"jwks": "http://issuer.example.com/keys"}, "must begin with https://"),
        ({"jwks": "https://user:word@issuer.example.com/keys"}, "has more than scheme, host and port"),
        ({"jwks": "https://issuer.example.com/keys#1"}, "jwks is not an address"),
        ({"max_age": 3601}, "STMS_TOKEN_ISSUERS[0].max_age: Input should be less than or equal to 3600"),
        ({"rules": []}, "STMS_TOKEN_ISSUERS[0].rules: List should have at least 1 item"),
        (
            {"rules": [{"claim": "sub", "prefix": "prod", "scopes": ["query"]}]},
            "STMS_TOKEN_ISSUERS[0].rules[0]: Value error, a prefix ends with the sign behind a name",
        ),
        ({"tenant": "a b"}, "STMS_TOKEN_ISSUERS[0].tenant: String should match pattern"),
        ({"audiences": []}, "STMS_TOKEN_ISSUERS[0].audiences: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_issuer_stops_the_start_with_the_place_of_the_fault(
    run: Any, keys: Path, changed: dict[str, Any], message: str
) -> None:
    assert message in started(run, issuer_setting(keys) | changed)


def test_two_entries_for_one_issuer_stop_the_start(run: Any, keys: Path) -> None:
    result = run("api", **issuers(issuer_setting(keys), issuer_setting(keys, audience="other")))
    assert "STMS_TOKEN_ISSUERS: Value error, each issuer is listed once" in result.stderr


@pytest.mark.parametrize("command", ["api", "serve"])
def test_a_file_of_keys_that_cannot_be_used_stops_the_start(run: Any, tmp_path: Path, command: str) -> None:
    said = started(run, issuer_setting(tmp_path / "gone.json"), command)
    assert f"STMS_TOKEN_ISSUERS: the keys of {NAME} cannot be read from {tmp_path}/gone.json" in said


@pytest.mark.parametrize("package", ["jwt", "cryptography.hazmat.primitives.asymmetric.rsa"])
def test_a_missing_package_stops_the_start_and_says_which_extra_has_it(
    run: Any, keys: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "app.auth.jwks", raising=False)
    said = started(run, issuer_setting(keys))
    assert "STMS_TOKEN_ISSUERS needs PyJWT and cryptography" in said
    assert "pip install 'stms[oidc]'" in said


def test_tokens_are_revoked_and_listed(run: Any, keys: Path, tmp_path: Path) -> None:
    given = issuers(issuer_setting(keys, tenant="acme")) | {"STMS_DATA_DIR": str(tmp_path / "data")}
    assert run("db", "upgrade", **given).exit_code == 0
    assert "No tokens are revoked." in run("keys", "revoked-tokens", **given).stdout
    done = run("keys", "revoke-tokens", NAME, "--sub", "robot", "--reason", "lost", **given)
    assert done.exit_code == 0, done.stderr
    [shown] = json.loads(run("keys", "revoked-tokens", "--json", **given).stdout)
    assert (shown["tenant"], shown["sub"], shown["reason"]) == ("acme", "robot", "lost")
    assert "robot" in run("keys", "revoked-tokens", **given).stdout
    for arguments, message in (
        ((NAME,), "Give either sub or jti."),
        (("https://other.example.com", "--jti", "1"), "has no token issuer"),
    ):
        refused = run("keys", "revoke-tokens", *arguments, **given)
        assert refused.exit_code == 1
        assert message in refused.stderr
