"""The fits of one class: on all rows, and on folds for scores of rows that were held out."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import StratifiedKFold

from core.compact.rows import CompactRows
from core.errors import Fault, InvalidProblem
from core.model_selection.metrics import binary_metrics
from core.model_selection.threshold import choose_threshold, held_out_scores
from core.run import Run
from core.students.base import Lesson
from core.students.compact import FittedCompact, Floats, Singles, fit_compact
from core.students.spec import CompactSpec


class Course:
    """All that the fits of one class have in common."""

    def __init__(
        self,
        rows: CompactRows,
        target: int,
        spec: CompactSpec,
        run: Run,
    ) -> None:
        self.rows = rows
        self.target = target
        self.spec = spec
        self.config = rows.preparation.config
        self.lesson = rows.preparation.lesson(target, floor=spec.difficulty_floor)
        self.run = run.with_seed(self.config.seed)

    @property
    def n_rows(self) -> int:
        """n, training rows."""
        return len(self.rows.rows)

    def fit(self, size: int) -> FittedCompact:
        """The student of all rows."""
        return self._fit(self.rows.rows, self.lesson, size, self.run)

    def held_out(self, size: int) -> Floats:
        """Score of each row by a student of the other folds, (n,); the folds are ``held_out_scores``'s."""
        scores = np.empty(self.n_rows)
        splitter = StratifiedKFold(self.n_folds(), shuffle=True, random_state=self.config.seed)
        for train, held_out in splitter.split(np.zeros(len(scores)), self.lesson.positive):
            fitted = self._fit(self.rows.rows[train], self.lesson.take(train), size, self.run.silent())
            scores[held_out] = fitted.scores(self.rows.rows[held_out])
        return scores

    def full_held_out(self) -> Floats:
        """The same of the configured student on all of the teacher's features."""
        preparation, student = self.rows.preparation, self.config.student
        scores: Floats = held_out_scores(
            preparation.features,
            preparation.lesson(self.target, floor=student.difficulty_floor),
            student,
            folds=self.config.folds,
            run=self.run,
        ).scores.astype(np.float64)
        return scores

    def n_folds(self) -> int:
        """The configured folds, or as many as the smaller side has examples."""
        positive = self.lesson.positive
        smaller = int(min(positive.sum(), (~positive).sum()))
        if smaller < 2:
            message = "held-out scores need at least two examples of the class and two of the rest"
            raise InvalidProblem(Fault("labels", "class_too_small", message))
        return min(self.config.folds, smaller)

    def f1(self, scores: Floats) -> float:
        """F of held-out scores, cut by the configured rule; chosen and measured on the same scores."""
        positive = self.lesson.positive
        threshold = choose_threshold(positive, scores, self.config.threshold, self.config.budget)
        measured = binary_metrics(positive, scores >= threshold, scores).f1
        return 0.0 if measured is None else measured

    def _fit(self, rows: Singles, lesson: Lesson, size: int, run: Run) -> FittedCompact:
        return fit_compact(
            rows,
            lesson,
            size,
            self.spec,
            neighbour=self.rows.neighbour,
            run=run,
        )
