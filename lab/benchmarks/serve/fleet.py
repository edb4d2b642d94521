"""Two server processes against one, on the same core and at the same request rate.

two_processes_cpu_per_request        CPU time per request, parent included : that of one process, both
                                     saturated by 32 connections
two_processes_cpu_per_request_half   the same at a constant rate of half the throughput, where a process
                                     handles fewer requests per wake-up
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from lab.benchmarks.load import Load, constant_rate, wrk
from lab.benchmarks.peers import json_body
from lab.benchmarks.serve.comparison import Pace, interleaved, print_figures, ratio, require_success
from tests.system.processes import cpu_seconds
from tests.system.query_service import Service, digits, row

CONNECTIONS = 32


def measure(cores: tuple[int, int], pace: Pace) -> dict[str, Any]:
    """Measure the figures of this module."""
    server_core, client_core = cores
    body = json_body(row())
    with (
        Service(prepare=digits, cores=server_core) as one,
        Service(prepare=digits, cores=server_core, processes=2) as two,
    ):

        def busy(server: Service, seconds: float = pace.seconds) -> Load:
            query, headers = server.query("digits", "3"), server.headers()
            return wrk(query, body, headers, connections=CONNECTIONS, seconds=seconds, core=client_core)

        rate = require_success(busy(one)).rate / 2

        def steady(server: Service) -> Load:
            return constant_rate(
                server.query("digits", "3"),
                body,
                server.headers(),
                rate=rate,
                seconds=pace.seconds,
                connections=CONNECTIONS,
                core=client_core,
            )

        def cpu(load: Callable[[Service], Load], server: Service) -> Callable[[], float]:
            def once() -> float:
                pids = server.pids
                before = cpu_seconds(pids)
                requests = require_success(load(server)).requests
                return (cpu_seconds(pids) - before) / requests * 1e6

            return once

        for server in (one, two):
            # Compile the load generator before the measurement.
            cpu(steady, server)()
        spent = interleaved({"one": cpu(busy, one), "two": cpu(busy, two)}, pace.rounds)
        half = interleaved({"one": cpu(steady, one), "two": cpu(steady, two)}, pace.rounds)
    print_figures("CPU time a request, busy", "µs", spent)
    print_figures(f"CPU time a request, {rate:,.0f} requests a second", "µs", half)
    return {
        "two_processes_cpu_per_request": ratio(spent, "two", "one"),
        "two_processes_cpu_per_request_half": ratio(half, "two", "one"),
        "cpu_us_per_request": round(statistics.median(spent["one"]), 1),
    }
