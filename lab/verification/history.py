"""Records queries of four server processes beside changes and restarts, and checks the recorded history.

Aliases of three models move forward and back, keys are created and revoked, and processes are stopped and
killed, while every process answers queries, and readers beside each process evaluate its students themselves.
All times are of one clock, that of this program. What is promised, and how it is checked, is in
`lab.verification.consistency`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from app.services.models import point_alias
from app.settings import Settings
from app.store.unit_of_work import Store
from lab.verification.consistency import ACCEPTED, REFUSED, Change, Query, Verdict, check
from lab.verification.history_local import MAX_STALE, LocalReader
from lab.verification.history_servers import Client, servers
from tests.system.deployment import Deployment
from tests.system.postgres import postgres
from tests.system.processes import Process
from tests.system.published import linear_student, linear_teacher, publish

PROCESSES: Final = 4
MODELS: Final = ("m0", "m1", "m2")
VERSIONS: Final = 6
CLASSES: Final = ("a", "b")
QUERIES: Final = 100_000
SECONDS: Final = 100.0
QUICK_QUERIES: Final = 5_000
QUICK_SECONDS: Final = 15.0
BOUND_SECONDS: Final = 2.0
"""Stated bound of the staleness: STMS_REFRESH_SECONDS + STMS_MOVE_SECONDS and the time of one read."""
LOCAL_BOUND_SECONDS: Final = BOUND_SECONDS + MAX_STALE
"""That of a local reader: what a server shows may answer for `max_stale` more."""

_CLIENTS: Final = 3
_LOCAL_READERS: Final = 2
"""As `_CLIENTS` of each process."""
_MOVE_PAUSE: Final = 0.2
_KEY_PAUSE: Final = 0.3
_KEY_SECONDS: Final = 3.0
_RESTART_PAUSE: Final = 2.0
_SETTLE_SECONDS: Final = 0.5
_MAX_SECONDS: Final = 900.0


@dataclass(slots=True)
class Recording:
    """What was recorded. local: queries that local readers answered. keys: texts by id of the keys that
    queries use now. counts: of everything else.
    """

    changes: dict[str, list[Change]] = field(default_factory=dict)
    queries: list[Query] = field(default_factory=list)
    local: list[Query] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    answered: int = 0


class History:
    """The clients and the writers of one run of at least ``wanted`` queries and ``seconds`` seconds."""

    def __init__(self, deployment: Deployment, wanted: int, seconds: float, seed: int) -> None:
        self._servers = deployment
        self._admin = deployment.keys["administrator"]
        self._seed = seed
        self._wanted = wanted
        self._until = time.monotonic() + seconds
        self._random = random.Random(seed)
        self._recording = Recording()
        self._down: set[int] = set()

    async def run(self) -> Recording:
        """Record to the end. Raises TimeoutError, and what a task raises."""
        for model in MODELS:
            self._recording.changes[f"{model}@live"] = [Change(1, 0.0, 0.0)]
        for _ in range(3):
            await self._create_key()
        writers = [self._move_alias(model) for model in MODELS] + [self._turn_over_keys(), self._restart()]
        clients = [self._query(number % PROCESSES) for number in range(_CLIENTS * PROCESSES)]
        readers = [self._evaluate(number) for number in range(_LOCAL_READERS * PROCESSES)]
        async with asyncio.timeout(_MAX_SECONDS), asyncio.TaskGroup() as group:
            for task in (*clients, *readers, *writers):
                group.create_task(task)
        return self._recording

    @property
    def _is_over(self) -> bool:
        return self._recording.answered >= self._wanted and time.monotonic() >= self._until

    async def _query(self, number: int) -> None:
        """Send queries to one process, one after the other."""
        recording, client = self._recording, Client(self._servers, number)
        while not self._is_over:
            key_id = self._random.choice(list(recording.keys))
            client.key = recording.keys[key_id]
            model = self._random.choice(MODELS)
            path = f"/v1/models/{model}@live/classes/{self._random.choice(CLASSES)}:query"
            invoked = time.perf_counter()
            status, _, answer = await client.ask("POST", path, {"x": [1.0, 0.0]})
            answered = time.perf_counter()
            if status not in (200, 401):
                recording.counts[f"status {status}"] += 1
                await asyncio.sleep(0.02)
                continue
            recording.answered += 1
            shown = ACCEPTED if status == 200 else REFUSED
            recording.queries.append(Query(key_id, number, shown, invoked, answered))
            if status == 200:
                query = Query(f"{model}@live", number, answer["version"], invoked, answered)
                recording.queries.append(query)
                if answer["score"] != float(answer["version"]):
                    recording.counts["wrong answers"] += 1
        client.close()

    async def _evaluate(self, number: int) -> None:
        """Answer queries with the students of one process, as a program beside it."""
        recording = self._recording
        reader = LocalReader(
            self._servers.urls[number % PROCESSES],
            PROCESSES + number,
            recording.keys,
            recording.local,
            recording.counts,
            lambda: self._is_over,
            self._seed,
        )
        await reader.run(MODELS, CLASSES)

    async def _move_alias(self, model: str) -> None:
        """Move the alias of a model forward and back, each time through another process."""
        changes, path = self._recording.changes[f"{model}@live"], f"/v1/models/{model}/aliases/live"
        tag = (await self._read(path))[1]
        while not self._is_over:
            await asyncio.sleep(_MOVE_PAUSE * self._random.uniform(0.2, 1.8))
            version = self._random.choice([v for v in range(1, VERSIONS + 1) if v != changes[-1].value])
            client = self._client()
            invoked = time.perf_counter()
            status, headers, _ = await client.ask("PUT", path, {"version": version}, if_match=tag)
            answered = time.perf_counter()
            client.close()
            if status == 200:
                changes.append(Change(version, invoked, answered, client.number))
                tag = headers["etag"]
                continue
            self._recording.counts["unconfirmed moves"] += 1
            # A commit that is under way in the database ends meanwhile.
            await asyncio.sleep(_SETTLE_SECONDS)
            stored, tag = await self._read(path)
            if stored != changes[-1].value:
                changes.append(Change(stored, invoked, time.perf_counter()))

    async def _read(self, path: str) -> tuple[int, str]:
        """Version and ETag of an alias, from the database."""
        while True:
            client = self._client()
            status, headers, alias = await client.ask("GET", path)
            client.close()
            if status == 200:
                return int(alias["version"]), headers["etag"]
            await asyncio.sleep(0.1)

    async def _turn_over_keys(self) -> None:
        """Create keys, revoke them after a while, and go on using them for a while."""
        async with asyncio.TaskGroup() as group:
            while not self._is_over:
                await asyncio.sleep(_KEY_PAUSE * self._random.uniform(0.2, 1.8))
                key_id = await self._create_key()
                if key_id is not None:
                    group.create_task(self._end_key(key_id))

    async def _create_key(self) -> str | None:
        client = self._client()
        invoked = time.perf_counter()
        wanted = {"name": "camera", "scopes": ["query", "download"]}
        status, _, made = await client.ask("POST", "/v1/keys", wanted)
        answered = time.perf_counter()
        client.close()
        if status != 201:
            self._recording.counts["unconfirmed keys"] += 1
            return None
        key_id = str(made["details"]["id"])
        created = Change(ACCEPTED, invoked, answered, client.number)
        self._recording.changes[key_id] = [Change(REFUSED, 0.0, 0.0), created]
        self._recording.keys[key_id] = made["key"]
        return key_id

    async def _end_key(self, key_id: str) -> None:
        await asyncio.sleep(_KEY_SECONDS * self._random.uniform(0.2, 1.8))
        invoked = time.perf_counter()
        while True:
            client = self._client()
            status, _, _ = await client.ask("DELETE", f"/v1/keys/{key_id}")
            answered = time.perf_counter()
            client.close()
            if status == 200:
                break
            self._recording.counts["unconfirmed revocations"] += 1
            await asyncio.sleep(0.1)
        revoked = Change(REFUSED, invoked, answered, client.number)
        self._recording.changes[key_id].append(revoked)
        await asyncio.sleep(2 * LOCAL_BOUND_SECONDS)
        del self._recording.keys[key_id]

    async def _restart(self) -> None:
        """Stop or kill one process after the other, and start it again."""
        for how in itertools.cycle((signal.SIGTERM, signal.SIGKILL)):
            if self._is_over:
                return
            await asyncio.sleep(_RESTART_PAUSE * self._random.uniform(0.5, 1.5))
            number = self._random.randrange(PROCESSES)
            self._down.add(number)
            await asyncio.to_thread(_restart_server, self._servers[f"api-{number}"], how)
            self._down.discard(number)
            self._recording.counts[f"restarts by {how.name}"] += 1

    def _client(self) -> Client:
        """A client of the administrator at a process that is not being restarted, as far as is known."""
        up = [number for number in range(PROCESSES) if number not in self._down]
        # Sometimes at one that is, so that some changes are not confirmed.
        number = self._random.choice(up if self._random.random() < 0.9 else range(PROCESSES))
        return Client(self._servers, number, self._admin)


def _restart_server(server: Process, how: signal.Signals) -> None:
    server.send(how)
    server.wait()
    server.start()
    server.wait_until_ready()


def publish_models(store: Store) -> None:
    """Publish the models, whose scores tell their versions."""
    for model in MODELS:
        for version in range(1, VERSIONS + 1):
            students = {label: linear_student(label, [float(version), 0.0]) for label in CLASSES}
            publish(store, model, students, linear_teacher(CLASSES, version * np.eye(2)))
        point_alias(store, Settings(), model, "live", 1)


def record(address: str, folder: Path, wanted: int, seconds: float, seed: int) -> Recording:
    """Start the servers, record, and end them."""
    keys = {"administrator": {"admin"}}
    with servers(PROCESSES, folder, address, prepare=publish_models, keys=keys) as deployment:
        return asyncio.run(History(deployment, wanted, seconds, seed).run())


def report(recording: Recording, verdict: Verdict, local: Verdict) -> Mapping[str, float]:
    """Print what happened; returns the figures. local: of the local readers."""
    moves = sum(len(changes) - 1 for name, changes in recording.changes.items() if "@" in name)
    revocations = sum(len(changes) == 3 for name, changes in recording.changes.items() if "@" not in name)
    keys = len(recording.changes) - len(MODELS)
    print(f"{recording.answered} queries beside {moves} moves, {keys} new keys, {revocations} revocations")
    print(f"{len(recording.local)} answers of local readers")
    print("also: " + (", ".join(f"{name}: {n}" for name, n in sorted(recording.counts.items())) or "nothing"))
    violations = [*verdict.violations, *local.violations]
    for violation in violations[:10]:
        print(f"violation of {violation.promise}: {violation.query}")
    staleness, of_local = (np.array(one.staleness or [0.0]) for one in (verdict, local))
    return {
        "history_queries": recording.answered,
        "history_local_queries": len(recording.local),
        "history_violations": len(violations) + recording.counts["wrong answers"],
        "history_moves": moves,
        "history_revocations": revocations,
        "history_restarts": sum(n for name, n in recording.counts.items() if name.startswith("restarts")),
        "staleness_p99_s": round(float(np.quantile(staleness, 0.99)), 3),
        "staleness_max_s": round(float(staleness.max()), 3),
        "staleness_local_max_s": round(float(of_local.max()), 3),
    }


def main() -> int:
    """0 if enough queries were recorded and none breaks a promise."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.history", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer queries, for development")
    parser.add_argument("--seed", type=int, default=14)
    arguments = parser.parse_args()
    wanted, seconds = (QUICK_QUERIES, QUICK_SECONDS) if arguments.quick else (QUERIES, SECONDS)
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        address = server.create_database("history")
        recording = record(address, Path(folder), wanted, seconds, arguments.seed)
    verdict = check(recording.changes, recording.queries, BOUND_SECONDS)
    figures = report(recording, verdict, check(recording.changes, recording.local, LOCAL_BOUND_SECONDS))
    unexpected = [
        name for name in recording.counts if name.startswith("status ") and name[7:] not in {"0", "503"}
    ]
    if unexpected:
        print(f"unexpected: {', '.join(unexpected)}")
    print(json.dumps(figures))
    enough = figures["history_queries"] >= wanted and figures["history_local_queries"] > 0
    return int(bool(figures["history_violations"] or unexpected or not enough))


if __name__ == "__main__":
    sys.exit(main())
