"""Downloads of files from addresses: at checked addresses, without redirects, going on where it broke off.

The path and the query string of an address may be secrets (presigned addresses): no message tells them.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from app.domain.origins import AllowedServers, Origin
from app.remote.addresses import addresses_of
from app.remote.connection import PinnedConnection, reason_of
from app.remote.errors import RemoteFailed, RemoteUnavailable

ATTEMPTS: Final = 6
"""A download is begun once, and goes on five times."""
HEAD_SECONDS: Final = 60.0
"""Longest time until the head of an answer is there."""
READ_SECONDS: Final = 30.0
"""Longest wait for the next bytes."""
MIN_RATE: Final = 16 * 1024
"""Bytes a second on average, from `READ_SECONDS` on."""
MAX_URL: Final = 8192
_PIECE: Final = 1 << 20
_URL: Final = re.compile(r"https?://[!-~]+")
_RANGE: Final = re.compile(r"bytes (\d{1,18})-\d{1,18}/(?:\d{1,18}|\*)")
_PAUSE_SECONDS: Final = 0.5


class _Broken(Exception):
    """The connection ended early; what was received is good."""


def split_url(url: str) -> tuple[Origin, str]:
    """Origin and target of an address. Raises ValueError, whose text does not contain it."""
    if len(url) > MAX_URL or not _URL.fullmatch(url) or "#" in url or "\\" in url:
        raise ValueError("The address must begin with https:// or http://, and be ASCII without a fragment.")
    try:
        parts = urlsplit(url)
        origin = Origin.of(f"{parts.scheme}://{parts.netloc}")
    except ValueError:
        raise ValueError("The address must have a host, with or without a port, and no user.") from None
    return origin, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class Download:
    """The download of one file.

    write: takes the bytes in their order. max_bytes: of the file. is_stopped: asked about twice a second.
    """

    def __init__(
        self,
        url: str,
        allowed: AllowedServers,
        write: Callable[[bytes], object],
        max_bytes: int,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._origin, self._target = split_url(url)
        self._allowed, self._write, self._max_bytes = allowed, write, max_bytes
        self._is_stopped = is_stopped
        self._size, self._validator = 0, ""

    def run(self) -> int:
        """Receive the whole file; returns its size in bytes.

        Raises RemoteFailed if the server is not allowed, refuses, redirects, compresses, or has a file that
        is too large or has changed, and RemoteUnavailable if it does not answer, or the caller wants no more.
        """
        for attempt in range(ATTEMPTS):
            try:
                self._receive()
            except _Broken as error:
                # Without a validator nothing shows that the rest would be of the same file.
                if attempt == ATTEMPTS - 1 or (self._size and not self._validator):
                    raise RemoteUnavailable(f"{self._origin}: {error}") from error
                self._pause(_PAUSE_SECONDS * 2**attempt)
            else:
                return self._size
        raise AssertionError("the last attempt returns or raises")

    def _receive(self) -> None:
        """Receive what is missing. Raises _Broken."""
        addresses = addresses_of(self._origin, self._allowed)
        connection = PinnedConnection(self._origin, addresses, READ_SECONDS)
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "stms"}
        if self._size:
            headers |= {"Range": f"bytes={self._size}-", "If-Range": self._validator}
        timer = connection.expire_after(HEAD_SECONDS)
        try:
            connection.request("GET", self._target, headers=headers)
            with connection.getresponse() as response:
                timer.cancel()
                if connection.expired.is_set():
                    # What has come of the head looks like a whole one.
                    raise TimeoutError(f"no answer within {HEAD_SECONDS:g} s")
                self._check(response)
                self._read(response)
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(reason_of(error)) from error
        finally:
            timer.cancel()
            connection.close()

    def _check(self, response: http.client.HTTPResponse) -> None:
        """Whether the response has the bytes that are wanted. Raises RemoteFailed and RemoteUnavailable."""
        status = response.status
        if 300 <= status < 400:
            raise _failed(
                f"{self._origin} redirects (status {status}); redirects are not followed.", "remote_redirect"
            )
        if status in {408, 429} or status >= 500:
            raise RemoteUnavailable(f"{self._origin} answers with status {status}")
        if response.getheader("Content-Encoding", "identity").strip().lower() != "identity":
            raise _failed(
                f"{self._origin} compresses its answer, although it was asked not to.", "remote_bad_answer"
            )
        if status == 200 and self._size:
            raise _failed(
                f"The file at {self._origin} has changed, or cannot be continued.", "remote_changed"
            )
        if status == 206 and self._size:
            part = _RANGE.fullmatch(response.getheader("Content-Range", ""))
            if part is None or int(part[1]) != self._size:
                raise _failed(
                    f"{self._origin} answers with another part than was asked for.", "remote_bad_answer"
                )
        elif status != 200:
            text = f"{self._origin} refuses the address (status {status}): it may be wrong, or have expired."
            raise _failed(text, "remote_refused")
        if response.length is None and not response.chunked:
            raise _failed(f"{self._origin} does not say how long its answer is.", "remote_bad_answer")
        if response.length is not None:
            self._check_size(self._size + response.length)
        etag = response.getheader("ETag", "")
        self._validator = etag if etag.startswith('"') else response.getheader("Last-Modified", "")

    def _read(self, response: http.client.HTTPResponse) -> None:
        began, received, length = time.monotonic(), 0, response.length
        while piece := response.read1(_PIECE):
            self._check_size(self._size + len(piece))
            self._write(piece)
            self._size += len(piece)
            received += len(piece)
            if self._is_stopped():
                raise RemoteUnavailable("nobody waits for the file any more")
            if received < (time.monotonic() - began - READ_SECONDS) * MIN_RATE:
                raise RemoteUnavailable(f"{self._origin} sends less than {MIN_RATE} bytes a second")
        if length is not None and received < length:
            raise _Broken("the answer ends in the middle")

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise _failed(f"The file has more than {self._max_bytes} bytes.", "remote_too_large")

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._is_stopped():
                raise RemoteUnavailable("nobody waits for the file any more")
            time.sleep(min(0.5, seconds))


def _failed(message: str, code: str) -> RemoteFailed:
    return RemoteFailed(message, code=code)
