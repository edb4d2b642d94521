"""GPC and GPC+ students: what they learn, which rows they use, their probabilities and their bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import norm

from core.data.dataset import LabelledData
from core.data.extras import RawExtras
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.packed import GaussianForm, PackedStudent, RbfBasis
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.gaussian import GPC, GPCPlus
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from core.training.preparation import Preparation
from tests.lanes import first_short
from tests.refusals import at_fault

CONFIG = TrainingConfig(features=FeatureSpec("linear"))


def noisy(n: int, seed: int, *, informative: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of two columns, labels with noise of very different size, and x*: its logarithm, or nothing."""
    rng = np.random.default_rng(seed)
    X, star = rng.normal(size=(n, 2)), 2.0 * rng.normal(size=(n, 1))
    f = X[:, 0] + 0.7 * np.sin(2.0 * X[:, 1]) + np.exp(star[:, 0]) * rng.normal(size=n)
    return X, np.where(f > 0.0, "a", "b"), star if informative else rng.normal(size=(n, 3))


def preparation(X, y, star=None, config: TrainingConfig = CONFIG) -> Preparation:
    return prepare(LabelledData.from_arrays(X, y, extras=RawExtras(privileged=star)), config)


@pytest.fixture(scope="module")
def problem():
    return preparation(*noisy(150, 0)).problem(0)


def clean_error(student, seed: int = 99) -> float:
    """Share of wrong signs on rows without noise."""
    X = np.random.default_rng(seed).normal(size=(4000, 2))
    truth = X[:, 0] + 0.7 * np.sin(2.0 * X[:, 1]) > 0.0
    decision = student.pack()
    return float(np.mean((PackedStudent(decision.map, decision.form, 0.0, "a").scores(X) > 0.0) != truth))


@pytest.mark.long
@pytest.mark.parametrize(
    "spec", first_short([GPC(), GPCPlus(privileged="teacher"), GPCPlus()], 2), ids=["gpc", "S", "gpc+"]
)
def test_the_packed_student_is_the_fit_and_comes_back_bit_for_bit(problem, spec):
    student = spec.fit(problem, Run(3))
    decision = student.pack()
    assert isinstance(decision.form, GaussianForm)
    assert isinstance(decision.map, RbfBasis)
    packed = PackedStudent(decision.map, decision.form, 0.0, "a", {}, decision.form.calibration)
    restored = PackedStudent.from_bytes(packed.to_bytes())
    assert restored.to_bytes() == packed.to_bytes()
    X = np.asarray(problem.examples.X)
    scores = student.scores(problem.examples)
    with one_blas_thread():  # as the fit's own scores are computed: two threads may round otherwise
        np.testing.assert_array_equal(restored.scores(X), scores)
    np.testing.assert_allclose(restored.probabilities(X), norm.cdf(scores), rtol=1e-12)
    np.testing.assert_allclose([restored.score(x) for x in X], scores, rtol=1e-9, atol=1e-12)
    again = spec.fit(problem, Run(3)).pack()
    assert (
        PackedStudent(again.map, again.form, 0.0, "a", {}, again.form.calibration).to_bytes()
        == packed.to_bytes()
    )


def test_far_from_all_rows_it_says_what_the_prior_says(problem):
    student = GPC().fit(problem, Run())
    facts, decision = student.facts(), student.pack()
    packed = PackedStudent(decision.map, decision.form, 0.0, "a", {}, decision.form.calibration)
    expected = norm.cdf(facts["mean"] / np.sqrt(1.0 + facts["noise"]))
    assert packed.probability(np.full(2, 1e6)) == pytest.approx(expected, rel=1e-9)
    assert facts["query_noise"] == facts["noise"]


def test_it_says_how_it_ended_and_from_which_rows(problem):
    student = GPC().fit(problem, Run())
    facts = student.facts()
    assert student.summary.status == "converged"
    assert student.summary.objective == -facts["log_evidence"] > 0.0
    assert facts["site_change"] <= 1e-5
    assert facts["evidence_gradient"] < 1e-2
    assert (facts["rows"], facts["evidence_rows"], facts["n_landmarks"]) == (150, 150, 100)
    assert facts["noise_from"] == "none"
    short = GPC(max_iterations=1, max_rows=120, evidence_rows=60, n_landmarks=20).fit(problem, Run())
    assert short.summary.status == "max_iterations"
    facts = short.facts()
    assert (facts["rows"], facts["evidence_rows"]) == (120, 60)
    assert facts["n_landmarks"] <= 20
    few = GPC(n_landmarks=200).fit(problem, Run())
    assert few.facts()["n_landmarks"] == 150


def test_fewer_landmarks_and_rows_cost_little(problem):
    full, few = (GPC(n_landmarks=size).fit(problem, Run()) for size in (150, 30))
    assert clean_error(few) < clean_error(full) + 0.03
    X, y, star = noisy(1500, 1)
    large = preparation(X, y, star).problem(0)
    assert clean_error(GPC(max_rows=800, evidence_rows=200).fit(large, Run())) < clean_error(full)


def test_rows_of_a_rare_class_are_drawn_by_its_share():
    X, _, _ = noisy(400, 2)
    y = np.where(np.arange(400) < 12, "rare", "rest")
    X[:12] += 3.0
    student = GPC(max_rows=100, evidence_rows=50, n_landmarks=20).fit(preparation(X, y).problem(0), Run())
    decision = student.pack()
    packed = PackedStudent(decision.map, decision.form, 0.0, "rare", {}, decision.form.calibration)
    assert packed.probabilities(X).mean() == pytest.approx(0.03, abs=0.02)


@pytest.mark.long
def test_privileged_noise_makes_a_better_student():
    """x* is the logarithm of the noise: labels that are nearly random no longer count as the others."""
    gains = []
    for seed in range(6):
        problem = preparation(*noisy(120, seed)).problem(0)
        plain, plus = GPC().fit(problem, Run()), GPCPlus().fit(problem, Run())
        assert plus.facts()["noise_from"] in ("columns", "none")
        gains.append(clean_error(plain) - clean_error(plus))
    assert np.mean(gains) > 2.0 * np.std(gains, ddof=1) / np.sqrt(len(gains))


@pytest.mark.long
def test_noise_as_privileged_data_does_no_harm():
    losses = []
    for seed in range(8):
        problem = preparation(*noisy(100, seed, informative=False)).problem(0)
        losses.append(clean_error(GPCPlus().fit(problem, Run())) - clean_error(GPC().fit(problem, Run())))
    assert np.mean(losses) <= 2.0 * np.std(losses, ddof=1) / np.sqrt(len(losses))


def test_the_teachers_scores_are_privileged_where_there_are_no_columns():
    X, y, _ = noisy(120, 0)
    problem = preparation(X, y).problem(0)
    named, columns = GPCPlus().privileged_columns(problem)
    assert (named, columns.shape) == ("teacher", (120, 3))
    np.testing.assert_array_equal(columns[:, 0], problem.gate)
    np.testing.assert_array_equal(columns[:, 1], problem.rival)
    assert GPCPlus().fit(problem, Run()).facts()["noise_from"] in ("teacher", "none")
    with_columns = preparation(*noisy(120, 0)).problem(0)
    assert GPCPlus().privileged_columns(with_columns)[0] == "columns"
    assert GPCPlus(privileged="teacher").privileged_columns(with_columns)[0] == "teacher"


def test_what_it_needs_is_refused_by_name_where_it_is_missing():
    X, y, _ = noisy(60, 0)
    plain = LabelledData.from_arrays(X, y)
    with at_fault(InvalidProblem, field="privileged", match="privileged"):
        train(plain, replace(CONFIG, students=(GPCPlus(privileged="columns"),)))
    sparse = LabelledData.from_arrays(sp.csr_array(X), y)
    with pytest.raises(InvalidProblem, match="dense"):
        train(sparse, replace(CONFIG, students=(GPC(),)))


@pytest.mark.long
def test_it_is_trained_cut_and_calibrated_as_the_others():
    X, y, star = noisy(150, 5)
    data = LabelledData.from_arrays(X, y, extras=RawExtras(privileged=star))
    model = train(data, replace(CONFIG, students=(GPCPlus(), GPC()), threshold="f1", folds=3))
    student = model.students["a"]
    assert student.calibration is not None
    assert student.calibration.kind == "probit"
    assert student.metadata["method"] == "gpc+"
    assert student.metadata["status"] == "converged"
    assert {one.method for one in model.trained} == {"gpc", "gpc+"}
    sigmoid = train(data, replace(CONFIG, students=(GPC(),), calibration="sigmoid", folds=2))
    assert sigmoid.students["a"].calibration.kind == "sigmoid"


def test_it_reports_its_progress(problem):
    reports = []
    GPCPlus(max_iterations=5).fit(problem, Run(progress=reports.append))
    done = [report.done for report in reports]
    assert done == sorted(done)
    assert all(report.total == 15 and report.stage == "evidence" for report in reports)
