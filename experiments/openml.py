"""The paper's sets from OpenML, for who has a network and not the files; only when asked for.

OpenML keeps no training and test part, so one is drawn here: per class its share of Table 2's sizes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import fetch_openml
from sklearn.model_selection import train_test_split

from experiments.data import DataMissing
from experiments.paper import TABLE_2

IDENTIFIERS = {"letter": 6, "satimage": 182, "shuttle": 40685, "vowel": 307, "yeast": 181}
"""Numbers of the data sets on OpenML."""

Download = Callable[..., Any]


def fetch_missing(names: Iterable[str], folder: Path, download: Download = fetch_openml) -> list[Path]:
    """Fetch those of ``names`` that OpenML has; the others have to be there. Raises DataMissing."""
    return [fetch(name, folder, download) for name in names if name in IDENTIFIERS]


def fetch(name: str, folder: Path, download: Download = fetch_openml) -> Path:
    """Write ``name`` to ``folder`` in the form that ``load`` reads; a file that is there is kept.

    Raises DataMissing: not a set of IDENTIFIERS, no network, or not what Table 2 describes.
    """
    path = folder / f"{name}.npz"
    if path.exists():
        return path
    if name not in IDENTIFIERS:
        raise DataMissing(f"{name} is not fetched from OpenML; there are {', '.join(IDENTIFIERS)}.")
    try:
        bunch = download(data_id=IDENTIFIERS[name], as_frame=False, parser="liac-arff")
    except (OSError, ValueError) as error:
        raise DataMissing(f"{name} cannot be fetched from OpenML: {error}") from error
    X, labels = _features(name, bunch), np.asarray(bunch.target).astype(str)
    sizes = TABLE_2[name]
    if X.shape[1] != sizes.features or len(np.unique(labels)) != sizes.classes:
        raise DataMissing(f"{name} of OpenML does not have the columns and classes of Table 2.")
    share = sizes.train / (sizes.train + sizes.test)
    X_train, X_test, y_train, y_test = train_test_split(
        X, labels, train_size=share, random_state=0, stratify=labels
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as part:
        np.savez_compressed(part, X_train=X_train, X_test=X_test, y_train=y_train, y_test=y_test)
    os.replace(part.name, path)  # noqa: PTH105  the name is text
    return path


def _features(name: str, bunch: Any) -> NDArray[np.float32]:
    """Numeric columns; those of vowel that tell speaker, sex and part are none."""
    names = list(bunch.feature_names)
    kept = [k for k, column in enumerate(names) if name != "vowel" or column.startswith("Feature")]
    return np.asarray(bunch.data)[:, kept].astype(np.float32)
