"""The benchmark sets: ``.npz`` files with a training and a test part, or fetched from OpenML.

Further splits of yeast are drawn by the rule of its first one. OpenML stores no training and test part, so
both are drawn: of each class the share of Table 2's sizes.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import fetch_openml
from sklearn.model_selection import train_test_split

from core.data.dataset import LabelledData
from core.data.text import unit_term_frequencies
from core.types import IntArray, Matrix
from experiments.paper import TABLE_2

TEXT_SETS = frozenset({"news20_bydate", "reuters_r8"})
"""Counts of terms; each document becomes a row of term frequencies of length 1."""

RESPLIT_SETS = frozenset({"yeast"})
"""Sets whose split in the file is one of many by the same rule."""

OPENML = {"letter": 6, "satimage": 182, "shuttle": 40685, "vowel": 307, "yeast": 181}
"""Numbers of the data sets on OpenML."""

Download = Callable[..., Any]

_TRAINING_SHARE = 0.8
_VOWELS = 11
_ROWS_OF_A_VOWEL_SPEAKER = 6 * _VOWELS


class DataMissing(Exception):
    """A data set that cannot be read; the message says what to do about it."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Training and test part, coded with the same classes.

    groups: of the training rows, (n,), where rows belong together and the test part has other groups.
    """

    train: LabelledData
    test: LabelledData
    groups: IntArray | None = None


def data_folder(folder: Path | None = None) -> Path:
    """The folder of the argument, or $STMS_DATA. Raises DataMissing without both, or if it does not exist."""
    chosen = folder or (Path(os.environ["STMS_DATA"]) if os.environ.get("STMS_DATA") else None)
    if chosen is None:
        raise DataMissing("The folder of the data sets is not known: give --data FOLDER or set STMS_DATA.")
    if not chosen.is_dir():
        raise DataMissing(f"There is no folder {chosen}.")
    return chosen


def load(name: str, folder: Path, split: int = 0) -> Split:
    """Split 0 is that of the file. Sets of ``RESPLIT_SETS`` have further ones, drawn with seed ``split``.

    Raises DataMissing, and InvalidProblem for rows or labels that cannot be used.
    """
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise DataMissing(f"There is no file {path}.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tables = [_table(arrays, part) for part in ("X_train", "X_test")]
            labels = [_labels(arrays, part) for part in ("train", "test")]
            groups = _groups(name, arrays)
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataMissing(f"{path} cannot be read as a data set: {error}") from error
    if split:
        if name not in RESPLIT_SETS:
            raise DataMissing(f"{name} comes with one split only; there is no split {split}.")
        tables, labels = _resplit(np.concatenate(tables), np.concatenate(labels), split)
    if name in TEXT_SETS:
        tables = [unit_term_frequencies(table) for table in tables]
    train = LabelledData.from_arrays(tables[0], labels[0])
    test = LabelledData.with_codes(tables[1], labels[1], train.classes, n_columns=train.d)
    return Split(train, test, groups)


def _table(arrays: Mapping[str, Any], part: str) -> Matrix:
    if part in arrays:
        dense: Matrix = arrays[part]
        return dense
    csr = tuple(arrays[f"{part}_{piece}"] for piece in ("data", "indices", "indptr"))
    return sp.csr_array(csr, shape=tuple(int(size) for size in arrays[f"{part}_shape"]))


def _labels(arrays: Mapping[str, Any], part: str) -> Any:
    """By name where the file has names for the codes."""
    codes = arrays[f"y_{part}"]
    return arrays["class_names"][codes] if "class_names" in arrays else codes


def _groups(name: str, arrays: Mapping[str, Any]) -> IntArray | None:
    """Speakers of vowel, chains of protein: the training and the test part share none.

    In vowel the order of the rows gives the speaker: six rows of each of the eleven vowels, in turn.
    """
    if name == "vowel":
        labels = arrays["y_train"]
        in_turn = (
            len(np.unique(labels[:_VOWELS])) == _VOWELS and (labels[_VOWELS:] == labels[:-_VOWELS]).all()
        )
        return np.arange(len(labels)) // _ROWS_OF_A_VOWEL_SPEAKER if in_turn else None
    return np.asarray(arrays["chain_train"], dtype=np.int64) if "chain_train" in arrays else None


def _resplit(X: Any, labels: Any, seed: int) -> tuple[list[Any], list[Any]]:
    """Per class floor(0.8 n) rows for training: the rule of yeast's first split."""
    rng = np.random.default_rng(seed)
    training = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        training[rows[: int(_TRAINING_SHARE * len(rows))]] = True
    return [X[training], X[~training]], [labels[training], labels[~training]]


def fetch_missing(names: Iterable[str], folder: Path, download: Download = fetch_openml) -> list[Path]:
    """Fetch those of ``names`` that OpenML has. Raises DataMissing."""
    return [fetch(name, folder, download) for name in names if name in OPENML]


def fetch(name: str, folder: Path, download: Download = fetch_openml) -> Path:
    """Write a data set to ``folder`` in the form that ``load`` reads; an existing file is kept.

    Raises DataMissing for a set outside of ``OPENML``, without a network, or if Table 2 has other sizes.
    """
    path = folder / f"{name}.npz"
    if path.exists():
        return path
    if name not in OPENML:
        raise DataMissing(f"{name} is not fetched from OpenML; there are {', '.join(OPENML)}.")
    try:
        bunch = download(data_id=OPENML[name], as_frame=False, parser="liac-arff")
    except (OSError, ValueError) as error:
        raise DataMissing(f"{name} cannot be fetched from OpenML: {error}") from error
    X, labels = _columns(name, bunch), np.asarray(bunch.target).astype(str)
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


def _columns(name: str, bunch: Any) -> Any:
    """The feature columns; vowel has others for speaker, sex and part."""
    names = list(bunch.feature_names)
    kept = [k for k, column in enumerate(names) if name != "vowel" or column.startswith("Feature")]
    return np.asarray(bunch.data)[:, kept].astype(np.float32)
