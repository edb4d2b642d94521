"""The files that a first model is trained from: tables with a part to learn from and one to measure on."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from lab.benchmarks.inputs.sets import SETS, table_of
from tests.system.data import arrays_of, raw_folder

LABEL: Final = "label"
_TESTED: Final = 5
"""Every fifth row is measured on."""
_WORDS: Final = (
    *("red", "blue", "engine", "broken", "late", "delivery", "refund", "nice", "quick", "slow"),
    *("paper", "metal", "invoice", "return", "screen", "battery", "case", "cable", "charger", "lamp"),
)
_CATEGORIES: Final = (2, 3, 5, 8, 12, 30, 100, 1000)
_CLASSES: Final = 5


@dataclass(frozen=True, slots=True)
class Files:
    """train, test: files of one format. label: name of the column of labels."""

    train: Path
    test: Path
    label: str = LABEL


def of_raw(name: str, folder: Path) -> Files:
    """A public table; its official test part, or every fifth row. Raises FileNotFoundError."""
    one = SETS[name]
    names, rows = table_of(one, one.file, raw_folder())
    label = names[int(one.label)] if one.names else one.label
    if one.test is None:
        test = rows[::_TESTED]
        rows = [row for place, row in enumerate(rows) if place % _TESTED]
    else:
        test = table_of(one, one.test, raw_folder())[1]
    return _written(folder, name, names, rows, test, label)


def letter(folder: Path) -> Files:
    """Statlog's letters, 16 columns of numbers. Raises FileNotFoundError."""
    with arrays_of("letter") as arrays:
        parts = [(arrays[f"X_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    names = [*(f"x{number}" for number in range(parts[0][0].shape[1])), LABEL]
    rows = [
        [[*map(repr, row), f"class {label}"] for row, label in zip(X.tolist(), y, strict=True)]
        for X, y in parts
    ]
    return _written(folder, "letter", names, *rows, LABEL)


def wide(folder: Path) -> Files:
    """100 classes of 20 rows with 100 numbers each."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, 100))
    codes = np.repeat(np.arange(100), 25)
    X = centres[codes] + 1.2 * rng.standard_normal((len(codes), 100))
    return _parquet(folder, "wide", {f"x{k}": X[:, k] for k in range(100)}, codes)


def mixed(rows: int) -> Callable[[Path], Files]:
    """A table of ten numbers, eight categories, a date and a note, with gaps; five classes."""

    def made(folder: Path) -> Files:
        n = rows * _TESTED // (_TESTED - 1)
        rng, weights = np.random.default_rng(0), np.random.default_rng(99)
        X = rng.standard_normal((n, 10))
        categories = [rng.integers(0, size, n) for size in _CATEGORIES]
        days, words = rng.integers(0, 3650, n), rng.integers(0, len(_WORDS), (n, 5))
        scores = 0.7 * X @ weights.standard_normal((10, _CLASSES))
        scores += 1.2 * np.sin(2.0 * X[:, :1]) * weights.standard_normal((1, _CLASSES))
        scores += (X[:, 1] * X[:, 2])[:, None] * weights.standard_normal((1, _CLASSES))
        for codes, size in zip(categories, _CATEGORIES, strict=True):
            scores += 0.6 * weights.standard_normal((size, _CLASSES))[codes]
        scores += 0.6 * weights.standard_normal((len(_WORDS), _CLASSES))[words].sum(axis=1)
        scores += np.sin(days / 58.0)[:, None] * weights.standard_normal((1, _CLASSES))
        scores += 0.8 * rng.gumbel(size=scores.shape)
        columns: dict[str, Any] = {
            f"n{k}": pa.array(np.round(X[:, k], 5), mask=rng.random(n) < 0.05) for k in range(10)
        }
        for k, codes in enumerate(categories):
            names = pa.array([f"v{code}" for code in range(_CATEGORIES[k])])
            columns[f"c{k}"] = names.take(pa.array(codes, mask=rng.random(n) < 0.02))
        columns["when"] = pa.array(np.datetime64("2015-01-01") + days)
        columns["note"] = pa.array([" ".join(_WORDS[word] for word in row) for row in words.tolist()])
        return _parquet(folder, f"mixed-{rows}", columns, scores.argmax(axis=1), as_csv=True)

    return made


def numbers(rows: int, columns: int) -> Callable[[Path], Files]:
    """A table of numbers; five classes that planes part, but for one product of two columns."""

    def made(folder: Path) -> Files:
        n = rows * _TESTED // (_TESTED - 1)
        rng, weights = np.random.default_rng(0), np.random.default_rng(98)
        X = rng.standard_normal((n, columns), dtype=np.float32)
        scores = X @ weights.standard_normal((columns, _CLASSES)).astype(np.float32) / np.sqrt(columns) * 2.0
        scores += X[:, :1] * X[:, 1:2] * weights.standard_normal((1, _CLASSES)).astype(np.float32)
        scores += 0.7 * rng.gumbel(size=scores.shape)
        return _parquet(
            folder, f"numbers-{rows}", {f"x{k}": X[:, k] for k in range(columns)}, scores.argmax(axis=1)
        )

    return made


FILES: Final[Mapping[str, Callable[[Path], Files]]] = {
    "titanic": lambda folder: of_raw("titanic", folder),
    "telco": lambda folder: of_raw("telco", folder),
    "sms": lambda folder: of_raw("sms", folder),
    "banking77": lambda folder: of_raw("banking77", folder),
    "adult": lambda folder: of_raw("adult", folder),
    "letter": letter,
    "wide": wide,
    "mixed_1e5": mixed(100_000),
    "mixed_1e6": mixed(1_000_000),
    "numbers_1e6": numbers(1_000_000, 50),
}
"""By the names that the figures have. Rows are counted without those that are measured on."""


def _written(folder: Path, name: str, names: Any, train: list[Any], test: list[Any], label: str) -> Files:
    paths = [folder / f"{name}-{part}.csv" for part in ("train", "test")]
    for path, rows in zip(paths, (train, test), strict=True):
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    return Files(*paths, label)


def _parquet(
    folder: Path, name: str, columns: Mapping[str, Any], codes: Any, *, as_csv: bool = False
) -> Files:
    table = pa.table({**columns, LABEL: pa.array([f"class {code}" for code in codes.tolist()])})
    is_test = np.arange(table.num_rows) % _TESTED == 0
    paths = []
    for part, rows in (("train", ~is_test), ("test", is_test)):
        paths.append(folder / f"{name}-{part}.{'csv' if as_csv else 'parquet'}")
        if as_csv:
            from pyarrow import csv as arrow_csv

            arrow_csv.write_csv(table.filter(pa.array(rows)), paths[-1])
        else:
            parquet.write_table(table.filter(pa.array(rows)), paths[-1])
    return Files(*paths)
