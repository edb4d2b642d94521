"""Base class of the scikit-learn estimators: input validation, tags, feature parameters, label codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from core.data.column_kinds import infer_schema
from core.data.dataset import LabelledData
from core.data.frames import has_records, is_frame, table_of_frame
from core.encoding.fit import fit_encoder, matrix_of
from core.errors import Fault, InvalidProblem
from core.features.maps import FeatureMap
from core.features.spec import FeatureKind, FeatureSpec
from core.packed.encoder import Encoder
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
    encoder_: Encoder | None

    def _labelled(self, X: Any, y: ArrayLike) -> tuple[Matrix, NDArray[Any]]:
        """Validated rows (n, d) and labels (n,); sets ``n_features_in_`` and ``encoder_``.

        A data frame with texts, dates, truth values or gaps is encoded; ``encoder_`` is None for numbers.
        Raises ValueError.
        """
        self.encoder_ = None
        if is_frame(X) and has_records(X):
            table = table_of_frame(X)
            labels = column_or_1d(y)
            check_classification_targets(labels)
            check_consistent_length(range(table.n), labels)
            self.encoder_ = fit_encoder(table, infer_schema(table))
            self.n_features_in_ = len(table.names)
            self.feature_names_in_ = np.array(table.names, dtype=object)
            return matrix_of(self.encoder_.encode(table), self.encoder_), np.asarray(labels)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32))
        check_classification_targets(y)
        return as_matrix(X), np.asarray(y)

    def _mapped(self, X: Any) -> Matrix:
        """Φ (n, m) of the rows to predict. Raises NotFittedError, ValueError."""
        rows = self._rows(X)
        return self.feature_map_.transform(rows)

    def _rows(self, X: Any) -> Matrix:
        """The rows to predict, (n, d), encoded. Raises NotFittedError, ValueError."""
        check_is_fitted(self)
        if self.encoder_ is not None:
            return self._encoded(X, self.encoder_)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        return as_matrix(X)

    def _encoded(self, X: Any, encoder: Encoder) -> Matrix:
        """Rows of a data frame, whose columns are found by name. Raises ValueError."""
        if not is_frame(X):
            message = "X must be a data frame with the columns that the estimator was fitted to."
            raise InvalidProblem(Fault("X", "not_a_frame", message))
        return matrix_of(encoder.encode(table_of_frame(X)), encoder)

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


def labelled_data(
    rows: Matrix, codes: IntArray, classes: NDArray[Any], encoder: Encoder | None = None
) -> LabelledData:
    """Training data from validated arrays; as in scikit-learn, a class may have a single example.

    encoder: that made the rows, if any.
    """
    names = tuple(str(name) for name in classes.tolist())
    layout = None if encoder is None else encoder.layout
    return LabelledData(rows, codes.astype(np.int32), names, layout=layout)


def as_matrix(X: Any) -> Matrix:
    if sp.issparse(X):
        return sp.csr_array(X)
    return np.ascontiguousarray(X)


def flat_if_binary(scores: FloatArray) -> FloatArray:
    return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


def iterations_of(preparation: Preparation) -> int:
    summary = preparation.teacher.summary
    return 1 if summary is None else max(1, summary.iterations)
