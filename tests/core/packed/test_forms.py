"""Decision forms against dense NumPy formulas, their bytes, and what is refused."""

from __future__ import annotations

import base64
from dataclasses import replace
from math import erf, sqrt

import numpy as np
import pytest

from core.errors import InvalidPackage, InvalidProblem
from core.packed import (
    FourierBasis,
    GaussianForm,
    LinearBasis,
    LinearForm,
    PackedStudent,
    PolytopeForm,
    ProbitCalibration,
    RbfBasis,
    SigmoidCalibration,
)
from core.packed.codec import decode, encode
from core.packed.student import packed_row_scorer, row_scorer
from tests.refusals import at_fault

RNG = np.random.default_rng(4)
D = 3
MAPS = {
    "linear": LinearBasis(D),
    "rbf": RbfBasis(RNG.normal(size=D), np.full(D, 0.5), RNG.normal(size=(6, D))),
    "fourier": FourierBasis(RNG.normal(size=(5, D)), RNG.normal(size=5)),
}
X = RNG.normal(size=(301, D))


def gaussian(packed=MAPS["rbf"], *, scale=0.2, prior=1.0, calibration=None):
    p = packed.n_basis
    form = GaussianForm(RNG.normal(size=p), -0.3, scale * RNG.normal(size=(4, p)), prior)
    return PackedStudent(packed, form, 0.1, "a", {"seed": 1}, calibration)


def dense_scores(student):
    form, basis = student.form, student.map.block(X)
    variance = form.prior_variance - ((form.factor @ basis.T) ** 2).sum(axis=0)
    return (basis @ form.coef + form.intercept) / np.sqrt(1.0 + np.maximum(variance, 0.0))


@pytest.mark.parametrize("kind", list(MAPS))
@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_the_gaussian_score_is_the_mean_over_the_spread(kind: str, scale: float):
    student = gaussian(MAPS[kind], scale=scale)
    expected = dense_scores(student)
    np.testing.assert_allclose(student.scores(X), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose([student.score(x) for x in X], expected, rtol=1e-12, atol=1e-14)
    ask, ask_packed = row_scorer(student), packed_row_scorer(student)
    np.testing.assert_allclose([ask(x) for x in X.tolist()], expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose([ask_packed(x.tobytes()) for x in X], expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(student.decide(X), student.scores(X) >= 0.1)
    rows, columns = np.nonzero(np.ones_like(X))
    sparse = student.scores_sparse(columns, X.ravel(), np.arange(0, X.size + 1, D))
    np.testing.assert_allclose(sparse, expected, rtol=1e-12, atol=1e-14)
    assert len(rows) == X.size


@pytest.mark.parametrize("kind", list(MAPS))
def test_the_polytope_score_is_the_smallest_of_its_functions(kind: str):
    packed = MAPS[kind]
    coef, shift = RNG.normal(size=(3, packed.n_basis)), RNG.normal(size=3)
    form = PolytopeForm(coef, shift, RNG.normal(size=packed.n_basis), 0.5)
    student = PackedStudent(packed, form, 0.1, "a")
    values = packed.block(X) @ coef.T + shift
    expected = values.min(axis=1)
    np.testing.assert_allclose(student.scores(X), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose([student.score(x) for x in X], expected, rtol=1e-12, atol=1e-14)
    ask, ask_packed = row_scorer(student), packed_row_scorer(student)
    np.testing.assert_allclose([ask(x) for x in X.tolist()], expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose([ask_packed(x.tobytes()) for x in X], expected, rtol=1e-12, atol=1e-14)
    sparse = student.scores_sparse(np.tile(np.arange(D), len(X)), X.ravel(), np.arange(0, X.size + 1, D))
    np.testing.assert_allclose(sparse, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(student.rejection(X), student.gate(X) - expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(student.pieces(X), values.argmin(axis=1))
    restored = PackedStudent.from_bytes(student.to_bytes(), digest=student.digest)
    np.testing.assert_array_equal(restored.scores(X), student.scores(X))
    assert restored.to_bytes() == student.to_bytes()


def test_a_polytope_of_one_function_is_linear():
    form = PolytopeForm([[1.0, 2.0]], [0.5], [0.0, 1.0], 0.25)
    student = PackedStudent(LinearBasis(2), form, 0.0, "a")
    linear = PackedStudent(LinearBasis(2), LinearForm([1.0, 2.0], 0.5, [0.0, 1.0], 0.25), 0.0, "a")
    assert form.linear is not None
    np.testing.assert_array_equal(student.scores(X[:, :2]), linear.scores(X[:, :2]))
    assert (student.pieces(X[:, :2]), linear.pieces(X[:, :2])) == (None, None)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"coef": np.zeros((0, 2))}, "coef"),
        ({"coef": [[1.0, np.nan]]}, "coef"),
        ({"intercept": [0.0, 1.0]}, "intercept"),
        ({"gate_coef": [np.inf, 0.0]}, "gate_coef"),
        ({"gate_intercept": np.nan}, "gate_intercept"),
    ],
)
def test_parts_of_a_polytope_that_cannot_be_used_are_named(parts, field):
    usable = {"coef": [[1.0, 2.0]], "intercept": [0.0], "gate_coef": [0.0, 0.0], "gate_intercept": 0.0}
    with at_fault(InvalidProblem, field=field):
        PolytopeForm(**usable | parts)


def test_without_a_factor_and_without_prior_variance_it_is_the_linear_form():
    p = MAPS["rbf"].n_basis
    coef = RNG.normal(size=p)
    certain = PackedStudent(MAPS["rbf"], GaussianForm(coef, 0.5, np.zeros((1, p)), 0.0), 0.0, "a")
    linear = PackedStudent(MAPS["rbf"], LinearForm(coef, 0.5, np.zeros(p), 0.0), 0.0, "a")
    np.testing.assert_array_equal(certain.scores(X), linear.scores(X))


def test_a_gaussian_student_has_no_gate():
    student = gaussian()
    assert not student.gate(X).any()
    np.testing.assert_array_equal(student.rejection(X), -student.scores(X))


def test_the_probability_of_a_gaussian_process_is_the_normal_distribution_of_its_score():
    student = gaussian(calibration=ProbitCalibration())
    expected = [0.5 * (1.0 + erf(score / sqrt(2.0))) for score in student.scores(X)]
    np.testing.assert_allclose(student.probabilities(X), expected, rtol=1e-12, atol=1e-15)
    assert student.probability(X[0]) == pytest.approx(expected[0], rel=1e-12)
    assert 0.0 < ProbitCalibration().probability(-30.0) < 1e-190
    assert ProbitCalibration().probability(40.0) == 1.0


def test_the_probability_is_the_mean_of_the_probit_over_the_latent_gaussian():
    """Rasmussen and Williams, Eq. 3.82: ∫ Φ(f) N(f; m, v) df = Φ(m / √(1 + v)); here by quadrature."""
    student = gaussian(calibration=ProbitCalibration())
    form, basis = student.form, student.map.block(X[:5])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for row, probability in zip(basis, student.probabilities(X[:5]), strict=True):
        mean = form.coef @ row + form.intercept
        deviation = sqrt(form.prior_variance - ((form.factor @ row) ** 2).sum())
        latent = mean + deviation * nodes
        values = np.array([0.5 * (1.0 + erf(f / sqrt(2.0))) for f in latent])
        assert probability == pytest.approx(values @ weights / weights.sum(), abs=1e-10)


@pytest.mark.parametrize("calibration", [None, ProbitCalibration()])
def test_a_gaussian_student_comes_back_from_its_bytes(calibration):
    student = gaussian(calibration=calibration)
    restored = PackedStudent.from_bytes(student.to_bytes(), digest=student.digest)
    assert isinstance(restored.form, GaussianForm)
    assert restored.calibration == calibration
    np.testing.assert_array_equal(restored.scores(X), student.scores(X))
    assert restored.to_bytes() == student.to_bytes()


LINEAR_STUDENT = base64.b64decode(
    "iAEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJzdG1zIjoie1wiY2FsaWJyYXRpb25cIjp7XCJraW5kXCI6XCJzaWdtb2lkXCIsXCJvZmZz"
    "ZXRcIjotMC41LFwic2xvcGVcIjoxLjV9LFwiZm9ybWF0XCI6XCJzdG1zLnN0dWRlbnQuMVwiLFwiZ2F0ZV9pbnRlcmNlcHRcIjowLjI1"
    "LFwiaW50ZXJjZXB0XCI6MC41LFwia2luZFwiOlwibGluZWFyXCIsXCJsYWJlbFwiOlwiYVwiLFwibWV0YWRhdGFcIjp7XCJzZWVkXCI6"
    "MX0sXCJuX2NvbHVtbnNcIjoyLFwidGhyZXNob2xkXCI6MC4xMjV9In0sImNvZWYiOnsiZHR5cGUiOiJGNjQiLCJzaGFwZSI6WzJdLCJk"
    "YXRhX29mZnNldHMiOlswLDE2XX0sImdhdGVfY29lZiI6eyJkdHlwZSI6IkY2NCIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzE2"
    "LDMyXX19ICAgIAAAAAAAAPA/AAAAAAAAAEAAAAAAAAAAAAAAAAAAAPA/"
)
"""A linear student as all releases pack it."""


def test_the_bytes_of_a_linear_student_do_not_change():
    form = LinearForm([1.0, 2.0], 0.5, [0.0, 1.0], 0.25)
    calibration = SigmoidCalibration(1.5, -0.5)
    student = PackedStudent(LinearBasis(2), form, 0.125, "a", {"seed": 1}, calibration)
    assert student.to_bytes() == LINEAR_STUDENT
    restored = PackedStudent.from_bytes(LINEAR_STUDENT)
    assert isinstance(restored.form, LinearForm)
    assert restored.score([1.0, 1.0]) == 3.5
    assert restored.gate([[1.0, 1.0]]) == [1.25]


def test_the_digest_of_a_kernel_student_does_not_change():
    landmarks = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.25]])
    basis = RbfBasis(np.array([0.5, -1.0]), np.array([0.25, 2.0]), landmarks)
    form = LinearForm([1.0, 2.0, 3.0], 0.5, [0.0, 1.0, -1.0], 0.25)
    student = PackedStudent(basis, form, 0.125, "é", {"C": 1e5})
    assert student.digest == "af20567bb86ed3f7197bb2626b75c05087b1523170d79f9a634eb575d0b7a1cf"


def test_an_unknown_form_is_refused():
    header, arrays = decode(gaussian().to_bytes(), PackedStudent.FORMAT)
    with pytest.raises(InvalidPackage, match="unknown kind 'oracle'"):
        PackedStudent.from_bytes(encode({**header, "form": "oracle"}, arrays))


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"coef": [1.0, np.nan]}, "coef"),
        ({"factor": np.ones((2, 3))}, "factor"),
        ({"factor": [[np.inf, 0.0]]}, "factor"),
        ({"intercept": np.nan}, "intercept"),
        ({"prior_variance": -1.0}, "prior_variance"),
    ],
)
def test_parts_that_cannot_be_used_are_named(parts, field):
    usable = {"coef": [1.0, 2.0], "intercept": 0.0, "factor": np.ones((1, 2)), "prior_variance": 1.0}
    with at_fault(InvalidProblem, field=field):
        GaussianForm(**usable | parts)


def test_a_form_for_another_map_is_refused():
    form = GaussianForm([1.0, 2.0], 0.0, np.ones((1, 2)))
    with at_fault(InvalidProblem, field="coef"):
        PackedStudent(LinearBasis(3), form, 0.0, "a")


def test_a_copy_shares_no_memory_and_tells_its_size():
    polytope = PolytopeForm(np.ones((2, 4)), np.zeros(2), np.ones(4), 0.0)
    for form in (gaussian().form, LinearForm(np.ones(4), 0.0, np.ones(4), 0.0), polytope):
        copy = form.copied()
        for name, array in form.arrays().items():
            assert not np.shares_memory(array, copy.arrays()[name])
        assert copy.nbytes == form.nbytes == sum(array.nbytes for array in form.arrays().values())


def test_a_score_beyond_float64_is_refused_by_its_row():
    p = D
    student = PackedStudent(LinearBasis(D), GaussianForm(np.full(p, 1e300), 0.0, np.zeros((1, p))), 0.0, "a")
    table = np.ones((5, D))
    table[3] = 1e90
    with pytest.raises(InvalidProblem) as caught:
        student.scores(table)
    assert caught.value.faults[0].row == 3
    with pytest.raises(InvalidProblem):
        student.score(table[3])


def of_many_columns(kind: str, columns: int = 500) -> PackedStudent:
    rng = np.random.default_rng(2)
    coef, gate = rng.normal(size=(3, columns)), rng.normal(size=columns)
    form = (
        LinearForm(coef[0], 0.5, gate, 0.1) if kind == "linear" else PolytopeForm(coef, coef[:, 0], gate, 0.1)
    )
    return PackedStudent(LinearBasis(columns), form, 0.2, "a", {"seed": 1})


@pytest.mark.parametrize("kind", ["linear", "polytope"])
def test_numbers_of_float32_are_packed_in_half_the_bytes(kind: str):
    student = of_many_columns(kind)
    rounded = replace(student, form=student.form.in_single())
    assert rounded.form.coef.dtype == np.float64
    np.testing.assert_array_equal(rounded.form.coef, student.form.coef.astype(np.float32))
    np.testing.assert_array_equal(rounded.form.gate[0], student.form.gate[0])
    packed = rounded.to_bytes()
    assert decode(packed, PackedStudent.FORMAT)[1]["coef"].dtype == np.float32
    assert len(student.to_bytes()) - len(packed) == student.form.coef.size * 4
    assert rounded.form.nbytes == student.form.nbytes, "in memory they are float64"
    again = PackedStudent.from_bytes(packed)
    assert again.to_bytes() == packed
    assert replace(again, form=again.form.copied()).to_bytes() == packed
    wide = np.random.default_rng(3).normal(size=(20, 500))
    np.testing.assert_array_equal(again.scores(wide), rounded.scores(wide))
    np.testing.assert_allclose(again.scores(wide), student.scores(wide), rtol=1e-5, atol=1e-5)


def test_numbers_beyond_float32_and_gaussian_forms_stay_as_they_are():
    student = of_many_columns("linear", 4)
    form = replace(student.form, coef=np.array([1e39, 0.0, 0.0, 1.0]))
    assert (
        decode(replace(student, form=form.in_single()).to_bytes(), PackedStudent.FORMAT)[1]["coef"][0] == 1e39
    )
    form = gaussian().form
    assert form.in_single() is form
