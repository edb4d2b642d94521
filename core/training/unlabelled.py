"""Rows without labels for students: the teacher's answer takes the place of the truth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from core.data.dataset import LabelledData, validate_rows
from core.data.extras import NO_EXTRAS, Extras
from core.errors import Fault, InvalidProblem
from core.features.examples import Examples
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.difficulty import ScoreRanks
from core.teachers.base import Task
from core.types import Matrix

if TYPE_CHECKING:
    from core.training.preparation import Preparation


def with_rest(preparation: Preparation, data: LabelledData, digest: str, run: Run = Run()) -> Preparation:
    """A preparation of the labelled rows of ``data``, with its other rows added after them.

    digest: of all rows. Raises InvalidProblem, Cancelled.
    """
    rows = np.flatnonzero(data.y < 0)
    if not len(rows):
        return preparation
    both = with_unlabelled(preparation, data.X[rows], run, data.extras.take(rows))
    return replace(both, data_digest=digest)


def with_unlabelled(
    preparation: Preparation, X: Any, run: Run = Run(), extras: Extras = NO_EXTRAS
) -> Preparation:
    """The same map and teacher, with further rows without labels that students learn from.

    The class of such a row is the one with the teacher's largest score, and its gate and difficulty follow
    from the scores as those of the other rows do: it is the easier, the larger the teacher's margin.

    X: rows (u, d), dense or sparse like those of the preparation; extras: of these rows. The loss of a row
    weighs C/n, and n grows.
    Held-out scores need true labels: folds hold the labelled rows only, so that searches, thresholds and
    calibrations are those of students without the further rows.

    Raises InvalidProblem, Cancelled.
    """
    known, feature_map = preparation.examples, preparation.feature_map
    rows = validate_rows(X, known.X.shape[1])
    if sp.issparse(rows) != sp.issparse(known.X):
        message = "rows without labels must be dense or sparse like the labelled ones"
        raise InvalidProblem(Fault("X", "other_format", message))
    with one_blas_thread():
        features = feature_map.transform(rows)
        spec = preparation.config.features
        further = Examples(rows, features, feature_map, spec, all_extras=extras)
        scores = preparation.teacher.scores(further, run)
    answers = scores.argmax(axis=1).astype(preparation.labels.dtype)
    both = Examples(
        _stacked(known.X, rows),
        _stacked(known.features, features),
        feature_map,
        spec,
        all_extras=known.extras.followed_by(extras),
    )
    all_scores = np.concatenate([preparation.scores, scores])
    return replace(
        preparation,
        task=Task(both, np.concatenate([preparation.labels, answers]), len(preparation.classes)),
        scores=all_scores,
        ranks=ScoreRanks.of(all_scores),
    )


def _stacked(first: Matrix, second: Matrix) -> Matrix:
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    return sp.csr_array(sp.vstack([first, second]))
