"""Files of the benchmark data sets: in $STMS_DATA, by default in shared/data beside this repository."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from core.data.dataset import LabelledData

FEATURES: Final = {
    "letter": {"kind": "nystroem", "n_components": 1000, "gamma": 0.1},
    "satimage": {"kind": "nystroem", "n_components": 600, "gamma": 0.05},
}
LOSS_WEIGHTS: Final = {"paper's grid": (1e3, 1e3), "open grid": (3e4, 1e5)}
"""Feature maps of two sets; loss weights of teacher and students: the end of the paper's grid, and beyond."""


def data_folder() -> Path:
    """Folder of the prepared sets."""
    return Path(os.environ.get("STMS_DATA") or Path(__file__).parents[3] / "shared" / "data")


def raw_folder() -> Path:
    """Folder of public files as people bring them: $STMS_RAW, by default shared/raw."""
    return Path(os.environ.get("STMS_RAW") or Path(__file__).parents[3] / "shared" / "raw")


def arrays_of(name: str) -> Any:
    """The arrays of a set by name, to be closed. Raises FileNotFoundError."""
    return np.load(data_folder() / f"{name}.npz", allow_pickle=False)


def training_part(name: str) -> tuple[Any, Any]:
    """Rows (n, d), float64, and labels (n,) of a dense set's training part. Raises FileNotFoundError."""
    with arrays_of(name) as arrays:
        return arrays["X_train"].astype(np.float64), arrays["y_train"]


def present(names: Sequence[str]) -> Iterator[str]:
    """Those of the sets whose file is there; the others are named on standard error."""
    for name in names:
        path = data_folder() / f"{name}.npz"
        if path.is_file():
            yield name
        else:
            print(f"{name} is left out: there is no {path}", file=sys.stderr)


def wide() -> tuple[LabelledData, LabelledData]:
    """Training and test part of random mixtures: 40 rows of each of 26 classes, 617 columns of 30 factors."""
    rng = np.random.default_rng(0)
    centres, loadings = rng.normal(size=(26, 30)), rng.normal(size=(30, 617))
    codes = np.arange(2080) % 26
    factors = centres[codes] + 0.7 * rng.normal(size=(2080, 30))
    X = (factors @ loadings + 2.0 * rng.normal(size=(2080, 617))).astype(np.float32)
    data = LabelledData.from_arrays(X[:1040], codes[:1040])
    return data, LabelledData.with_codes(X[1040:], codes[1040:], data.classes)
