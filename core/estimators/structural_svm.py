"""The structural SVM, the teacher of the paper, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Self

from numpy.typing import ArrayLike, NDArray

from core.estimators.base import Estimator, classes_of, flat_if_binary, iterations_of, labelled_data
from core.features.spec import FeatureKind
from core.packed import PackedTeacher
from core.teachers.linear import LinearTeacher
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare
from core.types import FloatArray


class StructuralSVMClassifier(Estimator):
    """The teacher: Crammer and Singer's multiclass SVM, Eq. (1).

    C: loss weight; the loss of one example weighs C/n. tolerance: relative duality gap at which to stop.
    max_epochs: limit of passes over the examples.

    Attributes: ``classes_`` (K,), ``coef_`` W in feature space (K, m) with the constant's weight last,
    ``packed_`` PackedTeacher, ``n_iter_``, ``n_features_in_``.
    """

    def __init__(
        self,
        C: float = 3e4,
        *,
        features: FeatureKind = "linear",
        n_components: int = 500,
        gamma: float | None = None,
        scaling: str = "zscore",
        tolerance: float = 1e-3,
        max_epochs: int = 5000,
        random_state: Any = 0,
    ) -> None:
        self.C = C
        self.features = features
        self.n_components = n_components
        self.gamma = gamma
        self.scaling = scaling
        self.tolerance = tolerance
        self.max_epochs = max_epochs
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows X (n, d) and labels y (n,). Raises ValueError."""
        rows, labels = self._labelled(X, y)
        self.classes_, codes = classes_of(labels)
        config = TrainingConfig(
            features=self._feature_spec(),
            teacher=SSVM(self.C, self.tolerance, self.max_epochs),
            seed=self._seed(),
        )
        preparation = prepare(labelled_data(rows, codes, self.classes_, self.encoder_), config)
        self.feature_map_ = preparation.feature_map
        teacher = preparation.teacher
        if not isinstance(teacher, LinearTeacher):
            raise TypeError(f"the structural SVM is linear, not a {type(teacher).__name__}")
        self._teacher = teacher
        self.coef_ = teacher.weights
        self.packed_: PackedTeacher = preparation.packed_teacher()
        self.n_iter_ = iterations_of(preparation)
        return self

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Scores S (n, K); with two classes the score of the second minus that of the first, (n,)."""
        return flat_if_binary(self._teacher_scores(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest score, (n,)."""
        return self._with_largest(self._teacher_scores(X))

    def _teacher_scores(self, X: ArrayLike) -> FloatArray:
        features = self._mapped(X)
        return self._teacher.feature_scores(features)
