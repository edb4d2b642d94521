"""Decisions of several students and rows, compared with those of each student alone."""

from __future__ import annotations

import numpy as np
import pytest

from app.serving.decision import decide, decide_all, decide_row
from core.errors import InvalidProblem
from core.packed import (
    FourierBasis,
    GaussianForm,
    IsotonicCalibration,
    LinearBasis,
    LinearForm,
    PackedMap,
    PackedStudent,
    PolytopeForm,
    RbfBasis,
)

RNG = np.random.default_rng(8)
D = 5
RBF = RbfBasis(RNG.normal(size=D), np.full(D, 0.5), RNG.normal(size=(7, D)))
MAPS: dict[str, PackedMap] = {
    "linear": LinearBasis(D),
    "rbf": RBF,
    "rbf again": RbfBasis(RBF.shift.copy(), RBF.scale.copy(), RBF.landmarks.copy()),
    "fourier": FourierBasis(RNG.normal(size=(9, D)), RNG.normal(size=9)),
}
CALIBRATION = IsotonicCalibration(np.array([-1.0, 1.0]), np.array([0.1, 0.8]))


def student(packed: PackedMap, label: str = "a", **more: object) -> PackedStudent:
    p = packed.n_basis
    return PackedStudent(
        packed,
        LinearForm(RNG.normal(size=p), 0.3, RNG.normal(size=p), -0.1),
        threshold=0.2,
        label=label,
        **more,
    )


STUDENTS = [
    student(packed, f"{name} {i}", calibration=CALIBRATION if i else None)
    for i in range(3)
    for name, packed in MAPS.items()
]
STUDENTS += [
    PackedStudent(
        RBF, GaussianForm(RNG.normal(size=7), 0.1, 0.1 * RNG.normal(size=(7, 7))), 0.2, f"gaussian {i}"
    )
    for i in range(2)
]
STUDENTS += [
    PackedStudent(
        RBF, PolytopeForm(RNG.normal(size=(q, 7)), np.zeros(q), np.ones(7), 0.1), 0.0, f"{q} pieces"
    )
    for q in (1, 3)
]
X = RNG.normal(size=(50, D))


@pytest.mark.parametrize("explain", [False, True])
def test_students_decided_together_decide_as_alone(explain: bool):
    together = decide_all(STUDENTS, X, explain=explain)
    for one, found in zip(STUDENTS, together, strict=True):
        np.testing.assert_allclose(found.scores, one.scores(X), rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(found.match, found.scores >= one.threshold)
        assert (found.probabilities is None) == (one.calibration is None)
        assert (found.gate is None) == (found.rejection is None) == (not explain)
        if explain:
            np.testing.assert_allclose(found.gate, one.gate(X), rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(found.rejection, one.rejection(X), rtol=1e-9, atol=1e-12)
        np.testing.assert_equal(found.pieces, one.pieces(X) if explain else None)
    assert [found.label for found in STUDENTS if found.pieces(X) is not None] == ["3 pieces"]


def test_a_single_row_gets_the_same_decision_as_in_a_batch():
    for x in X[:5]:
        rows = decide_all(STUDENTS, x[np.newaxis], explain=True)
        for given in (x, x.tolist(), x.astype(np.float64)):
            found = decide_row(STUDENTS, given, explain=True)
            np.testing.assert_allclose([f.score for f in found], [d.scores[0] for d in rows], atol=1e-12)
            np.testing.assert_allclose([f.gate for f in found], [d.gate[0] for d in rows], atol=1e-12)
            assert [f.piece for f in found] == [None if d.pieces is None else d.pieces[0] for d in rows]
    assert {(found.gate, found.piece) for found in decide_row(STUDENTS, X[0])} == {(None, None)}


def test_students_of_equal_maps_share_one_pass(monkeypatch: pytest.MonkeyPatch):
    passes = []
    real = RbfBasis.block

    def counted(self: RbfBasis, rows: np.ndarray) -> np.ndarray:
        passes.append(self)
        return real(self, rows)

    monkeypatch.setattr(RbfBasis, "block", counted)
    decide_all([s for s in STUDENTS if s.map.kind == "rbf"], X)
    assert len(passes) == 1


def test_float32_rows_get_the_scores_of_the_same_rows_in_float64():
    narrow = X.astype(np.float32)
    for one in STUDENTS:
        found = decide(one, narrow, explain=True)
        expected = decide(one, narrow.astype(np.float64), explain=True)
        np.testing.assert_array_equal(found.scores, expected.scores)
        np.testing.assert_array_equal(found.gate, expected.gate)


def test_an_error_names_row_and_column_of_a_bad_number():
    tall = np.zeros((70_000, D), np.float32)
    tall[66_000, 4] = np.nan
    for one in STUDENTS[:4]:
        with pytest.raises(InvalidProblem) as caught:
            decide(one, tall)
        assert [(f.row, f.column) for f in caught.value.faults] == [(66_000, 4)]
