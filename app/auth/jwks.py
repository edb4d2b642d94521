"""The public keys of token issuers (JSON Web Key Sets, RFC 7517), each read by a thread of its own.

Needs the packages of the extra ``oidc``; only a server with issuers imports this module.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from app.domain.caller_rules import TokenIssuer, split_address
from app.domain.errors import SetupError
from app.domain.origins import AllowedServers
from app.remote.addresses import addresses_of
from app.remote.connection import RemoteConnection

logger = logging.getLogger("uvicorn.error")
"""The log that the server sets up."""

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
READ_SECONDS: Final = 300.0
"""Seconds between two readings."""
WANTED_SECONDS: Final = 60.0
"""Seconds between two readings at least that are made because a key is missing."""
_FAILED_SECONDS: Final = 15.0
"""Seconds until a reading that failed is repeated."""
_TIMEOUT: Final = 10.0
_MAX_BYTES: Final = 256 * 1024
_MAX_KEYS: Final = 100
_RSA_BITS: Final = range(2048, 8193)
_ACCEPTED: Final = "application/jwk-set+json, application/json"

Read: TypeAlias = Callable[[], bytes]
"""Returns a JSON Web Key Set; raises an exception that says what failed."""


class BadKeys(SetupError):
    """A key set cannot be used."""


class _Jwk(msgspec.Struct):
    """The members of a public key; the others, such as those of a private one, are not read."""

    kty: str
    kid: str
    use: str = "sig"
    alg: str | None = None
    key_ops: list[str] = msgspec.field(default_factory=lambda: ["verify"])
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


class _KeySet(msgspec.Struct):
    keys: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that signatures are verified with, and the only algorithm that it is for."""

    algorithm: str
    _key: jwt.PyJWK

    def verifies(self, signed: bytes, signature: bytes) -> bool:
        """Whether the signature of these bytes was made with the private key."""
        return self._key.Algorithm.verify(signed, self._key.key, signature)


Keys: TypeAlias = Mapping[str, PublicKey]
"""Keys by ``kid``."""


def parse_keys(data: bytes) -> Keys:
    """The keys of a set that signatures of tokens can be verified with; others are left out.

    Raises BadKeys if there are none.
    """
    try:
        found = msgspec.json.decode(data, type=_KeySet).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadKeys(f"not a JSON Web Key Set: {error}") from None
    if len(found) > _MAX_KEYS:
        raise BadKeys(f"more than {_MAX_KEYS} keys")
    keys: dict[str, PublicKey] = {}
    for raw in found:
        try:
            jwk = msgspec.json.decode(raw, type=_Jwk)
        except (msgspec.MsgspecError, RecursionError):
            continue
        key = _public_key(jwk)
        if key is not None:
            keys.setdefault(jwk.kid, key)
    if not keys:
        raise BadKeys(f"no key with a kid for {', '.join(ALGORITHMS)}")
    return keys


def _public_key(jwk: _Jwk) -> PublicKey | None:
    """The key, or None if it is not for signatures of a known algorithm, or too short or too long."""
    if jwk.kty == "RSA":
        algorithm, members = "RS256", {"n": jwk.n, "e": jwk.e}
    elif (jwk.kty, jwk.crv) == ("EC", "P-256"):
        algorithm, members = "ES256", {"crv": jwk.crv, "x": jwk.x, "y": jwk.y}
    elif (jwk.kty, jwk.crv) == ("OKP", "Ed25519"):
        algorithm, members = "EdDSA", {"crv": jwk.crv, "x": jwk.x}
    else:
        return None
    if jwk.use != "sig" or jwk.alg not in {None, algorithm} or "verify" not in jwk.key_ops:
        return None
    try:
        key = jwt.PyJWK({"kty": jwk.kty} | members, algorithm)
    except jwt.PyJWTError:
        return None
    if isinstance(key.key, RSAPublicKey) and key.key.key_size not in _RSA_BITS:
        return None
    return PublicKey(algorithm, key)


class IssuerKeys:
    """The keys of one issuer, in memory.

    A reading that fails is logged, counted in ``failures``, and leaves the keys as they are. read: reads the
    set, by default from where the issuer says.
    """

    def __init__(self, issuer: TokenIssuer, read: Read | None = None) -> None:
        self._issuer = issuer
        self._read = read or reader_of(issuer)
        self._keys: Keys | None = None
        self._wanted, self._tried = threading.Event(), threading.Event()
        self._is_asked = self._is_stopped = self._is_failing = False
        self._read_at = 0.0
        self.failures = 0

    @property
    def were_read(self) -> bool:
        """Whether the keys were read at least once."""
        return self._keys is not None

    def find(self, kid: str) -> PublicKey | None:
        """The key with this id."""
        return None if self._keys is None else self._keys.get(kid)

    def ask(self) -> bool:
        """Have the keys read again because one is missing; returns whether that is about to happen.

        After a failure they are read again soon in any case.
        """
        if not self._is_asked and time.monotonic() - self._read_at >= WANTED_SECONDS:
            self._is_asked = True
            self._wanted.set()
        return self._is_asked or self._is_failing

    def start(self) -> None:
        """Read the keys from now on in a thread, which ends with the process."""
        threading.Thread(target=self._run, name="stms-jwks", daemon=True).start()

    def stop(self) -> None:
        """Read no more keys."""
        self._is_stopped = True
        self._wanted.set()

    def wait(self, seconds: float) -> None:
        """Wait until the first reading has ended, but not longer. Blocks."""
        self._tried.wait(seconds)

    def read_once(self) -> None:
        """Read the keys. Blocks."""
        try:
            self._keys = parse_keys(self._read())
        except Exception as error:  # noqa: BLE001 - every failure is retried
            self.failures += 1
            if not self._is_failing:
                logger.error("the keys of token issuer %s cannot be read: %s", self._issuer.issuer, error)
            self._is_failing = True
        else:
            if self._is_failing:
                logger.warning("the keys of token issuer %s can be read again", self._issuer.issuer)
            self._is_failing = False
        self._read_at = time.monotonic()
        self._is_asked = False
        self._tried.set()

    def _run(self) -> None:
        while not self._is_stopped:
            self._wanted.clear()
            self.read_once()
            self._wanted.wait(_FAILED_SECONDS if self._is_failing else READ_SECONDS)


def reader_of(issuer: TokenIssuer) -> Read:
    """Reads the key set of an issuer from its file or address."""
    if "://" not in issuer.jwks:
        return lambda: _read_file(Path(issuer.jwks))
    origin, path = split_address(issuer.jwks)
    # The operator has listed the origin, so it may be at a private address; see `app.remote.addresses`.
    allowed = AllowedServers(frozenset({origin}))

    def read() -> bytes:
        connection = RemoteConnection(origin, addresses_of(origin, allowed), _TIMEOUT, accept=_ACCEPTED)
        try:
            answer = connection.request("GET", path, None, _MAX_BYTES)
        finally:
            connection.close()
        if answer.status != 200:
            raise BadKeys(f"{origin} answers with status {answer.status}")
        return answer.body

    return read


def check_files(issuers: Sequence[TokenIssuer]) -> None:
    """Raise BadKeys if a file with the keys of an issuer cannot be used. An address may be away at first."""
    for issuer in issuers:
        if "://" not in issuer.jwks:
            try:
                parse_keys(_read_file(Path(issuer.jwks)))
            except (BadKeys, OSError) as error:
                message = f"the keys of {issuer.issuer} cannot be read from {issuer.jwks}: {error}"
                raise BadKeys(f"STMS_TOKEN_ISSUERS: {message}") from None


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise BadKeys(f"more than {_MAX_BYTES} bytes")
    return data
