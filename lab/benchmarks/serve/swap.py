"""Requests while an alias moves three times and all server processes are replaced.

swap_failures   requests without an answer, with a status other than 200, or whose score differs from that of
                the version named in the answer
swap_late       correct answers from a version that the alias had left more than a second before the request
swap_requests   all requests; clients continue until the last process is replaced

The clients are those of Python's standard library with keep-alive connections and no retries. Some send
requests without a pause, others only now and then, on connections that are idle in between.
"""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from app.store.unit_of_work import Store
from lab.benchmarks.peers import json_body
from lab.benchmarks.serve.comparison import Pace
from stms_client import Client
from tests.system.published import linear_student, linear_teacher, publish
from tests.system.query_service import FEATURES, Service

VERSIONS = (1, 2, 3, 4)
MOVES = (1, 3, 2)
"""Versions to which the alias moves; at first it names the version published last."""
LABELS = ("a", "b", "c")
BUSY, IDLE = 8, 4
PAUSE_SECONDS = 0.05
MOVE_SECONDS = 1.0
PATIENCE_SECONDS = 120.0

Scores = dict[tuple[int, str, int], float]
"""Expected scores by version, class and row."""


class Traffic:
    """Clients that send queries until they are stopped.

    seen: number of answers by kind. failures: examples of failures. named: versions that the alias has named.
    left: time at which it left a version for good.
    """

    def __init__(self, port: int, key: str, bodies: list[bytes], scores: Scores) -> None:
        self._port, self._bodies, self._scores = port, bodies, scores
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(BUSY + IDLE)]
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []
        self.named = [VERSIONS[-1]]
        self.left: dict[int, float] = {}

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def requests(self) -> int:
        """Number of requests sent so far."""
        return self.seen.total()

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        asked = number
        while not self._stop.is_set():
            label, place = LABELS[asked % len(LABELS)], asked % len(self._bodies)
            kind, detail = self._once(connection, label, place)
            with self._lock:
                self.seen[kind] += 1
                if kind == "failed" and len(self.failures) < 10:
                    self.failures.append(detail)
            asked += 1
            if number >= BUSY:
                self._stop.wait(PAUSE_SECONDS)
        connection.close()

    def _once(self, connection: http.client.HTTPConnection, label: str, place: int) -> tuple[str, str]:
        """Send one request. Returns its kind (right, late or failed) and the answer."""
        path = f"/v1/models/pets/classes/{label}:query"
        asked = time.monotonic()
        try:
            connection.request("POST", path, self._bodies[place], self._headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return "failed", repr(error)
        if response.status != 200:
            return "failed", f"{response.status} {data[:200]!r}"
        answer = json.loads(data)
        version = answer["version"]
        if version not in self.named or answer["score"] != self._scores[version, label, place]:
            return "failed", data.decode()
        return ("late" if asked > self.left.get(version, asked) + MOVE_SECONDS else "right"), ""


def measure(cores: tuple[int, int], pace: Pace) -> dict[str, Any]:
    """Measure the figures of this module."""
    bodies, scores, publish_models = _models()
    with Service(prepare=publish_models, cores=cores[0], processes=2) as ours:
        query_key, admin_key = ours.keys["query"], ours.keys["admin"]
        with (
            Traffic(ours.port, query_key, bodies, scores) as traffic,
            Client(ours.url, admin_key) as admin,
        ):
            _story(ours, traffic, admin, pace.swap_requests)
        told = ours.said()
    print(f"{traffic.requests} requests: {dict(traffic.seen)}", flush=True)
    if traffic.failures:
        print("\n".join(["failed, among others:", *traffic.failures, told]), flush=True)
    return {
        "swap_failures": traffic.seen["failed"],
        "swap_late": traffic.seen["late"],
        "swap_requests": traffic.requests,
    }


def _story(ours: Service, traffic: Traffic, admin: Client, requests: int) -> None:
    """Move the alias three times, the second time during a restart, and wait for all requests."""
    first = set(ours.pids[1:])
    _until(lambda: traffic.requests >= requests * 0.2)
    _move(traffic, admin, MOVES[0])
    _until(lambda: traffic.requests >= requests * 0.3)
    ours["api-0"].send(signal.SIGHUP)
    _until(lambda: bool(set(ours.pids[1:]) - first))
    _move(traffic, admin, MOVES[1])
    _until(lambda: not set(ours.pids) & first)
    _move(traffic, admin, MOVES[2])
    _until(lambda: traffic.requests >= requests)


def _move(traffic: Traffic, admin: Client, version: int) -> None:
    before = traffic.named[-1]
    # While the call runs, the old and the new version are both right.
    traffic.named.append(version)
    admin.point_alias("pets", "latest", version)
    traffic.left[before] = time.monotonic()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("The service did not get that far.")
        time.sleep(0.02)


def _models() -> tuple[list[bytes], Scores, Callable[[Store], None]]:
    """Bodies, the scores they must get, and a function that publishes all versions.

    Numbers are multiples of 1/8 below 2**10, so that a score does not depend on the order of summation, and
    no two versions have a score in common.
    """
    rng = np.random.default_rng(5)
    rows = rng.integers(-16, 16, (7, FEATURES)) / 8
    weights = {v: rng.integers(-4, 4, (len(LABELS), FEATURES)).astype(float) for v in VERSIONS}
    scores = {
        (v, label, place): float(weights[v][k] @ x) + 10_000.0 * v
        for v in VERSIONS
        for k, label in enumerate(LABELS)
        for place, x in enumerate(rows)
    }

    def publish_models(store: Store) -> None:
        for v in VERSIONS:
            students = {
                label: linear_student(label, weights[v][k], 10_000.0 * v) for k, label in enumerate(LABELS)
            }
            publish(store, "pets", students, linear_teacher(LABELS, weights[v]))

    return [json_body(x) for x in rows.tolist()], scores, publish_models
