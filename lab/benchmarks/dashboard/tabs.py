"""Queries beside open tabs of the dashboard, which ask for the fragments that their pages name."""

from __future__ import annotations

import heapq
import html
import json
import multiprocessing
import os
import random
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from typing import Any, Final

import numpy as np

from lab.benchmarks.connection import Connection, request
from lab.benchmarks.dashboard.content import working
from lab.benchmarks.dashboard.site import Site
from tests.system.processes import two_cores
from tests.system.query_service import FEATURES

TABS: Final = ("running job",) * 10 + ("jobs",) * 4 + ("workers",) * 2 + ("health",) * 2 + ("traffic",) * 2
"""The pages that are open: 20."""
_RATE: Final = 400.0
_POLL = re.compile(r'data-poll="([^"]*)"\s+data-seconds="([\d.]+)"')


def measure(site: Site, quick: bool) -> dict[str, Any]:
    """p99 of queries at a constant rate, by turns without and with tabs, while a job runs."""
    rounds, seconds = (2, 4.0) if quick else (8, 15.0)
    _, client_core = two_cores()
    polls = [poll for page in TABS for poll in _polls(site, site.content.pages[page])]
    row = [round(random.Random(0).gauss(0, 1), 6) for _ in range(FEATURES)]
    body = json.dumps({"x": row}).encode()
    path = "/v1/models/digits/classes/3:query"
    connection = Connection(site.port, request("POST", path, body, site.content.query_key))
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    answers = unchanged = 0
    with _on_core(client_core), working(site.folder, site.content):
        _ask(connection, 1.0)
        for _ in range(rounds):
            alone.append(_ask(connection, seconds))
            with _tabs(site, polls, client_core) as counts:
                _ask(connection, 1.0)
                before = counts[0].value, counts[1].value
                beside.append(_ask(connection, seconds))
                answers += counts[0].value - before[0]
                unchanged += counts[1].value - before[1]
            p99s = [_quantile(rounds_of[-1], 0.99) for rounds_of in (alone, beside)]
            print(
                f"p99 without tabs {p99s[0]:7.0f} µs   beside {len(TABS)} tabs {p99s[1]:7.0f} µs", flush=True
            )
    connection.close()

    def ratio(q: float) -> float:
        pairs = zip(alone, beside, strict=True)
        return round(statistics.median(_quantile(b, q) / _quantile(a, q) for a, b in pairs), 3)

    return {
        "tabs_p99_ratio": ratio(0.99),
        "tabs_p50_ratio": ratio(0.5),
        "p99_us": round(statistics.median(_quantile(times, 0.99) for times in alone), 1),
        "tabs_p99_us": round(statistics.median(_quantile(times, 0.99) for times in beside), 1),
        "tabs_requests": round(answers / (rounds * seconds), 1),
        "tabs_unchanged": round(unchanged / max(answers, 1), 3),
    }


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    """Keep this thread on a core; afterwards it may use those that it could before."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _quantile(seconds: list[float], q: float) -> float:
    """A quantile in microseconds."""
    return float(np.quantile(seconds, q)) * 1e6


def _polls(site: Site, path: str) -> list[tuple[str, float]]:
    """The fragments of a page, and how often each is asked for, in seconds."""
    return [(html.unescape(address), float(each)) for address, each in _POLL.findall(site.text(path))]


def _ask(connection: Connection, seconds: float) -> list[float]:
    """Latencies, in seconds, of queries at a constant rate, each from the time at which it was due."""
    times = []
    start = time.perf_counter()
    for number in range(int(_RATE * seconds)):
        due = start + number / _RATE
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        connection.ask()
        times.append(time.perf_counter() - max(due, start))
    return times


@contextmanager
def _tabs(
    site: Site, polls: list[tuple[str, float]], core: int
) -> Iterator[tuple[Synchronized[int], Synchronized[int]]]:
    """Tabs in a process of their own; gives the numbers of all answers and of those with status 304."""
    spawn = multiprocessing.get_context("spawn")
    counts = spawn.Value("q", 0), spawn.Value("q", 0)
    process = spawn.Process(target=_poll_all, args=(site, polls, core, *counts))
    process.start()
    try:
        while counts[0].value < len(polls):
            if not process.is_alive():
                raise RuntimeError("The tabs have ended.")
            time.sleep(0.1)
        yield counts
        if not process.is_alive():
            raise RuntimeError("The tabs have ended.")
    finally:
        process.terminate()
        process.join()


def _poll_all(
    site: Site,
    polls: list[tuple[str, float]],
    core: int,
    answers: Synchronized[int],
    unchanged: Synchronized[int],
) -> None:
    """Ask for each fragment again some seconds after its answer, as `page.js` does, until terminated.

    Tabs are on the core of the queries' client, which runs first, as if they were on another machine.
    """
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    connections = [Connection(site.port, site.request(path)) for path, _ in polls]
    tags = [""] * len(polls)
    pick = random.Random(1)
    waiting = [(time.monotonic() + pick.random() * each, tab) for tab, (_, each) in enumerate(polls)]
    heapq.heapify(waiting)
    while True:
        due, tab = heapq.heappop(waiting)
        time.sleep(max(0.0, due - time.monotonic()))
        path, each = polls[tab]
        answer = connections[tab].ask(site.request(path, tags[tab]))
        status = answer[9:12]
        if status not in {b"200", b"304"}:
            raise RuntimeError(answer.decode())
        found = re.search(rb"\r\netag: ([^\r]*)", answer, re.IGNORECASE)
        tags[tab] = found[1].decode() if found else ""
        answers.value += 1
        unchanged.value += status == b"304"
        heapq.heappush(waiting, (time.monotonic() + each, tab))
