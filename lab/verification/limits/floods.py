"""Floods without a key and costly requests of a tenant, beside queries and pages of others.

The times of the others' queries are compared with windows without a flood in the same run. Meanwhile pages
of a person who has signed in, lists and small uploads of a neighbour are answered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx

from lab.verification.fairness import alternate, crowd
from lab.verification.limits.judgement import Judgement, repeated
from lab.verification.limits.stage import Stage, small_csv, upload
from lab.verification.limits.ways import BODIES, KEYLESS, MODULE
from lab.verification.prober import COLUMNS, Latencies, Prober, request_bytes

MAX_P50_RATIO: Final = 3.0
MAX_P99_MS: Final = 10.0
MAX_P99_RATIO: Final = 3.0
"""Where the machine itself exceeds `MAX_P99_MS`: ratio to the p99 of windows without a flood."""
MAX_P50_RATIO_OF_KEY: Final = 6.0
"""Where a key floods with requests that it may send, and that are answered."""
MAX_STALL_MS: Final = 250.0
MAX_UPLOAD_SECONDS: Final = 2.0
MAX_UPLOAD_RATIO: Final = 5.0
"""Where it takes longer: a small upload, compared with the slowest one while nothing else is uploaded."""
_QUICK_WAYS: Final = 7
_CONNECTIONS: Final = "200"
"""STMS_MAX_CONNECTIONS, of which four keys take a quarter each in `connections_of_four_keys`."""
_UPLOADS: Final = 8
_WARM_SECONDS: Final = 2.0


def measure_keyless(judgement: Judgement, cores: str, *, quick: bool) -> None:
    """Every flood of `KEYLESS`; ``quick``: the ones that cost most."""
    seconds = 1.0 if quick else 3.0
    with Stage(api=1, cores=cores) as running:
        prober = _pages_too(running)
        prober.measure(_WARM_SECONDS, Latencies())
        for way in list(KEYLESS)[: _QUICK_WAYS if quick else None]:
            figures = repeated(
                lambda way=way: flooded(running, prober, way, seconds),
                lambda found: not misses(judge_flood, found),
            )
            judge_flood(judgement, f"keyless_{way}", figures)
        judgement.equal("keyless_alive", running.is_alive(), expected=True)


def measure_stalls(judgement: Judgement, cores: str, *, quick: bool) -> None:
    """Bodies that are costly to read, and requests that keep places, connections or the reader of files."""
    seconds = 1.5 if quick else 4.0
    with Stage(api=1, cores=cores) as running:
        with running.client("attacker") as client:
            dataset = upload(client, small_csv(0)).raise_for_status().json()["id"]
        prober = _pages_too(running)
        prober.measure(_WARM_SECONDS, Latencies())
        for way in BODIES:
            figures = repeated(
                lambda way=way: flooded(running, prober, way, seconds, dataset),
                lambda found: not misses(judge_stall, found),
            )
            judge_stall(judgement, f"stalls_{way}", figures)
        for way, ratio in (("refused_requests", MAX_P50_RATIO), ("answered_requests", MAX_P50_RATIO_OF_KEY)):
            figures = flooded(running, prober, way, seconds, dataset)
            judgement.equal(f"stalls_{way}_failed", int(figures["failed"]), 0)
            judgement.at_most(f"stalls_{way}_p50_ratio", figures["p50_ratio"], ratio)
            judgement.note(f"stalls_{way}_p99_ms", figures["p99_ms"])
        _measure_uploads(judgement, running, quick=quick)
    with Stage(api=1, cores=cores, settings={"STMS_MAX_CONNECTIONS": _CONNECTIONS}) as running:
        for way in ("slow_bodies_of_four_keys", "connections_of_four_keys"):
            _measure_shares(judgement, running, way, 4.0 if quick else 15.0)
        judgement.equal("stalls_alive", running.is_alive(), expected=True)


def flooded(running: Stage, prober: Prober, way: str, seconds: float, dataset: str = "") -> dict[str, float]:
    """Queries of others without and beside a flood."""
    idle, crowded, answers = alternate(prober, running.target(dataset), way, 1, seconds, MODULE)
    print(f"  {way}: answers {answers}, failures {sorted(set(crowded.failures))[:3]}", flush=True)
    return {
        "p50_ms": crowded.p50_ms,
        "p50_ratio": crowded.p50_ms / idle.p50_ms,
        "p99_ms": crowded.p99_ms,
        "idle_p99_ms": idle.p99_ms,
        "longest_ms": crowded.longest_ms,
        "failed": len(idle.failures) + len(crowded.failures),
        "answered": sum(answers.values()) / seconds,
    }


def judge_flood(judgement: Judgement, name: str, figures: Mapping[str, float]) -> None:
    """Compare a flood without a key with its limits."""
    judgement.equal(f"{name}_failed", int(figures["failed"]), 0)
    judgement.at_most(f"{name}_p50_ratio", figures["p50_ratio"], MAX_P50_RATIO)
    p99_ms = max(MAX_P99_MS, MAX_P99_RATIO * figures["idle_p99_ms"])
    judgement.at_most(f"{name}_p99_ms", figures["p99_ms"], p99_ms)


def judge_stall(judgement: Judgement, name: str, figures: Mapping[str, float]) -> None:
    """Compare costly bodies with their limits."""
    judgement.equal(f"{name}_failed", int(figures["failed"]), 0)
    judgement.at_most(f"{name}_p50_ratio", figures["p50_ratio"], MAX_P50_RATIO)
    judgement.at_most(f"{name}_longest_ms", figures["longest_ms"], MAX_STALL_MS)
    judgement.note(f"{name}_p99_ms", figures["p99_ms"])


def misses(
    judge: Callable[[Judgement, str, Mapping[str, float]], None], figures: Mapping[str, float]
) -> list[str]:
    """The limits that a flood misses."""
    trial = Judgement(shown=False)
    judge(trial, "flood", figures)
    return trial.missed


def _measure_uploads(judgement: Judgement, running: Stage, *, quick: bool) -> None:
    """Small uploads of a neighbour beside large ones of another tenant that fail in the last cell."""
    alone = [_small_upload(running, number) for number in range(3)]
    with crowd(running.target(), "failing_uploads", MODULE) as statuses:
        time.sleep(_WARM_SECONDS)
        beside = [_small_upload(running, 10 + number) for number in range(3 if quick else _UPLOADS)]
    judgement.note("stalls_uploads_answers", dict(statuses))
    judgement.note("stalls_uploads_alone_s", max(seconds for seconds, _ in alone))
    judgement.equal("stalls_uploads_failed", sum(status != 201 for _, status in alone + beside), 0)
    limit = max(MAX_UPLOAD_SECONDS, MAX_UPLOAD_RATIO * max(seconds for seconds, _ in alone))
    judgement.at_most("stalls_uploads_s", max(seconds for seconds, _ in beside), limit)


def _small_upload(running: Stage, number: int) -> tuple[float, int]:
    """Seconds and status of one upload of 1 kB by the neighbour; status 0 if there was no answer."""
    began = time.monotonic()
    with running.client("neighbour") as client:
        try:
            status = upload(client, small_csv(number)).status_code
        except httpx.HTTPError:
            status = 0
    return time.monotonic() - began, status


def _measure_shares(judgement: Judgement, running: Stage, way: str, seconds: float) -> None:
    """What others get, over new connections, while four keys of one tenant keep places or connections."""
    cookie = running.cookie("neighbour")
    refused: Counter[str] = Counter()
    number = 0
    with crowd(running.target(), way, MODULE) as statuses:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            number += 1
            refused.update(name for name, status in _visit(running, cookie, way, number) if status >= 300)
            time.sleep(0.2)
    judgement.note(f"stalls_{way}_visits", number)
    judgement.note(f"stalls_{way}_answers", dict(statuses))
    judgement.equal(f"stalls_{way}_refused", dict(refused), {})


def _visit(running: Stage, cookie: str, way: str, number: int) -> Iterator[tuple[str, int]]:
    """Name and status of each of a few requests of others; 599 for a connection that was closed."""
    row = {"x": [1.0] * COLUMNS}
    requests: Mapping[str, Callable[[], httpx.Response]] = {
        "query": lambda: _once(running, "query", "POST", "/v1/models/other/classes/0:query", json=row),
        "list": lambda: _once(running, "neighbour", "GET", "/v1/datasets"),
        "page": lambda: _once(running, "", "GET", "/ui/datasets", headers={"Cookie": cookie}),
        "upload": lambda: _once(
            running,
            "neighbour",
            "POST",
            f"/v1/datasets?format=csv&name={way}",
            content=small_csv(1000 + number),
            headers={"Content-Type": "text/csv"},
        ),
    }
    for name, request in requests.items():
        try:
            yield name, request().status_code
        except httpx.HTTPError:
            yield name, 599


def _once(running: Stage, key: str, method: str, path: str, **options: Any) -> httpx.Response:
    """One request over a connection of its own."""
    with running.client(key, 10.0) as client:
        return client.request(method, path, **options)


def _pages_too(running: Stage) -> Prober:
    """Queries, and pages of a neighbour who has signed in and lists of its data sets by turns."""
    cookie = f"Cookie: {running.cookie('neighbour')}"
    authorization = f"Authorization: Bearer {running.keys['neighbour']}"
    others = [
        request_bytes("GET", "/ui/jobs", running.port, cookie),
        request_bytes("GET", "/v1/datasets", running.port, authorization),
    ]
    return running.prober(others=others)
