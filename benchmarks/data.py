"""Files of the benchmark data sets: in $STMS_DATA, by default in shared/data beside this repository."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def data_folder() -> Path:
    """Folder of the prepared sets."""
    return Path(os.environ.get("STMS_DATA") or Path(__file__).parents[2] / "shared" / "data")


def raw_folder() -> Path:
    """Folder of public files as people bring them: $STMS_RAW, by default shared/raw."""
    return Path(os.environ.get("STMS_RAW") or Path(__file__).parents[2] / "shared" / "raw")


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
