"""One row of 64 numbers in JSON: throughput, and latency at one connection and at half load.

throughput_vs_bare      requests a second on 32 connections : those of the bare handler
throughput_vs_raw       the same to uvloop and httptools alone, the limit of a Python server
throughput_vs_fastapi   the same to a FastAPI route with pydantic models around a dot product
throughput_vs_mlserver  the same to MLServer's scikit-learn runtime
p50_vs_bare             p50 at one connection : that of the bare handler
p99_half_load_vs_bare   p99 at half of our own maximum : that of the bare handler at the same rate

All servers receive the same bytes, including the API key, except MLServer, which needs another body.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks import peers
from benchmarks.load import Load, constant_rate, wrk
from benchmarks.peers.environments import NotInstallable, Offline
from benchmarks.serve.comparison import Pace, interleaved, print_figures, ratio, require_success
from benchmarks.serve.service import Service, digits, row, service

CONNECTIONS = 32


def measure(cores: tuple[int, int], pace: Pace, *, with_mlserver: bool) -> dict[str, Any]:
    """Measure the figures of this module; throughput_vs_mlserver is None if MLServer is not available."""
    server_core, client_core = cores
    body = peers.json_body(row())
    with ExitStack() as stack:
        ours = stack.enter_context(service(digits, server_core))
        url, headers = ours.query("digits", "3"), ours.headers()
        answer = ours.ask(url, body, headers)
        print(answer.decode(), flush=True)
        urls = {
            "bare": stack.enter_context(peers.bare(server_core, answer_bytes=len(answer))),
            "ours": url,
            "raw": stack.enter_context(peers.raw(server_core, answer_bytes=len(answer))),
            "fastapi": stack.enter_context(peers.fastapi_route(server_core)),
        }

        def busy(name: str, connections: int) -> Load:
            seconds = pace.seconds
            return require_success(
                wrk(urls[name], body, headers, connections=connections, seconds=seconds, core=client_core)
            )

        rates = interleaved({name: _rate(busy, name) for name in urls}, pace.rounds)
        print_figures(f"throughput, {CONNECTIONS} connections", "/s", rates)
        del urls["fastapi"], urls["raw"]
        alone = interleaved({name: _p50(busy, name) for name in urls}, pace.rounds)
        print_figures("p50, one connection", "µs", alone)
        half = statistics.median(rates["ours"]) / 2

        def steady(name: str) -> Callable[[], float]:
            def once() -> float:
                found = constant_rate(
                    urls[name],
                    body,
                    headers,
                    rate=half,
                    seconds=pace.seconds,
                    connections=CONNECTIONS,
                    core=client_core,
                )
                return require_success(found).p99_us

            return once

        tails = interleaved({name: steady(name) for name in urls}, pace.rounds)
        print_figures(f"p99, {half:,.0f} requests a second", "µs", tails)
        against = _mlserver(ours, body, headers, cores, pace) if with_mlserver else None
    return {
        "throughput_vs_bare": ratio(rates, "ours", "bare"),
        "throughput_vs_raw": ratio(rates, "ours", "raw"),
        "throughput_vs_fastapi": ratio(rates, "ours", "fastapi"),
        "throughput_vs_mlserver": against,
        "p50_vs_bare": ratio(alone, "ours", "bare"),
        "p99_half_load_vs_bare": ratio(tails, "ours", "bare"),
        "throughput_per_second": round(statistics.median(rates["ours"])),
        "p50_us": round(statistics.median(alone["ours"]), 1),
        "p99_half_load_us": round(statistics.median(tails["ours"]), 1),
    }


def _rate(busy: Callable[[str, int], Load], name: str) -> Callable[[], float]:
    return lambda: busy(name, CONNECTIONS).rate


def _p50(busy: Callable[[str, int], Load], name: str) -> Callable[[], float]:
    return lambda: busy(name, 1).p50_us


def _mlserver(
    ours: Service, body: bytes, headers: Mapping[str, str], cores: tuple[int, int], pace: Pace
) -> float | None:
    """Our throughput divided by MLServer's; None if its packages are not available."""

    def rate(url: str, data: bytes) -> Callable[[], float]:
        return lambda: (
            require_success(
                wrk(url, data, headers, connections=CONNECTIONS, seconds=pace.seconds, core=cores[1])
            ).rate
        )

    try:
        with peers.mlserver(cores[0]) as url:
            contestants = {
                "ours": rate(ours.query("digits", "3"), body),
                "mlserver": rate(url, peers.mlserver_body(row())),
            }
            rates = interleaved(contestants, pace.few.rounds)
    except (Offline, NotInstallable) as error:
        print(f"MLServer is left out: {error}", file=sys.stderr, flush=True)
        return None
    print_figures(f"throughput, {CONNECTIONS} connections", "/s", rates)
    return ratio(rates, "ours", "mlserver")
