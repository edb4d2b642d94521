"""Summary of a data set before training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.dataset import LabelledData
from core.data.examples import number_examples
from core.data.extras import Extras
from core.data.histograms import column_histograms
from core.data.labels import MAX_DESCRIBED, listed_names
from core.data.repeated_rows import matrix_digests, repeated_rows
from core.data.scaling import MIN_SPREAD, column_range, is_varying
from core.data.validation import row_blocks
from core.types import IntArray, Matrix

MAX_HISTOGRAMS: Final = 100
"""Columns of which ``describe`` gives a histogram: the first ones."""


def describe(data: LabelledData) -> dict[str, Any]:
    """Summary of a data set for its user before training, ready for JSON.

    Classes and columns are listed as far as `listed_names` says, in order; the numbers count all of them.
    ``duplicate_columns`` counts the columns that equal an earlier one. ``nearly_constant_columns`` are not
    constant, but vary by no more than rounding, or by less than a scale can hold. ``contradictory_rows``
    counts the rows that equal a row of another class, if there are any, with the ``first_contradiction``: two
    such rows; ``repeated_rows`` and ``first_repetition`` are the same of rows that equal an earlier one of
    their class. The first ``MAX_HISTOGRAMS`` columns have ``counts``, their histogram (see
    `column_histograms`). Columns have up to three ``examples``, see `core.data.examples`.
    """
    low, high = column_range(data.X)
    constant = np.flatnonzero(low == high)
    unusable = (low != high) & (~is_varying(data.X, low, high) | (high - low < MIN_SPREAD))
    nearly = np.flatnonzero(unusable)
    columns = [None] * min(data.d, MAX_DESCRIBED)
    names = columns if data.feature_names is None else listed_names(data.feature_names)
    return {
        "rows": data.n,
        "columns": data.d,
        "sparse": bool(sp.issparse(data.X)),
        "stored_values": int(data.X.size),
        **described_classes(data.classes, data.class_counts, data.unlabelled),
        "features": _columns(data.X, names, low, high),
        "constant_columns": len(constant),
        "first_constant_columns": constant[:MAX_DESCRIBED].tolist(),
        "nearly_constant_columns": len(nearly),
        "first_nearly_constant_columns": nearly[:MAX_DESCRIBED].tolist(),
        **repeated_rows(matrix_digests(data.X), data.y).described(),
        "duplicate_columns": _count_duplicate_columns(data.X),
        "more_features_than_rows": data.d > data.n,
        **described_extras(data.extras, data.y),
    }


def described_classes(classes: Sequence[str], counts: IntArray, unlabelled: int) -> dict[str, Any]:
    """The part of ``describe`` about classes. counts: rows of each class.

    unlabelled: rows without a label.
    """
    return {
        "classes": len(classes),
        "class_counts": {
            name: int(count) for name, count in zip(listed_names(classes), counts, strict=False)
        },
        "unlabelled_rows": unlabelled,
        "smallest_class": int(counts.min()) if len(classes) else 0,
        "largest_class": int(counts.max(initial=0)),
    }


def _columns(
    X: Matrix, names: Sequence[str | None], low: NDArray[np.float64], high: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Name, range, mean (to 12 digits) and histogram of the first columns."""
    means = np.asarray(X[:, : len(names)].mean(axis=0, dtype=np.float64)).ravel()
    columns: list[dict[str, Any]] = [
        {"name": name, "min": float(least), "max": float(most), "mean": float(f"{mean:.12g}")}
        for name, least, most, mean in zip(names, low, high, means, strict=False)
    ]
    drawn = X[:, :MAX_HISTOGRAMS]
    histograms = column_histograms(drawn, low[:MAX_HISTOGRAMS], high[:MAX_HISTOGRAMS])
    for column, counts in zip(columns, histograms.tolist(), strict=False):
        column["counts"] = counts
    for column, examples in zip(columns, number_examples(X[:, : len(names)]), strict=True):
        column["examples"] = examples
    return columns


def described_extras(extras: Extras, y: NDArray[np.int32]) -> dict[str, Any]:
    """The part of ``describe`` about extras, without extras that are absent. y: codes of the rows.

    The accuracy of a teacher's scores on the rows shows whether their columns are in the right order.
    """
    described: dict[str, Any] = {}
    if extras.privileged is not None:
        names = extras.privileged_names
        described["privileged"] = {
            "columns": extras.privileged.shape[1],
            "names": None if names is None else list(listed_names(names)),
        }
    if extras.views:
        described["views"] = [
            {"name": view.name, "start": view.start, "stop": view.stop} for view in extras.views
        ]
    if extras.teacher_scores is not None:
        rows = np.flatnonzero(y >= 0)
        answers = extras.teacher_scores[rows].argmax(axis=1)
        described["teacher_scores"] = {"accuracy": float(np.mean(answers == y[rows]))}
    return described


def _count_duplicate_columns(X: Matrix) -> int:
    """Columns that equal an earlier one, by digests of their contents: one pass however many there are."""
    hashes = [hashlib.sha256() for _ in range(X.shape[1])]
    if isinstance(X, np.ndarray):
        for rows in row_blocks(*X.shape):
            # Adding 0.0 makes −0.0 the 0.0 that it equals.
            for digest, column in zip(hashes, np.ascontiguousarray(X[rows].T) + 0.0, strict=True):
                digest.update(column)
    else:
        columns = X.tocsc()
        columns.eliminate_zeros()
        for digest, start, stop in zip(hashes, columns.indptr[:-1], columns.indptr[1:], strict=True):
            digest.update(columns.indices[start:stop])
            digest.update(columns.data[start:stop])
    return len(hashes) - len({digest.digest() for digest in hashes})
