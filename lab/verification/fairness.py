"""Whether a crowd delays another key's queries: ``python -m lab.verification.fairness``; last line JSON.

A service of two server processes, and a worker for the last way, answers the queries of one key at a constant
rate, while a client without a key, or one key with a rate limit, crowds in each way of `crowds`. Windows with
and without the crowd alternate; latencies are measured from the scheduled time of a query, so queries that
wait behind another one are counted. Lists of models are asked for as well and, from another address than the
crowd's, what people ask for who have no key yet: they sign in, and look at pages. The claim: no query of the
other key, and none of these, fails, and its p99 is at most twice that of the windows without a crowd.

The service (servers, readers of files, worker and solver) has all cores. The clients are pinned to the last
one, as clients elsewhere would not take the processors of the service. There the crowd runs after everything
else by SCHED_IDLE (if that makes it slower, the number of its answers shows it), and what is measured runs
before everything else by SCHED_FIFO, which needs root or CAP_SYS_NICE, and which the kernel refuses in a
control group of its own for processors. Without it a note is printed, fairness_precedence is false, and the
ratios show how the kernel shares one core between both clients, too, so they say little about the service.
Windows without a crowd have the same pins and priority.

A way that seems to break the claim is measured twice more, and the median of the three counts: a delay that
the crowd causes is there each time, and one of other work on the machine is not. All failures count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np

from app.processes.os_process import IDLE_NICENESS
from app.services.keys import create_key
from app.store.unit_of_work import Store
from lab.verification.crowds import WAYS, Target
from lab.verification.prober import COLUMNS, Latencies, Prober, request_bytes, take_precedence
from tests.system.deployment import Deployment
from tests.system.published import publish_linear

MAX_RATIO: Final = 2.0
_CROWD_COLUMNS: Final = 256
_CROWD_CLASSES: Final = 300
_CROWD_LIMIT: Final = 50.0
"""Requests per second of the crowding key."""
_SETTLE_SECONDS: Final = 1.0
_PROCESSES: Final = 2
_PEOPLE: Final = 6
"""Keys with which people sign in; each may begin ten sessions a minute."""
_ENVIRONMENT: Final = {
    # Few, so that a crowd could fill the server without thousands of file descriptors.
    "STMS_MAX_CONNECTIONS": "300",
    "STMS_MAX_INFLIGHT_QUERIES": "64",
    "STMS_MAX_INFLIGHT_REQUESTS": "32",
    # So that requests without a key may come from several addresses.
    "STMS_TRUSTED_PROXIES": "127.0.0.1",
    "STMS_LOG_LEVEL": "WARNING",
    "OPENBLAS_NUM_THREADS": "1",
}


def main() -> int:
    """0 if the claim holds."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.fairness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short window for each way")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="only these")
    arguments = parser.parse_args()
    rounds, seconds = (1, 2.0) if arguments.quick else (2, 3.0)
    figures, idle = {}, Latencies()
    cores = os.sched_getaffinity(0)
    has_precedence = pin_clients()
    with service(cores) as (prober, target, start_worker):
        prober.measure(2.0, Latencies())
        for way in arguments.ways:
            if way == "key_jobs":
                start_worker()
            results = [measure(prober, target, way, rounds, seconds, idle)]
            if results[0]["ratio"] > MAX_RATIO:
                results += [measure(prober, target, way, rounds, seconds, idle) for _ in range(2)]
            median = sorted(results, key=lambda each: float(each["ratio"]))[len(results) // 2]
            figures[way] = median | {"failed": sum(each["failed"] for each in results)}
            print(f"{way}: {figures[way]}", flush=True)
    failed = sum(each["failed"] for each in figures.values())
    ratio = max(each["ratio"] for each in figures.values())
    found = {"fairness_failed": failed, "fairness_p99_ratio": ratio, "fairness_precedence": has_precedence}
    print(json.dumps(found | {"fairness_ways": figures}))
    return int(failed > 0 or ratio > MAX_RATIO)


def pin_clients() -> bool:
    """Pin this process, for all clients, to the last of its cores, with precedence for what is measured.

    Returns whether it has the precedence.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    has_precedence = take_precedence()
    if not has_precedence:
        print("The queries that are measured have no precedence over the crowd on their core.", flush=True)
    return has_precedence


def measure(
    prober: Prober, target: Target, way: str, rounds: int, seconds: float, idle: Latencies
) -> dict[str, Any]:
    """The figures of one way. answers: responses to the crowd by status.

    idle: queries of all windows without a crowd; those of this way are added.
    """
    alone, crowded, answers = alternate(prober, target, way, rounds, seconds)
    idle.seconds += alone.seconds
    return {
        "failed": len(alone.failures) + len(crowded.failures),
        "ratio": round(crowded.p99_ms / idle.p99_ms, 2),
        "p99_ms": round(crowded.p99_ms, 2),
        "idle_p99_ms": round(idle.p99_ms, 2),
        "queries": len(crowded.seconds),
        "failures": sorted(set(alone.failures + crowded.failures))[:5],
        "answers": answers,
    }


def alternate(
    prober: Prober,
    target: Target,
    way: str,
    rounds: int,
    seconds: float,
    module: str = "lab.verification.crowds",
) -> tuple[Latencies, Latencies, dict[str, int]]:
    """Queries in windows without and with a crowd by turns, and the responses to the crowd by status."""
    idle, crowded = Latencies(), Latencies()
    answers: dict[str, int] = {}
    for _ in range(rounds):
        prober.measure(seconds, idle)
        with crowd(target, way, module) as statuses:
            prober.measure(seconds, crowded)
        for status, count in statuses.items():
            answers[status] = answers.get(status, 0) + count
        if way == "key_jobs":
            _cancel_jobs(target)
        time.sleep(_SETTLE_SECONDS)
    return idle, crowded, answers


@contextmanager
def crowd(target: Target, way: str, module: str = "lab.verification.crowds") -> Iterator[dict[str, int]]:
    """A crowd during the block; afterwards the dictionary has the numbers of its responses by status.

    module: the program that knows the way.
    """
    statuses: dict[str, int] = {}
    command = [sys.executable, "-m", module, way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(target)) + "\n")
        process.stdin.flush()
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield statuses
        finally:
            process.terminate()
            output, _ = process.communicate(timeout=60)
        statuses |= json.loads(output)


@contextmanager
def service(cores: Collection[int]) -> Iterator[tuple[Prober, Target, Any]]:
    """A service of two server processes: the other key's queries, the crowd's target, and `start_worker`.

    cores: of all processes of the service.
    """
    # As docs/operations.md advises for a machine that answers queries and trains.
    solvers = {
        "STMS_SOLVER_THREADS": str(max(1, len(cores) - 1)),
        "STMS_SOLVER_NICENESS": str(IDLE_NICENESS),
    }
    keys: dict[str, str] = {}
    with Deployment(
        api=1,
        arguments=["--api-processes", _PROCESSES],
        prepare=lambda store: keys.update(_prepare(store)),
        settings=_ENVIRONMENT | solvers,
        cores=",".join(map(str, cores)),
    ) as running:
        target = Target("127.0.0.1", running.port, keys["crowd"], "own", _CROWD_COLUMNS, "", "")
        dataset = _post(target, "/v1/datasets?name=large", _large_csv(), "text/csv")["id"]
        body = json.dumps({"dataset_id": dataset, "model": "large"}).encode()
        job = _post(target, "/v1/training-jobs", body, "application/json")["id"]
        target = replace(target, job=job, dataset=dataset)

        def start_worker() -> None:
            _cancel_jobs(target)
            running.add("worker").start()
            time.sleep(8.0)

        yield Prober(running.port, keys["other"], others=_others(running.port, keys)), target, start_worker


def _others(port: int, keys: Mapping[str, str]) -> list[bytes]:
    """Lists of models, and what a person at another address asks for, who signs in every tenth time."""
    authorization = f"Authorization: Bearer {keys['other']}"
    address = "X-Forwarded-For: 203.0.113.9"
    proof = f"/identity?key=key_{'0' * 24}&nonce={'0' * 64}"
    others: list[bytes] = []
    for number in range(_PEOPLE):
        form = urlencode({"key": keys[f"person {number}"], "next": "/ui/"}).encode()
        sign_in = request_bytes(
            "POST", "/ui/sign-in", port, address, "Sec-Fetch-Site: same-origin",
            body=form, content_type="application/x-www-form-urlencoded",
        )  # fmt: skip
        others.append(sign_in)
        for path in ("/ui/sign-in", "/version", "/docs", proof):
            others.append(request_bytes("GET", path, port, address))
        others += [request_bytes("GET", "/v1/models", port, authorization)] * 5
    return others


def _prepare(store: Store) -> dict[str, str]:
    """Publish the models of both; returns the other key and the key of the crowd."""
    random = np.random.default_rng(0)
    for name, classes, columns in (("other", 4, COLUMNS), ("own", _CROWD_CLASSES, _CROWD_COLUMNS)):
        publish_linear(store, name, random.normal(size=(classes, columns)))
    return {
        **{f"person {n}": create_key(store, f"person {n}", {"query"})[1] for n in range(_PEOPLE)},
        "other": create_key(store, "other", {"query"}, {"other"})[1],
        "crowd": create_key(store, "crowd", {"train"}, rate_limit=_CROWD_LIMIT)[1],
    }


def _large_csv() -> bytes:
    rows = np.random.default_rng(1).normal(size=(20_000, 20)).round(3)
    labels = np.arange(len(rows)) % 26
    lines: Sequence[str] = [
        ",".join([*map(str, row), str(label)]) for row, label in zip(rows.tolist(), labels, strict=True)
    ]
    header = ",".join([*(f"c{i}" for i in range(20)), "label"])
    return "\n".join([header, *lines]).encode()


def _post(target: Target, path: str, body: bytes, content_type: str) -> Any:
    headers = {"Authorization": f"Bearer {target.key}", "Content-Type": content_type}
    request = urllib.request.Request(f"http://{target.host}:{target.port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def _cancel_jobs(target: Target) -> None:
    url = f"http://{target.host}:{target.port}/v1/training-jobs"
    headers = {"Authorization": f"Bearer {target.key}"}
    time.sleep(1.0)
    with urllib.request.urlopen(urllib.request.Request(f"{url}?limit=100", headers=headers)) as response:
        jobs = json.load(response)["data"]
    for job in jobs:
        if job["state"] in ("queued", "running"):
            _post(target, f"/v1/training-jobs/{job['id']}/cancel", b"", "application/json")
            time.sleep(1 / _CROWD_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
