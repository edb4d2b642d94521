"""Lists of a tenant with the largest rows that are accepted: bytes, memory, time of others' queries.

Each list is requested eight times at once, and once more page by page: a limit of bytes must not lose rows.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpx

from app.processes.os_process import ProcessName
from lab.verification.limits.grower import head, many_classes
from lab.verification.limits.judgement import Judgement
from lab.verification.limits.stage import Stage, database, submit, upload
from lab.verification.prober import Latencies, Prober
from tests.system.processes import memory, reset_peaks

_MIB: Final = 1024**2
MAX_BYTES: Final = 8 * _MIB
MAX_PEAK_BYTES: Final = 128 * _MIB
MAX_P99_MS: Final = 100.0
MAX_P99_RATIO: Final = 10.0
"""The p99 may have this ratio to that of a window without lists where the machine itself is slow."""
_AT_ONCE: Final = 8
_CLASSES: Final = 150_000
_PAGES: Final = 2000
"""Pages after which a list that does not end counts as broken."""
_WINDOW_SECONDS: Final = 1.0

LISTS: Final[Sequence[tuple[str, str, str]]] = (
    ("datasets", "attacker", "/v1/datasets?limit=1000"),
    ("keys", "attacker admin", "/v1/keys?limit=1000"),
    ("jobs", "attacker", "/v1/training-jobs?limit=1000"),
    ("models", "attacker", "/v1/models?limit=1000"),
    ("versions", "attacker", "/v1/models/wide?limit=1000"),
    ("audit", "attacker admin", "/v1/audit?limit=1000"),
)
"""Name, key and path."""
PAGES: Final = ("/ui/datasets", "/ui/jobs", "/ui/keys", "/ui/models", "/ui/models/wide", "/ui/audit")
"""Pages of the dashboard that show the same rows."""


def measure(judgement: Judgement, cores: str, *, quick: bool) -> None:
    """On SQLite, and unless ``quick`` on PostgreSQL, too."""
    with Stage(api=1, cores=cores) as running:
        _measure(judgement, running, "lists", quick=quick)
    if not quick:
        with database(cores) as address, Stage(api=1, cores=cores, database=address) as running:
            _measure(judgement, running, "lists_postgresql", quick=True)


def _measure(judgement: Judgement, running: Stage, name: str, *, quick: bool) -> None:
    stored = _fill(running, quick=quick)
    judgement.note(f"{name}_stored", stored)
    prober, idle = running.prober(), Latencies()
    prober.measure(_WINDOW_SECONDS, idle)
    limit = max(MAX_P99_MS, MAX_P99_RATIO * idle.p99_ms)
    cookie = {"Cookie": running.cookie("attacker admin")}
    requests = {each: (path, _authorization(running, key)) for each, key, path in LISTS}
    requests |= {path: (path, cookie) for path in PAGES}
    for path in PAGES:
        # The first request of a page in a process compiles its template.
        httpx.get(running.url + path, headers=cookie, trust_env=False, timeout=60).raise_for_status()
    with _clients() as clients:
        for each, (path, headers) in requests.items():
            size, peak, beside = _at_once(running, prober, clients, path, headers)
            judgement.at_most(f"{name}_{each}_mib", size / _MIB, MAX_BYTES / _MIB)
            judgement.at_most(f"{name}_{each}_peak_mib", peak / _MIB, MAX_PEAK_BYTES / _MIB)
            judgement.at_most(f"{name}_{each}_p99_ms", beside.p99_ms, limit)
            judgement.equal(f"{name}_{each}_failed", len(beside.failures), 0)
    for each, key, path in LISTS:
        if each in stored:
            judgement.equal(f"{name}_{each}_rows", _rows(running, key, path), stored[each])


def _at_once(
    running: Stage, prober: Prober, clients: subprocess.Popen[str], path: str, headers: Mapping[str, str]
) -> tuple[int, int, Latencies]:
    """Bytes of the largest of several answers at once, growth of the server's peak, and queries meanwhile."""
    server, beside = [running.process(ProcessName.CONTROL), running.process(ProcessName.QUERY)], Latencies()
    assert clients.stdin is not None
    assert clients.stdout is not None
    reset_peaks(server)
    before = memory(server)[0]
    asked = {"url": running.url + path, "headers": dict(headers), "count": _AT_ONCE}
    clients.stdin.write(json.dumps(asked) + "\n")
    clients.stdin.flush()
    prober.measure(_WINDOW_SECONDS, beside)
    while not select.select([clients.stdout], [], [], 0)[0]:
        prober.measure(_WINDOW_SECONDS, beside)
    line = clients.stdout.readline()
    if not line:
        raise RuntimeError(f"A request of {path} failed.")
    return max(json.loads(line)), memory(server)[1] - before, beside


@contextmanager
def _clients() -> Iterator[subprocess.Popen[str]]:
    """The process that sends several requests at once."""
    command = [sys.executable, "-m", "lab.verification.limits.fetching"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            process.terminate()


def _authorization(running: Stage, key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {running.keys[key]}"}


def _rows(running: Stage, key: str, path: str) -> int:
    """Number of different rows of a list, page by page."""
    found: set[Any] = set()
    target: str | None = path
    with running.client(key, 300.0) as client:
        for _ in range(_PAGES):
            response = client.get(target or path).raise_for_status()
            document = response.json()
            rows = document.get("data") or document.get("versions") or []
            found |= {row.get("id", row.get("version")) for row in rows}
            target = response.links.get("next", {}).get("url")
            if target is None:
                break
    return len(found)


def _fill(running: Stage, *, quick: bool) -> dict[str, int]:
    """Store the largest rows that are accepted. Returns how many there are of each list."""
    with running.client("attacker", 300.0) as client, running.client("attacker admin", 300.0) as admin:
        stored = {"datasets": _count(_upload_classes(client), 6 if quick else 24)}
        dataset = upload(client, many_classes(0, 20_000), "classes").raise_for_status().json()["id"]
        stored["datasets"] += 1
        jobs = len(client.get("/v1/training-jobs?limit=1000").json()["data"])
        stored["jobs"] = jobs + _count(_submit_classes(client, dataset), 20 if quick else 60)
        stored["versions"] = _count(_import_head(client), 30 if quick else 100)
        for number in range(50 if quick else 300):
            client.put(f"/v1/models/wide/aliases/{number}-".ljust(120, "x"), json={"version": 1})
        before = len(admin.get("/v1/keys?limit=1000").json()["data"])
        stored["keys"] = before + _count(_create_key(admin), 120 if quick else 400)
    return stored


def _count(store: Callable[[int], httpx.Response], most: int) -> int:
    """Call ``store`` up to ``most`` times, until it is refused; returns how often it was not."""
    for number in range(most):
        response = store(number)
        if response.status_code not in {201, 202}:
            print(f"  refused after {number}: {response.status_code} {response.text[:200]}", flush=True)
            return number
    return most


def _upload_classes(client: httpx.Client) -> Callable[[int], httpx.Response]:
    return lambda number: upload(client, many_classes(number + 1, _CLASSES), "c" * 200)


def _largest(
    attempts: Sequence[Callable[[int], httpx.Response]],
) -> Callable[[int], httpx.Response]:
    """The first of the attempts that is accepted, from then on without trying the earlier ones."""
    waiting = list(attempts)

    def store(number: int) -> httpx.Response:
        while (response := waiting[0](number)).status_code >= 400 and len(waiting) > 1:
            waiting.pop(0)
        return response

    return store


def _submit_classes(client: httpx.Client, dataset: str) -> Callable[[int], httpx.Response]:
    def of(count: int) -> Callable[[int], httpx.Response]:
        labels = [f"label-of-class-{label:07d}-0" for label in range(count)]
        return lambda number: submit(client, dataset, f"m{number}", classes=labels)

    repeated = ["label-of-class-0000000-0"] * 35_000
    several = [of(count) for count in (20_000, 5000, 2000, 1000, 500, 100)]
    return _largest([lambda _: submit(client, dataset, "m", classes=repeated), *several])


def _import_head(client: httpx.Client) -> Callable[[int], httpx.Response]:
    return lambda number: client.post(
        "/v1/teachers?model=wide&allow_schema_change=true",
        content=head(number),
        headers={"Content-Type": "application/octet-stream"},
    )


def _create_key(admin: httpx.Client) -> Callable[[int], httpx.Response]:
    def of(count: int) -> Callable[[int], httpx.Response]:
        models = [f"m{model:05d}-".ljust(99, "x") for model in range(count)]
        return lambda number: admin.post(
            "/v1/keys", json={"name": f"k{number}".ljust(100, "x"), "scopes": ["query"], "models": models}
        )

    return _largest([of(count) for count in (1000, 500, 200, 100, 50, 10)])
