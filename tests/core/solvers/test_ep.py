"""Expectation propagation against Algorithm 3.5, brute force, dense formulas and finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from core.errors import Cancelled
from core.run import Run
from core.solvers.ep.evidence import (
    Fitted,
    Hyperparameters,
    NoiseKernel,
    Query,
    Rows,
    maximise,
    with_noise,
)
from core.solvers.ep.landmark_prior import JITTER, Distances, LandmarkPrior
from core.solvers.ep.probit import ProbitModel, propagate
from core.solvers.ep.process import Prior, Sites
from core.solvers.ep.tilted import uncertain_noise
from core.solvers.solution import Status
from tests.lanes import first_short
from tests.reference.posteriors import algorithm_difference, covariance, moments_difference, random_signs

PROBLEMS = 40


@pytest.mark.parametrize("seed", first_short(range(PROBLEMS), 10))
def test_with_known_noise_it_is_algorithm_3_5(seed: int):
    assert algorithm_difference(seed) <= 1e-8


@pytest.mark.parametrize("seed", first_short(range(PROBLEMS), 10))
def test_a_process_of_the_noise_that_hardly_varies_is_a_known_noise(seed: int):
    """Also any noise and mean: Φ((f + c)/σ) is the model of f/σ with mean c/σ and noise 1."""
    rng = np.random.default_rng(seed)
    n, sigma, c = int(rng.integers(2, 16)), float(np.exp(rng.uniform(-1, 1))), float(rng.normal())
    K, y = covariance(rng.normal(size=(n, 2)), 1.0), random_signs(rng, n)
    plain = propagate(ProbitModel(y, Prior.exact(K), c, 2.0 * np.log(sigma)), tolerance=1e-12)
    scaled = propagate(ProbitModel(y, Prior.exact(K / sigma**2), c / sigma, 0.0), tolerance=1e-12)
    np.testing.assert_allclose(plain.latent.mean, sigma * scaled.latent.mean, rtol=1e-8, atol=1e-9)
    assert plain.log_evidence == pytest.approx(scaled.log_evidence, rel=1e-9)
    calm = Prior.exact(covariance(rng.normal(size=(n, 1)), 1e-10))
    noisy = propagate(ProbitModel(y, Prior.exact(K), c, 2.0 * np.log(sigma), calm), tolerance=1e-10)
    np.testing.assert_allclose(noisy.latent.mean, plain.latent.mean, rtol=1e-6, atol=1e-8)
    assert noisy.log_evidence == pytest.approx(plain.log_evidence, rel=1e-7)


@pytest.mark.parametrize("seed", first_short(range(PROBLEMS), 10))
@pytest.mark.parametrize(
    ("latent", "noise", "tolerance"),
    [(0.6, 0.0, 1e-3), (1.0, 0.0, 2e-3), (0.4, 0.1, 1e-3), (1.0, 0.3, 1e-2)],
    ids=["gpc", "gpc-wide", "gpc+", "gpc+-wide"],
)
def test_up_to_three_rows_it_is_the_posterior_by_brute_force(
    seed: int, latent: float, noise: float, tolerance: float
):
    """Up to the error of the approximation itself, which grows with the prior variances of f and g."""
    assert moments_difference(seed, latent, noise) <= tolerance


@pytest.mark.parametrize("seed", first_short(range(PROBLEMS), 10))
def test_one_row_is_exact_for_any_prior(seed: int):
    """With a single site nothing is approximated but the integral over g, by 32 nodes."""
    rng = np.random.default_rng(seed)
    a, b = float(np.exp(rng.uniform(-2, 2))), float(np.exp(rng.uniform(-3, 0.5)))
    m, c = float(rng.normal()), float(rng.normal())
    model = ProbitModel(
        random_signs(rng, 1), Prior.exact(np.array([[a]])), c, m, Prior.exact(np.array([[b]]))
    )

    def integral(power: int) -> float:
        def density(g: float) -> float:
            z = model.signs[0] * c / np.sqrt(a + np.exp(g))
            return float(g**power * norm.cdf(z) * norm.pdf(g, m, np.sqrt(b)))

        return quad(density, m - 12 * np.sqrt(b), m + 12 * np.sqrt(b), epsabs=1e-13)[0]

    Z, first, second = (integral(power) for power in range(3))
    found = propagate(model, tolerance=1e-12)
    assert found.noise is not None
    assert found.log_evidence == pytest.approx(np.log(Z), abs=1e-6)
    assert found.noise.mean[0] + m == pytest.approx(first / Z, abs=1e-5)
    assert found.noise.variance[0] == pytest.approx(second / Z - (first / Z) ** 2, abs=1e-5)


@pytest.mark.parametrize("seed", range(PROBLEMS))
def test_the_slopes_of_the_tilted_distribution_are_its_derivatives(seed: int):
    rng = np.random.default_rng(seed)
    point = np.array([rng.normal(), np.exp(rng.normal()), rng.normal(), np.exp(rng.normal())])
    found = uncertain_noise(*point[:, None])
    slopes = [found.mean[0], found.variance[0], found.noise_mean[0], found.noise_variance[0]]
    for axis, slope in enumerate(slopes):
        step = 1e-5 * np.eye(4)[axis]
        high, low = (uncertain_noise(*(point + way * step)[:, None]).log_z[0] for way in (1, -1))
        assert slope == pytest.approx((high - low) / 2e-5, rel=1e-5, abs=1e-8)


def rows_of(seed: int, n: int = 25, landmarks: int = 9) -> Rows:
    """Rows with a curved boundary, and x* that says which labels are noisy."""
    rng = np.random.default_rng(seed)
    X, star = rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    f = X[:, 0] + 0.5 * X[:, 1] ** 2 - 0.5 + np.exp(star[:, 0]) * rng.normal(size=n)
    return Rows(
        np.where(f > 0.0, 1.0, -1.0), Distances.of(X, X[:landmarks]), Distances.of(star, star[:landmarks])
    )


@pytest.mark.parametrize("seed", first_short(range(PROBLEMS), 3))
@pytest.mark.parametrize("with_process", [False, True], ids=["gpc", "gpc+"])
def test_the_gradient_of_the_evidence_is_that_of_finite_differences(seed: int, with_process: bool):
    rng = np.random.default_rng(seed)
    rows = rows_of(seed)
    noise = NoiseKernel(float(rng.uniform(-1, 1)), float(rng.uniform(-2, 0.5))) if with_process else None
    values = Hyperparameters(
        float(rng.uniform(-2, 0.5)), float(rng.normal()) / 2, float(rng.uniform(-2, 1)), noise
    )
    gradient = Fitted.at(rows, values, tolerance=1e-11).gradient()
    point, step = values.vector(), 1e-4
    for axis in range(len(point)):
        high, low = (
            Fitted.at(
                rows, Hyperparameters.of(point + way * step * np.eye(len(point))[axis]), tolerance=1e-11
            ).posterior.log_evidence
            for way in (1, -1)
        )
        assert gradient[axis] == pytest.approx((high - low) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("seed", range(PROBLEMS))
def test_posterior_and_predictions_through_landmarks_are_those_of_the_dense_formulas(seed: int):
    rng = np.random.default_rng(seed)
    X, L, query = rng.normal(size=(12, 2)), rng.normal(size=(5, 2)), rng.normal(size=(7, 2))
    a, gamma = 1.7, 0.6
    kernel = LandmarkPrior(Distances.of(X, L), np.log(gamma), np.log(a))
    # One precision is negative, as expectation propagation of the noise makes them.
    sites = Sites(rng.uniform(0.1, 3.0, size=12), rng.normal(size=12))
    sites.precision[0] = -0.05
    posterior = kernel.prior.condition(sites)

    def k(A, B):
        return a * np.exp(-gamma * ((A[:, None] - B) ** 2).sum(axis=2))

    inner = np.linalg.inv(k(L, L) + JITTER * a * np.eye(5))
    K = k(X, L) @ inner @ k(L, X)
    K[np.diag_indices(12)] = a
    Sigma = np.linalg.inv(np.linalg.inv(K) + np.diag(sites.precision))
    np.testing.assert_allclose(posterior.variance, np.diag(Sigma), rtol=1e-7)
    np.testing.assert_allclose(posterior.mean, Sigma @ sites.shift, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(posterior.pull, np.linalg.solve(K, posterior.mean), rtol=1e-5, atol=1e-7)
    log_integral = 0.5 * (
        sites.shift @ Sigma @ sites.shift - np.linalg.slogdet(np.eye(12) + K * sites.precision)[1]
    )
    assert posterior.log_integral == pytest.approx(log_integral, rel=1e-8)

    positive = Sites(np.abs(sites.precision), sites.shift)
    coef, factor = kernel.predictor(kernel.prior.condition(positive))
    cross = k(query, L) @ inner @ k(L, X)
    outer = np.linalg.inv(K + np.diag(1.0 / positive.precision))
    np.testing.assert_allclose(
        k(query, L) @ coef, cross @ outer @ (positive.shift / positive.precision), rtol=1e-6
    )
    variance = a - ((k(query, L) @ factor.T) ** 2).sum(axis=1)
    np.testing.assert_allclose(variance, a - np.einsum("ij,jk,ik->i", cross, outer, cross), rtol=1e-6)


@pytest.mark.long
def test_the_search_ends_where_the_gradient_does_and_never_below_its_start():
    rows = rows_of(3, n=120, landmarks=40)
    start = Hyperparameters(np.log(0.5))
    reports = []
    plain = maximise(rows.without_noise(), start, max_iterations=100, run=Run(progress=reports.append))
    assert plain.converged
    assert plain.gradient < 1e-4
    assert plain.log_evidence >= Fitted.at(rows.without_noise(), start).posterior.log_evidence
    assert [report.done for report in reports] == list(range(1, len(reports) + 1))
    assert {report.stage for report in reports} == {"evidence"}
    begin = with_noise(plain.values, np.log(0.5))
    noisy = maximise(rows, begin, max_iterations=100)
    assert noisy.log_evidence >= Fitted.at(rows, begin).posterior.log_evidence
    assert noisy.gradient < 1e-4


@pytest.mark.long
def test_the_process_of_the_noise_learns_which_labels_are_noisy():
    """x* is the logarithm of the standard deviation of the noise."""
    rows = rows_of(0, n=300, landmarks=60)
    plain = maximise(rows.without_noise(), Hyperparameters(np.log(0.5)), max_iterations=50)
    noisy = maximise(rows, with_noise(plain.values, np.log(0.5)), max_iterations=50)
    assert noisy.log_evidence > plain.log_evidence + 2.0
    fitted = Fitted.at(rows, noisy.values)
    assert fitted.posterior.noise is not None
    star = np.random.default_rng(0)
    star.normal(size=(300, 2))
    assert np.corrcoef(fitted.posterior.noise.mean, star.normal(size=(300, 1))[:, 0])[0, 1] > 0.7
    query = Query.of(fitted)
    assert np.exp(noisy.values.noise_mean) / 100 < query.noise < 100 * np.exp(noisy.values.noise_mean)
    assert query.loss < Query.of(Fitted.at(rows.without_noise(), plain.values)).loss


@pytest.mark.long
def test_where_x_star_tells_a_rare_class_the_evidence_takes_it_for_noise_and_the_query_loss_shows_it():
    rng = np.random.default_rng(0)
    y = np.where(np.arange(120) < 20, 1.0, -1.0)
    X, star = rng.normal(size=(120, 2)) + 1.5 * (y[:, None] > 0), y[:, None] + 0.1 * rng.normal(size=(120, 1))
    rows = Rows(y, Distances.of(X, X[::3]), Distances.of(star, star[::3]))
    plain = maximise(rows.without_noise(), Hyperparameters(np.log(0.3)), max_iterations=50)
    start = replace(with_noise(plain.values, np.log(0.5)), noise_mean=0.0)
    noisy = maximise(rows, start, max_iterations=50)
    assert noisy.log_evidence > plain.log_evidence + 5.0
    losses = [
        Query.of(Fitted.at(one, choice.values)).loss
        for one, choice in ((rows, noisy), (rows.without_noise(), plain))
    ]
    assert losses[0] > losses[1] + 0.02


def test_it_can_be_cancelled_and_says_where_it_stopped():
    rows = rows_of(1)
    values = Hyperparameters(0.0, noise=NoiseKernel(0.0, 0.0))
    with pytest.raises(Cancelled):
        Fitted.at(rows, values, run=Run(should_cancel=lambda: True))
    fitted = Fitted.at(rows, values)
    short = propagate(fitted.model, max_sweeps=2)
    assert (short.status, short.sweeps) == (Status.MAX_ITERATIONS, 2)
    assert short.change > 1e-6 >= fitted.posterior.change
    again = propagate(fitted.model, start=fitted.posterior.factors)
    assert again.sweeps == 0
