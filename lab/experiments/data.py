"""The benchmark sets: ``.npz`` files with a training and a test part.

Further splits of yeast are drawn by the rule of its first one.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.data.text import unit_term_frequencies
from core.types import IntArray, Matrix

TEXT_SETS = frozenset({"news20_bydate", "reuters_r8"})
"""Counts of terms; each document becomes a row of term frequencies of length 1."""

RESPLIT_SETS = frozenset({"yeast"})
"""Sets whose split in the file is one of many by the same rule."""

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
    except (KeyError, ValueError, IndexError, OSError, zipfile.BadZipFile) as error:
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
    """By name where the file has names for the codes, which begin at 0 or, as in dna, at 1."""
    codes = arrays[f"y_{part}"]
    if "class_names" not in arrays:
        return codes
    names = arrays["class_names"]
    return names[codes - int(arrays["y_train"].max() == len(names))]


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
