"""A collector of traces that tests start: OTLP over HTTP in JSON, kept in memory."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector:
    """Address, and everything that was received. resources: attributes of the senders, one for each batch."""

    def __init__(self) -> None:
        collector = self
        self._batches: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["content-length"]))
                collector._batches.append(json.loads(body))
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def resources(self) -> list[list[dict[str, Any]]]:
        return [part["resource"]["attributes"] for batch in self._batches for part in batch["resourceSpans"]]

    def spans(self) -> list[dict[str, Any]]:
        """All spans that were received, in their order."""
        return [
            span
            for batch in self._batches
            for part in batch["resourceSpans"]
            for scope in part["scopeSpans"]
            for span in scope["spans"]
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
