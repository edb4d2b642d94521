"""Term frequencies and idf against scikit-learn, and what folding them leaves of a query."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from core.data.scaling import fit_standardisation
from core.data.scaling_kind import Scaling
from core.data.text import unit_term_frequencies
from core.errors import InvalidProblem
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.packed import LinearForm, PackedStudent


def counts(seed: int = 0) -> sp.csr_array:
    rng = np.random.default_rng(seed)
    table = rng.poisson(0.4, (30, 8)).astype(np.float64)
    table[3] = 0.0
    return sp.csr_array(table)


def test_frequencies_are_scikit_learns():
    table = counts()
    logged = table.copy()
    logged.data = np.log1p(logged.data)
    assert np.allclose(unit_term_frequencies(table).toarray(), normalize(logged).toarray())


@pytest.mark.parametrize("dense", [True, False])
def test_the_idf_is_scikit_learns(dense: bool):
    table = counts()
    found = fit_standardisation(table.toarray() if dense else table, Scaling.IDF)
    assert np.allclose(found.scale, TfidfTransformer().fit(table).idf_)
    assert not found.shift.any()


def test_stored_zeros_are_no_terms():
    table = sp.csr_array(([0.0, 2.0, 0.0], [0, 1, 2], [0, 2, 3]), shape=(2, 3))
    assert np.array_equal(unit_term_frequencies(table).toarray(), [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert table.nnz == 3
    # A term that never occurs says nothing: its scale is left alone.
    expected = [1.0, 1.0 + np.log(3.0 / 2.0), 1.0]
    assert np.allclose(fit_standardisation(table, Scaling.IDF).scale, expected)


def test_dense_counts_become_sparse_frequencies():
    assert np.allclose(unit_term_frequencies([[0, 1], [3, 0]]).toarray(), [[0, 1], [1, 0]])


def test_a_negative_count_is_refused_with_its_place():
    with pytest.raises(InvalidProblem, match="row 1, column 2"):
        unit_term_frequencies(sp.csr_array([[1.0, 0.0, 0.0], [0.0, 2.0, -1.0]]))


def test_a_folded_student_scores_a_text_by_its_own_terms():
    rows = unit_term_frequencies(counts())
    fitted = fit_feature_map(rows, FeatureSpec("linear", scaling=Scaling.IDF), 0)
    weights = np.random.default_rng(1).standard_normal(9)
    basis, coef, intercept = fitted.fold(weights[None])
    student = PackedStudent(basis, LinearForm(coef[0], float(intercept[0]), coef[0], 0.0), 0.0, "text")
    expected = fitted.transform(rows) @ weights
    for i in range(rows.shape[0]):
        own = slice(rows.indptr[i], rows.indptr[i + 1])
        score = student.scores_sparse(rows.indices[own], rows.data[own])[0]
        assert score == pytest.approx(expected[i])
