import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.calibration import calibration_curve
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss

from core.errors import InvalidPackage, InvalidProblem
from core.model_selection.calibration import brier, fit_calibration, reliability
from core.packed import IsotonicCalibration, LinearBasis, LinearForm, PackedStudent, SigmoidCalibration
from core.packed.codec import decode, encode
from tests.refusals import at_fault

CALIBRATIONS = [
    SigmoidCalibration(2.0, -0.5),
    IsotonicCalibration(np.array([-1.0, 0.0, 2.0]), np.array([0.1, 0.1, 0.9])),
]


def drawn(n=4000, slope=1.7, offset=-0.8, *, seed=0):
    """Scores, and a truth that has the probabilities of a known sigmoid."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=2.0, size=n)
    return rng.random(n) < 1.0 / (1.0 + np.exp(-(slope * scores + offset))), scores


def student(calibration=None):
    return PackedStudent(
        LinearBasis(2), LinearForm([1.0, 2.0], 0.5, [0.0, 0.0], 0.0), 0.25, "a", {"seed": 1}, calibration
    )


def test_the_sigmoid_finds_the_probabilities_that_the_truth_was_drawn_with():
    fit = fit_calibration(*drawn(40_000))
    assert (fit.slope, fit.offset) == pytest.approx((1.7, -0.8), abs=0.1)


def test_the_sigmoid_has_the_likelihood_of_platts_targets():
    truth, scores = drawn(60)
    fit = fit_calibration(truth, scores)
    yes, no = truth.sum(), (~truth).sum()
    target = np.where(truth, (yes + 1) / (yes + 2), 1 / (no + 2))

    def loss(x):
        odds = x[0] * scores + x[1]
        return np.sum(np.logaddexp(0.0, odds) - target * odds)

    best = minimize(loss, [0.0, 0.0], method="BFGS", options={"gtol": 1e-8})
    assert (fit.slope, fit.offset) == pytest.approx(tuple(best.x), abs=1e-5)


def test_the_sigmoid_stays_finite_when_the_scores_separate_the_classes():
    scores = np.array([-2e6, -1e6, 1e6, 2e6])
    fit = fit_calibration(scores > 0, scores)
    probability = fit.probabilities(scores)
    assert ((probability > 0.05) & (probability < 0.95)).all()
    assert (np.diff(probability) > 0).all()


def test_scores_that_point_the_wrong_way_give_everybody_the_share_of_the_class():
    truth, scores = drawn(500)
    fit = fit_calibration(truth, -scores)
    share = truth.mean()
    assert fit.slope == 0.0
    assert fit.probabilities(scores) == pytest.approx(np.full(500, share), abs=2e-3)


def test_scores_that_are_all_equal_give_the_share_too():
    truth = np.arange(100) < 20
    assert fit_calibration(truth, np.full(100, 3.0)).probability(3.0) == pytest.approx(0.2, abs=0.01)
    assert fit_calibration(truth, np.full(100, 3.0), "isotonic").probability(3.0) == pytest.approx(0.2)


def test_isotonic_answers_as_scikit_learns():
    truth, scores = drawn(800)
    fit = fit_calibration(truth, scores, "isotonic")
    reference = IsotonicRegression(out_of_bounds="clip").fit(scores, truth)
    queries = np.linspace(-9.0, 9.0, 500)
    assert fit.probabilities(queries) == pytest.approx(reference.predict(queries), abs=1e-12)


@pytest.mark.parametrize("kind", ["sigmoid", "isotonic"])
def test_a_calibration_is_closer_to_the_truth_than_the_share_of_the_class(kind):
    truth, scores = drawn(2000, seed=1)
    fit = fit_calibration(truth, scores, kind)
    truth, scores = drawn(2000, seed=2)
    found = reliability(truth, fit.probabilities(scores))
    assert found.brier < 0.6 * found.base_brier
    assert found.error < 0.05


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_probabilities_never_fall_as_the_score_rises(calibration):
    scores = np.concatenate([[-1e300], np.linspace(-5.0, 5.0, 200), [1e300]])
    probability = calibration.probabilities(scores)
    assert (np.diff(probability) >= 0.0).all()
    assert probability.min() >= 0.0
    assert probability.max() <= 1.0
    assert calibration.probability(0.7) == calibration.probabilities(np.array([0.7]))[0]


def test_brier_and_reliability_are_scikit_learns():
    truth, scores = drawn(3000)
    probability = fit_calibration(truth, scores).probabilities(scores)
    found = reliability(truth, probability, n_bins=8)
    assert brier(truth, probability) == found.brier == pytest.approx(brier_score_loss(truth, probability))
    observed, mean = calibration_curve(truth, probability, n_bins=8)
    assert [b.observed for b in found.bins] == pytest.approx(observed)
    assert [b.probability for b in found.bins] == pytest.approx(mean)
    assert sum(b.count for b in found.bins) == 3000
    weights = np.array([b.count for b in found.bins]) / 3000
    assert found.error == pytest.approx(np.sum(weights * np.abs(observed - mean)))


def test_a_probability_of_one_lies_in_the_last_bin_and_all_is_ready_for_json():
    found = reliability(np.array([True, False]), np.array([1.0, 0.0]))
    assert [(b.low, b.high, b.count) for b in found.bins] == [(0.0, 0.1, 1), (0.9, 1.0, 1)]
    assert json.loads(json.dumps(found.as_dict()))["brier"] == 0.0


@pytest.mark.parametrize(
    ("truth", "scores", "kind", "code"),
    [
        ([True, False], [0.0, 1.0], "magic", "unknown_choice"),
        ([True, False], [0.0], "sigmoid", "wrong_shape"),
        ([True, False], [0.0, np.nan], "sigmoid", "not_finite"),
        ([True, True], [0.0, 1.0], "isotonic", "single_class"),
        ([], [], "sigmoid", "wrong_shape"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(truth, scores, kind, code):
    with pytest.raises(InvalidProblem) as caught:
        fit_calibration(np.array(truth, dtype=bool), np.array(scores), kind)
    assert [fault.code for fault in caught.value.faults] == [code]


def test_a_reliability_curve_of_something_else_than_probabilities_is_refused():
    with pytest.raises(InvalidProblem, match="between 0 and 1"):
        reliability(np.array([True, False]), np.array([1.5, 0.0]))


@pytest.mark.parametrize(
    "build",
    [
        lambda: SigmoidCalibration(-1.0, 0.0),
        lambda: SigmoidCalibration(np.nan, 0.0),
        lambda: SigmoidCalibration(1.0, np.inf),
        lambda: IsotonicCalibration(np.array([0.0, 0.0]), np.array([0.1, 0.2])),
        lambda: IsotonicCalibration(np.array([0.0, 1.0]), np.array([0.2, 0.1])),
        lambda: IsotonicCalibration(np.array([0.0, 1.0]), np.array([-0.1, 0.1])),
        lambda: IsotonicCalibration(np.array([0.0, 1.0]), np.array([0.1, 1.1])),
        lambda: IsotonicCalibration(np.array([0.0, 1.0]), np.array([0.1])),
    ],
)
def test_a_calibration_that_is_none_is_refused(build):
    with pytest.raises(InvalidProblem):
        build()


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_a_packed_student_answers_with_probabilities(calibration):
    packed = student(calibration)
    X = np.array([[0.0, 0.0], [1.0, -1.0], [-3.0, 0.5]])
    assert packed.probabilities(X) == pytest.approx(calibration.probabilities(packed.scores(X)))
    assert packed.probability(X[2]) == pytest.approx(packed.probabilities(X)[2])


def test_a_student_without_calibration_says_so():
    with pytest.raises(InvalidProblem, match="not calibrated"):
        student().probability([0.0, 0.0])
    with pytest.raises(InvalidProblem, match="not calibrated"):
        student().probabilities([[0.0, 0.0]])


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_a_calibration_travels_with_the_student(calibration):
    packed = student(calibration)
    back = PackedStudent.from_bytes(packed.to_bytes(), digest=packed.digest)
    scores = np.linspace(-3.0, 3.0, 50)
    assert (back.calibrated().probabilities(scores) == calibration.probabilities(scores)).all()
    assert back.to_bytes() == packed.to_bytes()
    assert packed.digest != student().digest


def test_a_student_without_calibration_keeps_the_bytes_it_always_had():
    header, arrays = decode(student().to_bytes(), PackedStudent.FORMAT)
    assert "calibration" not in header
    assert set(arrays) == {"coef", "gate_coef"}
    assert replace(student(CALIBRATIONS[0]), calibration=None).digest == student().digest


@pytest.mark.parametrize(
    "described",
    [
        "sigmoid",
        {"kind": "magic"},
        {"kind": "sigmoid", "slope": 1.0},
        {"kind": "sigmoid", "slope": -1.0, "offset": 0.0},
        {"kind": "isotonic"},
    ],
)
def test_a_package_with_an_unusable_calibration_is_refused(described):
    header, arrays = decode(student().to_bytes(), PackedStudent.FORMAT)
    with pytest.raises(InvalidPackage):
        PackedStudent.from_bytes(encode({**header, "calibration": described}, arrays))


def test_arrays_of_a_calibration_that_the_header_does_not_name_are_refused():
    header, arrays = decode(student(CALIBRATIONS[1]).to_bytes(), PackedStudent.FORMAT)
    del header["calibration"]
    with pytest.raises(InvalidPackage, match="calibration"):
        PackedStudent.from_bytes(encode(header, arrays))


def test_a_query_loads_no_training_library_for_a_probability():
    code = (
        "import sys, core.packed as p, numpy as np; p.SigmoidCalibration(1.0, 0.0).probability(0.5);"
        "print(sorted({'sklearn', 'scipy', 'numba', 'joblib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("knots", "values", "code"),
    [
        ([0.0, 0.0], [0.1, 0.9], "not_rising"),
        ([0.0, 1.0], [0.9, 0.1], "not_rising"),
        ([0.0, 1.0], [0.1, 1.1], "out_of_range"),
    ],
)
def test_probabilities_that_fall_or_leave_their_range_are_refused(knots, values, code: str):
    with at_fault(InvalidProblem, code):
        IsotonicCalibration(np.array(knots), np.array(values))
