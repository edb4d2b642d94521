"""Connection options and file uploads of both clients."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
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
    """Arguments of `DirectClient`. Raises ValueError for what is not the address of a server.

    verify is a function that gives what httpx takes: each process loads the authorities by itself, because
    threads may hold locks of those of its parent at the fork. api_key: None for the key in ``STMS_API_KEY``
    or that `find_local_key` finds; an empty text for none. ca: file of certificates, see `AsyncClient`.
    Raises OSError if it cannot be used.
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
    is_encrypted = parts.scheme == "https" or bool(trust_env and getproxies())
    # An error of a file is raised here, and not by the first call.
    _trusted(ca, is_encrypted=is_encrypted)
    return {
        "base_url": address,
        "verify": partial(_trusted, ca, is_encrypted=is_encrypted),
        "headers": {"User-Agent": user_agent} | ({"Authorization": f"Bearer {key}"} if key else {}),
        "auth": None if local is None else LocalKey(local),
        "timeout": TIMEOUT if timeout is None else httpx.Timeout(timeout, connect=min(timeout, 10)),
        "limits": LIMITS,
        "trust_env": trust_env,
    }


def of_stores(options: Mapping[str, Any], ca: str | Path | ssl.SSLContext | None) -> dict[str, Any]:
    """Arguments of `DirectClient` for presigned addresses of object stores, which get no key of the service.

    options: those for the service. ca: certificates for both.
    """
    return {
        **options,
        "base_url": "",
        "verify": partial(_trusted, ca, is_encrypted=True),
        "headers": {"User-Agent": options["headers"]["User-Agent"]},
        "auth": None,
        "trust_env": True,
    }


def _trusted(ca: str | Path | ssl.SSLContext | None, *, is_encrypted: bool) -> ssl.SSLContext | bool:
    if isinstance(ca, str | Path):
        return ssl.create_default_context(cafile=ca)
    if ca is None and not is_encrypted:
        # To load the certificates of all authorities takes 25 ms, and none of them would be looked at.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ca or True


_unforked = threading.RLock()
"""Held while a thread may hold a lock of OpenSSL that the child of a fork needs, and by whoever forks."""
_seeds = threading.local()


@cache
def _let_forks_wait() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_unforked.acquire, after_in_parent=_unforked.release, after_in_child=_unforked.release
        )


@contextmanager
def _no_fork() -> Iterator[None]:
    """No thread of this process forks meanwhile.

    Contexts take locks that all threads share, and so does the first random number of a thread, which
    OpenSSL seeds from those of the process, again after each fork. In a child nobody would release them.
    """
    _let_forks_wait()
    with _unforked:
        if not _is_seeded():
            # It seeds both generators of this thread.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _seeds.process = os.getpid()
        yield


def _is_seeded() -> bool:
    return getattr(_seeds, "process", None) == os.getpid()


class OfProcess:
    """A client of httpx for each process that asks.

    The child of a fork has the connections of its parent, and locks that threads of the parent held. If it
    read from them, one would get the answers of the other; if it closed them, it could wait for ever, or
    disturb the parent. So it leaves them alone, and begins with a client of its own.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make = make
        self._made: dict[int, httpx.Client] = {}

    def here(self) -> httpx.Client:
        """The client of this process. Threads may ask at the same time."""
        process = os.getpid()
        made = self._made.get(process)
        if made is None or not _is_seeded():
            with _no_fork():
                made = self._made.get(process)
                if made is None:
                    made = self._made[process] = self._make()
        return made

    def close(self) -> None:
        """Close the connections of this process."""
        made = self._made.pop(os.getpid(), None)
        if made is not None:
            made.close()


class OfLoop:
    """As `OfProcess`, for each event loop of a process: a connection can be used in one loop only.

    The connections of a loop are closed when it shuts its generators down, as `asyncio.run` does at its end.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._made: dict[tuple[int, asyncio.AbstractEventLoop], _Made] = {}

    async def here(self) -> httpx.AsyncClient:
        """The client of this process and the running loop."""
        place = os.getpid(), asyncio.get_running_loop()
        made = self._made.get(place)
        if made is None:
            self._forget_ended(place[0])
            with _no_fork():
                http = self._make()
            made = self._made[place] = http, _open_until_closed(http)
            await anext(made[1])
        return made[0]

    async def aclose(self) -> None:
        """Close the connections of the running loop. Those of other loops are closed when these end."""
        made = self._made.pop((os.getpid(), asyncio.get_running_loop()), None)
        if made is not None:
            await made[1].aclose()

    def _forget_ended(self, process: int) -> None:
        for place in list(self._made):
            if place[0] == process and place[1].is_closed():
                self._made.pop(place, None)


_Made: TypeAlias = tuple[httpx.AsyncClient, AsyncGenerator[None, None]]


async def _open_until_closed(http: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    """Closes the client at its own end, but not in a child, whose event loop this is not."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process:
            await http.aclose()


_left: list[object] = []
"""Streams of a parent, kept so that they are not closed."""


class OwnStream(httpx.SyncByteStream):
    """The body of a response for the process that asked. In a child its end is a broken connection."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream, self._pieces, self._process = stream, iter(stream), os.getpid()

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            yield piece
            if os.getpid() != self._process:
                _left.append(self)
                raise httpx.ReadError(_OF_PARENT)

    def close(self) -> None:
        """Close the stream, unless it is that of the parent."""
        if os.getpid() == self._process:
            self._stream.close()


class AsyncOwnStream(httpx.AsyncByteStream):
    """The same for asyncio."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream, self._pieces, self._process = stream, aiter(stream), os.getpid()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece
            if os.getpid() != self._process:
                _left.append(self)
                raise httpx.ReadError(_OF_PARENT)

    async def aclose(self) -> None:
        """Close the stream, unless it is that of the parent."""
        if os.getpid() == self._process:
            await self._stream.aclose()


_OF_PARENT = "the rest of this response belongs to the parent of this process"


def url_of(address: str, path: str) -> httpx.URL:
    """The address of a request. path: below that of the service, with its query, if it has one."""
    return httpx.URL(address + path)


def digest_of(file: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


async def async_digest_of(file: Path) -> str:
    """As `digest_of`; the file is read in a thread."""
    return await asyncio.to_thread(digest_of, file)


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
