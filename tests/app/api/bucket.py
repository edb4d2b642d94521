"""A server with one file at a presigned address, as buckets have them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TARGET = "/letters.csv?X-Amz-Signature=secret"


class Bucket(BaseHTTPRequestHandler):
    """A bucket with one file, at one presigned address. cuts: answers that end in the middle."""

    protocol_version = "HTTP/1.1"
    content = b""
    cuts = 0

    def do_GET(self) -> None:
        kind = type(self)
        if self.path != TARGET:
            self.send_error(403)
            return
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        if start:
            size = len(kind.content)
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("ETag", '"file"')
        self.send_header("Content-Length", str(len(kind.content) - start))
        self.end_headers()
        end = len(kind.content)
        if kind.cuts:
            kind.cuts -= 1
            end = start + 10
            self.close_connection = True
        self.wfile.write(kind.content[start:end])

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(file: bytes) -> Iterator[tuple[str, type[Bucket]]]:
    """The address of a server with a file, and its handler."""

    class Served(Bucket):
        content = file

    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Served
        server.shutdown()
