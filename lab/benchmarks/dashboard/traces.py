"""Processor time of a query, traces off and 1 % sampled, against the version before there were traces."""

from __future__ import annotations

import io
import json
import random
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from lab.benchmarks.connection import Connection, request
from tests.system.checkout import checkout
from tests.system.deployment import ROOT, Deployment
from tests.system.processes import two_cores
from tests.system.query_service import CLASSES, FEATURES


@dataclass(frozen=True, slots=True)
class Contestant:
    """A running server. pids: of its processes."""

    connection: Connection
    pids: list[int]

    def cost(self, requests: int) -> float:
        """Processor time of a query in microseconds."""
        before = _nanoseconds(self.pids)
        self.connection.turn(requests)
        return 1e-3 * (_nanoseconds(self.pids) - before) / requests


def _nanoseconds(pids: list[int]) -> int:
    """Processor time of all threads of processes: the scheduler's count, finer than the ticks of `stat`."""
    files = (file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in files)


def measure(before: str, quick: bool) -> dict[str, Any]:
    """Three servers by turns on one core; only one at a time is asked."""
    rounds, requests = (3, 2000) if quick else (15, 10_000)
    older = before or _before_traces()
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="stms-traces-") as name:
        collector = stack.enter_context(_collector())
        sampled = {"STMS_TRACE_ENDPOINT": collector, "STMS_TRACE_RATE": "0.01"}
        servers = {
            title: stack.enter_context(_server(tree, Path(name) / title, environ))
            for title, tree, environ in (
                ("before", checkout(older), {}),
                ("off", ROOT, {}),
                ("sampled", ROOT, sampled),
            )
        }
        costs: dict[str, list[float]] = {title: [] for title in servers}
        for server in servers.values():
            server.cost(requests)
        for number in range(rounds):
            order = list(servers)
            for title in order[number % 3 :] + order[: number % 3]:
                costs[title].append(servers[title].cost(requests))
        for server in servers.values():
            server.connection.close()
    median = {title: statistics.median(values) for title, values in costs.items()}
    for title, value in median.items():
        print(f"{title:8} {value:7.1f} µs a query", flush=True)
    return {
        "trace_off_ratio": round(median["off"] / median["before"], 3),
        "trace_sampled_ratio": round(median["sampled"] / median["before"], 3),
        "trace_before_us": round(median["before"], 1),
        "trace_off_us": round(median["off"], 1),
        "trace_sampled_us": round(median["sampled"], 1),
        "trace_before": older,
    }


def _before_traces() -> str:
    """The commit before the one that added ``app/tracing.py``."""
    log = ["git", "-C", str(ROOT), "log", "--diff-filter=A", "--format=%H", "--", "app/tracing.py"]
    done = subprocess.run(log, check=True, capture_output=True, text=True)
    return f"{done.stdout.split()[-1]}^"


@contextmanager
def _server(tree: Path, folder: Path, settings: Mapping[str, str]) -> Iterator[Contestant]:
    """A server of the program in ``tree``, with a database and a head of its own."""
    folder.mkdir()
    server_core, _ = two_cores()
    given = {"STMS_LOG_LEVEL": "WARNING", **settings}
    deployment = Deployment(folder, api=1, is_new=False, settings=given, cores=server_core, tree=tree)
    deployment.run("db", "upgrade").check_returncode()
    with deployment as server:
        server.keys["admin"] = (server.data / "admin.key").read_text(encoding="ascii").strip()
        with server.client("admin") as http:
            params = {"model": "digits", "kind": "head"}
            http.post("/v1/teachers", params=params, content=_head()).raise_for_status()
        row = [round(random.Random(0).gauss(0, 1), 6) for _ in range(FEATURES)]
        body = json.dumps({"x": row}).encode()
        asked = request("POST", "/v1/models/digits/classes/3:query", body, server.keys["admin"])
        yield Contestant(Connection(server.port, asked), server.pids)


def _head() -> bytes:
    """A head of ten classes as npz."""
    file = io.BytesIO()
    weights = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    np.savez(file, weights=weights, labels=np.array([str(k) for k in range(CLASSES)]))
    return file.getvalue()


@contextmanager
def _collector() -> Iterator[str]:
    """The address of a collector that accepts everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
