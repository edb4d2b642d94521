"""Runs all attacks on one server and reports its answers and its state afterwards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.refusals import borders, tables
from tests.refusals.archives import good_npz, npz, safetensors
from tests.refusals.contents import ROWS
from tests.refusals.every import GROUPS
from tests.refusals.refusal import CLASSES, DATASETS, INFER, JOBS, PREDICT, QUERY, Answer, Refusal, complaints
from verification.hostile import browser, framing, quotas, sites, slow
from verification.hostile.server import (
    KEPT_FILES,
    MAX_CONNECTIONS,
    Resources,
    Server,
    measure_query,
    resources,
    running_server,
    settled,
    watch_peak,
)

MAX_GROWTH = 50 * 1024**2
"""Largest allowed growth of the server's memory after all attacks, in bytes."""
_SLOWER = 2.0
_SLOWER_SECONDS = 0.002
"""Allowed slowdown of a valid query after the attacks; it covers noise of the machine."""
_FURTHER_TRIES = 5
_PAUSE_SECONDS = 2.0
"""A slow query is measured so many times more, after a pause of so many seconds each."""
_ROUNDS = 3
_STUMBLE = "Traceback"
_SHOWN = 3000


@dataclass
class Report:
    """Result of a run.

    failures: complaints by attack. slowest, hungriest: seconds and peak growth of memory in bytes, by attack.
    before, after: resources of the server. stumbled: first traceback in its log. seconds: length of the run.
    """

    attacks: list[Refusal] = field(default_factory=list)
    failures: dict[str, list[str]] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    hungriest: dict[str, int] = field(default_factory=dict)
    before: Resources | None = None
    after: Resources | None = None
    p50_before: float = 0.0
    p50_after: float = 0.0
    alive: bool = False
    same_answer: bool = False
    same_state: bool = False
    stumbled: str = ""
    seconds: float = 0.0

    @property
    def is_slower(self) -> bool:
        """Whether a valid query takes clearly longer than before."""
        return self.p50_after > _SLOWER * self.p50_before + _SLOWER_SECONDS

    @property
    def growth(self) -> int:
        """Growth of the server's memory in bytes."""
        assert self.before is not None
        assert self.after is not None
        return self.after.rss - self.before.rss

    def damage(self) -> list[str]:
        """What is wrong with the server after the run."""
        assert self.before is not None
        assert self.after is not None
        found = [] if self.alive else ["the server is no longer ready"]
        if not self.same_answer:
            found.append("the answer to a valid query has changed")
        if not self.same_state:
            found.append("a request of another site changed something on the server without keys")
        if self.is_slower:
            found.append(f"a valid query takes {self.p50_after:.6f} s instead of {self.p50_before:.6f} s")
        if self.growth > MAX_GROWTH:
            found.append(f"memory grew by {self.growth / 1e6:.1f} MB")
        if self.after.files > self.before.files + KEPT_FILES:
            found.append(f"{self.after.files - self.before.files} files or connections are left open")
        if self.after.connections > MAX_CONNECTIONS:
            found.append(f"{self.after.connections} connections to the database are open")
        if self.stumbled:
            found.append(f"the server logged an error: {self.stumbled}")
        if self.after.left:
            found.append(f"files are left: {self.after.left}")
        return found

    def figures(self) -> dict[str, Any]:
        """The run in numbers."""
        assert self.before is not None
        assert self.after is not None
        return {
            "attacks": len(self.attacks),
            "categories": dict(Counter(attack.category for attack in self.attacks)),
            "as_expected": len(self.attacks) - len(self.failures),
            "memory_growth_mb": round(self.growth / 1e6, 1),
            "hungriest_attack_mb": round(max(self.hungriest.values()) / 1e6, 1),
            "open_files_left": max(0, self.after.files - self.before.files),
            "database_connections": self.after.connections,
            "temporary_files_left": len(self.after.left),
            "alive": self.alive and self.same_answer,
            "p50_before_ms": round(self.p50_before * 1e3, 3),
            "p50_after_ms": round(self.p50_after * 1e3, 3),
            "seconds": round(self.seconds, 1),
        }


def quick_attacks() -> list[Refusal]:
    """All attacks except the slow clients, in order."""
    groups = (
        *(framing.smuggling, framing.chunks, framing.heads, framing.large_heads, framing.connections),
        *GROUPS,
        *(quotas.races, sites.sites, browser.browser),
    )
    return [attack for group in groups for attack in group()]


def run(folder: Path, only: Set[str] | None = None) -> Report:
    """Run the attacks on a server with its data in ``folder``. Raises AssertionError if the server breaks.

    only: names ("category: name") of the attacks to run; by default all.
    """
    report = Report()
    with running_server(folder) as server:
        _warm_up(server)
        answer, report.p50_before = measure_query(server)
        state = server.keyless_state()
        report.before = resources(server)
        began = time.monotonic()
        _attack(server, report, only)
        report.seconds = time.monotonic() - began
        report.after = settled(server, report.before)
        again, report.p50_after = measure_query(server)
        for _ in range(_FURTHER_TRIES):
            # Other work on the machine ends; what the attacks have left does not.
            if not report.is_slower:
                break
            time.sleep(_PAUSE_SECONDS)
            report.p50_after = min(report.p50_after, measure_query(server)[1])
        report.same_answer = again == answer
        report.same_state = server.keyless_state() == state
        with server.client("") as client:
            report.alive = server["api-0"].is_running and client.get("/readyz").status_code == 200
    log = server["api-0"].log.read_text(encoding="utf-8", errors="replace")
    report.stumbled = log[log.find(_STUMBLE) :][:_SHOWN] if _STUMBLE in log else ""
    return report


def _attack(server: Server, report: Report, only: Set[str] | None) -> None:
    def is_wanted(attack: Refusal) -> bool:
        return only is None or attack.id in only

    slow_ones, private = list(filter(is_wanted, slow.slow())), server.private()
    with ThreadPoolExecutor(max(1, len(slow_ones))) as threads:
        waiting = [(attack, threads.submit(_judged, attack, server, private)) for attack in slow_ones]
        for attack in filter(is_wanted, quick_attacks()):
            began, held = time.monotonic(), watch_peak(server)
            _note(report, attack, _judged(attack, server, private))
            name = attack.id
            report.slowest[name] = time.monotonic() - began
            report.hungriest[name] = resources(server).peak - held
        for attack, judged in waiting:
            _note(report, attack, judged.result())


def _judged(attack: Refusal, server: Server, private: list[str]) -> list[str]:
    try:
        answer: Answer = attack.act(server)
    except (OSError, AssertionError) as error:
        return [f"{type(error).__name__}: {error}"]
    return complaints(attack, answer, private)


def _note(report: Report, attack: Refusal, found: list[str]) -> None:
    report.attacks.append(attack)
    if found:
        report.failures[attack.id] = found


def _warm_up(server: Server) -> None:
    """Use every file format and every kind of query with valid requests up to their limits.

    Afterwards all modules are loaded, and the allocator has the memory that it keeps for such requests.
    """
    lines = ["a,b,label", *(f"{i},{i % 7},{'uv'[i % 2]}" for i in range(2000))]
    large = "\n".join(",".join([f"{i % 1000}.25"] * 25) + f",{i % 2}" for i in range(ROWS - 1))
    sent: list[tuple[str, str, bytes]] = [
        (DATASETS, "text/csv", "\n".join(lines).encode()),
        (DATASETS, "text/csv", large.encode()),
        (DATASETS, "application/x-svmlight", b"1 1:2\n1 1:3\n2 1:4\n2 1:5\n"),
        (DATASETS, "application/x-npz", npz(good_npz())),
        (DATASETS, "application/vnd.apache.parquet", tables.a_parquet()),
        ("/v1/teachers?model=head", "application/octet-stream", _head()),
    ]
    many = b'{"rows": [' + b"[1.25,2.25,3.25]," * (ROWS - 1) + b"[1,2,3]" + b" " * 14_000_000 + b"]}"
    pages = ("/ui/jobs", "/ui/datasets", "/ui/models", "/ui/models/pets", "/ui/audit", "/ui/keys")
    with server.client("") as client:
        client.headers["Cookie"] = borders.session(server, "admin").decode()
        for target in pages * _ROUNDS:
            client.get(target).raise_for_status()
    with server.client("train") as client:
        for number in range(_ROUNDS):
            for target, kind, data in sent:
                given = data + b"\n" * number if kind.startswith("text") else data
                client.post(target, content=given, headers={"content-type": kind}).raise_for_status()
            for target in (QUERY, CLASSES + "?class=cat", PREDICT):
                client.post(target, content=many).raise_for_status()
            rows = {"name": "x", "shape": [ROWS, 3], "datatype": "FP64", "data": [1.25] * 3 * ROWS}
            client.post(INFER, json={"inputs": [rows]}).raise_for_status()
            for target in (DATASETS, JOBS, "/v1/models", "/openapi.json", "/metrics"):
                client.get(target).raise_for_status()
        server.dataset = client.get(DATASETS).json()["data"][-1]["id"]
        job = client.post(JOBS, json={"dataset_id": server.dataset, "model": "warm"})
        job.raise_for_status()
        server.kept["job"] = job.json()["id"]


def _head() -> bytes:
    described = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = {"__metadata__": {"labels": '["a", "b"]'}, "weights": described}
    return safetensors(header, np.ones(4, np.float32).tobytes())
