"""The measured server, and a person who has signed in to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from lab.benchmarks.dashboard.content import Content
from tests.system.deployment import Deployment
from tests.system.processes import two_cores


@dataclass(frozen=True, slots=True)
class Site:
    """A running server. cookie: of a session of an operator, as a request header's value."""

    folder: Path
    content: Content
    port: int
    cookie: str

    @property
    def address(self) -> str:
        """The origin of its pages."""
        return f"http://127.0.0.1:{self.port}"

    def request(self, path: str, etag: str = "") -> bytes:
        """A GET of a page or fragment as bytes."""
        condition = f"If-None-Match: {etag}\r\n" if etag else ""
        lines = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nCookie: {self.cookie}\r\n{condition}\r\n"
        )
        return lines.encode()

    def text(self, path: str) -> str:
        """A page or file. Raises RuntimeError unless it is answered with 200."""
        answer = httpx.get(self.address + path, headers={"cookie": self.cookie}, trust_env=False, timeout=60)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code}: {answer.text[:500]}")
        return answer.text


@contextmanager
def serve(folder: Path, content: Content) -> Iterator[Site]:
    """Run a server on the database in ``folder`` and sign in to it."""
    server_core, _ = two_cores()
    settings = {"STMS_DATA_DIR": str(folder), "STMS_LOG_LEVEL": "WARNING"}
    with Deployment(folder, api=1, is_new=False, settings=settings, cores=server_core) as server:
        answer = httpx.post(
            f"{server.url}/ui/sign-in",
            headers={"sec-fetch-site": "same-origin"},
            data={"key": content.operator_key},
            trust_env=False,
            timeout=60,
        )
        if answer.status_code != 303:
            raise RuntimeError(answer.text)
        yield Site(folder, content, server.port, answer.headers["set-cookie"].partition(";")[0])
