"""An issuer of tokens, whose keys are in a file or behind an address of this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

NAME = "https://issuer.example.com"
AUDIENCE = "https://stms.example.com"
QUERY_RULE = {"claim": "sub", "prefix": "repo:acme/", "scopes": ["query"]}
_FORMS: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


def private_key(algorithm: str, number: int = 0) -> Any:
    """A private key; the same one for the same number, since that of RSA takes long to make."""
    return _made_key(algorithm, number)


@cache
def _made_key(algorithm: str, _number: int) -> Any:
    if algorithm == "RS256":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return (
        ec.generate_private_key(ec.SECP256R1())
        if algorithm == "ES256"
        else ed25519.Ed25519PrivateKey.generate()
    )


def public_jwk(algorithm: str, number: int = 0, **members: Any) -> dict[str, Any]:
    """The public key as a JSON Web Key."""
    text = _FORMS[algorithm].to_jwk(private_key(algorithm, number).public_key())
    known = {"kid": f"{algorithm}-{number}", "use": "sig", "alg": algorithm}
    jwk: dict[str, Any] = json.loads(text)
    return {name: value for name, value in (jwk | known | members).items() if name != "key_ops"}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def token(
    algorithm: str = "ES256", number: int = 0, header: dict[str, Any] | None = None, **claims: Any
) -> str:
    """A token that is right unless claims or members of the header are different; None leaves one out."""
    now = time.time()
    usual = {
        "iss": NAME,
        "aud": AUDIENCE,
        "sub": "repo:acme/app:ref:main",
        "iat": int(now),
        "nbf": int(now),
        "exp": int(now) + 600,
        "jti": "token-1",
    }
    wanted = {name: value for name, value in (usual | claims).items() if value is not None}
    members = {"kid": f"{algorithm}-{number}"} | (header or {})
    if members["kid"] is None:
        del members["kid"]
    return jwt.encode(wanted, private_key(algorithm, number), algorithm, headers=members)


def issuer_setting(jwks: str | Path, **changed: Any) -> dict[str, Any]:
    """One entry of STMS_TOKEN_ISSUERS."""
    usual = {"issuer": NAME, "audience": AUDIENCE, "jwks": str(jwks), "rules": [QUERY_RULE]}
    return usual | changed


class KeyServer(ThreadingHTTPServer):
    """Answers with a key set over HTTP. body: None for an error. asked: number of requests."""

    def __init__(self, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body: bytes | None = body
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/keys?v=1"


class _Handler(BaseHTTPRequestHandler):
    server: KeyServer

    def do_GET(self) -> None:
        self.server.asked += 1
        body = self.server.body
        self.send_response(503 if body is None or self.path != "/keys?v=1" else 200)
        self.send_header("Content-Type", "application/jwk-set+json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *arguments: Any) -> None:
        """Write nothing."""


@contextmanager
def serving(body: bytes) -> Iterator[KeyServer]:
    server = KeyServer(body)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
