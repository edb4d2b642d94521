"""Optimal margin distribution with unknown labels: the alternating solver of ODMC and ssODM.

Zhang, Learning by optimising the margin distribution (slides), after Zhang and Zhou, Optimal Margin
Distribution Clustering (AAAI 2018). The slides have two clusters; here K classes have K hyperplanes, each for
one class against the rest, whose losses are added. Two classes need one hyperplane.

    min_{y ∈ 𝓑} J(y),   J(y) = min_W Σ_p ½‖w_p‖² + Σ_p Σ_i U_i/2 ([1 − θ − r_ip]_+² + ν [r_ip − 1 − θ]_+²),
    r_ip = s_p(y_i) w_p·φ_i,   s_p(k) = 1 for k = p, otherwise −1

The choice of one y is relaxed to a mixture μ of labels: min_{μ ∈ Δ} min_W Σ_t ½‖W_t‖²/μ_t + losses, with
the margins r_ip = Σ_t s_p(y_ti) w_tp·φ_i, which is convex. The solver adds one label vector at a time, the
one that most violates the dual constraints in the linearised sense of the slides. It alternates between W for
fixed μ and the closed form μ_t = ‖W_t‖/Σ_s ‖W_s‖. Then, from each added label vector, J itself is decreased
by alternating between W and y; the best end point is the result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.run import Run
from core.solvers.labels.label_set import LabelSet
from core.solvers.margins.margin_distribution import MarginDistributionProblem, solve_margin_distribution
from core.solvers.solution import Status, Summary
from core.solvers.threads import one_blas_thread
from core.types import FloatArray, IntArray

_SHARES = tuple(0.5**power for power in range(1, 6))
_MAX_TURNS = 100


@dataclass(frozen=True, slots=True, eq=False)
class LabelProblem:
    """The problem in the module's docstring.

    features: Φ, (n, m) float64, dense. weights: U, (n,), positive. labels: 𝓑. band: θ. excess: ν.
    tolerance: relative duality gap at which to stop, for every problem in W and for μ.
    """

    features: FloatArray
    weights: FloatArray
    labels: LabelSet
    band: float
    excess: float
    tolerance: float = 1e-4

    @property
    def signs(self) -> FloatArray:
        """s_p(k), (K, P): P = K hyperplanes, or one for two classes."""
        K = self.labels.n_classes
        return np.array([[-1.0], [1.0]]) if K == 2 else 2.0 * np.eye(K) - 1.0

    def fit(
        self, features: FloatArray, signs: FloatArray, run: Run, start: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray, float]:
        """W (P, M), δ (n, P) and the objective, for features (P, n, M) or (n, M) and signs (n, P).

        start: initial W. Raises Cancelled.
        """
        found = []
        for p in range(signs.shape[1]):
            problem = MarginDistributionProblem(
                features if features.ndim == 2 else features[p],
                signs[:, p],
                np.zeros(len(signs)),
                C=len(signs) * (1.0 - self.band) ** 2,
                band=self.band,
                excess=self.excess,
                row_weights=self.weights,
            )
            found.append(
                solve_margin_distribution(
                    problem,
                    tolerance=self.tolerance,
                    start=None if start is None else start[p],
                    run=run.silent(),
                )
            )
        planes, duals = np.array([one.value for one in found]), np.array([one.dual for one in found]).T
        return planes, duals, sum(one.objective for one in found)

    def losses(self, outputs: FloatArray) -> FloatArray:
        """U_i times the loss of row i if it had the class k, (n, K), for outputs w_p·φ_i (n, P)."""
        margins = self.signs[None, :, :] * outputs[:, None, :]
        below = np.maximum(1.0 - self.band - margins, 0.0)
        above = np.maximum(margins - 1.0 - self.band, 0.0)
        losses: FloatArray = 0.5 * (below**2 + self.excess * above**2).sum(axis=2)
        return self.weights[:, None] * losses


@dataclass(frozen=True, slots=True, eq=False)
class LabelSolution:
    """codes: y, (n,). outputs: w_p·φ_i, (n, P). summary: J(y), time and how the relaxation ended.

    relaxed: objective of the relaxation after each alternation; it never rises. lowered: J after each update
    of W and y, from the label vector that led to the result; it never rises. mixture: μ, one weight per label
    vector. violation: how much a label vector of 𝓑 may still exceed those of the mixture, relative.
    """

    codes: IntArray
    outputs: FloatArray
    summary: Summary
    relaxed: tuple[float, ...]
    lowered: tuple[float, ...]
    mixture: FloatArray
    violation: float


def solve_labels(
    problem: LabelProblem,
    starts: Sequence[IntArray],
    *,
    rounds: int = 5,
    tolerance: float = 1e-3,
    run: Run = Run(),
) -> LabelSolution:
    """Labels of 𝓑 with a small J, with the objective of the relaxation.

    starts: initial label vectors of 𝓑, each (n,) codes, at least one. rounds: largest number of label vectors
    to add. tolerance: relative violation, or relative decrease of the relaxation in a round, at which to stop
    adding; the status says whether it was reached. Reports stage ``"labels"``. Raises Cancelled.
    """
    started = time.perf_counter()
    with one_blas_thread():
        mixture = Mixture(problem, starts, run)
        total = rounds + len(starts) + rounds
        status, done = Status.MAX_ITERATIONS, 0
        violation, added = mixture.violation()
        while done < rounds and status is Status.MAX_ITERATIONS:
            run.check_cancel()
            before = mixture.objective
            fell = violation > tolerance and mixture.extend(added, run)
            if not fell or before - mixture.objective <= tolerance * before:
                status = Status.CONVERGED if violation <= tolerance or fell else Status.STALLED
            violation, added = mixture.violation()
            done += 1
            run.report("labels", done, total, mixture.objective)
        ends = []
        for codes in mixture.label_vectors:
            ends.append(_lowered(problem, codes, run))
            run.report("labels", rounds + len(ends), total, min(end[2][-1] for end in ends))
        codes, outputs, lowered = min(ends, key=lambda end: end[2][-1])
    run.report("labels", total, total, lowered[-1])
    summary = Summary(lowered[-1], None, None, done, time.perf_counter() - started, status.value)
    return LabelSolution(codes, outputs, summary, tuple(mixture.trace), lowered, mixture.shares, violation)


def most_violated(
    labels: LabelSet, features: FloatArray, duals: FloatArray, signs: FloatArray, codes: IntArray
) -> IntArray:
    """ỹ = argmax_{y ∈ 𝓑} Σ_p yᵀ H_p ȳ with H_p = diag(δ_p) ΦΦᵀ diag(δ_p), (n,) codes; exact.

    duals: δ, (n, P). codes: ȳ, the label vector of the mixture with the largest ȳᵀHȳ.
    """
    scores = duals * (features @ (features.T @ (duals * signs[codes])))
    return labels.best(scores @ signs.T)


def _lowered(
    problem: LabelProblem, codes: IntArray, run: Run
) -> tuple[IntArray, FloatArray, tuple[float, ...]]:
    """Labels, outputs and J after each update: W for the labels, then the best labels, until convergence."""
    signs, objectives = problem.signs, []
    planes = None
    while True:
        run.check_cancel()
        planes, _, objective = problem.fit(problem.features, signs[codes], run, planes)
        objectives.append(objective)
        outputs = problem.features @ planes.T
        losses = problem.losses(outputs)
        better = problem.labels.best(-losses)
        rows = np.arange(len(codes))
        gain = float((losses[rows, codes] - losses[rows, better]).sum())
        if gain <= 1e-9 * objective or len(objectives) == _MAX_TURNS:
            return codes, outputs, tuple(objectives)
        codes = better


class Mixture:
    """The relaxation on the label vectors added so far: their shares μ, and W and δ for these.

    objective: of the relaxation; trace: after each alternation, never rising. starts: initial label vectors,
    each (n,) codes. Raises Cancelled.
    """

    def __init__(self, problem: LabelProblem, starts: Sequence[IntArray], run: Run) -> None:
        self._problem = problem
        self.label_vectors = list(starts)
        self.shares: FloatArray = np.full(len(starts), 1.0 / len(starts))
        self._planes, self._duals, self.objective = self._fit(self.label_vectors, self.shares, None, run)
        self.trace = [self.objective]
        self._settle(run)

    def violation(self) -> tuple[float, IntArray]:
        """The relative violation of the most violated label vector (linearised), and this vector."""
        problem, signs = self._problem, self._problem.signs
        values = [self._norm(codes) for codes in self.label_vectors]
        largest = int(np.argmax(values))
        added = most_violated(
            problem.labels, problem.features, self._duals, signs, self.label_vectors[largest]
        )
        return self._norm(added) / max(values[largest], 1e-300) - 1.0, added

    def extend(self, codes: IntArray, run: Run) -> bool:
        """Add a label vector with the largest tried share that lowers the objective; False if none does."""
        vectors = [*self.label_vectors, codes]
        for share in _SHARES:
            run.check_cancel()
            shares = np.append((1.0 - share) * self.shares, share)
            planes, duals, objective = self._fit(vectors, shares, None, run)
            if objective < self.objective:
                self.label_vectors, self.shares = vectors, shares
                self._planes, self._duals, self.objective = planes, duals, objective
                self.trace.append(objective)
                self._settle(run)
                return True
        return False

    def _settle(self, run: Run) -> None:
        """Alternate between μ and W until the gap ½(max_t g_t² − Σ_t μ_t g_t²) to the dual is small.

        With g_t = ‖Φᵀ(δ ∘ y_t)‖ the closed form μ_t = ‖W_t‖/Σ_s‖W_s‖ is μ_t g_t/Σ_s μ_s g_s. The exponent of
        g_t grows from 1 as long as the objective decreases, because label vectors whose μ_t tends to 0
        converge slowly.
        """
        power, turn = 1.0, 0
        tolerance = self._problem.tolerance
        while len(self.shares) > 1 and turn < _MAX_TURNS and self.gap > tolerance * self.objective:
            run.check_cancel()
            turn += 1
            norms = np.array([self._norm(codes) for codes in self.label_vectors])
            shares = self.shares * (norms / norms.max()) ** (0.5 * power)
            shares = np.maximum(shares / shares.sum(), 1e-12)
            planes = self._planes.reshape(len(self._planes), len(shares), -1)
            start = planes * np.sqrt(shares / self.shares)[:, None]
            fitted = self._fit(self.label_vectors, shares, start.reshape(len(planes), -1), run)
            if fitted[2] < self.objective:
                self.shares, power = shares, 2.0 * power
                self._planes, self._duals, self.objective = fitted
                self.trace.append(self.objective)
            elif power == 1.0:
                return
            else:
                power = max(1.0, 0.25 * power)

    @property
    def gap(self) -> float:
        """Objective minus that of the dual point of W, without the gaps of the problems in W."""
        norms = np.array([self._norm(codes) for codes in self.label_vectors])
        return 0.5 * float(norms.max() - self.shares @ norms)

    def _fit(
        self, vectors: Sequence[IntArray], shares: FloatArray, start: FloatArray | None, run: Run
    ) -> tuple[FloatArray, FloatArray, float]:
        problem = self._problem
        n = len(problem.features)
        signs = np.sqrt(shares)[:, None, None] * np.array([problem.signs[codes] for codes in vectors])
        # z_ip = [√μ_t s_p(y_ti) φ_i for all t]: every row is of the class +1.
        stacked = np.einsum("tip,im->pitm", signs, problem.features).reshape(signs.shape[2], n, -1)
        return problem.fit(stacked, np.ones((n, signs.shape[2])), run, start)

    def _norm(self, codes: IntArray) -> float:
        """Σ_p yᵀ H_p y."""
        problem = self._problem
        return float(((problem.features.T @ (self._duals * problem.signs[codes])) ** 2).sum())
