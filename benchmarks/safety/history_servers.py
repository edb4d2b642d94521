"""Server processes for the history benchmark, and a small HTTP client that times its requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import free_port
from benchmarks.starting import Starter

_ROOT: Final = Path(__file__).parents[2]
_START_SECONDS: Final = 120.0
_TIMEOUT_SECONDS: Final = 20.0

LOST: Final = 0
"""The status of a request whose response did not arrive."""


class Servers:
    """Server processes that share a database; each has its own data folder, as on its own machine."""

    def __init__(self, count: int, folder: Path, database: str) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._folder = folder
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
        # Keys that are refused because they were revoked must not be refused for their number.
        self._environ |= {
            "STMS_DATABASE_URL": database,
            "STMS_REQUIRE_KEYS": "true",
            "STMS_AUTH_FAILURE_RATE": "0",
            "STMS_LOG_LEVEL": "WARNING",
        }
        self._starter = Starter()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    async def start(self, number: int) -> None:
        """Start a process and wait until it is ready. Raises RuntimeError."""
        folder = self._folder / f"server{number}"
        folder.mkdir(exist_ok=True)
        port = str(self.ports[number])
        command = [sys.executable, "-P", "-m", "app.cli", "api", "--port", port, "--data-dir", str(folder)]
        with (folder / "log").open("ab") as log:
            process = self._starter.start(command, cwd=_ROOT, env=self._environ, stdout=log, stderr=log)
        self._processes[number] = process
        deadline = time.monotonic() + _START_SECONDS
        client = Client(self, number)
        while (await client.ask("GET", "/readyz"))[0] != 200:
            if process.poll() is not None or time.monotonic() > deadline:
                log_text = (folder / "log").read_text(errors="replace")
                raise RuntimeError(f"Server {number} does not start:\n{log_text}")
            await asyncio.sleep(0.1)
        client.close()

    async def stop(self, number: int, how: signal.Signals) -> None:
        """End a process and wait for its end."""
        process = self._processes.pop(number)
        process.send_signal(how)
        await asyncio.to_thread(process.wait, 60)

    def kill(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()


class Client:
    """One connection to one process, opened again after an error. key: text of the API key that is sent."""

    def __init__(self, servers: Servers, number: int, key: str | None = None) -> None:
        self.number = number
        self.key = key
        self._port = servers.ports[number]
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
