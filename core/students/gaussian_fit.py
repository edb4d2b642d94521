"""Gaussian process students: choice of rows and landmarks, fit, and mean and variance for queries.

The latent process has amplitude 1 and mean c, see ``core.solvers.ep``. Let σ² be the variance of the noise at
a query, and h and v the mean and variance of f − c. Then the probability of the class is Φ((c + h)/√(σ² +
v)). This is the Gaussian form with coefficients, intercept and factor divided by σ, and a prior variance of
1/σ².
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from core.data.scaling import Standardisation, fit_standardisation
from core.data.scaling_kind import Scaling
from core.errors import Fault, InvalidProblem
from core.features.base import kernel_standardisation, scale_rule
from core.features.landmarks import choose_landmarks
from core.features.spec import FeatureSpec
from core.packed import GaussianForm, PackedStudent, RbfBasis
from core.run import Run
from core.solvers.ep.evidence import (
    AMPLITUDES,
    Choice,
    Fitted,
    Hyperparameters,
    Query,
    Rows,
    maximise,
    with_noise,
)
from core.solvers.ep.landmark_prior import Distances
from core.solvers.solution import Status, Summary
from core.solvers.threads import one_blas_thread
from core.students.base import Decision, MetadataValue, Problem, Student

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class GaussianStudent(Student):
    """A fitted GPC or GPC+. found: further results of the fit, JSON-ready."""

    decision: Decision
    summary: Summary
    found: dict[str, MetadataValue]

    def scores(self, examples: Examples) -> FloatArray:
        """The probit of the probability of raw rows (n, d), shape (n,)."""
        packed = PackedStudent(self.decision.map, self.decision.form, threshold=0.0, label="")
        with one_blas_thread():
            return packed.scores(examples.X)

    def pack(self) -> Decision:
        """Mean and variance on the kernel values of the landmarks."""
        return self.decision

    def metadata(self) -> dict[str, MetadataValue]:
        """Objective, status and the further results of the fit."""
        status = {} if self.summary.status is None else {"status": self.summary.status}
        return {"objective": self.summary.objective, **status, **self.found}

    def facts(self) -> dict[str, Any]:
        """Rows, landmarks, hyper-parameters chosen, and how exactly the fit ended."""
        return dict(self.found)


@dataclass(frozen=True, slots=True, eq=False)
class _Kernel:
    """x' = (x − shift)·scale, and the initial γ of a squared exponential kernel of x'."""

    standardisation: Standardisation
    gamma: float

    @classmethod
    def shared(cls, examples: Examples) -> _Kernel:
        """The kernel of the teacher's features, fitted to all rows once for all classes.

        Raises InvalidProblem for sparse rows.
        """
        X, spec = examples.all_X, examples.feature_spec
        if sp.issparse(X):
            message = "Gaussian process students need dense raw rows: their landmarks are dense"
            raise InvalidProblem(Fault("X", "sparse", message))
        spec = FeatureSpec() if spec is None else spec
        return examples.shared.get("gaussian_rows", lambda: cls(*kernel_standardisation(X, spec)))

    @classmethod
    def of_columns(cls, columns: FloatArray) -> _Kernel:
        """The kernel of z-scores of privileged columns (n, p)."""
        standardisation = fit_standardisation(columns, Scaling.ZSCORE)
        return cls(standardisation, scale_rule(columns, standardisation))

    def rows(self, X: Any) -> FloatArray:
        """x' of rows (n, d), float64."""
        scaled: FloatArray = self.standardisation.apply(np.asarray(X, dtype=np.float64))
        return scaled


def fit_gaussian(
    problem: Problem,
    privileged: tuple[str, FloatArray] | None,
    *,
    n_landmarks: int,
    max_rows: int,
    evidence_rows: int,
    max_iterations: int,
    tolerance: float,
    run: Run,
) -> GaussianStudent:
    """Choose rows and landmarks, then hyper-parameters by the evidence, and fit the posterior of all rows.

    privileged: what the noise depends on, a name and columns (n, p); None for constant noise. The numbers are
    the fields of ``GaussianSpec``.
    run: reports stage ``"student"`` in steps of the search; its seed draws rows and landmarks.
    Raises InvalidProblem, Cancelled.
    """
    started = time.perf_counter()
    kernel = _Kernel.shared(problem.examples)
    rng = np.random.default_rng(run.seed)
    used = _drawn(problem.positive, max_rows, rng)
    seen = used[_drawn(problem.positive[used], evidence_rows, rng)]
    X = kernel.rows(problem.examples.X[used])
    landmarks = _landmarks(X, problem.positive[used], n_landmarks, rng)
    source, first_width, noise = "none", 0.0, None
    if privileged is not None:
        source, columns = privileged
        noise_kernel = _Kernel.of_columns(columns[used])
        first_width = log(noise_kernel.gamma)
        columns = noise_kernel.rows(columns[used])
        noise = Distances.of(columns, choose_landmarks(columns, n_landmarks, rng))
    rows = Rows(problem.signs[used], Distances.of(X, landmarks), noise)
    with one_blas_thread():
        evidence = rows.take(np.searchsorted(used, seen))
        choice = _choose(evidence, log(kernel.gamma), first_width, max_iterations, tolerance, run)
        fitted = Fitted.at(rows, choice.values, tolerance=tolerance, run=run)
        decision = _decision(kernel, landmarks, fitted)
    posterior = fitted.posterior
    settled = posterior.status if choice.converged else Status.MAX_ITERATIONS
    seconds = time.perf_counter() - started
    summary = Summary(-posterior.log_evidence, None, None, posterior.sweeps, seconds, settled.value)
    found = _found(choice, fitted) | {
        "n_landmarks": len(landmarks),
        "rows": len(used),
        "evidence_rows": len(seen),
        "noise_from": source if fitted.noise is not None else "none",
    }
    return GaussianStudent(decision, summary, found)


def _choose(
    rows: Rows, log_width: float, noise_width: float, steps: int, tolerance: float, run: Run
) -> Choice:
    """Hyper-parameters of GPC or, if there are privileged columns and they are better, of GPC+."""

    def loss_of(rows: Rows, choice: Choice) -> float:
        """The expected loss of queries, as ``Query`` computes it."""
        return Query.of(Fitted.at(rows, choice.values, tolerance=tolerance, run=run)).loss

    total = steps if rows.noise is None else steps * (1 + len(AMPLITUDES))
    found = maximise(
        rows.without_noise(),
        Hyperparameters(log_width),
        max_iterations=steps,
        total=total,
        tolerance=tolerance,
        run=run,
    )
    if rows.noise is None:
        return found
    start, least = with_noise(found.values, noise_width), loss_of(rows.without_noise(), found)
    for number, amplitude in enumerate(AMPLITUDES, 1):
        other = maximise(
            rows,
            start,
            max_iterations=steps,
            largest_amplitude=amplitude,
            finished=number * steps,
            total=total,
            tolerance=tolerance,
            run=run,
        )
        loss = loss_of(rows, other)
        if loss >= least:
            break
        found, least = other, loss
    return found


def _decision(kernel: _Kernel, landmarks: FloatArray, fitted: Fitted) -> Decision:
    """The Gaussian form on the kernel values of the landmarks, from raw rows."""
    variance = Query.of(fitted).noise
    spread, root = sqrt(variance), np.exp(0.5 * fitted.values.log_width)
    coef, factor = fitted.latent.predictor(fitted.posterior.latent)
    standardisation = kernel.standardisation
    basis = RbfBasis(standardisation.shift, root * standardisation.scale, root * landmarks)
    form = GaussianForm(coef / spread, fitted.values.mean / spread, factor / spread, 1.0 / variance)
    return Decision(basis, form)


def _found(choice: Choice, fitted: Fitted) -> dict[str, MetadataValue]:
    """The chosen values, and measures of the optimality of hyper-parameters and posterior."""
    values, query = choice.values, Query.of(fitted)
    found: dict[str, MetadataValue] = {
        "width": float(np.exp(values.log_width)),
        "mean": values.mean,
        "noise": float(np.exp(values.noise_mean)),
        "query_noise": query.noise,
    }
    if values.noise is not None:
        found["noise_width"] = float(np.exp(values.noise.log_width))
        found["noise_amplitude"] = float(np.exp(values.noise.log_amplitude))
    return found | {
        "log_evidence": fitted.posterior.log_evidence,
        "left_out_loss": query.loss,
        "site_change": fitted.posterior.change,
        "evidence_gradient": choice.gradient,
        "evaluations": choice.evaluations,
    }


def _drawn(positive: BoolArray, size: int, rng: np.random.Generator) -> IntArray:
    """Rising numbers of at most ``size`` rows; each side has its share of them, and at least one row."""
    n = len(positive)
    if n <= size:
        return np.arange(n)
    wanted = min(max(round(size * float(positive.mean())), 1), size - 1)
    parts = [
        rng.choice(np.flatnonzero(side), count, replace=False)
        for side, count in ((positive, wanted), (~positive, size - wanted))
    ]
    return np.sort(np.concatenate(parts))


def _landmarks(X: FloatArray, positive: BoolArray, size: int, rng: np.random.Generator) -> FloatArray:
    """At most ``size`` landmarks for rows (n, d): rows or k-means centres, up to half of the class."""
    if len(X) <= size:
        return np.unique(X, axis=0)
    own = min(int(positive.sum()), size // 2)
    rest = min(len(X) - int(positive.sum()), size - own)
    own = min(int(positive.sum()), size - rest)
    return np.concatenate(
        [choose_landmarks(X[positive], own, rng), choose_landmarks(X[~positive], rest, rng)]
    )
