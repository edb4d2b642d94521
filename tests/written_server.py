"""A server whose answers the test writes down, and a small data set: fixtures of service and client."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Answer:
    """What the written-down server says."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Request:
    """What it was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WrittenServer:
    """A real HTTP server: each request takes the next answer of its method and path, the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[Answer]] = defaultdict(list)
        self.requests: list[Request] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                server.requests.append(Request(self.command, self.path, dict(self.headers), body))
                waiting = server.answers[self.command, self.path.partition("?")[0]]
                answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                data = answer.encoded()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

            def log_message(self, *_arguments: Any) -> None:
                """Silence: the test looks at `requests`."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def on(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> None:
        """Add an answer; header names with underscores for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[method, path].append(Answer(body, status, named))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def written() -> Iterator[WrittenServer]:
    """A server whose answers the test writes down."""
    server = WrittenServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def csv_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes at the corners of a triangle, far apart: 60 rows, two columns."""
    lines = ["first,second,kind"]
    for number in range(60):
        kind = number % 3
        first, second = 10 * (kind == 1) + number % 7 * 0.1, 10 * (kind == 2) + number % 5 * 0.1
        lines.append(f"{first},{second},{'abc'[kind]}")
    path = tmp_path_factory.mktemp("data") / "three kinds.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
