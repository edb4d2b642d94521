"""Latency of one warm query against an empty FastAPI route: ``python -m lab.benchmarks.query``.

Both servers are real uvicorn processes (uvloop, httptools, no access log) pinned to one core; the client is
one keep-alive connection on another core. Measurements alternate between the servers. API keys, limits,
validation and metrics are enabled. The last line of the output is a JSON object:

p50_vs_empty_fastapi        p50 of our query of 64 numbers in JSON : p50 of GET on ``async def empty()``
p50_vs_empty_fastapi_post   the same against an empty route that receives the same body and ignores it
p50_us, p99_us, empty_fastapi_p50_us, requests
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time

import numpy as np

from lab.benchmarks.connection import Connection, request
from lab.benchmarks.peers import empty_route
from tests.system.processes import two_cores
from tests.system.query_service import FEATURES, Service, digits

TURNS = 60
REQUESTS_A_TURN = 150
WARM_UP = 500
MEASURED_SECONDS = 12.0


def measure() -> dict[str, float]:
    """Measure both servers alternately."""
    server_core, client_core = two_cores()
    _pin(client_core)
    row = [round(random.Random(0).gauss(0, 1) + i / 7, 6) for i in range(FEATURES)]
    body = json.dumps({"x": row}).encode()
    settings = {"STMS_LOG_LEVEL": "WARNING"}
    with (
        empty_route(server_core) as empty_port,
        Service(prepare=digits, cores=server_core, settings=settings) as ours,
    ):
        asked = request("POST", "/v1/models/digits/classes/3:query", body, ours.keys["query"])
        contestants = {
            "empty": Connection(empty_port, request("GET", "/empty")),
            "empty_post": Connection(empty_port, request("POST", "/empty", body)),
            "ours": Connection(ours.port, asked),
        }
        print(contestants["ours"].ask().decode(), end="\n\n")
        seconds = _alternate(contestants)
        for connection in contestants.values():
            connection.close()
    p50 = {name: statistics.median(values) * 1e6 for name, values in seconds.items()}
    for name, value in p50.items():
        print(f"{name:12} p50 {value:7.1f} µs   p99 {np.quantile(seconds[name], 0.99) * 1e6:7.1f} µs")
    return {
        "p50_vs_empty_fastapi": round(p50["ours"] / p50["empty"], 3),
        "p50_vs_empty_fastapi_post": round(p50["ours"] / p50["empty_post"], 3),
        "p50_us": round(p50["ours"], 1),
        "p99_us": round(float(np.quantile(seconds["ours"], 0.99)) * 1e6, 1),
        "empty_fastapi_p50_us": round(p50["empty"], 1),
        "requests": len(seconds["ours"]),
    }


def _alternate(contestants: dict[str, Connection]) -> dict[str, list[float]]:
    deadline = time.monotonic() + MEASURED_SECONDS
    for connection in contestants.values():
        connection.turn(WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(TURNS):
        for name, connection in contestants.items():
            seconds[name] += connection.turn(REQUESTS_A_TURN)
        if time.monotonic() > deadline:
            break
    return seconds


def _pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


if __name__ == "__main__":
    print(json.dumps(measure()))
    sys.exit(0)
