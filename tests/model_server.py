"""A model server for tests: the Open Inference Protocol over HTTP, with answers as a test plans them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Json = dict[str, Any]
Canned = tuple[int, dict[str, str], bytes]
"""Status, headers and body of an answer."""


@dataclass
class ModelServer:
    """score: from rows (n, d) to scores (n, K). metadata: of the model; None answers 404.

    canned: answers that the next requests for scores get instead. seconds: how long each takes. change: what
    is done to the output. asked: rows of each request for scores. headers: of each request.
    """

    score: Callable[[Any], Any]
    metadata: Json | None
    canned: list[Canned] = field(default_factory=list)
    seconds: float = 0.0
    change: Callable[[Json], Json] = lambda output: output
    asked: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def rows(self) -> int:
        """Rows that were scored, repeated ones counted each time."""
        return sum(map(len, self.asked))

    def answer(self, method: str, path: str, body: bytes) -> Canned:
        self.paths.append(path)
        if method == "GET":
            return (
                (404, {}, b"{}") if self.metadata is None else (200, {}, json.dumps(self.metadata).encode())
            )
        if self.canned:
            return self.canned.pop(0)
        [given] = json.loads(body)["inputs"]
        rows = np.array(given["data"]).reshape(given["shape"])
        time.sleep(self.seconds)
        scores = np.asarray(self.score(rows))
        self.asked.append(rows)
        output = {"name": "scores", "datatype": "FP64", "shape": list(scores.shape)}
        output = self.change(output | {"data": scores.ravel().tolist()})
        return 200, {}, json.dumps({"model_name": "m", "outputs": [output]}).encode()


def metadata(columns: int, classes: int) -> Json:
    """Of a model with one input and one output, as Triton says it."""
    return {
        "name": "m",
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, columns]}],
        "outputs": [{"name": "scores", "datatype": "FP64", "shape": [-1, classes]}],
    }


@contextmanager
def model_server(
    score: Callable[[Any], Any], given: Json | None, port: int = 0, **options: Any
) -> Iterator[ModelServer]:
    """A server on loopback while the block lasts. port: 0 for any free one."""
    server = ModelServer(score, given, **options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.headers.append(dict(self.headers))
            status, headers, content = server.answer(self.command, self.path, body)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that hung up is part of a test."""

    with Quiet(("127.0.0.1", port), Handler) as http:
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
