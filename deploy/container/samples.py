"""Real data in all upload formats: scikit-learn's digits and iris."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from sklearn.datasets import dump_svmlight_file, load_digits, load_iris
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC


@dataclass(frozen=True)
class Digits:
    """Handwritten digits as one .npz file, its test part, and scikit-learn's result for comparison.

    X_test (n, 64), y_test (n,); their_f1: mean F on the test part of ten one-vs-rest LinearSVC.
    """

    file: Path
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]
    their_f1: float


def write_digits(folder: Path) -> Digits:
    """Split by class with a fixed seed."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    file = folder / "digits.npz"
    np.savez_compressed(file, X_train=X_train, y_train=y_train, X_test=X_test, y_test=y_test)
    return Digits(file, X_test, y_test, _their_f1(X_train, y_train, X_test, y_test))


def write_flowers(folder: Path) -> dict[str, Path]:
    """Iris as a file of each format; each file omits other rows, so that no two have equal content."""
    X, y = load_iris(return_X_y=True)
    files = {name: folder / f"iris.{name}" for name in ("csv", "parquet", "svmlight", "npy", "npz")}
    named = np.array(["setosa", "versicolor", "virginica"])[y]
    pyarrow.csv.write_csv(_table(X[1:], named[1:]), files["csv"])
    pyarrow.parquet.write_table(_table(X[2:], named[2:]), files["parquet"])
    dump_svmlight_file(X[3:], y[3:], str(files["svmlight"]), zero_based=False)
    np.save(files["npy"], np.column_stack([X[4:], y[4:]]))
    np.savez(files["npz"], X=X[5:], y=y[5:])
    return files


def _their_f1(
    X_train: NDArray[np.float64],
    y_train: NDArray[np.int64],
    X_test: NDArray[np.float64],
    y_test: NDArray[np.int64],
) -> float:
    scale = StandardScaler().fit(X_train)
    X, Z = scale.transform(X_train), scale.transform(X_test)
    found = [
        f1_score(
            y_test == label, LinearSVC(max_iter=20_000, random_state=0).fit(X, y_train == label).predict(Z)
        )
        for label in range(10)
    ]
    return float(np.mean(found))


def _table(X: NDArray[np.float64], y: NDArray[Any]) -> pa.Table:
    columns: dict[str, Any] = {f"x{position}": column for position, column in enumerate(X.T)}
    return pa.table(columns | {"flower": y.tolist()})
