"""SVM+: its limits, its certificate, arguments, cancellation."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.margins import privileged_hinge
from core.solvers.margins.privileged_hinge import PrivilegedHingeProblem, solve_privileged_hinge
from core.solvers.solution import Status


def problem(n=60, m=5, *, C=50.0, correction=0.1, **changed):
    rng = np.random.default_rng(0)
    features = np.hstack([rng.normal(size=(n, m - 1)), np.ones((n, 1))])
    signs = np.where(features[:, 0] + 0.5 * rng.normal(size=n) > 0.3, 1.0, -1.0)
    privileged = np.hstack([rng.normal(size=(n, 2)), np.ones((n, 1))])
    arrays = {"features": features, "signs": signs, "privileged": privileged} | changed
    return PrivilegedHingeProblem(**arrays, C=C, correction=correction)


def test_slacks_that_may_be_anything_make_it_an_ordinary_svm():
    stated = problem(correction=1e-9, privileged=np.hstack([np.eye(60), np.ones((60, 1))]))
    ours = solve_privileged_hinge(stated, tolerance=1e-7)
    svm = solve_dual_cd(GatedHingeProblem.svm(stated.features, stated.signs, C=50.0), tolerance=1e-9)
    assert ours.objective == pytest.approx(svm.objective, rel=1e-5)
    np.testing.assert_allclose(ours.value[:5], -svm.value, atol=1e-3)


def test_columns_that_know_the_difficult_rows_help():
    """The privileged column is the slack of the true plane: rows with wrong labels are let through."""
    rng = np.random.default_rng(1)
    features = np.hstack([rng.normal(size=(200, 10)), np.ones((200, 1))])
    truth = np.where(features[:, 0] > 0.0, 1.0, -1.0)
    wrong = rng.random(200) < 0.2
    signs = np.where(wrong, -truth, truth)
    privileged = np.column_stack([wrong * np.abs(features[:, 0]), wrong, np.ones(200)])
    plus = solve_privileged_hinge(PrivilegedHingeProblem(features, signs, privileged, 1e3, 0.01)).value[:11]
    svm = -solve_dual_cd(GatedHingeProblem.svm(features, signs, C=1e3)).value

    def share(w):
        return abs(w[0]) / np.linalg.norm(w)

    assert share(plus) > share(svm) + 0.02


def test_every_bound_is_valid_and_the_point_satisfies_the_constraints():
    exact = solve_privileged_hinge(problem(), tolerance=1e-9)
    for tolerance in (0.5, 0.1, 1e-3):
        loose = solve_privileged_hinge(problem(), tolerance=tolerance)
        assert loose.dual_objective <= exact.objective <= loose.objective * (1.0 + 1e-9)
        assert (problem().products(loose.value) >= np.repeat([1.0, 0.0], 60)).all()


def test_more_features_than_rows_are_reduced_without_a_change():
    rng = np.random.default_rng(2)
    wide = rng.normal(size=(60, 200))
    ours = solve_privileged_hinge(problem(features=wide), tolerance=1e-8)
    direct = privileged_hinge._solve(problem(features=wide), 1e-8, 100, Run())
    assert ours.value.shape == direct.value.shape == (203,)
    np.testing.assert_allclose(ours.value, direct.value, atol=1e-5)


def test_small_blocks_give_the_same_solution(monkeypatch):
    whole = solve_privileged_hinge(problem(), tolerance=1e-9)
    monkeypatch.setattr(privileged_hinge, "_PRODUCTS_AT_ONCE", 640)
    assert solve_privileged_hinge(problem(), tolerance=1e-9).objective == pytest.approx(whole.objective)


def test_a_system_that_is_lost_to_rounding_ends_the_fit_as_stalled(monkeypatch):
    def fails(*args, **kwargs):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(privileged_hinge, "cho_factor", fails)
    solution = solve_privileged_hinge(problem())
    assert solution.status is Status.STALLED
    assert solution.gap > 0.0


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"C": -1.0}, "C"),
        ({"correction": 0.0}, "correction"),
        ({"privileged": np.zeros((60, 2))}, "privileged"),
        ({"privileged": np.ones((50, 2))}, "privileged"),
        ({"signs": np.zeros(60)}, "signs"),
        ({"features": np.full((60, 2), np.nan)}, "features"),
    ],
)
def test_what_does_not_fit_is_named(changed, field):
    with pytest.raises(InvalidProblem) as caught:
        problem(**changed)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_a_cancelled_fit_stops():
    with pytest.raises(Cancelled):
        solve_privileged_hinge(problem(), run=Run(should_cancel=lambda: True))
