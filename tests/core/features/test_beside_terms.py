"""Encoded rows: only numbers are scaled, terms stay linear beside a kernel of the other columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.column_layout import ColumnLayout
from core.data.dataset import LabelledData
from core.data.scaling import fit_standardisation
from core.data.scaling_kind import Scaling
from core.errors import InvalidPackage, InvalidProblem
from core.features.maps import feature_map_from_bytes, fit_feature_map
from core.features.spec import FeatureSpec
from core.packed import PackedStudent
from core.packed.forms import LinearForm
from core.run import Run
from core.training.config import TrainingConfig
from core.training.pipeline import train
from tests.refusals import at_fault

LAYOUT = ColumnLayout(columns=12, dense=5, numbers=(0, 2))


def rows(n: int = 40, seed: int = 0) -> sp.csr_array:
    """Two numbers, three indicators and seven terms; numbers are stored in every row."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, 12))
    X[:, [0, 2]] = rng.normal(50.0, 3.0, (n, 2))
    X[:, 1] = rng.random(n) < 0.1
    X[np.arange(n), rng.integers(3, 5, n)] = 1.0
    X[:, 5:] = np.where(rng.random((n, 7)) < 0.3, rng.random((n, 7)), 0.0)
    return sp.csr_array(X)


@pytest.mark.parametrize("method", [Scaling.ZSCORE, Scaling.MINMAX])
def test_only_numbers_are_scaled_and_sparse_rows_stay_sparse(method: Scaling):
    X = rows()
    fitted = fit_standardisation(X, method, LAYOUT)
    others = [column for column in range(12) if column not in LAYOUT.numbers]
    assert not fitted.shift[others].any()
    assert (fitted.scale[others] == 1.0).all()
    of_numbers = fit_standardisation(X.toarray()[:, [0, 2]], method)
    np.testing.assert_allclose(fitted.scale[[0, 2]], of_numbers.scale)
    scaled: Any = fitted.apply(X)
    assert sp.issparse(scaled)
    np.testing.assert_allclose(scaled.toarray(), fitted.apply(X.toarray()), atol=1e-12)
    assert not fit_standardisation(X, Scaling.IDF, LAYOUT).shift.any()


@pytest.mark.parametrize("kind", ["kernel", "nystroem", "fourier"])
def test_the_kernel_is_that_of_the_dense_columns_and_the_product_of_the_terms(kind: Any):
    X = rows()
    spec = FeatureSpec(kind=kind, n_components=30, gamma=0.5, layout=LAYOUT)
    fitted = fit_feature_map(X, spec, 0)
    features: Any = fitted.transform(X)
    dense = X.toarray()
    of_dense = fit_feature_map(
        dense[:, :5], FeatureSpec(kind=kind, n_components=30, gamma=0.5, layout=ColumnLayout(5, 5, (0, 2))), 0
    ).transform(dense[:, :5])
    assert isinstance(of_dense, np.ndarray)
    expected = of_dense @ of_dense.T + dense[:, 5:] @ dense[:, 5:].T
    np.testing.assert_allclose((features @ features.T).toarray(), expected, atol=1e-10)
    restored = feature_map_from_bytes(fitted.to_bytes())
    assert restored.to_bytes() == fitted.to_bytes()
    assert (restored.transform(X) != features).nnz == 0


@pytest.mark.parametrize("kind", ["linear", "kernel", "fourier"])
def test_a_folded_student_scores_as_its_features_do(kind: Any):
    X = rows()
    fitted = fit_feature_map(X, FeatureSpec(kind=kind, n_components=30, layout=LAYOUT), 0)
    coef = np.random.default_rng(1).normal(size=(2, fitted.n_features_out))
    basis, folded, intercepts = fitted.fold(coef)
    form = LinearForm(folded[0], float(intercepts[0]), folded[1], float(intercepts[1]))
    student = PackedStudent(basis, form, 0.0, "a")
    features: Any = fitted.transform(X)
    np.testing.assert_allclose(student.scores(X.toarray()), features @ coef[0], atol=1e-8)
    restored = PackedStudent.from_bytes(student.to_bytes())
    assert restored.map.kind == basis.kind
    np.testing.assert_array_equal(
        restored.scores_sparse(X.indices, X.data, X.indptr),
        student.scores_sparse(X.indices, X.data, X.indptr),
    )
    np.testing.assert_allclose(
        student.scores_sparse(X.indices, X.data, X.indptr), features @ coef[0], atol=1e-8
    )


def test_rows_of_terms_alone_have_no_kernel():
    layout = ColumnLayout(7, 0, ())
    X = rows()[:, 5:]
    with at_fault(InvalidProblem, "no_dense_columns", match="no columns beside terms"):
        fit_feature_map(X, FeatureSpec(kind="nystroem", layout=layout), 0)
    assert fit_feature_map(X, FeatureSpec(kind="auto", layout=layout), 0).kind == "linear"
    for wrong in ((3, 4, ()), (4, 3, (3,)), (4, 3, (-1,))):
        with pytest.raises(InvalidProblem):
            ColumnLayout(*wrong)


def test_a_damaged_package_beside_terms_is_refused():
    fitted = fit_feature_map(rows(), FeatureSpec(kind="kernel", layout=LAYOUT), 0)
    damaged = fitted.to_bytes().replace(b"nystroem", b"nystroes")
    with pytest.raises(InvalidPackage):
        feature_map_from_bytes(damaged)


@pytest.mark.parametrize("automatic", [True, False])
def test_encoded_rows_are_trained_on_and_the_preparation_restored(automatic: bool):
    X, rng = rows(120), np.random.default_rng(3)
    labels = np.where(X.toarray()[:, 5] + 0.1 * rng.random(120) > 0.2, "yes", "no")
    data = LabelledData.from_arrays(X, labels)
    data = LabelledData(data.X, data.y, data.classes, layout=LAYOUT)
    config = TrainingConfig(automatic=automatic, threshold="expected_f1", folds=3)
    model = train(data, config, run=Run(0))
    prepared = model.preparation
    assert prepared.config.features.layout == LAYOUT
    restored = type(prepared).from_bytes(prepared.to_bytes(), data, config)
    assert restored.to_bytes() == prepared.to_bytes()
    assert (restored.features != prepared.features).nnz == 0
    scores = model.students["yes"].scores_sparse(X.indices, X.data, X.indptr)
    assert np.mean((scores >= model.students["yes"].threshold) == (labels == "yes")) > 0.9
