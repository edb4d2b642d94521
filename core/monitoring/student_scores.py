"""Scores of many packed students of one version on many rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from core.data.validation import row_blocks
from core.packed.evaluation import Output, evaluate, rows_for
from core.packed.student import PackedStudent
from core.types import FloatArray, Matrix


def student_scores(
    students: Sequence[PackedStudent], X: Matrix, filled: FloatArray | None = None
) -> FloatArray:
    """The score of each of q students on each row of X (n, d), (q, n). Students of one map share its values.

    filled: (n,), the share of columns of each record whose gaps were filled, see
    ``PackedStudent.with_gaps``. Raises InvalidProblem for unusable numbers and scores beyond float64.
    """
    scores = np.empty((len(students), X.shape[0]))
    of_maps: defaultdict[str, list[int]] = defaultdict(list)
    for place, student in enumerate(students):
        of_maps[student.map.digest].append(place)
    for places in of_maps.values():
        scores[places] = _of_one_map([students[place] for place in places], X)
    if filled is not None and filled.any():
        for student, values in zip(students, scores, strict=True):
            if student.gaps is not None:
                slope, offset = student.gaps
                values += filled * (slope * values + offset)
    return scores


def _of_one_map(students: Sequence[PackedStudent], X: Matrix) -> FloatArray:
    packed = students[0].map
    outputs: list[Output] = [student.form.linear or student.form.block for student in students]
    if isinstance(X, np.ndarray):
        return np.array(evaluate(packed, rows_for(packed, X), outputs))
    if packed.kind == "linear":
        return np.array([student.scores_sparse(X.indices, X.data, X.indptr) for student in students])
    blocks = [
        np.array(evaluate(packed, rows_for(packed, X[rows].toarray()), outputs))
        for rows in row_blocks(*X.shape)
    ]
    return np.concatenate(blocks, axis=1)
