"""Rows that are left out of a data set: those without a label, and those of classes too small to learn.

If they are few, this is probably what their sender wants, and a warning reports it. Otherwise, or if the
sender asks for it, they are refused. ``drop`` leaves out any number of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from core.data.dataset import LabelledData
from core.data.labels import class_names, missing_labels
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidProblem

MIN_PER_CLASS: Final = 2
"""Fewest training examples of a class: with one, it could neither be split into folds nor evaluated."""
_FEW: Final = 0.01
"""Largest share of the rows that is left out without a request."""

Unlabelled: TypeAlias = Literal["accept", "drop", "refuse"]
RareClasses: TypeAlias = Literal["drop", "keep", "refuse"]
AnyData = TypeVar("AnyData", LabelledData, LabelledTable)


class LeftOut(NamedTuple):
    """Whether rows without a label are left out, and those of classes that are too small."""

    unlabelled: bool
    rare: bool


def choose_left_out(labels: Any, unlabelled: Unlabelled | None, rare: RareClasses | None) -> LeftOut:
    """The rows to leave out, given some labels. unlabelled, rare: the sender's choices, or None."""
    of_texts = isinstance(labels, list)
    counts = Counter(_names(labels)) if of_texts else Counter[str]()
    missing = counts.pop("", 0)
    single = sum(1 for count in counts.values() if count < MIN_PER_CLASS)
    has_two_classes = len(counts) - single >= 2
    return LeftOut(
        bool(counts)
        and missing > 0
        and (unlabelled == "drop" or (unlabelled is None and is_few(missing, labels))),
        rare == "drop" or (rare is None and has_two_classes and single > 0 and is_few(single, labels)),
    )


def is_few(count: int, labels: Any) -> bool:
    """Whether this many of the rows may be left out without a request."""
    return count <= _FEW * len(labels)


def left_out_rows(labels: Any, data: LabelledData | LabelledTable) -> tuple[int, int]:
    """Numbers of the rows that ``data`` lacks: those without a label, and others."""
    gone = len(labels) - data.n
    if not gone or data.unlabelled or not isinstance(labels, list):
        return 0, gone
    missing = int(missing_labels(labels).sum())
    return missing, gone - missing


def without_rare(data: AnyData) -> AnyData:
    """The rows of classes of at least `MIN_PER_CLASS` rows, and those without a label.

    Raises InvalidProblem if fewer than two classes remain.
    """
    kept = np.flatnonzero(data.class_counts >= MIN_PER_CLASS)
    if len(kept) == data.K != 1:
        return data
    if len(kept) < 2:
        text = f"Of {data.K} classes {len(kept)} have {MIN_PER_CLASS} rows or more; two are needed."
        raise InvalidProblem(Fault("y", "single_class", text))
    codes = np.full(data.K + 1, -1, dtype=np.int32)
    codes[kept] = np.arange(len(kept), dtype=np.int32)
    rows = np.flatnonzero((data.y < 0) | (codes[data.y] >= 0))
    smaller = data.take(rows)
    return smaller.of_classes(codes[smaller.y], kept)


def without_chosen(data: AnyData, chosen: LeftOut) -> AnyData:
    """The rows that are not left out. Raises InvalidProblem if fewer than two classes remain."""
    labelled = data.take(np.flatnonzero(data.y >= 0)) if chosen.unlabelled else data
    return without_rare(labelled) if chosen.rare else labelled


def _names(labels: list[Any]) -> list[str]:
    return class_names(["" if label is None else str(label) for label in labels])
