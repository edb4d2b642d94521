"""Servers for the history benchmark, and a small HTTP client that times its requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from tests.system.deployment import Deployment

_TIMEOUT_SECONDS: Final = 20.0

LOST: Final = 0
"""The status of a request whose response did not arrive."""


def servers(count: int, folder: Path, database: str, **options: Any) -> Deployment:
    """Servers that share a database; each has its own data folder, as on its own machine.

    options: of `Deployment`.
    """
    # Keys that are refused because they were revoked must not be refused for their number.
    settings = {
        "STMS_REQUIRE_KEYS": "true",
        "STMS_AUTH_FAILURE_RATE": "0",
        "STMS_LOG_LEVEL": "WARNING",
    }
    deployment = Deployment(folder, database=database, settings=settings, **options)
    for number in range(count):
        own = folder / f"server{number}"
        own.mkdir()
        deployment.add("api", settings={"STMS_DATA_DIR": str(own)})
    return deployment


class Client:
    """One connection to one server, opened again after an error. key: text of the API key that is sent."""

    def __init__(self, deployment: Deployment, number: int, key: str | None = None) -> None:
        self.number = number
        self.key = key
        self._port = deployment.ports[number]
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of the response; `LOST` without one. headers: with _ for hyphens."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: 127.0.0.1:{self._port}",
            f"content-length: {len(content)}",
        ]
        if body is not None:
            lines.append("content-type: application/json")
        if self.key is not None:
            lines.append(f"authorization: Bearer {self.key}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        request = "\r\n".join(lines).encode() + b"\r\n\r\n" + content
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await self._exchange(request)
        except (OSError, EOFError, TimeoutError, ValueError):
            self.close()
            return LOST, {}, None

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, request: bytes) -> tuple[int, dict[str, str], Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return int(head[0].split()[1]), headers, json.loads(content) if content else None
