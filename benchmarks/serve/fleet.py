"""Two server processes next to one, on the same core and at the same rate of requests.

two_processes_cpu_per_request   CPU time a request, parent included : that of one process
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.load import constant_rate, wrk
from benchmarks.peers import json_body
from benchmarks.processes import cpu_seconds
from benchmarks.serve.rounds import Pace, in_turns, ratio, sound, tell
from benchmarks.serve.service import Service, digits, row, service

CONNECTIONS = 32


def measure(cores: tuple[int, int], pace: Pace) -> dict[str, Any]:
    """All figures of this page."""
    server_core, client_core = cores
    body = json_body(row())
    with service(digits, server_core) as one, service(digits, server_core, workers=2) as two:
        most = sound(
            wrk(
                one.query("digits", "3"),
                body,
                one.headers(),
                connections=CONNECTIONS,
                seconds=pace.seconds,
                core=client_core,
            )
        ).rate

        def cpu(server: Service) -> Callable[[], float]:
            def once() -> float:
                pids = server.pids()
                before = cpu_seconds(pids)
                load = constant_rate(
                    server.query("digits", "3"),
                    body,
                    server.headers(),
                    rate=most / 2,
                    seconds=pace.seconds,
                    connections=CONNECTIONS,
                    core=client_core,
                )
                return (cpu_seconds(pids) - before) / sound(load).requests * 1e6

            return once

        for server in (one, two):
            # The load has to be compiled, too.
            cpu(server)()
        spent = in_turns({"one": cpu(one), "two": cpu(two)}, pace.rounds)
    tell(f"CPU time a request, {most / 2:,.0f} requests a second", "µs", spent)
    return {
        "two_processes_cpu_per_request": ratio(spent, "two", "one"),
        "cpu_us_per_request": round(statistics.median(spent["one"]), 1),
    }
