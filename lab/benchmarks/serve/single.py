"""One row of 64 numbers in JSON: throughput, and latency at one connection and at half load.

throughput_vs_bare      requests a second on 32 connections : those of the bare handler
throughput_vs_raw       32 requests at once on 32 connections: the time of uvloop and httptools alone, the
                        limit of a Python server, divided by ours; the 2 % quantile of alternating bursts
burst_vs_bare           the same of the bare handler
wrk_vs_raw              throughput as in throughput_vs_bare. wrk is slower than that server
cpu_vs_bare, cpu_vs_raw their processor time for a request under full load, divided by ours
throughput_vs_fastapi   the same to a FastAPI route with pydantic models around a dot product
throughput_vs_mlserver  the same to MLServer's scikit-learn runtime
p50_vs_bare             p50 at one connection, whose client does not sleep : that of the bare handler
p99_half_load_vs_bare   p99 at half of our own maximum : that of the bare handler at the same rate

All servers receive the same bytes, including the API key, except MLServer, which needs another body.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks import peers
from lab.benchmarks.load import bursts, constant_rate, wrk
from lab.benchmarks.serve.comparison import (
    Figures,
    Pace,
    interleaved,
    print_figures,
    rates,
    ratio,
    require_success,
)
from tests.system.environments import NotInstallable, Offline
from tests.system.query_service import Service, digits, row

CONNECTIONS = 32
_BURSTS_PER_SECOND: Final = 100
_QUIET: Final = 0.02


def measure(cores: tuple[int, int], pace: Pace, *, with_mlserver: bool) -> dict[str, Any]:
    """Measure the figures of this module; throughput_vs_mlserver is None if MLServer is not available."""
    server_core, client_core = cores
    body = peers.json_body(row())
    with ExitStack() as stack:
        ours = stack.enter_context(Service(prepare=digits, cores=server_core))
        url, headers = ours.query("digits", "3"), ours.headers()
        answer = ours.ask(url, body, headers)
        print(answer.decode(), flush=True)
        urls = {
            "bare": stack.enter_context(peers.bare(server_core, answer_bytes=len(answer))),
            "ours": url,
            "raw": stack.enter_context(peers.raw(server_core, answer_bytes=len(answer))),
            "fastapi": stack.enter_context(peers.fastapi_route(server_core)),
        }

        load = partial(wrk, connections=CONNECTIONS, seconds=pace.seconds, core=client_core)
        rate, cpu = rates({name: partial(load, urls[name], body, headers) for name in urls}, pace.rounds)
        print_figures(f"throughput, {CONNECTIONS} connections", "/s", rate)
        print_figures("processor time of a request", "µs", cpu)
        ask = partial(bursts, body=body, headers=headers, core=client_core)
        number = _BURSTS_PER_SECOND * pace.seconds * pace.rounds
        burst = _quantiles(ask(urls, connections=CONNECTIONS, number=number), _QUIET)
        print_figures(f"{CONNECTIONS} requests at once, the {_QUIET:.0%} quantile", "µs", burst)
        del urls["fastapi"], urls["raw"]
        alone = _quantiles(ask(urls, connections=1, number=10 * number), 0.5)
        print_figures("p50, one connection", "µs", alone)
        half = statistics.median(rate["ours"]) / 2

        def steady(name: str) -> Callable[[], float]:
            url = urls[name]
            once = partial(constant_rate, url, body, headers, rate=half, seconds=pace.seconds)
            return lambda: require_success(once(connections=CONNECTIONS, core=client_core)).p99_us

        tails = interleaved({name: steady(name) for name in urls}, pace.rounds)
        print_figures(f"p99, {half:,.0f} requests a second", "µs", tails)
        against = _mlserver(ours, body, headers, cores, pace) if with_mlserver else None
    return {
        "throughput_vs_bare": ratio(rate, "ours", "bare"),
        "throughput_vs_raw": ratio(burst, "raw", "ours"),
        "throughput_vs_fastapi": ratio(rate, "ours", "fastapi"),
        "throughput_vs_mlserver": against,
        "p50_vs_bare": ratio(alone, "ours", "bare"),
        "p99_half_load_vs_bare": ratio(tails, "ours", "bare"),
        "burst_vs_bare": ratio(burst, "bare", "ours"),
        "wrk_vs_raw": ratio(rate, "ours", "raw"),
        "cpu_vs_bare": ratio(cpu, "bare", "ours"),
        "cpu_vs_raw": ratio(cpu, "raw", "ours"),
        "throughput_per_second": round(statistics.median(rate["ours"])),
        "p50_us": round(statistics.median(alone["ours"]), 1),
        "p99_half_load_us": round(statistics.median(tails["ours"]), 1),
    }


def _quantiles(times: Mapping[str, NDArray[np.float64]], share: float) -> Figures:
    return {name: [float(np.quantile(of_one, share))] for name, of_one in times.items()}


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
