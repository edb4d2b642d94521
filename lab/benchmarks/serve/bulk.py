"""10 000 rows of 64 float32 in one binary request, against a bare handler that moves as many bytes.

bulk_vs_bare                  requests a second on 4 connections : those of the bare handler
bulk_cpu_vs_bare              processor time of the bare handler for a request then : ours. The core of the
                              clients, which send as many bytes, bounds the requests a second but not this
bulk_one_connection_vs_bare   p50 at one connection : that of the bare handler
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lab.benchmarks import peers
from lab.benchmarks.load import Load, wrk
from lab.benchmarks.serve.comparison import Pace, interleaved, print_figures, rates, ratio, require_success
from tests.system.query_service import FEATURES, Service, digits

ROWS = 10_000
CONNECTIONS = 4


def measure(cores: tuple[int, int], pace: Pace, *, rows: int = ROWS) -> dict[str, Any]:
    """Measure the figures of this module."""
    server_core, client_core = cores
    body = np.random.default_rng(2).standard_normal((rows, FEATURES), dtype=np.float32).tobytes()
    with Service(prepare=digits, cores=server_core) as ours:
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
                return wrk(
                    urls[name], body, headers, connections=connections, seconds=seconds, core=client_core
                )

            def p50(name: str) -> Callable[[], float]:
                return lambda: require_success(busy(name, 1)).p50_us

            rate, cpu = rates({name: partial(busy, name, CONNECTIONS) for name in urls}, pace.rounds)
            alone = interleaved({name: p50(name) for name in urls}, pace.few.rounds)
    print_figures(f"{rows} × {FEATURES} float32, {CONNECTIONS} connections", "/s", rate)
    print_figures("processor time of a request", "µs", cpu)
    print_figures(f"{rows} × {FEATURES} float32, one connection", "µs", alone)
    return {
        "bulk_vs_bare": ratio(rate, "ours", "bare"),
        "bulk_cpu_vs_bare": ratio(cpu, "bare", "ours"),
        "bulk_one_connection_vs_bare": ratio(alone, "ours", "bare"),
        "bulk_rows_per_second": round(statistics.median(rate["ours"]) * rows),
    }
