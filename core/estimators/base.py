"""Base class of the scikit-learn estimators: input validation, tags, feature parameters, label codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from core.data.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.features.maps import FeatureMap
from core.features.spec import FeatureKind, FeatureSpec
from core.training.preparation import Preparation
from core.types import FloatArray, IntArray, Matrix


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the three estimators: input validation, tags and the feature parameters."""

    features: FeatureKind | None
    n_components: int | None
    gamma: float | None
    scaling: str | None
    random_state: Any

    classes_: NDArray[Any]
    feature_map_: FeatureMap

    def _labelled(self, X: ArrayLike, y: ArrayLike) -> tuple[Matrix, NDArray[Any]]:
        """Validated rows (n, d) and labels (n,); sets ``n_features_in_``. Raises ValueError."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32))
        check_classification_targets(y)
        return as_matrix(X), np.asarray(y)

    def _mapped(self, X: ArrayLike) -> Matrix:
        """Φ (n, m) of the rows to predict. Raises NotFittedError, ValueError."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        return self.feature_map_.transform(as_matrix(X))

    def _with_largest(self, scores: FloatArray) -> NDArray[Any]:
        """The class with the largest of a row's scores (n, K), for each row, (n,)."""
        predicted: NDArray[Any] = self.classes_[scores.argmax(axis=1)]
        return predicted

    def _feature_spec(self) -> FeatureSpec:
        return FeatureSpec(
            **given(
                kind=self.features, n_components=self.n_components, gamma=self.gamma, scaling=self.scaling
            )
        )

    def _seed(self) -> int:
        """``random_state`` as a seed: an integer is used as it is, otherwise a seed is drawn from it."""
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None: for the others a specification's own defaults apply."""
    return {name: value for name, value in values.items() if value is not None}


def classes_of(labels: NDArray[Any]) -> tuple[NDArray[Any], IntArray]:
    """Sorted classes (K,) and codes (n,). Raises InvalidProblem for fewer than two classes."""
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InvalidProblem(Fault("y", "single_class", "y has 1 class; at least two are needed"))
    return classes, codes


def labelled_data(rows: Matrix, codes: IntArray, classes: NDArray[Any]) -> LabelledData:
    """Training data from validated arrays; as in scikit-learn, a class may have a single example."""
    names = tuple(str(name) for name in classes.tolist())
    return LabelledData(rows, codes.astype(np.int32), names)


def as_matrix(X: Any) -> Matrix:
    if sp.issparse(X):
        return sp.csr_array(X)
    return np.ascontiguousarray(X)


def flat_if_binary(scores: FloatArray) -> FloatArray:
    return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


def iterations_of(preparation: Preparation) -> int:
    summary = preparation.teacher.summary
    return 1 if summary is None else max(1, summary.iterations)
