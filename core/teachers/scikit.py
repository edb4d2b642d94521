"""A classifier with scikit-learn's interface as a teacher.

It gets the raw rows; its scores are decision_function, or the logarithm of predict_proba. They are not linear
in the students' features, so the gate is distilled. The classifier is not stored, because a package holds
numbers only and never pickled objects: the packed teacher has the distilled weights instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from core.errors import Fault, InvalidProblem
from core.teachers.base import Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.features.examples import Examples
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.types import FloatArray, IntArray

_LEAST = 1e-3
"""Smaller probabilities are raised to this: forests give zeros, whose logarithm no gate can approximate."""


@dataclass(frozen=True, slots=True, eq=False)
class ScikitTeacher(Teacher):
    """A fitted classifier. codes: codes of its classes, which may be fewer than the K of the task."""

    classifier: Any
    codes: IntArray
    n_classes: int

    def scores(self, examples: Examples, run: Run) -> FloatArray:
        """S, (n, K). A class unknown to the classifier has a score below all others of a row."""
        run.check_cancel()
        if hasattr(self.classifier, "decision_function"):
            known: FloatArray = np.asarray(self.classifier.decision_function(examples.X), dtype=np.float64)
            if known.ndim == 1:
                known = np.column_stack([-known, known])
        else:
            known = _logarithms(self.classifier.predict_proba(examples.X))
        if known.shape != (examples.n, len(self.codes)) or not np.isfinite(known).all():
            shape = (examples.n, len(self.codes))
            message = f"the scores of the teacher must be finite, of shape {shape}; it is {known.shape}"
            raise InvalidProblem(Fault("teacher", "wrong_scores", message))
        return self._of_all_classes(known)

    @property
    def own_scores(self) -> FloatArray | None:
        """Out-of-bag scores of a forest with ``oob_score=True``, from trees that have not seen the row."""
        votes = getattr(self.classifier, "oob_decision_function_", None)
        if votes is None or np.shape(votes)[1:] != (len(self.codes),):
            return None
        # A row that every tree has seen has no votes; all its classes get the same probability.
        return self._of_all_classes(_logarithms(np.nan_to_num(votes, nan=1.0 / len(self.codes))))

    def _of_all_classes(self, known: FloatArray) -> FloatArray:
        if len(self.codes) == self.n_classes:
            return known
        scores = np.tile(known.min(axis=1, keepdims=True) - 1.0, self.n_classes)
        scores[:, self.codes] = known
        return scores

    def pack(self, examples: Examples, classes: tuple[str, ...], metadata: Mapping[str, Any]) -> None:
        """Returns None, because only scikit-learn can evaluate the classifier."""

    def arrays(self) -> NoReturn:
        """Raises InvalidProblem, because storing the classifier would need pickle."""
        message = "a classifier of another library cannot be stored; use STMSClassifier or train"
        raise InvalidProblem(Fault("teacher", "not_storable", message))


def _logarithms(probabilities: Any) -> FloatArray:
    return np.log(np.maximum(np.asarray(probabilities, dtype=np.float64), _LEAST))


@dataclass(frozen=True, slots=True)
class Scikit(TeacherSpec):
    """``estimator``, cloned and fitted to raw rows and class codes, in every fold anew."""

    name: ClassVar[str] = "scikit"

    estimator: Any = field(compare=False)

    def __post_init__(self) -> None:
        scores = ("decision_function", "predict_proba")
        if not hasattr(self.estimator, "fit") or not any(hasattr(self.estimator, one) for one in scores):
            message = "teacher must be a classifier with fit and decision_function or predict_proba"
            raise InvalidProblem(Fault("teacher", "no_classifier", message))

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> ScikitTeacher:
        """Fit a clone of the estimator; if its ``random_state`` is None, it gets the run's seed."""
        from sklearn.base import clone

        del start
        run.check_cancel()
        classifier = clone(self.estimator)
        if classifier.get_params().get("random_state", 0) is None:
            classifier.set_params(random_state=run.seed)
        classifier.fit(task.examples.X, task.labels)
        return ScikitTeacher(classifier, np.asarray(classifier.classes_, dtype=np.int64), task.n_classes)

    def restore(self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None) -> NoReturn:
        """Raises InvalidProblem, because the classifier is never stored."""
        del arrays, n_classes, n_features, summary
        raise InvalidProblem(
            Fault("teacher", "not_storable", "a classifier of another library is not stored")
        )

    def params(self) -> dict[str, str]:
        """The class and its parameters as text."""
        return {"estimator": repr(self.estimator)}

    def metadata(self) -> dict[str, str | float | int]:
        """The name of the class."""
        return {"method": type(self.estimator).__name__}
