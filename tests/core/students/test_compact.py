"""Compact students: the gradient, the packing, the budgets, and what they refuse."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import f1_score, r2_score

from core.data.dataset import LabelledData
from core.data.validation import QUIET
from core.errors import Cancelled, InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.held_out import held_out_scores
from core.packed import LinearBasis, PackedStudent, RbfBasis
from core.run import Run
from core.solvers.rbf_kernels import exponential
from core.solvers.rbf_network import Network, NetworkProblem, _Sampler, descend, gradient, rbf_values
from core.students.compact import SIZES, Compact, KernelRows
from core.students.cost import query_cost
from core.students.gated import GSVM
from core.students.landmark_fit import JITTERS, _squared_hinge, fit_network, neighbour_distance
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare
from core.training.preparation import Preparation
from core.training.student_training import TrainedStudent, train_student
from tests.core.cases import Case
from tests.refusals import at_fault

QUICK = Compact(n_landmarks=8, steps=60)
BY_F = Compact(max_f1_loss=1.0, reference=GSVM(C=1e4))


def train(preparation: Preparation, target: int, spec: Compact, run: Run = Run()) -> TrainedStudent:
    return train_student(preparation, target, spec, run=run)


def rings(n: int = 400, seed: int = 0) -> LabelledData:
    """Three rings around each other and two columns of noise: no straight line parts them."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    radius, angle = 1.0 + codes + 0.15 * rng.normal(size=n), rng.uniform(0.0, 2.0 * np.pi, n)
    X = np.column_stack(
        [radius * np.cos(angle), 5.0 + 30.0 * radius * np.sin(angle), rng.normal(size=(n, 2))]
    )
    return LabelledData.from_arrays(X, codes)


def config(**changes) -> TrainingConfig:
    settings = {
        "features": FeatureSpec("nystroem", 40),
        "teacher": SSVM(1e4),
        "students": (Compact(reference=GSVM(C=1e4)),),
    }
    return TrainingConfig(**{**settings, **changes})


@pytest.fixture(scope="module")
def data() -> LabelledData:
    return rings()


@pytest.fixture(scope="module")
def preparation(data: LabelledData) -> Preparation:
    return prepare(data, config())


@pytest.fixture(scope="module")
def rows(preparation) -> KernelRows:
    return KernelRows.shared(preparation.examples, Run())


@pytest.fixture(scope="module")
def narrow(data: LabelledData) -> Preparation:
    """A kernel so narrow that few landmarks do worse than many."""
    features = FeatureSpec("nystroem", 120, gamma=2.0)
    return prepare(data, config(features=features, students=(BY_F,)))


def case_of(positive, gate=None, difficulty=None) -> Case:
    n = len(positive)
    gate = np.where(positive, 1.0, -1.0) if gate is None else gate
    return Case(positive, gate, np.zeros(1), np.ones(n) if difficulty is None else difficulty)


def fit(X, case: Case, size: int = 6, spec: Compact = QUICK, neighbour: float = 0.1):
    rows = X.astype(np.float32)
    return fit_network(
        rows,
        case.positive,
        case.gate,
        case.difficulty,
        size,
        gate_weight=spec.gate_weight,
        jitter=spec.jitter,
        steps=spec.steps,
        neighbour=neighbour,
    )


def random_problem(seed: int, n: int = 40, d: int = 3, **changes) -> NetworkProblem:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    signs = np.where(np.hypot(X[:, 0], X[:, 1]) < 1.0, 1.0, -1.0)
    problem = NetworkProblem(X, signs, rng.normal(size=n), rng.uniform(1.0, 3.0, n), 0.5, 0.0)
    return replace(problem, **changes)


def random_network(seed: int, p: int = 4, d: int = 3) -> Network:
    flat = np.random.default_rng(seed).normal(size=p * d + d + 2 * p + 2)
    flat[p * d : p * d + d] *= 0.1
    return Network.of(flat, p, d)


def objective(network: Network, problem: NetworkProblem) -> float:
    """As in the docstring of ``rbf_network`` without jitter, by loops."""
    total, share = 0.0, 1.0 / problem.weights.sum()
    for x, z, t, w in zip(problem.rows, problem.signs, problem.targets, problem.weights, strict=True):
        k = np.exp(-np.sum((np.exp(network.log_scale) * x - network.landmarks) ** 2, axis=1))
        f = k @ network.coef + network.intercepts[0]
        g = k @ network.gate_coef + network.intercepts[1]
        total += share * w * max(0.0, 1.0 - z * f) ** 2
        total += problem.target_weight / len(problem.rows) * (t - g) ** 2
    return float(total)


def flat_of(network: Network) -> np.ndarray:
    return np.concatenate([part.ravel() for part in network.parts()])


NO_NOISE = np.zeros(1 << 16, dtype=np.float32)


def test_the_vectorised_exponential_is_that_of_numpy():
    exact = np.linspace(-40.0, 0.0, 20_001)
    values = exact.astype(np.float32)
    exponential(values, np.empty(len(values), dtype=np.int32))
    np.testing.assert_allclose(values, np.exp(exact), rtol=1e-5)
    outside = np.array([-1e30, -40.5, 1e-3, 7.0], dtype=np.float32)
    exponential(outside, np.empty(4, dtype=np.int32))
    np.testing.assert_allclose(outside, [np.exp(-40.0), np.exp(-40.0), 1.0, 1.0], rtol=1e-5)


def test_the_gradient_is_that_of_finite_differences():
    problem, network = random_problem(0, n=300), random_network(1)
    slopes, step = gradient(problem, network, NO_NOISE, Run()), 1e-5
    flat = flat_of(network)
    for place, slope in enumerate(slopes):
        above, below = flat.copy(), flat.copy()
        above[place] += step
        below[place] -= step
        difference = objective(Network.of(above, 4, 3), problem) - objective(Network.of(below, 4, 3), problem)
        assert slope == pytest.approx(difference / (2.0 * step), abs=2e-5)


@pytest.mark.long
def test_the_descent_ends_as_low_as_scipys_l_bfgs():
    problem, start = random_problem(2, n=120), random_network(3)
    ours = descend(problem, start, 3000, np.random.default_rng(0), Run())

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        network = Network.of(flat, 4, 3)
        return objective(network, problem), gradient(problem, network, NO_NOISE, Run()).astype(np.float64)

    theirs = minimize(value_and_slope, flat_of(start), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    assert objective(ours.network, problem) < 1.1 * theirs.fun
    assert theirs.fun < 0.7 * objective(start, problem)
    assert ours.steps == 3000
    assert not ours.settled
    assert 0.0 < ours.relative_gradient < 0.1


def test_a_descent_without_losses_ends_early_and_says_so():
    X = np.vstack([np.full((20, 2), -3.0), np.full((20, 2), 3.0)]).astype(np.float32)
    signs = np.repeat([1.0, -1.0], 20)
    problem = NetworkProblem(X, signs, signs, np.ones(40), 0.02, 0.1)
    start = Network.of(np.array([-3.0, -3.0, 0.0, 0.0, 1.0, 1.0, -0.5, 0.0]), 1, 2)
    ended = descend(problem, start, 3000, np.random.default_rng(0), Run())
    assert ended.settled
    assert ended.steps < 600
    scores = ended.network.scores(X, Run())
    assert (signs * scores > 0.9).all()


def test_drawing_by_chance_leaves_the_expected_gradient_as_it_is():
    problem = random_problem(1)
    network = random_network(2)
    network.intercepts[:] = 2.0
    sampler, rng = _Sampler.of(problem, network, Run()), np.random.default_rng(1)
    assert 0 < len(sampler.near) < 40
    counts = np.bincount(sampler.draw(20_000, rng).ravel(), minlength=40) / 20_000
    np.testing.assert_allclose(counts * sampler.weights, problem.weights / problem.weights.sum(), rtol=0.03)
    np.testing.assert_allclose(counts * sampler.target_weights, 0.5 / 40, rtol=0.03)


def test_rows_near_the_margin_are_half_of_a_batch_besides_their_share_of_the_rest():
    X = np.array([[0.0], [10.0]], dtype=np.float32)
    problem = NetworkProblem(X, np.array([1.0, -1.0]), np.zeros(2), np.ones(2), 0.0, 0.0)
    network = Network.of(np.array([0.0, 0.0, 0.0, 0.0, -2.0, 0.0], dtype=np.float32), 1, 1)
    sampler, rng = _Sampler.of(problem, network, Run()), np.random.default_rng(0)
    assert sampler.near.tolist() == [0]
    assert sampler.loss == pytest.approx(4.5)
    drawn = sampler.draw(500, rng)
    assert (drawn[:, 128:] == 0).all()
    assert drawn[:, :128].mean() == pytest.approx(0.5, abs=0.01)
    settled = _Sampler.of(problem, replace(network, coef=np.array([4.0], dtype=np.float32)), Run())
    assert settled.loss == 0.0
    assert settled.draw(500, rng).mean() == pytest.approx(0.5, abs=0.01)


def test_small_sets_choose_the_jitter_on_held_out_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 5))
    noisy = X[:, 0] + 1.5 * rng.normal(size=120) > 0.0
    fitted = fit(X, case_of(noisy), size=40, spec=Compact(steps=300), neighbour=1.0)
    assert fitted.jitter == 1.6
    given = fit(X, case_of(noisy), size=40, spec=Compact(steps=300, jitter=0.3), neighbour=1.0)
    assert given.jitter == 0.3


def test_the_search_for_the_jitter_is_left_out_where_it_would_take_long(monkeypatch):
    monkeypatch.setattr("core.students.landmark_fit._SEARCHED_ENTRIES", 99)
    X = np.random.default_rng(0).normal(size=(50, 2))
    assert fit(X, case_of(X[:, 0] > 0.0), spec=Compact(steps=10)).jitter == JITTERS[0]


def test_the_first_coefficients_minimise_their_squared_hinge():
    rng = np.random.default_rng(2)
    basis = np.column_stack([rng.normal(size=(200, 4)), np.ones(200)])
    signs = np.where(basis[:, 0] + 0.5 * rng.normal(size=200) > 0, 1.0, -1.0)
    weights = rng.uniform(1.0, 3.0, 200)
    coef = _squared_hinge(basis, signs, weights, Run())
    losses = np.maximum(1.0 - signs * (basis @ coef), 0.0)
    penalty = np.array([1e-3] * 4 + [1e-9])
    slope = 2.0 * penalty * coef - 2.0 * basis.T @ (weights * signs * losses)
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)


def test_a_packed_score_is_the_sum_over_the_landmarks_written_out(data, preparation, rows):
    trained = train(preparation, 1, QUICK)
    fitted, packed = trained.fitted.fitted, trained.packed
    x = data.X[7]
    z = (x - rows.shift) * rows.scale * fitted.scale
    k = [np.exp(-np.sum((z - landmark) ** 2)) for landmark in fitted.landmarks]
    assert packed.score(x) == pytest.approx(float(np.dot(fitted.coef, k)) + fitted.intercept, abs=1e-12)
    assert packed.gate([x])[0] == pytest.approx(float(np.dot(fitted.gate_coef, k)) + fitted.gate_intercept)
    np.testing.assert_allclose(packed.scores(data.X), fitted.scores(rows.rows), atol=1e-4)
    np.testing.assert_allclose(packed.gate(data.X) - packed.rejection(data.X), packed.scores(data.X))
    assert isinstance(packed.map, RbfBasis)
    assert packed.map.n_basis == trained.fitted.n_landmarks == 8
    assert packed.label == "1"
    again = PackedStudent.from_bytes(packed.to_bytes())
    np.testing.assert_array_equal(again.scores(data.X), packed.scores(data.X))


def test_a_compact_student_learns_what_is_not_linear(data, preparation):
    test = rings(300, seed=5)
    trained = train(preparation, 1, Compact(n_landmarks=24, steps=600))
    assert f1_score(test.y == 1, trained.packed.decide(test.X)) > 0.93
    teacher = preparation.packed_teacher()
    assert query_cost(trained.packed.map, 1) < 0.5 * query_cost(teacher.map, 3)


def test_the_gate_follows_the_teacher_and_says_how_well(data, preparation):
    spec = Compact(n_landmarks=24, steps=600)
    trained = train(preparation, 1, spec)
    gate = preparation.scores[:, 1]
    assert trained.fitted.fitted.gate_r2 == pytest.approx(
        r2_score(gate, trained.packed.gate(data.X)), abs=1e-4
    )
    alone, heavy = (train(preparation, 1, replace(spec, gate_weight=weight)) for weight in (0.0, 1.0))
    assert alone.fitted.fitted.gate_r2 < trained.fitted.fitted.gate_r2 < heavy.fitted.fitted.gate_r2
    assert heavy.fitted.fitted.gate_r2 > 0.8


def test_the_loss_told_is_that_of_the_training_rows(preparation, rows):
    trained = train(preparation, 0, QUICK)
    lesson = preparation.problem(0)
    losses = np.maximum(1.0 - lesson.signs * trained.fitted.fitted.scores(rows.rows), 0.0) ** 2
    assert trained.fitted.fitted.loss == pytest.approx(
        np.average(losses, weights=1.0 / lesson.difficulty(QUICK.difficulty_floor)), rel=1e-4
    )


def test_difficult_examples_weigh_more_unless_the_floor_is_one(preparation):
    weighted, equal = (train(preparation, 1, replace(QUICK, difficulty_floor=floor)) for floor in (0.1, 1.0))
    assert weighted.packed.digest != equal.packed.digest
    assert (preparation.problem(1).difficulty(1.0) == 1.0).all()


def test_the_same_arguments_give_the_same_bytes_and_another_seed_others(data, preparation):
    first, second = (train(preparation, 2, QUICK).packed for _ in range(2))
    assert first.to_bytes() == second.to_bytes()
    other = prepare(data, config(seed=1))
    assert train(other, 2, QUICK).packed.digest != first.digest


def test_classes_trained_in_threads_give_the_same_bytes(preparation):
    one_by_one = [train(preparation, target, QUICK).packed.to_bytes() for target in range(3)]
    with ThreadPoolExecutor(3) as pool:
        at_once = list(pool.map(lambda target: train(preparation, target, QUICK).packed, range(3)))
    assert [packed.to_bytes() for packed in at_once] == one_by_one


def test_the_rows_are_scaled_as_the_teachers_kernel_scales_them(data, preparation, rows):
    basis = preparation.feature_map.basis
    np.testing.assert_array_equal(rows.shift, basis.shift)
    np.testing.assert_array_equal(rows.scale, basis.scale)
    np.testing.assert_allclose(rows.rows, (data.X - basis.shift) * basis.scale, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "fourier"])
def test_other_features_of_the_teacher_will_do(data, kind):
    other = prepare(data, config(features=FeatureSpec(kind, 40, gamma=0.2)))
    trained = train(other, 0, Compact(n_landmarks=16, steps=300))
    assert f1_score(data.y == 0, trained.packed.decide(data.X)) > 0.9


# --- budgets -------------------------------------------------------------------------------------------


def test_without_a_budget_there_are_a_hundred_landmarks(preparation):
    assert train(preparation, 0, Compact(steps=1)).fitted.n_landmarks == 100


def test_a_relative_cost_buys_the_most_landmarks_that_keep_to_it(preparation):
    teacher = preparation.packed_teacher()
    full = query_cost(teacher.map, 3)
    assert full == teacher.map.n_basis * (4 + 3)
    trained = train(preparation, 0, Compact(relative_cost=0.3, steps=1))
    assert trained.fitted.relative_cost == pytest.approx(query_cost(trained.packed.map, 1) / full)
    assert trained.fitted.relative_cost <= 0.3 < (trained.fitted.n_landmarks + 1) * (4 + 1) / full


def test_a_linear_teacher_costs_its_products_only():
    assert query_cost(LinearBasis(7), 3) == 21


def test_a_cost_below_that_of_one_landmark_is_refused(preparation):
    with at_fault(InvalidProblem, field="compact.relative_cost", match="does not allow one landmark"):
        train(preparation, 0, Compact(relative_cost=1e-4))


@pytest.mark.long
def test_a_budget_of_f_takes_the_first_size_that_is_near_enough(narrow):
    spec = replace(BY_F, max_f1_loss=20.0, steps=150)
    trained = train(narrow, 1, spec)
    choice = trained.search
    assert choice is not None
    assert choice.met
    assert [point.n_landmarks for point in choice.points] == list(SIZES[: len(choice.points)])
    *before, last = choice.points
    assert before
    assert last.f1 >= choice.full_f1 - 0.2
    assert all(point.f1 < choice.full_f1 - 0.2 for point in before)
    assert trained.fitted.n_landmarks == last.n_landmarks
    at_last = Compact(n_landmarks=last.n_landmarks, steps=150)
    scores = held_out_scores(narrow.folds(), 1, at_last)
    assert last.f1 == pytest.approx(f1_score(narrow.labels == 1, scores >= 0.0))
    told = json.loads(json.dumps(trained.trace))
    assert told["points"][-1]["n_landmarks"] == trained.fitted.n_landmarks
    assert told["chosen"]["points"] == len(told["points"])
    assert trained.packed.metadata["budget_max_f1_loss"] == 20.0


@pytest.mark.long
def test_a_budget_of_f_that_no_size_meets_takes_the_best_and_says_so(narrow):
    trained = train(narrow, 1, replace(BY_F, max_f1_loss=0.0, steps=20))
    choice = trained.search
    assert choice is not None
    assert not choice.met
    assert [point.n_landmarks for point in choice.points] == list(SIZES)
    assert all(point.f1 < choice.full_f1 for point in choice.points)
    best = max(choice.points, key=lambda point: point.f1)
    assert best.n_landmarks // 2 < trained.fitted.n_landmarks <= best.n_landmarks


def test_the_configured_threshold_rule_is_used(data):
    by_rule = prepare(data, config(threshold="fpr", budget=0.01))
    trained = train(by_rule, 1, QUICK)
    assert trained.packed.threshold != 0.0
    assert trained.packed.metadata["threshold_folds"] == 5
    by_f = train(by_rule, 1, Compact(max_f1_loss=100.0, steps=60))
    assert by_f.fitted.n_landmarks == SIZES[0]
    assert by_f.packed.threshold != 0.0


# --- progress and cancel -------------------------------------------------------------------------------


def test_progress_is_told_by_stages(data):
    seen = []
    fresh = prepare(data, config(students=(BY_F,)))
    BY_F.prepare(fresh.examples, Run(progress=seen.append))
    train(fresh, 0, replace(BY_F, max_f1_loss=100.0, steps=260), Run(progress=seen.append))
    assert [(one.stage, one.done, one.total) for one in seen] == [
        ("compact_rows", 0, data.n),
        ("compact_rows", data.n, data.n),
        ("sizes", 0, len(SIZES)),
        ("sizes", 1, len(SIZES)),
        *(("student", done, 260) for done in range(0, 260, 50)),
        ("student", 260, 260),
    ]


def test_a_cancel_stops_the_descent(preparation):
    asked = []

    def should_cancel() -> bool:
        asked.append(1)
        return len(asked) > 20

    with pytest.raises(Cancelled):
        train(preparation, 0, Compact(n_landmarks=8, steps=1_000_000), Run(should_cancel=should_cancel))


def test_a_cancel_stops_the_choice_of_a_size_and_the_scaling(data, narrow):
    with pytest.raises(Cancelled):
        train(narrow, 0, BY_F, Run(should_cancel=lambda: True))
    with pytest.raises(Cancelled):
        BY_F.prepare(prepare(data, config()).examples, Run(should_cancel=lambda: True))


# --- degenerate input ----------------------------------------------------------------------------------


def test_an_unknown_class_is_refused(preparation):
    with pytest.raises(InvalidProblem, match="outside 0 to 2"):
        train(preparation, 3, QUICK)


@pytest.mark.parametrize("side", [True, False])
def test_examples_of_one_side_only_are_refused(side):
    with pytest.raises(InvalidProblem, match="of the class and of the rest"):
        fit(np.zeros((4, 2)), case_of(np.full(4, side)))


def test_a_class_of_one_example_has_no_held_out_scores():
    data = rings(60)
    labels = np.where(np.arange(60) == 1, 1, 0)
    single = LabelledData.from_arrays(data.X, labels, min_per_class=1)
    assert train(prepare(single, config()), 1, QUICK).packed.label == "1"
    for changes in ({"students": (BY_F,)}, {"threshold": "f1", "students": (QUICK,)}):
        prepared = prepare(single, config(**changes))
        with pytest.raises(InvalidProblem, match="at least two folds"):
            train(prepared, 1, prepared.config.students[0])


def test_fewer_rows_than_landmarks_give_fewer_landmarks():
    X = np.array([[0.0, 0.0], [0.0, 1.0], [3.0, 3.0], [3.0, 4.0], [3.0, 4.0]])
    positive = np.array([True, True, False, False, False])
    fitted = fit(X, case_of(positive), size=50, spec=Compact(steps=200))
    assert len(fitted.landmarks) == 4
    np.testing.assert_array_equal(fitted.scores(X) >= 0.0, positive)


def test_one_landmark_is_of_the_class():
    X = np.array([[0.0, 0.0], [0.1, 0.0], [3.0, 3.0], [3.0, 4.0]])
    positive = np.array([True, True, False, False])
    fitted = fit(X, case_of(positive), size=1, spec=Compact(steps=300))
    assert fitted.landmarks.shape == (1, 2)
    np.testing.assert_array_equal(fitted.scores(X) >= 0.0, positive)


def test_equal_rows_and_a_constant_gate_give_finite_numbers():
    X = np.ones((6, 3))
    positive = np.arange(6) < 3
    fitted = fit(X, case_of(positive, gate=np.full(6, 2.0)))
    assert np.isfinite(fitted.scores(X)).all()
    assert fitted.gate_r2 == 1.0
    assert fitted.gate_intercept == pytest.approx(2.0)
    assert neighbour_distance(X.astype(np.float32), Run()) == 0.0


def test_the_first_coefficients_of_many_rows_come_from_a_sample(monkeypatch):
    monkeypatch.setattr("core.students.landmark_fit._START_ROWS", 40)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    positive = X[:, 0] > 1.0
    fitted = fit(X, case_of(positive), size=10, spec=Compact(steps=300))
    assert f1_score(positive, fitted.scores(X) >= 0.0) > 0.9


def test_the_neighbour_distance_is_the_median_over_different_rows():
    X = np.array([[0.0], [0.0], [1.0], [3.0], [7.0]], dtype=np.float32)
    assert neighbour_distance(X, Run()) == 1.0  # 1, 1, 1, 2, 4


@QUIET
def test_far_rows_have_kernel_values_of_nothing():
    values = rbf_values(np.array([[1e15]], dtype=np.float32), np.array([[0.0]], dtype=np.float32))
    assert values[0, 0] < 1e-17
