"""Data without the rows of classes that are too small to be learned."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np

from core.data.dataset import LabelledData
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidProblem

MIN_PER_CLASS: Final = 2
"""Fewest training examples of a class: with one, it could neither be split into folds nor evaluated."""

AnyData = TypeVar("AnyData", LabelledData, LabelledTable)


def without_rare(data: AnyData) -> AnyData:
    """The rows of classes of at least `MIN_PER_CLASS` rows, and those without a label.

    Raises InvalidProblem where fewer than two classes stay.
    """
    kept = np.flatnonzero(data.class_counts >= MIN_PER_CLASS)
    if len(kept) == data.K:
        return data
    if len(kept) < 2:
        text = f"Of {data.K} classes {len(kept)} have {MIN_PER_CLASS} rows or more; two are needed."
        raise InvalidProblem(Fault("y", "single_class", text))
    codes = np.full(data.K + 1, -1, dtype=np.int32)
    codes[kept] = np.arange(len(kept), dtype=np.int32)
    rows = np.flatnonzero((data.y < 0) | (codes[data.y] >= 0))
    smaller = data.take(rows)
    return smaller.of_classes(codes[smaller.y], kept)
