"""The API key that a program uses if it names none, and the proof that a server knows it already.

Any user of a machine can listen at a port of it while the server is down. So a key that was found in a file
is sent only after the server has answered a challenge: with the HMAC of a random number and of the port, made
with the digest of the key, which the server has in its database.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import httpx

from stms_client.errors import UnprovenServer

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
PROOF: Final = "stms-proof"
"""Header of the answer to a challenge."""
NO_KEYS: Final = "no-keys"
"""Its value where the server asks for no keys."""
_TEXT: Final = re.compile(r"stms_(key_[0-9a-f]{24})_([A-Za-z0-9_-]{43})")
_MAX_BYTES: Final = 200
_PROVEN_SECONDS: Final = 5.0
_BUSY: Final = frozenset({429, 503})


class LocalKey(httpx.Auth):
    """Sends the key of a file to a server that has shown within five seconds that it knows the key.

    text: of the key. Raises UnprovenServer. A busy server, and one without keys, is asked without the key.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._proven_at = -_PROVEN_SECONDS

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Challenge the server if it is time, then send the request."""
        is_known = time.monotonic() - self._proven_at < _PROVEN_SECONDS
        if is_known or (yield from self._challenge(request)):
            request.headers["Authorization"] = f"Bearer {self._text}"
        yield request

    def _challenge(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, bool]:
        """Whether the server has shown that it knows the key."""
        key_id, nonce = self._text[5:33], secrets.token_hex(32)
        url = request.url.copy_with(path="/identity", query=f"key={key_id}&nonce={nonce}".encode("ascii"))
        response = yield httpx.Request("GET", url, extensions=request.extensions)
        proof = response.headers.get(PROOF, "")
        if response.status_code in _BUSY or proof == NO_KEYS:
            return False
        if not hmac.compare_digest(proof.encode("utf-8"), proof_of(self._text, nonce, _port(url))):
            raise UnprovenServer(
                f"The server at {url.host} port {_port(url)} does not show that it knows the API key in "
                "admin.key of the data folder, so the key was not sent: another program may listen there. If "
                "the server is the right one, name the key with STMS_API_KEY."
            )
        self._proven_at = time.monotonic()
        return True


def find_api_key(host: str | None) -> str | None:
    """The key in ``STMS_API_KEY``; for a server on this machine also that of `find_local_key`."""
    return os.environ.get("STMS_API_KEY") or find_local_key(host)


def find_local_key(host: str | None) -> str | None:
    """The key in ``admin.key`` of the data folder, which is ``STMS_DATA_DIR`` or ``stms-data``.

    host: of the server; the key is never sent to another machine. Returns None if there is no key. Raises
    ValueError if the file belongs to another user, or others may read or write it.
    """
    if host not in LOOPBACK:
        return None
    path = Path(os.environ.get("STMS_DATA_DIR") or "stms-data") / "admin.key"
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(_MAX_BYTES).decode("latin-1").strip()
    except OSError:
        return None
    if _TEXT.fullmatch(text) is None:
        return None
    advice = "Name the key with STMS_API_KEY, or another folder with STMS_DATA_DIR."
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise ValueError(
            f"The API key in {path} is not used, because the file belongs to another user. {advice}"
        )
    if os.name == "posix" and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(
            f"The API key in {path} is not used, because other users have rights on the file: "
            f"chmod 600 {path}. If others may have read it, rotate the key."
        )
    return text


def proof_of(text: str, nonce: str, port: int) -> bytes:
    """What a server at ``port`` that knows the key with this text answers to ``nonce``."""
    parts = _TEXT.fullmatch(text)
    digest = hashlib.sha256(parts[2].encode("ascii")).hexdigest() if parts else ""
    message = f"identity {nonce} {port}".encode("ascii")
    return hmac.digest(digest.encode("ascii"), message, "sha256").hex().encode("ascii")


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)
