"""HTTP to one server at addresses that were checked before: no redirects, no proxies, bounded answers.

The standard library's client, with a connection that never resolves a name: a name that changes its address
after the check leads nowhere else. Certificates are checked for the name.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.domain.origins import Origin
from app.remote.errors import RemoteFailed, RemoteUnavailable

_MAX_WAIT: Final = 120.0
_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body; wait: seconds that the server asks to wait for (Retry-After), or None."""

    status: int
    body: bytes
    wait: float | None = None


class RemoteConnection:
    """A connection that is kept from one request to the next. Not thread-safe.

    addresses: of the origin, tried in this order. timeout: of a whole request, in seconds, however slowly its
    answer drips. token: sent as bearer token; None for none. accept: media types of its answers.
    """

    def __init__(
        self,
        origin: Origin,
        addresses: Sequence[str],
        timeout: float,
        token: str | None = None,
        accept: str = "application/json",
    ) -> None:
        self._origin = origin
        self._timeout = timeout
        self._headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": "stms"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http = PinnedConnection(origin, addresses, timeout)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        max_bytes: int | None,
        headers: Mapping[str, str] = _JSON,
    ) -> Answer:
        """One request. body: or None. headers: that describe the body.

        max_bytes: of the answer's body; None if only the status counts: the body is not read, and the
        connection is closed. Raises RemoteUnavailable when there is no whole answer in time, RemoteFailed for
        one that is too large, compressed, or a redirect.
        """
        timer = self._http.expire_after(self._timeout)
        expired = self._http.expired
        sent = self._headers | ({} if body is None else dict(headers))
        try:
            self._http.request(method, path, body, sent)
            with self._http.getresponse() as response:
                answer = self._read(response, max_bytes)
            if max_bytes is None:
                self.close()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            late = expired.is_set() or isinstance(error, TimeoutError)
            reason = f"no whole answer within {self._timeout:g} s" if late else reason_of(error)
            raise RemoteUnavailable(f"{self._origin}: {reason}") from error
        except RemoteFailed:
            self.close()
            raise
        else:
            return answer
        finally:
            timer.cancel()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        self._http.close()

    def _read(self, response: http.client.HTTPResponse, max_bytes: int | None) -> Answer:
        if 300 <= response.status < 400:
            message = f"{self._origin} redirects (status {response.status}); redirects are not followed."
            raise RemoteFailed(message, code="remote_redirect")
        if max_bytes is None:
            return Answer(response.status, b"", _seconds(response.getheader("Retry-After")))
        if response.getheader("Content-Encoding", "identity").strip().lower() != "identity":
            message = f"{self._origin} compresses its answer, although it was asked not to."
            raise RemoteFailed(message, code="remote_bad_answer")
        length = response.length
        if length is None and not response.chunked:
            # Its end would look like that of a connection that breaks.
            raise http.client.HTTPException("neither length nor chunks")
        if length is not None and length > max_bytes:
            raise self._too_large(max_bytes)
        body = response.read(max_bytes + 1)
        if len(body) > max_bytes:
            raise self._too_large(max_bytes)
        if length is not None and len(body) < length:
            raise http.client.IncompleteRead(body, length - len(body))
        return Answer(response.status, body, _seconds(response.getheader("Retry-After")))

    def _too_large(self, max_bytes: int) -> RemoteFailed:
        message = f"{self._origin} answers with more than the {max_bytes} bytes that were expected at most."
        return RemoteFailed(message, code="remote_answer_too_large")


class PinnedConnection(http.client.HTTPConnection):
    """Connects to given addresses, while ``Host`` and the certificate are of the origin's name.

    connected: the last socket, also while only the answer holds it. expired: whether the request's time is
    over.
    """

    def __init__(self, origin: Origin, addresses: Sequence[str], timeout: float) -> None:
        super().__init__(origin.host, origin.port, timeout=timeout)
        self.default_port = 443 if origin.scheme == "https" else 80
        self._addresses = addresses
        self._tls = ssl.create_default_context() if origin.scheme == "https" else None
        self.expired = threading.Event()
        self.connected: socket.socket | None = None

    def expire_after(self, seconds: float) -> threading.Timer:
        """Shut the socket down after so long, whichever read a request waits in, unless that is cancelled."""
        expired = self.expired = threading.Event()
        timer = threading.Timer(seconds, self._expire, (expired,))
        timer.daemon = True
        timer.start()
        return timer

    def _expire(self, expired: threading.Event) -> None:
        expired.set()
        if self.connected is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.connected, socket.SHUT_RDWR)

    def connect(self) -> None:
        """Raises the OSError of the last address."""
        for last, address in enumerate(self._addresses, 1 - len(self._addresses)):
            if self.expired.is_set():
                # The time of the request is for all addresses together.
                raise TimeoutError
            try:
                self.sock = socket.create_connection((address, self.port), self.timeout)
            except OSError:
                if last == 0:
                    raise
            else:
                break
        self.connected = self.sock
        if self.expired.is_set():
            # The timer found no socket that it could shut down.
            raise TimeoutError
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            secured = self._tls.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock = self.connected = secured
            secured.do_handshake()


def reason_of(error: OSError | http.client.HTTPException) -> str:
    """Why there is no whole answer."""
    if isinstance(error, http.client.IncompleteRead):
        return "the answer ends in the middle"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
        return f"the answer is not HTTP ({type(error).__name__})"
    return str(error) or type(error).__name__


def _seconds(header: str | None) -> float | None:
    """Retry-After as seconds, at most two minutes; None without one that can be read."""
    if header is None:
        return None
    try:
        seconds = float(header) if header.isdigit() else _until(header)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), _MAX_WAIT)


def _until(date: str) -> float:
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
