"""Base class of the scikit-learn estimators: input validation, tags, feature parameters, label codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
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
from core.data.dataset import LabelledData, validate_rows
from core.data.frames import has_records, is_array, is_frame, is_named, table_of_frame, without_tokens
from core.data.labels import labels_of_one_type
from core.data.schema import Kind, KindSpec, cells_as
from core.data.table import NumberCells, Table
from core.data.validation import MAX_FAULTS, no_value, refuse_no_numbers
from core.encoding.fit import fit_encoder, matrix_of
from core.errors import Fault, InvalidProblem
from core.features.maps import FeatureMap
from core.features.spec import FeatureKind, FeatureSpec
from core.packed.encoder import Encoder
from core.training.preparation import Preparation
from core.types import FloatArray, IntArray, Matrix

_NUMBERS: Final[dict[str, Any]] = {
    "accept_sparse": "csr",
    "dtype": (np.float64, np.float32),
    "ensure_all_finite": False,
}
"""How scikit-learn checks arrays; numbers that are not finite are named by ``validate_rows``."""


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

    def _labelled(self, X: Any, y: Any) -> tuple[Matrix, NDArray[Any]]:
        """Validated rows (n, d) and labels (n,); sets ``n_features_in_`` and ``encoder_``.

        A data frame with texts, dates, truth values or gaps is encoded; ``encoder_`` is None for numbers.
        Raises ValueError.
        """
        self.encoder_ = None
        if not is_frame(X) or is_array(X):
            return self._validated(_array(X), y)
        table = without_tokens(table_of_frame(X))
        if not has_records(table):
            validated = self._validated(_numbers(table), y)
            if is_named(X):
                self.feature_names_in_ = np.array(table.names, dtype=object)
            return validated
        if y is None:
            raise InvalidProblem(
                Fault("y", "empty", f"{type(self).__name__} needs the labels y of the rows.")
            )
        labels = column_or_1d(_labels(y), warn=True)
        check_classification_targets(labels)
        check_consistent_length(range(table.n), labels)
        self.encoder_ = fit_encoder(table, infer_schema(table), n_classes=len(np.unique(np.asarray(labels))))
        self.n_features_in_ = len(table.names)
        self.feature_names_in_ = np.array(table.names, dtype=object)
        return matrix_of(self.encoder_.encode(table), self.encoder_), np.asarray(labels)

    def _validated(self, X: Any, y: Any) -> tuple[Matrix, NDArray[Any]]:
        """Rows of numbers (n, d) and labels (n,), checked as scikit-learn does, and by the rules of files."""
        rows, labels = validate_data(self, X, None if y is None else _labels(y), **_NUMBERS)
        check_classification_targets(labels)
        return self._finite(rows), np.asarray(labels)

    def _mapped(self, X: Any) -> Matrix:
        """Φ (n, m) of the rows to predict. Raises NotFittedError, ValueError."""
        rows = self._rows(X)
        return self.feature_map_.transform(rows)

    def _rows(self, X: Any) -> Matrix:
        """The rows to predict, (n, d), encoded. Raises NotFittedError, ValueError."""
        check_is_fitted(self)
        if self.encoder_ is None and (not is_frame(X) or is_array(X)):
            return self._finite(validate_data(self, _array(X), reset=False, **_NUMBERS))
        if not is_frame(X):
            message = "X must be a data frame with the columns that the estimator was fitted to."
            raise InvalidProblem(Fault("X", "not_a_frame", message))
        table = table_of_frame(X)
        if self.encoder_ is not None:
            _refuse_names(table.names, self.encoder_.names, self.encoder_.ignored)
            _refuse_gaps(table, {one.name: one.kind for one in self.encoder_.columns if one.required})
            return matrix_of(self.encoder_.encode(without_tokens(table)), self.encoder_)
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            _refuse_names(table.names, names.tolist())
            table = Table(tuple(names.tolist()), tuple(map(table.column, names)))
        _refuse_gaps(table, dict.fromkeys(table.names, Kind.NUMBER))
        cells = tuple(map(cells_as, table.names, table.cells, repeat(KindSpec(Kind.NUMBER))))
        return validate_rows(_numbers(Table(table.names, cells)), self.n_features_in_)

    def _finite(self, rows: Any) -> Matrix:
        """Rows of numbers (n, d), contiguous or CSR. Raises InvalidProblem for values not finite."""
        names = getattr(self, "feature_names_in_", None)
        return validate_rows(rows, feature_names=None if names is None else names.tolist())

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


def _labels(y: Any) -> NDArray[Any]:
    """Labels (n,) of one type, or (n, 1). Raises InvalidProblem."""
    given = y if isinstance(y, list | tuple | np.ndarray) else np.asarray(y)
    shape = np.shape(given)
    if len(shape) == 2 and shape[1] > 1:
        message = (
            f"y must have one label for each row, but has the shape {shape}. If it is one-hot, give"
            " y.argmax(axis=1); of several columns, the one with the labels."
        )
        raise InvalidProblem(Fault("y", "wrong_shape", message))
    is_column = len(shape) == 2 and shape[1] == 1
    try:
        labels = labels_of_one_type(np.asanyarray(given).ravel() if is_column else given)
    except InvalidProblem as error:
        raise InvalidProblem(*map(_with_way_out, error.faults)) from error
    if isinstance(y, list | tuple) and labels.dtype.kind == "O":
        labels = np.array(labels.tolist())
    return labels.reshape(-1, 1) if is_column else labels


def _with_way_out(fault: Fault) -> Fault:
    if fault.code != "missing_label":
        return fault
    way_out = "Leave rows without a label out of X and y, for example by pandas.notna(y)."
    return replace(fault, message=f"{fault.message} {way_out}")


def _array(X: Any) -> Any:
    """X as it is. Raises InvalidProblem for arrays that NumPy would turn into other numbers."""
    if isinstance(X, list | tuple):
        with suppress(ValueError):
            X = np.asarray(X)
    if isinstance(X, np.ndarray):
        refuse_no_numbers(X, "X")
    return X


def _numbers(table: Table) -> FloatArray:
    """The rows (n, d) of a table of numbers."""
    return np.stack([cells.values for cells in table.cells if isinstance(cells, NumberCells)], axis=1)


def _refuse_names(given: Sequence[str], used: Sequence[str], ignored: Sequence[str] = ()) -> None:
    """Raise InvalidProblem for columns that rows to predict lack or have beyond those of training."""
    faults = [
        Fault("X", "missing_column", f"The table has no column {name!r:.80}.")
        for name in used
        if name not in given
    ]
    faults += [
        Fault("X", "unknown_column", f"Training had no column {name!r:.80}; leave it out of X.")
        for name in given
        if name not in used and name not in ignored
    ]
    if faults:
        raise InvalidProblem(*faults[:MAX_FAULTS])


def _refuse_gaps(table: Table, required: Mapping[str, Kind]) -> None:
    """Raise InvalidProblem for gaps in columns that had a value in every row of training, as queries do.

    A text without words is answered also where each row of training had some.
    """
    faults = []
    plain = without_tokens(table)
    for name, kind in required.items():
        if name in table.names:
            gaps = (table if kind is Kind.TEXT else plain).column(name).is_gap
            for row in np.flatnonzero(gaps)[:MAX_FAULTS].tolist():
                message = f"X, row {row} (counted from 0): {no_value(name)}."
                faults.append(Fault("X", "missing_value", message, row=row))
    if faults:
        raise InvalidProblem(*sorted(faults, key=lambda fault: fault.row or 0)[:MAX_FAULTS])


def flat_if_binary(scores: FloatArray) -> FloatArray:
    return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


def iterations_of(preparation: Preparation) -> int:
    summary = preparation.teacher.summary
    return 1 if summary is None else max(1, summary.iterations)
