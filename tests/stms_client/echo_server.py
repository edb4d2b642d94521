"""A server whose answer to a row is the row, so that the answer to another question is seen at once."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.certificates import CertificateFiles

NEXT_VERSION = 4321.0
_SECONDS = 0.002
"""For an answer, so that questions meet on a connection that is shared by mistake."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(_SECONDS)
        rows = body.get("rows", [body.get("x")])
        if rows == [[NEXT_VERSION]]:
            self.server.package_version += 1
        results = [{"match": True, "score": row[0], "threshold": -1e9} for row in rows]
        origin = {"model": "m", "version": self.client_address[1]}
        self._answer({"results": results, **origin} if "rows" in body else {**results[0], **origin})

    def do_GET(self) -> None:
        if self.path.endswith("/package"):
            self._answer_with_package()
            return
        if not self.path.endswith("/events"):
            self._answer({"id": "j", "state": "succeeded"})
            return
        first = int(self.headers.get("last-event-id", "-1")) + 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(first, 6):
            event = f"id: {number}\nevent: progress\ndata: {{}}\n\n".encode()
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            self.wfile.flush()
            time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")

    def _answer_with_package(self) -> None:
        of_server = self.server
        of_server.reported += int(self.headers.get("x-stms-local", "0:0").partition(":")[2])
        etag = f'"{of_server.package_version}-{hashlib.sha256(of_server.package).hexdigest()}"'
        is_held = self.headers.get("if-none-match") == etag
        data = b"" if is_held else of_server.package
        self.send_response(304 if is_held else 200)
        self.send_header("ETag", etag)
        self.send_header("X-Model", "m")
        self.send_header("X-Model-Version", str(of_server.package_version))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: Any) -> None:
        """Silence."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    package = b""
    package_version = 1
    reported = 0


class EchoServer:
    """The score of a row is its first number, and the version is the port of the client's connection.

    The job "j" has the events 0 to 5. package: of any class; its version grows when a row is NEXT_VERSION.
    certificate: for TLS.
    """

    def __init__(self, certificate: CertificateFiles | None = None, package: bytes = b"") -> None:
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.package = package
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.file, certificate.key)
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "http" if certificate is None else "https"
        self.address = f"{scheme}://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def reported(self) -> int:
        """How many local answers clients have reported."""
        return self._http.reported

    def __enter__(self) -> EchoServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
