"""Seconds and F of `stms train` on a file, and of classifiers of scikit-learn on the same encoded rows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx
import numpy as np
from pyarrow import csv as arrow_csv
from pyarrow import parquet
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.svm import LinearSVC

from app.commands.demo.temporary_server import TemporaryServer
from core.data.column_kinds import infer_schema
from core.data.frames import table_of_frame
from core.encoding.fit import fit_encoder
from core.encoding.labelled_table import matrix_of
from core.solvers.jit import is_sparse
from lab.benchmarks.first_model.files import Files

Json = dict[str, Any]
_MOST_SECONDS: Final = 1800.0
_MOST_DENSE: Final = 3e8
"""Values of rows that trees of scikit-learn are fitted to."""
_MANY_ROWS: Final = 100_000


def trained(server: TemporaryServer, files: Files, model: str) -> Json:
    """Wall seconds of the plain command, and mean F of the students on the test part.

    Raises RuntimeError with the end of its output if the command fails.
    """
    command = [sys.executable, "-P", "-m", "app.cli", "train", str(files.train), "--test", str(files.test)]
    command += ["--label-column", files.label, "--model", model, "--server", server.address]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    began = time.monotonic()
    done = subprocess.run(
        command,
        env=environment | {"STMS_API_KEY": server.key},
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"{model}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    with httpx.Client(base_url=server.address, headers={"Authorization": f"Bearer {server.key}"}) as client:
        return {"seconds": seconds, "f1": float(np.mean(list(_f1_of_students(client, model))))}


def _f1_of_students(client: httpx.Client, model: str) -> Iterator[float]:
    jobs = client.get("/v1/training-jobs", params={"model": model}).raise_for_status().json()["data"]
    link: str | None = f"/v1/training-jobs/{jobs[0]['id']}/students?limit=100"
    while link:
        response = client.get(link).raise_for_status()
        for row in response.json()["data"]:
            f1 = (row.get("metrics") or {}).get("f1")
            if f1 is not None:
                yield float(f1)
        link = response.links.get("next", {}).get("url")


def encoded(files: Files) -> tuple[Any, Any, Any, Any]:
    """Rows and labels to learn from and to measure on, encoded as a job encodes them."""
    parts = []
    for path in (files.train, files.test):
        table = arrow_csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
        labels = np.array([str(value) for value in table.column(files.label).to_pylist()])
        parts.append((table_of_frame(table.drop_columns([files.label])), labels))
    (table, y), (test, y_test) = parts
    encoder = fit_encoder(table, infer_schema(table), n_classes=len(np.unique(y)))
    return (*(matrix_of(encoder.encode(one), encoder) for one in (table, test)), y, y_test)


def peers(files: Files) -> dict[str, Json]:
    """Seconds of the fit and mean F of each classifier, on all processors; what is too large is left out."""
    X, X_test, y, y_test = encoded(files)
    figures: dict[str, Json] = {}
    for name, make in _peers(X, y).items():
        model, rows = make(), (X, X_test)
        if name != "linear" and is_sparse(X):
            rows = (X.toarray(), X_test.toarray())
        began = time.monotonic()
        model.fit(rows[0], y)
        seconds = time.monotonic() - began
        f1 = f1_score(
            y_test, model.predict(rows[1]), average="macro", labels=np.unique(y_test), zero_division=0
        )
        figures[name] = {"seconds": seconds, "f1": float(f1)}
    return figures


def _peers(X: Any, y: Any) -> Mapping[str, Callable[[], Any]]:
    n, d = X.shape
    linear = SGDClassifier(random_state=0, n_jobs=-1) if n > _MANY_ROWS else LinearSVC(random_state=0)
    made: dict[str, Callable[[], Any]] = {"linear": lambda: make_pipeline(MaxAbsScaler(), linear)}
    if n <= _MANY_ROWS and n * d <= _MOST_DENSE:  # 200 full trees of 10^6 rows and 5 classes need over 23 GB.
        made["extra_trees"] = lambda: ExtraTreesClassifier(200, n_jobs=-1, random_state=0)
    if n * d * len(np.unique(y)) <= _MOST_DENSE:
        made["boosting"] = lambda: HistGradientBoostingClassifier(random_state=0)
    return made
