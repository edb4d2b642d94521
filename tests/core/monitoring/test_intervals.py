"""Intervals beside SciPy's, which computes them in other ways; statsmodels' are in test_oracles.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from core.errors import InvalidProblem
from core.monitoring.intervals import (
    FEW,
    exact_ends,
    exact_interval,
    largest_mean,
    rate_interval,
    share_interval,
    wilson_interval,
)
from tests.refusals import at_fault


def tables(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random hits and trials, (n,) each, from 1 to 10⁵ trials, none and all hit among them."""
    rng = np.random.default_rng(0)
    trials = np.exp(rng.uniform(0.0, np.log(1e5), n)).astype(int)
    hits = rng.binomial(trials, rng.random(n))
    hits[:100], hits[100:200] = 0, trials[100:200]
    return hits, trials


def test_exact_ends_are_quantiles_of_the_beta_distribution():
    hits, trials = tables(10_000)
    low, high = exact_ends(hits, trials, 0.025)
    inside = hits > 0
    np.testing.assert_allclose(
        low[inside], stats.beta.ppf(0.025, hits, trials - hits + 1)[inside], rtol=1e-12, atol=0
    )
    assert (low[~inside] == 0.0).all()
    inside = hits < trials
    np.testing.assert_allclose(
        high[inside], stats.beta.isf(0.025, hits + 1, trials - hits)[inside], rtol=1e-12, atol=0
    )
    assert (high[~inside] == 1.0).all()


@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
def test_intervals_are_those_of_scipy(level: float):
    for hits, trials in zip(*(counts[::200].tolist() for counts in tables(10_000)), strict=True):
        test = stats.binomtest(hits, trials)
        for interval, method in ((exact_interval, "exact"), (wilson_interval, "wilson")):
            mine, theirs = interval(hits, trials, level), test.proportion_ci(level, method)
            # SciPy searches the ends of the exact interval, to 2e-12 of itself.
            assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=1e-11)
            assert (mine.estimate, mine.method, mine.level) == (hits / trials, method, level)


def test_few_trials_have_the_exact_interval():
    assert share_interval(8, 10).as_dict() == {
        "estimate": 0.8,
        "low": pytest.approx(0.444, abs=5e-4),
        "high": pytest.approx(0.975, abs=5e-4),
        "method": "exact",
        "level": 0.95,
    }
    assert [share_interval(3, trials).method for trials in (FEW - 1, FEW)] == ["exact", "wilson"]


def test_the_ends_of_a_rate_are_those_of_which_the_count_is_just_likely_enough():
    for count in (0, 1, 5, 100):
        ends = rate_interval(count, 4.0, 0.9)
        assert stats.poisson.cdf(count, 4.0 * ends.high) == pytest.approx(0.05, rel=1e-12)
        likely = stats.poisson.sf(count - 1, 4.0 * ends.low)
        assert likely == (pytest.approx(0.05, rel=1e-12) if count else 1.0)
        assert (ends.estimate, ends.method) == (count / 4.0, "poisson")


@pytest.mark.parametrize(("most", "mean"), [(20, 14.07), (5, 2.61), (100, 85.06)])
def test_a_mean_leaves_a_capacity_unexceeded_as_often_as_asked(most: int, mean: float):
    assert largest_mean(most) == pytest.approx(mean, abs=0.005)
    assert stats.poisson.sf(most, largest_mean(most)) == pytest.approx(0.05, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: exact_interval(3, 2), "hits"),
        (lambda: wilson_interval(-1, 2), "hits"),
        (lambda: share_interval(0, 0), "trials"),
        (lambda: exact_interval(1, 2, 1.0), "level"),
        (lambda: rate_interval(1, 0.0), "exposure"),
        (lambda: rate_interval(1.5, 1.0), "count"),
        (lambda: largest_mean(-1), "most"),
    ],
)
def test_impossible_counts_are_refused(call, field: str):
    with at_fault(InvalidProblem, "out_of_bounds", field=field):
        call()
