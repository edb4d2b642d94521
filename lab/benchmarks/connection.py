"""One keep-alive connection to a server, and requests as bytes: a client that takes little time itself."""

from __future__ import annotations

import socket
import time


class Connection:
    """One keep-alive connection; ``ask`` sends a prepared request and reads the answer."""

    def __init__(self, port: int, request: bytes, timeout: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        if not self.ask().startswith(b"HTTP/1.1 200"):
            raise RuntimeError("The server does not answer with 200.")

    def ask(self, request: bytes | None = None) -> bytes:
        """Returns the answer, head and body. request: overrides the prepared request."""
        self._socket.sendall(self._request if request is None else request)
        data = self._socket.recv(65536)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._socket.recv(65536)
        if data.startswith(b"HTTP/1.1 304"):
            return data
        length = int(data[:end].lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(data) < end + 4 + length:
            data += self._socket.recv(65536)
        return data

    def turn(self, requests: int) -> list[float]:
        """Latency of each request, in seconds."""
        seconds = []
        for _ in range(requests):
            started = time.perf_counter()
            self.ask()
            seconds.append(time.perf_counter() - started)
        return seconds

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def request(method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
