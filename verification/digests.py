"""Compare the packed teachers and students that two versions of the program train, bit by bit.

Usage::

    python -m verification.digests BEFORE [AFTER] [--quick] [--fits-only]
    python -m verification.digests main .

BEFORE and AFTER are commits, or folders with a checkout (anything that contains a slash, and ``.``); AFTER is
the current checkout with its uncommitted changes unless given. Do not edit a folder while it is in use.
``--quick`` runs one job for each kind of learner instead of all of them. ``--fits-only`` leaves out what
rests on held-out scores (searches, thresholds, calibration, budgets of F): only the fits are compared.

Both versions run at the same time, each as its own ``stms serve`` on SQLite in a temporary folder, and
receive the same files and the same ``/v1/training-jobs`` bodies. For each job the SHA-256 of the packed
teacher and of every packed student is compared, and with it the numbers the API reports for that student
(objective, status, threshold, metrics; shown as ``… numbers``). Digests are never stored: they depend on the
processor's rounding, so only two runs on one machine compare.

Prints a table of what differs. The last line is one JSON object with the counts ``jobs``, ``artifacts``,
``equal``, ``different``, ``missing`` (in one version only) and ``failed`` (jobs that did not succeed), the
list ``refused`` (jobs that both versions answer with 422, such as an unknown kind of feature map) and
``seconds``. The exit code is 1 if something differs, is missing or failed, or if nothing was compared.

Commits are unpacked into ``~/.cache/stms-digests``, where numba's compiled kernels stay for the next run.
Checkouts that were not used for a day are deleted.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from tests.system.checkout import ROOT, checked, checkout
from tests.system.deployment import QUICK_SOLVERS, Deployment
from tests.system.processes import two_cores

Json = dict[str, Any]
REFUSED: Final = "refused"
_ALL_JOBS_SECONDS = 900.0
_NUMBERS = ("state", "objective", "gap", "iterations", "status", "threshold", "metrics")

_NYSTROEM: Final = {"kind": "nystroem", "n_components": 30}
_FOURIER: Final = {"kind": "fourier", "n_components": 30}
_GRID: Final = {"C": [1.0, 100.0, 1e4], "margins": [0.1, 1.0], "floors": [0.1, 0.5]}
_TUNING: Final = {"grid": _GRID, "folds": 3}
_F1: Final = {"rule": "f1", "folds": 3}
_FPR: Final = {"rule": "fpr", "max_false_positive_rate": 0.1, "folds": 3}
_EXTRA_COLUMNS: Final = ("view:a:x0", "view:a:x1", "view:b:x2", "view:b:x3", "privileged:x4", "privileged:x5")
_BASELINES: Final = {"test_fraction": 0.3, "baselines": ["gsvm0", "svm"]}

QUICK: Final[dict[str, tuple[str, Json]]] = {
    "linear": ("dense", {"features": {"kind": "linear"}, "evaluation": _BASELINES}),
    "compact, landmarks": (
        "dense",
        {
            "features": _NYSTROEM,
            "compact": {"n_landmarks": 6},
            "threshold": _F1,
            "calibration": {"kind": "sigmoid"},
            "evaluation": {"test_fraction": 0.3, "baselines": ["gsvm"]},
            "classes": ["a", "c"],
        },
    ),
    "tuned by halving": (
        "dense",
        {"tuning": _TUNING, "threshold": {"rule": "f1"}, "calibration": {"kind": "sigmoid"}},
    ),
    "sparse": ("sparse", {"features": {"scaling": "idf"}, "evaluation": _BASELINES, "threshold": _F1}),
    "head": (
        "dense",
        {"teacher": {"model": "head"}, "evaluation": _BASELINES, "calibration": {"kind": "isotonic"}},
    ),
}
"""Data set and hyper-parameters by the name of the job."""

JOBS: Final[dict[str, tuple[str, Json]]] = QUICK | {
    "nystroem, minmax, mm_irls": (
        "dense",
        {
            "features": _NYSTROEM | {"gamma": 0.3, "scaling": "minmax"},
            "student": {"solver": "mm_irls", "C": 100.0},
            "threshold": _F1,
            "calibration": {"kind": "none"},
            "evaluation": _BASELINES,
        },
    ),
    "fourier": ("dense", {"features": _FOURIER, "threshold": {"rule": "accuracy", "folds": 3}}),
    "kernel": ("dense", {"features": {"kind": "kernel"}, "evaluation": _BASELINES}),
    "unscaled, mm_irls, all parameters": (
        "dense",
        {
            "features": {"scaling": "none"},
            "teacher": {"C": 100.0, "tolerance": 1e-2, "max_epochs": 20},
            "student": {
                "solver": "mm_irls",
                "C": 50.0,
                "margin": 0.25,
                "difficulty_floor": 0.8,
                "tolerance": 1e-5,
                "max_epochs": 50,
            },
            "threshold": _FPR,
        },
    ),
    "idf of dense rows, epoch limit": (
        "counts",
        {"features": {"scaling": "idf"}, "teacher": {"max_epochs": 2}, "student": {"max_epochs": 2}},
    ),
    "tuned on every fold": (
        "dense",
        {
            "features": _NYSTROEM,
            "student": {"method": "gsvm0"},
            "tuning": _TUNING | {"strategy": "exhaustive", "metric": "accuracy"},
            "calibration": {"kind": "isotonic"},
            "evaluation": {"test_fraction": 0.3, "baselines": ["svm"]},
        },
    ),
    "open grid, other seed": (
        "dense",
        {"tuning": {"grid": "open", "folds": 2, "metric": "auc"}, "classes": ["b"], "seed": 7},
    ),
    "compact, cost": (
        "dense",
        {"features": _FOURIER | {"gamma": 0.3}, "compact": {"relative_cost": 0.25}, "classes": ["a"]},
    ),
    "compact, loss": ("dense", {"compact": {"max_f1_loss": 5.0}, "classes": ["b"]}),
    "sparse, tuned, nystroem": (
        "sparse",
        {"features": _NYSTROEM | {"scaling": "idf"}, "tuning": _TUNING, "student": {"method": "svm"}},
    ),
    "sparse, unscaled, mm_irls": (
        "sparse",
        {
            "features": {"scaling": "none"},
            "student": {"solver": "mm_irls", "C": 10.0},
            "calibration": {"kind": "isotonic"},
        },
    ),
    "head, tuned": ("dense", {"teacher": {"model": "head"}, "tuning": _TUNING, "threshold": _FPR}),
    "automatic": ("dense", {}),
    "automatic, sparse": ("sparse", {}),
    "search of scope job": ("dense", {"tuning": {"scope": "job", "folds": 3}}),
    "forest of all rows": (
        "dense",
        {
            "teacher": {"method": "forest", "trees": 20, "splits": "random", "sample": "all"},
            "student": {"method": "trees"},
        },
    ),
    **{
        f"teacher {method}": (
            "dense",
            {"teacher": {"method": method, **size}, "student": {"method": student}},
        )
        for method, student, size in (
            ("forest", "trees", {"trees": 20}),
            ("boosting", "trees", {"iterations": 10}),
            ("mcodm", "polytope", {}),
            ("interpolation", "gsvm", {}),
        )
    },
    **{
        f"student {method}": ("extras", {"student": {"method": method}, "threshold": _F1})
        for method in ("polytope", "odm", "gpc", "gpc+", "svm+", "multiview", "rivals", "auto")
    },
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Names of artifacts: with equal digests, with different ones, and present in one version only."""

    equal: list[str]
    different: list[str]
    missing: list[str]


def compare(before: Mapping[str, str], after: Mapping[str, str]) -> Comparison:
    """Compare two mappings from the name of an artifact to its digest."""
    names = list(dict.fromkeys([*before, *after]))
    missing = [name for name in names if name not in before or name not in after]
    both = [name for name in names if name in before and name in after]
    equal = [name for name in both if before[name] == after[name]]
    return Comparison(equal, [name for name in both if before[name] != after[name]], missing)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the digests of what two versions train.")
    parser.add_argument("before", help="commit or folder")
    parser.add_argument("after", nargs="?", default=str(ROOT), help="commit or folder [this checkout]")
    parser.add_argument("--quick", action="store_true", help="one job for each kind of learner")
    parser.add_argument("--fits-only", action="store_true", help="jobs without held-out scores")
    options = parser.parse_args(arguments)
    jobs = QUICK if options.quick else JOBS
    if options.fits_only:
        jobs = {name: (data, fits_only(body)) for name, (data, body) in jobs.items()}
    start = time.perf_counter()
    trees = [checkout(options.before), checkout(options.after)]
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(train, name, tree, core, jobs)
            for name, tree, core in zip(("before", "after"), trees, two_cores(), strict=True)
        ]
        (before, failures), (after, more_failures) = (run.result() for run in runs)
    failures += more_failures
    refused = [name for name in jobs if before.get(name) == after.get(name) == REFUSED]
    for name in refused:
        del before[name], after[name]
    result = compare(before, after)
    for name in [*result.different, *result.missing]:
        print(f"{name:<60} {before.get(name, 'missing')[:12]:<12} {after.get(name, 'missing')[:12]}")
    print(*failures, sep="\n", end="\n" if failures else "")
    report = {
        "jobs": len(jobs),
        "artifacts": len(before.keys() | after.keys()),
        "equal": len(result.equal),
        "different": len(result.different),
        "missing": len(result.missing),
        "failed": len(failures),
        "refused": refused,
        "seconds": round(time.perf_counter() - start),
    }
    print(json.dumps(report))
    return int(bool(result.different or result.missing or failures or not result.equal))


def fits_only(hyperparameters: Json) -> Json:
    """The same job without a search, a chosen threshold, a calibration or a budget of F."""
    kept = {name: value for name, value in hyperparameters.items() if name != "tuning"}
    if "max_f1_loss" in kept.get("compact", {}):
        kept["compact"] = {"n_landmarks": 5}
    return kept | {"threshold": {"rule": "zero"}, "calibration": {"kind": "none"}}


def train(
    version: str, tree: Path, core: int, jobs: Mapping[str, tuple[str, Json]]
) -> tuple[dict[str, str], list[str]]:
    """Run all jobs on a server started from ``tree``.

    Returns the digest of each artifact by its name, and one line for each job that did not succeed. A job
    that the server answers with 422 has the one artifact `REFUSED` under the job's name.
    """
    settings = QUICK_SOLVERS | {"STMS_REQUIRE_KEYS": "false"}
    with (
        Deployment(serve=True, is_new=False, settings=settings, cores=core, tree=tree) as server,
        server.client(seconds=60) as http,
    ):
        return _run_jobs(http, version, jobs)


def _run_jobs(
    http: httpx.Client, version: str, jobs: Mapping[str, tuple[str, Json]]
) -> tuple[dict[str, str], list[str]]:
    digests: dict[str, str] = {}
    failures: list[str] = []
    datasets = {name: _upload(http, name, content) for name, content in _files().items()}
    for kind in ("head", "students"):
        params = {"model": "head" if kind == "head" else "linear-students", "kind": kind}
        response = checked(http.post("/v1/teachers", params=params, content=_head()))
        digests[f"import of {kind}"] = response["teacher_digest"]
    submitted: dict[str, str] = {}
    for number, (name, (dataset, hyperparameters)) in enumerate(jobs.items()):
        body = {
            "dataset_id": datasets[dataset],
            "model": f"job-{number}",
            "hyperparameters": hyperparameters,
        }
        response = http.post("/v1/training-jobs", json=body)
        if response.status_code == 422:
            digests[name] = REFUSED
        else:
            submitted[name] = checked(response)["id"]
    deadline = time.monotonic() + _ALL_JOBS_SECONDS
    for number, (name, job_id) in enumerate(submitted.items(), start=1):
        job = _wait(http, job_id, deadline)
        if job["state"] != "succeeded":
            failures.append(f"{version}: {name}: {job['state']}: {json.dumps(job['error'])}")
        digests |= {f"{name}: {artifact}": digest for artifact, digest in _artifacts(http, job).items()}
        print(f"{version}: {number} of {len(submitted)}: {name}", flush=True)
    return digests, failures


def _artifacts(http: httpx.Client, job: Json) -> dict[str, str]:
    """Digests of a job's teacher, of each student, and of the numbers reported for each student."""
    digests: dict[str, str] = {}
    if job["version"] is not None:
        published = checked(http.get(f"/v1/models/{job['model']}/versions/{job['version']}"))
        digests["teacher"] = published["teacher_digest"]
    for row in checked(http.get(f"/v1/training-jobs/{job['id']}/students"))["data"]:
        name = f"{row['method']} {row['label']}"
        if row["digest"] is not None:
            digests[name] = row["digest"]
        if row.get("map_digest") is not None:
            digests[f"{name} map"] = row["map_digest"]
        numbers = json.dumps({key: row[key] for key in _NUMBERS}, sort_keys=True)
        digests[f"{name} numbers"] = hashlib.sha256(numbers.encode()).hexdigest()
    return digests


def _wait(http: httpx.Client, job_id: str, deadline: float) -> Json:
    while True:
        job = checked(http.get(f"/v1/training-jobs/{job_id}"))
        if job["finished_at"] is not None:
            return job
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {job_id} is {job['state']} after {_ALL_JOBS_SECONDS:.0f} s")
        time.sleep(0.1)


def _upload(http: httpx.Client, name: str, content: bytes) -> str:
    params = {"filename": f"{name}.{'svm' if name == 'sparse' else 'csv'}"}
    dataset_id: str = checked(http.post("/v1/datasets", params=params, content=content))["id"]
    return dataset_id


def _files() -> dict[str, bytes]:
    """Data sets from a fixed seed: overlapping blobs, counts of terms, and the same counts as svmlight.

    ``extras`` has the columns of ``dense`` as two views and privileged columns.
    """
    random = np.random.default_rng(20)
    labels = random.integers(0, 4, 300)
    dense = random.normal(size=(4, 6))[labels] + random.normal(scale=1.2, size=(300, 6))
    dense[:, 0] = dense[:, 1] ** 2 + 100 * dense[:, 0]
    topics = random.integers(0, 3, 240)
    counts = random.poisson(random.gamma(0.3, 1.0, size=(3, 40))[topics])
    lines = [
        " ".join([str(topic), *(f"{column + 1}:{count}" for column, count in enumerate(row) if count)])
        for topic, row in zip(topics, counts, strict=True)
    ]
    return {
        "dense": _csv(dense, ["abcd"[label] for label in labels]),
        "counts": _csv(counts, [f"t{topic}" for topic in topics]),
        "sparse": ("\n".join(lines) + "\n").encode(),
        "extras": _csv(dense, ["abcd"[label] for label in labels], _EXTRA_COLUMNS),
    }


def _csv(
    rows: np.ndarray[Any, np.dtype[Any]], labels: Sequence[str], names: Sequence[str] | None = None
) -> bytes:
    header = ",".join([*(names or (f"x{column}" for column in range(rows.shape[1]))), "label"])
    lines = [",".join([*map(repr, row), label]) for row, label in zip(rows.tolist(), labels, strict=True)]
    return "\n".join([header, *lines, ""]).encode()


def _head() -> bytes:
    """A linear head over the columns and classes of the data set ``dense``."""
    random = np.random.default_rng(21)
    file = io.BytesIO()
    weights = random.normal(size=(4, 6))
    np.savez(file, weights=weights, bias=random.normal(size=4), labels=np.array(list("abcd")))
    return file.getvalue()


if __name__ == "__main__":
    for variable in [name for name in os.environ if name.startswith("STMS_")]:
        del os.environ[variable]
    sys.exit(main())
