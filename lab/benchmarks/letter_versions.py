"""Compare the time of jobs of letter, over HTTP, at two versions of the program, by turns on one machine.

Usage::

    python -m lab.benchmarks.letter_versions BEFORE [AFTER] [--rounds 3] [--rows 15000] [--guard]

BEFORE and AFTER are commits or folders, as `verification.digests` takes them; AFTER is the current checkout
unless given. Each version runs as its own ``stms serve`` on SQLite in a temporary folder and receives
letter's training part. In every round each of the three jobs of `JOBS` runs on one version while the other is
idle, then on the other version; the version that begins changes with the round. A small job of each version
comes first, so that kernels are compiled. Seconds are from ``created_at`` to ``finished_at``.
Both versions do the same work: where a version compares students with their teacher before it publishes
them, this is left out, unless ``--guard`` is given.

The data set is read from $STMS_DATA or ../shared/data. The last line is JSON: for each job the seconds of
both versions and ``ratio``, median after : median before; and ``ratio`` of the sums of these medians.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from tests.system.checkout import ROOT, checked, checkout
from tests.system.data import data_folder
from tests.system.deployment import Deployment
from tests.system.processes import cpu_seconds, family

Json = dict[str, Any]
_KNOWN: Final[Json] = {"threshold": {"rule": "zero"}, "calibration": {"kind": "none"}}
_LINEAR: Final[Json] = {"kind": "linear", "scaling": "zscore"}
_NYSTROEM: Final[Json] = {"kind": "nystroem", "n_components": 1000, "gamma": 0.1, "scaling": "zscore"}
_WARM_UP: Final[Json] = _KNOWN | {"features": _LINEAR, "teacher": {"max_epochs": 2}, "classes": ["1"]}
JOBS: Final[dict[str, Json]] = {
    "linear": _KNOWN | {"features": _LINEAR, "teacher": {"C": 1000.0}, "student": {"C": 1000.0}},
    "nystroem": _KNOWN
    | {
        "features": _NYSTROEM,
        "teacher": {"C": 3e4},
        "student": {"method": "gsvm", "C": 1e5},
        "evaluation": {"test_fraction": 0.25, "baselines": ["svm", "gsvm0"]},
    },
    "tuned": _KNOWN
    | {
        "features": _NYSTROEM | {"n_components": 300},
        "teacher": {"C": 1000.0},
        "threshold": {"rule": "f1"},
        "tuning": {"grid": {"C": [10.0, 1e3, 1e5], "margins": [0.5, 1.0], "floors": [0.3]}, "folds": 3},
        "classes": ["1", "2", "3", "4"],
    },
}
"""Hyper-parameters by the name of the job; defaults that have changed between versions are given."""

_JOB_SECONDS = 1800.0
_IDLE_CORES = 0.2
"""Processor time of both idle servers, in cores."""


@dataclass(frozen=True, slots=True)
class Version:
    """A running server of one version. pid: of ``stms serve``. extra: hyper-parameters of all its jobs."""

    name: str
    http: httpx.Client
    pid: int
    dataset_id: str
    extra: Json

    def seconds(self, hyperparameters: Json) -> float:
        """Duration of a job. Raises RuntimeError if it does not succeed."""
        hyperparameters = hyperparameters | self.extra
        body = {"dataset_id": self.dataset_id, "model": "letter", "hyperparameters": hyperparameters}
        job = checked(self.http.post("/v1/training-jobs", json=body))
        deadline = time.monotonic() + _JOB_SECONDS
        while job["finished_at"] is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: the job has not ended after {_JOB_SECONDS:.0f} s.")
            time.sleep(0.2)
            job = checked(self.http.get(f"/v1/training-jobs/{job['id']}"))
        if job["state"] != "succeeded":
            raise RuntimeError(f"{self.name}: the job {job['state']}: {job['error']}")
        return _moment(job["finished_at"]) - _moment(job["created_at"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the time of jobs of letter at two versions.")
    parser.add_argument("before", help="commit or folder")
    parser.add_argument("after", nargs="?", default=str(ROOT), help="commit or folder [this checkout]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=15_000, help="most training rows")
    parser.add_argument("--guard", action="store_true", help="leave the comparison with the teacher as it is")
    options = parser.parse_args(arguments)
    rows = _training_part(options.rows)
    with (
        serving("before", checkout(options.before), rows, options.guard) as before,
        serving("after", checkout(options.after), rows, options.guard) as after,
    ):
        print(json.dumps(measure(before, after, options.rounds)))
    return 0


def measure(before: Version, after: Version, rounds: int) -> Json:
    """Run every job ``rounds`` times on both versions by turns; returns the content of the last line."""
    walls: dict[str, dict[str, list[float]]] = {name: {"before": [], "after": []} for name in JOBS}
    for version in (before, after):
        version.seconds(_WARM_UP)
    for number in range(rounds):
        for name, hyperparameters in JOBS.items():
            for version in (before, after) if number % 2 == 0 else (after, before):
                _until_idle(before, after)
                seconds = round(version.seconds(hyperparameters), 2)
                walls[name][version.name].append(seconds)
                print(f"{name:10} {version.name:8} {seconds:8.2f} s", flush=True)
    medians = {
        name: [statistics.median(of[version]) for version in ("before", "after")]
        for name, of in walls.items()
    }
    ratios = {name: round(late / early, 3) for name, (early, late) in medians.items()}
    total = [sum(median[at] for median in medians.values()) for at in (0, 1)]
    jobs: Json = {name: {**of, "ratio": ratios[name]} for name, of in walls.items()}
    return jobs | {"ratio": round(total[1] / total[0], 3)}


@contextmanager
def serving(name: str, tree: Path, rows: bytes, guard: bool) -> Iterator[Version]:
    """A server from ``tree`` that has the data set. guard: students are compared as the version does it."""
    settings = {"STMS_REQUIRE_KEYS": "false"}
    with (
        Deployment(serve=True, is_new=False, settings=settings, tree=tree) as server,
        server.client(seconds=600) as http,
    ):
        response = http.post("/v1/datasets", params={"format": "npz"}, content=rows)
        comparable = not guard and '"guard"' in http.get("/openapi.json").text
        extra: Json = {"guard": {"kind": "off"}} if comparable else {}
        yield Version(name, http, server["serve"].pid, checked(response)["id"], extra)


def _until_idle(*versions: Version) -> None:
    """Wait until both servers rest; after a job a worker still starts a solver for the next one."""
    quiet = 0
    while quiet < 3:
        before = [cpu_seconds(family(version.pid)) for version in versions]
        time.sleep(0.5)
        after = [cpu_seconds(family(version.pid)) for version in versions]
        quiet = quiet + 1 if sum(after) - sum(before) < 0.5 * _IDLE_CORES else 0


def _training_part(rows: int) -> bytes:
    source = data_folder() / "letter.npz"
    if not source.exists():
        raise SystemExit(f"{source} is needed: name its folder by STMS_DATA.")
    file = io.BytesIO()
    with np.load(source, allow_pickle=False) as data:
        np.savez(file, X=data["X_train"][:rows], y=data["y_train"][:rows])
    return file.getvalue()


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    for variable in [name for name in os.environ if name.startswith("STMS_") and name != "STMS_DATA"]:
        del os.environ[variable]
    sys.exit(main())
