"""Writes scikit-learn's handwritten digits to a file: 1797 images of 8 x 8 pixels, ten classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TEST_SHARE = 0.25
SEED = 0


@dataclass(frozen=True, slots=True)
class DigitsFile:
    """The file and its test part, for queries with a known answer. X_test (n, 64), y_test (n,)."""

    path: Path
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]


def write_digits(folder: Path) -> DigitsFile:
    """Split the digits with a fixed seed, stratified by class, and write both parts into one .npz file."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=TEST_SHARE, stratify=y, random_state=SEED
    )
    path = folder / "digits.npz"
    np.savez_compressed(path, X_train=X_train, y_train=y_train, X_test=X_test, y_test=y_test)
    return DigitsFile(path, X_test, y_test)
