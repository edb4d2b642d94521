"""The training jobs: small real data sets with several settings, and the results of fault-free runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from stms_client import Client
from tests.system.data import data_folder

_NYSTROEM = {"kind": "nystroem", "n_components": 150}
_FOLDS = {"threshold": {"rule": "f1", "folds": 3}, "student": {"C": 1e3}}
_PATIENCE = 300.0

_SETS = {"digits": (700, 200), "letter": (1500, 200), "vowel": (528, 200), "segment": (1200, 200)}
"""Largest numbers of training and test rows."""
_WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", _FOLDS | {"automatic": False, "evaluation": {"baselines": ["svm"]}}),
    "digits-tuned": (
        "digits",
        {"tuning": {"grid": {"C": [10, 100], "margins": [0.5, 1.0]}, "folds": 3}},
    ),
    "letter": ("letter", {"features": _NYSTROEM, "student": {"C": 1e3}}),
    "vowel": ("vowel", _FOLDS | {"features": _NYSTROEM, "evaluation": {"baselines": ["gsvm0", "svm"]}}),
    "segment": ("segment", _FOLDS | {"features": _NYSTROEM}),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of job. rows: rows on which its models are queried, shape (n, d)."""

    name: str
    dataset_id: str
    hyperparameters: dict[str, Any]
    rows: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reference:
    """Result of a fault-free run of a workload. scores: by class, shape (n,). thresholds: by class."""

    workload: Workload
    model: str
    version: int
    job_id: str
    scores: dict[str, NDArray[np.float64]]
    thresholds: dict[str, float]


def upload(client: Client, folder: Path, names: Iterable[str] | None = None) -> list[Workload]:
    """Upload the data sets of the named workloads, by default of all whose data this machine has."""
    wanted = list(names or _WORKLOADS)
    sets = {_WORKLOADS[name][0] for name in wanted}
    sent = {}
    for name in sorted(sets):
        found = _file(folder, name)
        if found is not None:
            file, rows = found
            sent[name] = (str(client.upload_dataset(file, name=name)["id"]), rows)
    return [
        Workload(name, sent[dataset][0], given, sent[dataset][1])
        for name, (dataset, given) in _WORKLOADS.items()
        if name in wanted and dataset in sent
    ]


def run_references(client: Client, workloads: Iterable[Workload]) -> dict[str, Reference]:
    """Run one job of each workload and query its model. Raises StmsError."""
    jobs = [
        (
            workload,
            client.submit_job(workload.dataset_id, f"reference-{workload.name}", workload.hyperparameters),
        )
        for workload in workloads
    ]
    found = {}
    for workload, job in jobs:
        ended = client.wait_for_job(job["id"], patience=_PATIENCE)
        model, version = str(ended["model"]), int(ended["version"])
        scores, thresholds = query_all(client, model, version, workload)
        found[workload.name] = Reference(workload, model, version, str(job["id"]), scores, thresholds)
    return found


def query_all(
    client: Client, model: str, version: int, workload: Workload
) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
    """Scores and thresholds of every class of a version on the workload's rows. Raises StmsError."""
    scores, thresholds = {}, {}
    for label in client.dataset(workload.dataset_id)["classes"]:
        decisions = client.query_rows(f"{model}@{version}", label, workload.rows)
        scores[label] = np.array(decisions.scores, dtype=np.float64)
        thresholds[label] = decisions.threshold
    return scores, thresholds


def _file(folder: Path, name: str) -> tuple[Path, NDArray[np.float64]] | None:
    """Write a data set to a file. Returns it with rows to query, or None if this machine lacks the data."""
    train, test = _SETS[name]
    rng = np.random.default_rng(0)
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        order = rng.permutation(len(y))
        X_train, y_train = X[order[:train]], y[order[:train]]
        X_test, y_test = X[order[train:][:test]], y[order[train:][:test]]
    else:
        source = data_folder() / f"{name}.npz"
        if not source.exists():
            return None
        with np.load(source, allow_pickle=False) as data:
            some = rng.permutation(len(data["y_train"]))[:train]
            X_train, y_train = data["X_train"][some], data["y_train"][some]
            X_test, y_test = data["X_test"][:test], data["y_test"][:test]
    file = folder / f"{name}.npz"
    np.savez(file, X_train=X_train, y_train=y_train, X_test=X_test, y_test=y_test)
    return file, np.ascontiguousarray(X_test[:50], dtype=np.float64)
