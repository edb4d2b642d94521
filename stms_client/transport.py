"""Connection options and file uploads of both clients."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from stms_client.local_key import LOOPBACK, LocalKey, find_local_key

TIMEOUT = httpx.Timeout(60, connect=10)
STREAM_TIMEOUT = httpx.Timeout(60, connect=10, read=None)
UPLOAD_TIMEOUT = httpx.Timeout(60, connect=10, read=3600)
"""The server validates and stores a file before it responds, which takes minutes for gigabytes."""
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30)
"""Idle connections are closed before the server does so (75 s), so that none breaks during a request."""

_PIECE_BYTES = 1 << 18

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes sent so far and in total."""
Parameters: TypeAlias = Mapping[str, str | Sequence[str]]
"""Query parameters; one with several values is repeated."""


def options(
    address: str,
    api_key: str | None,
    timeout: float | None,
    user_agent: str,
    ca: str | Path | ssl.SSLContext | None = None,
) -> dict[str, Any]:
    """Arguments of httpx's clients. Raises ValueError for what is not the address of a server.

    api_key: None for the key in ``STMS_API_KEY`` or that `find_local_key` finds; an empty text for none.
    ca: file of certificates, see `AsyncClient`. Raises OSError if it cannot be used.
    """
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        httpx.URL(address)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"{address!r} is not an address of a server: {error}.") from error
    if not is_address:
        raise ValueError(
            f"{address!r} is not an address of a server: it must begin with http:// or https://."
        )
    key = (os.environ.get("STMS_API_KEY", "") if api_key is None else api_key).strip()
    if not (key.isascii() and key.isprintable()):
        # An error of the transport would contain the key.
        raise ValueError("The API key has characters that no key has.")
    local = None if key or api_key is not None else find_local_key(parts.hostname)
    if ca is None and parts.scheme == "https":
        ca = os.environ.get("SSL_CERT_FILE") or None
    # A proxy named in the environment cannot reach the loopback addresses of this machine.
    trust_env = parts.hostname not in LOOPBACK
    return {
        "base_url": address,
        "verify": _trusted(ca, is_encrypted=parts.scheme == "https" or bool(trust_env and getproxies())),
        "headers": {"User-Agent": user_agent} | ({"Authorization": f"Bearer {key}"} if key else {}),
        "auth": None if local is None else LocalKey(local),
        "timeout": TIMEOUT if timeout is None else httpx.Timeout(timeout, connect=min(timeout, 10)),
        "limits": LIMITS,
        "trust_env": trust_env,
    }


def _trusted(ca: str | Path | ssl.SSLContext | None, *, is_encrypted: bool) -> ssl.SSLContext | bool:
    if isinstance(ca, str | Path):
        return ssl.create_default_context(cafile=ca)
    if ca is None and not is_encrypted:
        # To load the certificates of all authorities takes 25 ms, and none of them would be looked at.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ca or True


def url_of(address: str, path: str) -> httpx.URL:
    """The address of a request. path: below that of the service, with its query, if it has one."""
    return httpx.URL(address + path)


def file_size(file: Path) -> int:
    """Bytes of a file."""
    return file.stat().st_size


def file_pieces(file: Path, total: int, progress: Progress | None) -> Iterator[bytes]:
    """The content of a file in pieces of 256 KiB."""
    sent = 0
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece
            sent += len(piece)
            if progress is not None:
                progress(sent, total)


async def async_file_pieces(file: Path, total: int, progress: Progress | None) -> AsyncIterator[bytes]:
    """As `file_pieces`; the file is read in a thread."""
    sent = 0
    with await asyncio.to_thread(file.open, "rb") as stream:
        while piece := await asyncio.to_thread(stream.read, _PIECE_BYTES):
            yield piece
            sent += len(piece)
            if progress is not None:
                progress(sent, total)
