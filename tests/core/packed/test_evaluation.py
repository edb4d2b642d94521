"""Linear forms on a map, by blocks and by rows, held against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data.validation import MAX_MAGNITUDE
from core.errors import InvalidProblem
from core.packed import FourierBasis, LinearBasis, LinearForm, PackedMap, PackedStudent, RbfBasis, evaluation
from core.packed.evaluation import evaluate, rows_for
from core.packed.student import row_scorer
from tests.refusals import at_fault

D = 4
RNG = np.random.default_rng(1)
MAPS: dict[str, PackedMap] = {
    "linear": LinearBasis(D),
    "rbf": RbfBasis(RNG.normal(size=D), np.full(D, 0.3), RNG.normal(size=(11, D))),
    "fourier": FourierBasis(RNG.normal(size=(6, D)), RNG.normal(size=6)),
}


def student(packed: PackedMap, scale: float = 1.0) -> PackedStudent:
    p = packed.n_basis
    return PackedStudent(
        packed, LinearForm(scale * RNG.normal(size=p), 0.3, RNG.normal(size=p), 0.1), 0.0, "a"
    )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("m", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", list(MAPS))
def test_forms_are_products_with_the_basis(kind: str, m: int, dtype: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "_CACHED_ENTRIES", 64)
    packed = MAPS[kind]
    X = RNG.normal(size=(101, D)).astype(dtype)
    forms = [(RNG.normal(size=packed.n_basis), float(i)) for i in range(m)]
    expected = [packed.block(X.astype(np.float64)) @ coef + intercept for coef, intercept in forms]
    values = evaluate(packed, rows_for(packed, X), forms)
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-13)
    assert [value.shape for value in evaluate(packed, rows_for(packed, X[:0]), forms)] == [(0,)] * m


@pytest.mark.parametrize("kind", list(MAPS))
def test_float32_rows_give_the_scores_of_the_same_rows_in_float64(kind: str):
    one = student(MAPS[kind])
    X = RNG.normal(size=(500, D)).astype(np.float32)
    np.testing.assert_array_equal(one.scores(X), one.scores(X.astype(np.float64)))


@pytest.mark.parametrize("kind", list(MAPS))
@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(0, 200), cuts=st.lists(st.integers(0, 200), max_size=5), dtype=st.sampled_from(["f4", "f8"])
)
def test_rows_that_arrive_in_pieces_have_the_same_bits(kind: str, n: int, cuts: list[int], dtype: str):
    packed = MAPS[kind]
    X = np.random.default_rng(n).normal(size=(n, D)).astype(dtype)
    outputs = [(np.arange(1.0, packed.n_basis + 1), 0.5), lambda basis: basis.sum(axis=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_CACHED_ENTRIES", 64)
        memory = np.full_like(X, np.nan)
        pieces = evaluation.Evaluation(packed, memory, outputs)
        for stop in sorted(min(cut, n) for cut in [*cuts, n]):
            memory[:stop] = X[:stop]
            pieces.advance(stop)
        np.testing.assert_array_equal(pieces.values(), evaluate(packed, X, outputs))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_are_looked_at_in_every_block(dtype: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "_CACHED_ENTRIES", 64)
    for row in (0, 17, 100):
        X = np.zeros((101, D), dtype)
        X[row, 2] = np.inf
        with pytest.raises(InvalidProblem) as caught:
            student(MAPS["rbf"]).scores(X)
        assert [(f.code, f.row, f.column) for f in caught.value.faults] == [("not_finite", row, 2)]


def test_many_large_numbers_are_not_taken_for_unusable_ones():
    X = np.full((1000, D), 0.99 * MAX_MAGNITUDE)
    ones = PackedStudent(LinearBasis(D), LinearForm(np.ones(D), 0.0, np.ones(D), 0.0), 0.0, "a")
    np.testing.assert_allclose(ones.scores(X), D * 0.99 * MAX_MAGNITUDE)


def test_the_first_row_beyond_float64_is_named_whatever_the_form():
    X = np.ones((6, D))
    X[4] = 1e99
    tame, wild = (np.ones(D), 0.0), (np.full(D, 1e300), 0.0)
    for forms in ([wild], [tame, wild], [tame, tame, tame, wild]):
        with pytest.raises(InvalidProblem) as caught:
            evaluate(MAPS["linear"], X, forms)
        assert (caught.value.faults[0].code, caught.value.faults[0].row) == ("out_of_range", 4)


@pytest.mark.parametrize("kind", list(MAPS))
@given(x=st.lists(st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6), min_size=D, max_size=D))
@settings(max_examples=60, deadline=None)
def test_a_row_scorer_gives_the_score(kind: str, x: list[float]):
    one = student(MAPS[kind])
    expected = one.scores([x])[0]
    for score in (one.score(x), one.score(np.array(x, float)), row_scorer(one)(x)):
        assert score == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e250])
@pytest.mark.parametrize("kind", list(MAPS))
@pytest.mark.parametrize(
    ("x", "code"),
    [
        ([1.0, 2.0, 3.0], "wrong_columns"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], "wrong_columns"),
        ([1.0, float("nan"), 3.0, 4.0], "not_finite"),
        ([1.0, float("inf"), 3.0, 4.0], "not_finite"),
        ([1.0, 1e101, 3.0, 4.0], "too_large"),
        ([1.0, 10**400, 3.0, 4.0], "not_numeric"),
        ([1.0, "2", 3.0, 4.0], "not_numeric"),
        ([[1.0], [2.0], [3.0], [4.0]], "wrong_shape"),
    ],
)
def test_a_row_scorer_refuses_what_score_refuses(kind: str, scale: float, x: list, code: str):
    one = student(MAPS[kind], scale)
    for ask in (one.score, row_scorer(one)):
        with at_fault(InvalidProblem, code):
            ask(x)


def test_a_score_beyond_float64_is_refused_without_a_warning():
    wild = student(MAPS["linear"], 1e300)
    for ask in (wild.score, row_scorer(wild), lambda x: wild.score_at(wild.checked_row(x))):
        with at_fault(InvalidProblem, "out_of_range"):
            ask([1e90, 1.0, 1.0, 1.0])


def test_maps_are_equal_by_digest_when_their_numbers_are():
    rbf = MAPS["rbf"]
    assert isinstance(rbf, RbfBasis)
    again = RbfBasis(rbf.shift.copy(), rbf.scale.copy(), rbf.landmarks.copy())
    other = RbfBasis(rbf.shift, rbf.scale + 1e-12, rbf.landmarks)
    digests = {packed.digest for packed in (*MAPS.values(), other, LinearBasis(D + 1))}
    assert again.digest == rbf.digest
    assert len(digests) == 5
