"""A receiver of webhooks for tests, with answers as a test plans them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """status: of the answer to a request, by its number from 0. requests: headers, in lower case, and bodies.

    extra: further headers of answers. hold: answers wait until it is set.
    """

    status: Callable[[int], int] = lambda _number: 204
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)
    hold: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def events(self) -> list[dict[str, Any]]:
        """The bodies as JSON."""
        return [json.loads(body) for _, body in self.requests]


@contextmanager
def receiver(status: Callable[[int], int] = lambda _number: 204, *, held: bool = False) -> Iterator[Receiver]:
    """A receiver on loopback while the block lasts. held: it answers nothing until ``hold`` is set."""
    found = Receiver(status)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                number = len(found.requests)
                found.requests.append(({name.lower(): text for name, text in self.headers.items()}, body))
            found.hold.wait(60.0)
            self.send_response(found.status(number))
            for name, value in found.extra.items():
                self.send_header(name, value)
            # Neither a length nor a body: only the status counts.
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A sender that has left is expected."""

    if not held:
        found.hold.set()
    with Quiet(("127.0.0.1", 0), Handler) as server:
        found.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.hold.set()
            server.shutdown()
            thread.join(10)
