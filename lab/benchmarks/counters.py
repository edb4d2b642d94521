"""Cost of the metrics and of the rate limit per query.

``python -m lab.benchmarks.counters`` prints one JSON object: the median and the minimum over repetitions, in
microseconds of processor time per call. ``metrics`` is `Metrics.answered` on a shared scoreboard.
``prometheus_client`` is the same four updates in the library's multi-process mode; it runs in a process of
its own, since an environment variable selects that mode on import. ``rate_limit`` is `Quota.take` of a caller
within the limit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from app.auth.rate_limit import Quota
from app.processes.exposition import BUCKETS
from app.processes.metrics import Metrics
from app.processes.scoreboard import Scoreboard, State

_CALLS = 20_000
_REPETITIONS = 15


def main() -> None:
    if sys.argv[1:] == ["prometheus_client"]:
        print(json.dumps(measure(prometheus_client())))
        return
    scoreboard = Scoreboard.shared(2)
    scoreboard.slots[0].claim(State.SERVING)
    metrics = Metrics(scoreboard, scoreboard.slots[0])
    quota = Quota(scoreboard.rate_limit_cells, 0, rate=1e6, burst=10**6)
    report = {
        "metrics": measure(lambda: metrics.answered("letter", 1, 0.0001)),
        "prometheus_client": in_multiprocess_mode(),
        "rate_limit": measure(quota.take),
    }
    print(json.dumps(report))


def prometheus_client() -> Callable[[], None]:
    """The updates of `Metrics.answered` with prometheus_client; labels are looked up once."""
    from prometheus_client import CollectorRegistry, Counter, Histogram

    registry = CollectorRegistry()
    queries = Counter("queries", "Queries.", ["model", "status"], registry=registry).labels("letter", "200")
    rows = Counter("rows", "Rows.", ["model"], registry=registry).labels("letter")
    seconds = Histogram("seconds", "Seconds.", ["model"], buckets=BUCKETS, registry=registry).labels("letter")

    def answered() -> None:
        queries.inc()
        rows.inc(1)
        # A histogram has two values to update: its sum and one bucket.
        seconds.observe(0.0001)

    return answered


def in_multiprocess_mode() -> dict[str, float]:
    """Measure `prometheus_client` in a process with the multi-process mode."""
    with tempfile.TemporaryDirectory(prefix="stms-counters-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "lab.benchmarks.counters", "prometheus_client"],
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": folder},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        if not any(Path(folder).iterdir()):
            raise RuntimeError("prometheus_client did not use its multi-process mode")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of processor time per call."""
    times = []
    for _ in range(_REPETITIONS):
        started = time.process_time()
        for _ in range(_CALLS):
            call()
        times.append((time.process_time() - started) / _CALLS * 1e6)
    return {"median": round(statistics.median(times), 2), "minimum": round(min(times), 2)}


if __name__ == "__main__":
    main()
