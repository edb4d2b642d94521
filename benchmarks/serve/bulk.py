"""10 000 rows of 64 float32 in one binary request, against a bare handler that moves as many bytes.

bulk_vs_bare                  requests a second on 4 connections : those of the bare handler
bulk_one_connection_vs_bare   p50 at one connection : that of the bare handler
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.load import Load, wrk
from benchmarks.serve.comparison import Pace, interleaved, print_figures, ratio, require_success
from benchmarks.serve.service import FEATURES, digits, service

ROWS = 10_000
CONNECTIONS = 4


def measure(cores: tuple[int, int], pace: Pace, *, rows: int = ROWS) -> dict[str, Any]:
    """Measure the figures of this module."""
    server_core, client_core = cores
    body = np.random.default_rng(2).standard_normal((rows, FEATURES), dtype=np.float32).tobytes()
    with service(digits, server_core) as ours:
        url = ours.query("digits", "3")
        headers = ours.headers(
            Content_Type="application/octet-stream",
            Accept="application/octet-stream",
            X_Tensor_Shape=f"{rows},{FEATURES}",
            X_Tensor_Dtype="float32",
        )
        answer = ours.ask(url, body, headers)
        if len(answer) != 8 * rows:
            raise RuntimeError(f"{rows} scores were expected, not {len(answer)} bytes.")
        with peers.bare(server_core, answer_bytes=len(answer)) as bare:
            urls = {"bare": bare, "ours": url}

            def busy(name: str, connections: int) -> Load:
                seconds = pace.seconds
                return require_success(
                    wrk(urls[name], body, headers, connections=connections, seconds=seconds, core=client_core)
                )

            def rate(name: str) -> Callable[[], float]:
                return lambda: busy(name, CONNECTIONS).rate

            def p50(name: str) -> Callable[[], float]:
                return lambda: busy(name, 1).p50_us

            rates = interleaved({name: rate(name) for name in urls}, pace.rounds)
            alone = interleaved({name: p50(name) for name in urls}, pace.few.rounds)
    print_figures(f"{rows} × {FEATURES} float32, {CONNECTIONS} connections", "/s", rates)
    print_figures(f"{rows} × {FEATURES} float32, one connection", "µs", alone)
    return {
        "bulk_vs_bare": ratio(rates, "ours", "bare"),
        "bulk_one_connection_vs_bare": ratio(alone, "ours", "bare"),
        "bulk_rows_per_second": round(statistics.median(rates["ours"]) * rows),
    }
