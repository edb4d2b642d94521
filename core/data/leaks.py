"""Finds leaks: columns that make results too good, because each alone tells the label of nearly every row.

A column is a leak if it avoids 99 of 100 errors of a guess that always names the largest class (Goodman and
Kruskal's λ; each row is predicted without its own label), and if chance does not explain this: the labellings
that such a column could tell must be a negligible part of all labellings with the same number of rows of each
class, also after a correction for the number of columns. So a column of n different values, which could tell
any labelling, is never a leak because of its values, and neither is a single strong measurement (one petal
measurement tells 95 of 100 irises).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from core.data.repeated_rows import Digests, matrix_digests, table_digests
from core.data.schema import ColumnSchema, Kind
from core.data.table import GAP, Cells, NumberCells, PictureCells, VectorCells
from core.types import IntArray, Matrix

How: TypeAlias = Literal["copy", "values", "order", "words", "one_class", "gaps"]

MOST_ROWS: Final = 10_000
"""Number of rows that are examined; of more rows, a random sample that is always the same."""
MOST_COLUMNS: Final = 1000
"""Number of columns of a matrix that are examined: the first, or if sparse those with most stored values."""
FEWEST_ROWS: Final = 10
_MOST_NUMBERS: Final = 2_000_000
"""Number of values of a matrix that are examined."""
_ERRORS: Final = 0.01
"""Largest ratio of a leak's errors to those of a guess that always names the largest class."""
_GAP_ERRORS: Final = 0.05
"""Like _ERRORS, for columns in which only the presence of a value tells the label."""
_GAP_SHARE: Final = 0.05
"""Least share of the rows of a class that must be told by the presence of a value."""
_CHANCE: Final = np.log(1e-3)
_CHANCE_OF_ORDER: Final = np.log(1e-6)
_TEXTS: Final = 1000
"""Number of texts in which names of classes are searched."""
_TEXT_CHARACTERS: Final = 2000
_MOST_NAME_WORDS: Final = 4
_WORD: Final = re.compile(r"[^\W\d_]+|\d+")


@dataclass(frozen=True, slots=True)
class Leak:
    """A column that tells the label. column: its number. rows: number of examined rows. wrong: rows for which
    it tells another class. label: the code of the class that it tells, if it tells only one.

    how: ``copy``: its cells are the names of the classes; ``values``: each of its values stands for one
    class; ``order``: sorted by it, the rows of a class stand together; ``words``: its texts have the name of
    the class in them; ``one_class``: one of its two values stands in the rows of one class, and in no
    others; ``gaps``: rows with a value (has_value), or rows without one, are of one class.
    """

    column: int
    how: How
    rows: int
    wrong: int
    label: int | None = None
    has_value: bool = True


class _Labels(NamedTuple):
    """The examined rows (s,): codes of their K classes, 0..K−1, rows of each class, and the number of columns
    that are tried. same: (s,) numbers below s, equal for equal rows.
    """

    y: NDArray[np.int64]
    same: IntArray
    counts: IntArray
    classes: Sequence[str]
    columns: int

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.y)

    @property
    def K(self) -> int:  # noqa: N802
        """Number of classes, including classes without a row."""
        return len(self.classes)

    @property
    def guess_errors(self) -> int:
        """Rows that are not of the largest class."""
        return self.n - int(self.counts.max())

    @property
    def log_present(self) -> float:
        """The logarithm of the number of classes that occur."""
        return float(np.log(np.count_nonzero(self.counts)))

    @property
    def log_tries(self) -> float:
        """The same of how many columns, classes and values the best is taken."""
        return float(np.log(2.0 * self.columns * self.K))

    def of(self, rows: NDArray[np.bool_]) -> _Labels | None:
        """A selection of the rows; None if it has too few rows or only one class."""
        if rows.all():
            return self
        counts = np.bincount(self.y[rows], minlength=self.K)
        total = int(counts.sum())
        if total < max(FEWEST_ROWS, self.n / 2) or counts.max() == total:
            return None
        return _Labels(self.y[rows], self.same[rows], counts, self.classes, self.columns)

    def different_rows(self, codes: IntArray) -> IntArray:
        """How many different rows have each value. codes: (s,) of the values, 0 to m−1."""
        size = np.int64(int(self.same.max()) + 1)
        return np.bincount(np.unique(codes * size + self.same) // size)

    def is_chance(self, log_count: float, wrong: int, limit: float) -> bool:
        """Whether the labellings, each with ``wrong`` changes, are a substantial part of all labellings."""
        log_all = gammaln(self.n + 1.0) - float(gammaln(self.counts + 1.0).sum())
        changed = _log_choose(self.n, wrong) + wrong * self.log_present
        return bool(log_count + changed + np.log(self.columns) > log_all + limit)


def table_leaks(
    schema: Sequence[ColumnSchema], cells: Sequence[Cells], y: NDArray[np.int32], classes: Sequence[str]
) -> list[Leak]:
    """Columns of a table that tell the label, in order, each with one way. y: (n,) codes, −1 without a label.

    Columns that the schema ignores are left out.
    """
    rows = _rows(y, MOST_ROWS)
    used = [k for k, column in enumerate(schema) if column.kind is not Kind.IGNORE]
    if not used:
        return []
    few = [cells[k].take(rows) for k in used]
    labels = _labels(y[rows], table_digests(few), classes, len(used))
    if labels is None:
        return []
    leaks = (_of_cells(schema[k], column, labels) for k, column in zip(used, few, strict=True))
    return [replace(leak, column=k) for k, leak in zip(used, leaks, strict=True) if leak is not None]


def matrix_leaks(X: Matrix, y: NDArray[np.int32], classes: Sequence[str]) -> list[Leak]:
    """The same for the columns of a matrix, (n, d)."""
    columns = np.arange(min(X.shape[1], MOST_COLUMNS))
    if isinstance(X, np.ndarray):
        few: Matrix = X[:, : len(columns)]
    else:
        stored = np.bincount(X.indices, minlength=X.shape[1])
        columns = np.sort(np.argsort(-stored, kind="stable")[: len(columns)])
        few = X[:, columns]
    rows = _rows(y, min(MOST_ROWS, max(500, _MOST_NUMBERS // max(1, len(columns)))))
    part = few[rows]
    labels = _labels(y[rows], matrix_digests(part), classes, X.shape[1])
    if labels is None:
        return []
    dense = part if isinstance(part, np.ndarray) else part.toarray()
    leaks = (_of_numbers(column.astype(np.float64), labels) for column in dense.T)
    return [replace(leak, column=int(k)) for k, leak in zip(columns, leaks, strict=True) if leak is not None]


def _rows(y: NDArray[np.int32], most: int) -> IntArray:
    labelled = np.flatnonzero(y >= 0)
    if len(labelled) <= most:
        return labelled
    drawn: IntArray = np.sort(np.random.default_rng(0).choice(labelled, most, replace=False))
    return drawn


def _labels(y: NDArray[np.int32], digests: Digests, classes: Sequence[str], columns: int) -> _Labels | None:
    """The labels of the examined rows; None if they are too few, of one class, or if there are no columns."""
    counts = np.bincount(y, minlength=len(classes))
    if len(y) < FEWEST_ROWS or np.count_nonzero(counts) < 2 or not columns:
        return None
    same = np.unique(digests, return_inverse=True)[1]
    return _Labels(y.astype(np.int64), same, counts, classes, columns)


def _of_cells(column: ColumnSchema, cells: Cells, labels: _Labels) -> Leak | None:
    if isinstance(cells, VectorCells | PictureCells):
        return None
    if isinstance(cells, NumberCells):
        return _of_numbers(cells.values, labels)
    gaps = (
        [GAP, *(code for code, text in enumerate(cells.texts) if text in column.nulls)]
        if column.nulls
        else [GAP]
    )
    is_gap = np.isin(cells.codes, gaps)
    leak = _of_gaps(is_gap, labels)
    rest = labels.of(~is_gap)
    if leak is not None or rest is None:
        return leak
    used, codes = np.unique(cells.codes[~is_gap], return_inverse=True)
    texts = [cells.texts[int(code)] for code in used]
    leak = _of_values(codes, texts, rest)
    if leak is not None:
        return leak
    if column.kind in (Kind.NUMBER, Kind.DATE):
        values = np.array(
            [np.nan if (value := column.spec.value_of(text)) is None else value for text in texts]
        )
        return _of_order(values[codes], rest)
    return _of_words(codes, texts, rest)


def _of_numbers(values: NDArray[np.float64], labels: _Labels) -> Leak | None:
    is_gap = np.isnan(values)
    leak = _of_gaps(is_gap, labels)
    rest = labels.of(~is_gap)
    if leak is not None or rest is None:
        return leak
    different, codes = np.unique(values[~is_gap], return_inverse=True)
    names = [f"{value:.15g}" for value in different] if len(different) <= 2 * labels.K else []
    return _of_values(codes, names, rest) or _of_order(values[~is_gap], rest)


class _Groups(NamedTuple):
    """For each different value: its number of rows, their most frequent class and its number of rows."""

    sizes: IntArray
    top: IntArray
    top_counts: IntArray


def _groups(codes: IntArray, y: NDArray[np.int64], K: int) -> _Groups:
    pairs, counts = np.unique(codes * np.int64(K) + y, return_counts=True)
    values, labels = pairs // K, pairs % K
    order = np.lexsort((counts, values))
    last = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    starts = np.concatenate([[0], last[:-1] + 1])
    sizes = np.add.reduceat(counts, starts)
    return _Groups(sizes, labels[order][last], counts[order][last])


def _of_values(codes: IntArray, names: Sequence[str], labels: _Labels) -> Leak | None:
    """The leak if each value stands for one class, else that of `_of_one_class`, if any.

    names: of the values by code; empty for numbers.
    """
    groups = _groups(codes, labels.y, labels.K)
    # A row is told by the other rows with its value, so a value with a single row tells none.
    told = np.where(groups.top_counts > 1, groups.top_counts, 0)
    if int(told.sum()) > labels.n - labels.guess_errors:
        # Nor do copies of one row tell each other.
        told[(labels.different_rows(codes) == 1) & (groups.sizes < FEWEST_ROWS)] = 0
    wrong, log_count = labels.n - int(told.sum()), len(groups.sizes) * labels.log_present
    if wrong <= _ERRORS * labels.guess_errors and not labels.is_chance(log_count, wrong, _CHANCE):
        return Leak(0, "copy" if _are_names(codes, names, labels) else "values", labels.n, wrong)
    return _of_one_class(codes, labels) if labels.K > 2 and len(groups.sizes) == 2 else None


def _are_names(codes: IntArray, names: Sequence[str], labels: _Labels) -> bool:
    """Whether most cells are the names of their rows' classes."""
    if not names:
        return False
    places = {name.strip().casefold(): place for place, name in enumerate(labels.classes)}
    of_values = np.array([places.get(name.strip().casefold(), -1) for name in names])
    return bool(np.mean(of_values[codes] == labels.y) >= 1.0 - _ERRORS)


def _of_one_class(codes: IntArray, labels: _Labels) -> Leak | None:
    """The leak if one of two values stands in the rows of one class, and in no others; else None."""
    for value in np.unique(codes):
        has_it = codes == value
        inside = np.bincount(labels.y[has_it], minlength=labels.K)
        label = int(inside.argmax())
        size = int(labels.counts[label])
        wrong = int(has_it.sum()) + size - 2 * int(inside[label])
        log_chance = _log_choose(labels.n, wrong) - _log_choose(labels.n, size)
        if wrong <= _ERRORS * min(size, labels.n - size) and log_chance + labels.log_tries <= _CHANCE:
            return Leak(0, "one_class", labels.n, wrong, label)
    return None


def _of_gaps(is_gap: NDArray[np.bool_], labels: _Labels) -> Leak | None:
    """The leak if the rows with a value, or those without one, are nearly all of one class; else None."""
    if not is_gap.any() or is_gap.all():
        return None
    for has_value in (True, False):
        rows = is_gap != has_value
        inside = np.bincount(labels.y[rows], minlength=labels.K)
        label, size = int(inside.argmax()), int(rows.sum())
        right, of_class = int(inside[label]), int(labels.counts[label])
        wrong = size - right
        log_chance = _log_choose(of_class, right) - _log_choose(labels.n, right) + _log_choose(size, wrong)
        is_few = wrong <= _GAP_ERRORS * size * (1.0 - of_class / labels.n)
        is_much = right >= max(FEWEST_ROWS, _GAP_SHARE * of_class)
        if is_much and is_few and log_chance + labels.log_tries <= _CHANCE:
            return Leak(0, "gaps", size, wrong, label, has_value)
    return None


def _of_order(values: NDArray[np.float64], labels: _Labels) -> Leak | None:
    """The leak if the rows of each class are contiguous after sorting by the column; else None."""
    groups = _groups(np.unique(values, return_inverse=True)[1], labels.y, labels.K)
    runs = 1 + int(np.count_nonzero(groups.top[1:] != groups.top[:-1]))
    within = labels.n - int(groups.top_counts.sum())
    wrong = within + max(0, runs - int(np.count_nonzero(labels.counts)))
    log_count = runs * labels.log_present + _log_choose(len(groups.sizes) - 1, runs - 1)
    if wrong > _ERRORS * labels.guess_errors or labels.is_chance(log_count, within, _CHANCE_OF_ORDER):
        return None
    return Leak(0, "order", labels.n, wrong)


def _of_words(codes: IntArray, texts: Sequence[str], labels: _Labels) -> Leak | None:
    """Whether the texts have the name of their class in them, and no other one."""
    names = {tuple(_WORD.findall(name.casefold())): place for place, name in enumerate(labels.classes)}
    names.pop((), None)
    longest = min(_MOST_NAME_WORDS, max(map(len, names), default=0))
    rows = np.linspace(0, labels.n - 1, min(labels.n, _TEXTS)).astype(np.intp)
    y = labels.y[rows]
    limit = _ERRORS * (len(rows) - int(np.bincount(y).max()))
    wrong = 0
    for code, label in zip(codes[rows].tolist(), y.tolist(), strict=True):
        wrong += {*_named(texts[code], names, longest)} != {label}
        if wrong > limit:
            return None
    return Leak(0, "words", len(rows), wrong)


def _named(text: str, names: dict[tuple[str, ...], int], longest: int) -> Iterator[int]:
    """The classes whose names are words of a text."""
    words = _WORD.findall(text[:_TEXT_CHARACTERS].casefold())
    for length in range(1, longest + 1):
        for start in range(len(words) - length + 1):
            place = names.get(tuple(words[start : start + length]))
            if place is not None:
                yield place


def _log_choose(n: int, k: int) -> float:
    return float(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0))
