"""The fit of compact students: gate and rejection on fewer RBF landmarks than the teacher has.

Gate g(x) ≈ S^y(x) and rejection r(x) are linear in the kernel values of p landmarks that are trained for one
class. As in Eq. (4) an example is accepted if g(x) ≥ r(x). They are trained jointly:

    min  Σ_i d_i⁻¹ E_η [1 − z_i (g − r)(x_i + η)]²_+ / Σ_i d_i⁻¹  +  (μ/n) Σ_i E_η (S_i − g(x_i + η))² / var S

over the landmarks, a scale for each column, and the coefficients of g and r: the loss of Eq. (12) squared, at
ε = 1, plus the distillation of the gate. Both terms share the landmarks.

The teacher enters in three ways: (1) its difficulty d weighs the loss, Eq. (11); (2) the initial landmarks
are centres of the class and centres of the other rows with the highest scores for the class; (3) the
distilled gate contributes to the gradients of landmarks and scales. Unlike in Eq. (12), ‖r‖² is not
penalised, so that the decision v = g − r is not regularised towards the gate: with few landmarks that would
reduce F. After gradient descent g is fitted again, by ridge regression on all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from core.data.validation import row_blocks
from core.errors import Fault, InvalidProblem
from core.features.landmarks import choose_landmarks
from core.run import Run
from core.solvers.rbf_network import Descent, Network, NetworkProblem, descend, rbf_values
from core.solvers.threads import one_blas_thread
from core.types import BoolArray, FloatArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

JITTERS = (0.8, 1.6)
"""Jitters that are tried on held-out rows of small sets, where more noise prevents overfitting."""

_SEARCHED_ENTRIES = 1 << 17
"""Jitters are tried if rows times columns is at most this."""

_WIDTH = 2.0
"""Initial scale of the columns: with few landmarks, a kernel narrower than the teacher's is better."""

_RIDGE = 1e-3
_FREE = 1e-9
"""Ridge of the constant, just large enough to keep the system positive definite."""

_NEWTON_STEPS = 15
_START_ROWS = 20_000
"""At most this many rows are used to fit the initial coefficients."""

_HARD_PER_LANDMARK = 5
_NEIGHBOUR_SAMPLE = 500


@dataclass(frozen=True, slots=True, eq=False)
class FittedNetwork:
    """score(x) = coef·k(x) + intercept = g(x) − r(x), gate g(x) = gate_coef·k(x) + gate_intercept.

    k_j(x) = exp(−‖scale∘x − l_j‖²) for rows x that are scaled for the kernel. landmarks: l (p, d). scale:
    (d,).
    loss: Σ d_i⁻¹ [1 − z_i score_i]²_+ / Σ d_i⁻¹ on the training rows, without jitter.
    gate_r2: share of the variance of S^y that the gate explains on the training rows, at most 1.
    jitter: σ, as a multiple of the distance between neighbours. steps, settled, relative_gradient: how
    the descent ended, see ``Descent``.
    """

    landmarks: Floats
    scale: Floats
    coef: Floats
    intercept: float
    gate_coef: Floats
    gate_intercept: float
    loss: float
    gate_r2: float
    jitter: float
    steps: int
    settled: bool
    relative_gradient: float

    def scores(self, rows: FloatArray) -> Floats:
        """Scores of rows (n, d) that are scaled for the kernel, shape (n,)."""
        scores = np.empty(len(rows))
        with one_blas_thread():
            for block in row_blocks(len(rows), max(self.landmarks.shape)):
                values = rbf_values(rows[block].astype(np.float64) * self.scale, self.landmarks)
                scores[block] = values @ self.coef + self.intercept
        return scores


def fit_network(
    rows: Singles,
    positive: BoolArray,
    gate: FloatArray,
    difficulty: FloatArray,
    n_landmarks: int,
    *,
    gate_weight: float,
    jitter: float | None,
    steps: int,
    neighbour: float,
    run: Run = Run(),
) -> FittedNetwork:
    """Solve the problem in the module's docstring with at most ``n_landmarks`` landmarks.

    The result has fewer if there are fewer distinct rows.

    rows: (n, d) float32, scaled for the kernel exp(−‖x − l‖²). positive: whether a row is of the class, (n,).
    gate: S^y, (n,). difficulty: d, (n,). gate_weight: μ. neighbour: ``neighbour_distance`` of the rows.
    jitter: σ in units of this distance; None chooses one of ``JITTERS``. steps: limit for the descent.
    run: reports stage ``"student"`` in steps. The result is bit-for-bit reproducible.

    Raises InvalidProblem if all rows are of the class or none is; Cancelled.
    """
    if not positive.any() or positive.all():
        message = "a compact student needs examples of the class and of the rest"
        raise InvalidProblem(Fault("labels", "single_class", message))

    weights = 1.0 / difficulty
    centre, spread = float(gate.mean()), float(gate.std()) or 1.0
    problem = NetworkProblem(
        rows=rows,
        signs=np.where(positive, 1.0, -1.0),
        targets=(gate - centre) / spread,
        weights=weights / weights.mean(),
        target_weight=gate_weight,
        jitter=0.0,
    )
    with one_blas_thread():
        unit = neighbour / np.sqrt(rows.shape[1])
        if jitter is None:
            jitter = _choose_jitter(problem, unit, n_landmarks, steps, run)
        problem = replace(problem, jitter=jitter * unit)
        descent = _descend(problem, n_landmarks, steps, run)
        network = descent.network.astype(np.float64)
        gate_coef, loss, r2 = _finish(problem, network, run)
    return FittedNetwork(
        landmarks=network.landmarks.astype(np.float64),
        scale=np.exp(network.log_scale).astype(np.float64),
        coef=network.coef.astype(np.float64),
        intercept=float(network.intercepts[0]),
        gate_coef=spread * gate_coef[:-1],
        gate_intercept=float(spread * gate_coef[-1] + centre),
        loss=loss,
        gate_r2=r2,
        jitter=jitter,
        steps=descent.steps,
        settled=descent.settled,
        relative_gradient=descent.relative_gradient,
    )


def _descend(problem: NetworkProblem, n_landmarks: int, steps: int, run: Run) -> Descent:
    """Initial landmarks and coefficients, then gradient descent."""
    run.check_cancel()
    rng = np.random.default_rng(run.seed)
    landmarks = _start_landmarks(problem, n_landmarks, rng)
    return descend(problem, _start(problem, _WIDTH * landmarks, rng, run), steps, rng, run)


def _choose_jitter(problem: NetworkProblem, unit: float, n_landmarks: int, steps: int, run: Run) -> float:
    """The jitter, in units, with the least squared hinge loss on a held-out third of the rows.

    It is ``JITTERS[0]`` if the search would take long or would hold out less than one row of a side.
    """
    held_out = _held_out(problem.positive, run.seed)
    if problem.rows.size > _SEARCHED_ENTRIES or held_out is None:
        return JITTERS[0]
    rest = problem.take(~held_out)
    rows, signs = problem.rows[held_out], problem.signs[held_out]
    losses = []
    for jitter in JITTERS:
        descent = _descend(replace(rest, jitter=jitter * unit), n_landmarks, steps, run.silent())
        margins = signs * descent.network.scores(rows, run)
        losses.append(float(np.mean(np.maximum(1.0 - margins, 0.0) ** 2)))
    return JITTERS[int(np.argmin(losses))]


def _held_out(positive: BoolArray, seed: int) -> BoolArray | None:
    """A third of the rows of each side, (n,); None if a side has fewer than three."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros(len(positive), dtype=bool)
    for side in (positive, ~positive):
        rows = np.flatnonzero(side)
        if len(rows) < 3:
            return None
        chosen[rng.choice(rows, len(rows) // 3, replace=False)] = True
    return chosen


def neighbour_distance(rows: Singles, run: Run) -> float:
    """Median distance to the nearest distinct row, over a sample of rows; 0 if all rows are equal."""
    rng = np.random.default_rng(run.seed)
    chosen = rng.choice(len(rows), min(len(rows), _NEIGHBOUR_SAMPLE), replace=False)
    sample = rows[chosen].astype(np.float64)
    nearest = np.full(len(sample), np.inf)
    norms = np.einsum("ij,ij->i", sample, sample)
    for part in row_blocks(len(rows), max(len(sample), rows.shape[1])):
        run.check_cancel()
        block = rows[part].astype(np.float64)
        distances = norms[:, np.newaxis] + np.einsum("ij,ij->i", block, block) - 2.0 * sample @ block.T
        # The distance between equal rows is a rounding error; such distances do not count.
        distances[distances <= 1e-9 * (1.0 + norms[:, np.newaxis])] = np.inf
        nearest = np.minimum(nearest, distances.min(axis=1))
    finite = nearest[np.isfinite(nearest)]
    return float(np.sqrt(np.median(finite))) if len(finite) else 0.0


def _start_landmarks(problem: NetworkProblem, n_landmarks: int, rng: np.random.Generator) -> Floats:
    """At most p initial landmarks: half for the class, half for the other rows with the highest gate."""
    rows, positive, gate = problem.rows, problem.positive, problem.targets
    n_positive = min((n_landmarks + 1) // 2, int(positive.sum()))
    n_negative = n_landmarks - n_positive
    negatives = np.flatnonzero(~positive)
    n_hard = max(_HARD_PER_LANDMARK * n_negative, 2 * int(positive.sum()))
    hard = negatives[np.argsort(-gate[negatives], kind="stable")[:n_hard]]
    parts = [choose_landmarks(rows[positive], n_positive, rng)]
    if n_negative:
        parts.append(choose_landmarks(rows[hard], n_negative, rng))
    return np.vstack(parts)


def _start(
    problem: NetworkProblem,
    landmarks: Floats,
    rng: np.random.Generator,
    run: Run,
) -> Network:
    """Initial coefficients, fitted to all rows or to a sample in which up to half are of the class."""
    positive = problem.positive
    own, rest = np.flatnonzero(positive), np.flatnonzero(~positive)
    n_own = min(len(own), max(_START_ROWS // 2, _START_ROWS - len(rest)))
    n_rest = min(len(rest), _START_ROWS - n_own)
    chosen = np.concatenate([rng.choice(own, n_own, replace=False), rng.choice(rest, n_rest, replace=False)])
    chosen.sort()
    stands_for = np.where(positive[chosen], len(own) / n_own, len(rest) / n_rest)
    values = rbf_values(_WIDTH * problem.rows[chosen].astype(np.float64), landmarks)
    basis = np.hstack([values, np.ones((len(chosen), 1))])
    coef = _squared_hinge(basis, problem.signs[chosen], stands_for * problem.weights[chosen], run)
    gate = _ridge((basis.T * stands_for) @ basis, (basis.T * stands_for) @ problem.targets[chosen])
    log_scale = np.full(landmarks.shape[1], np.log(_WIDTH))
    return Network(landmarks, log_scale, coef[:-1], gate[:-1], np.array([coef[-1], gate[-1]]))


def _squared_hinge(basis: Floats, signs: FloatArray, weights: FloatArray, run: Run) -> Floats:
    """min_a ridge ‖a‖² + Σ_i w_i [1 − z_i a·k_i]²_+ by Newton steps; the last column is the constant."""
    coef = np.zeros(basis.shape[1])
    active = np.zeros(len(basis), dtype=bool)
    for _ in range(_NEWTON_STEPS):
        run.check_cancel()
        inside = signs * (basis @ coef) < 1.0
        if np.array_equal(inside, active):
            break
        active = inside
        weighted = basis[active].T * weights[active]
        coef = _ridge(weighted @ basis[active], weighted @ signs[active])
    return coef


def _ridge(gram: Floats, moments: Floats) -> Floats:
    """min_a ridge ‖a‖² + aᵀ gram a − 2 a·moments; the last coefficient is almost unpenalised."""
    penalty = np.full(len(gram), _RIDGE)
    penalty[-1] = _FREE
    return np.asarray(solve(gram + np.diag(penalty), moments, assume_a="pos"), dtype=np.float64)


def _finish(problem: NetworkProblem, network: Network, run: Run) -> tuple[Floats, float, float]:
    """Ridge fit of the gate on the trained landmarks (p + 1,), loss of the decision, and R² of the gate."""
    n, p = len(problem.rows), len(network.coef)
    gram, moments, loss = np.zeros((p + 1, p + 1)), np.zeros(p + 1), 0.0
    for block in row_blocks(n, max(network.landmarks.shape)):
        run.check_cancel()
        values = network.values(problem.rows[block].astype(np.float64))
        basis = np.hstack([values, np.ones((len(values), 1))])
        gram += basis.T @ basis
        moments += basis.T @ problem.targets[block]
        margins = problem.signs[block] * (values @ network.coef + network.intercepts[0])
        loss += float(problem.weights[block] @ np.maximum(1.0 - margins, 0.0) ** 2)
    gate = _ridge(gram, moments)
    total = float(problem.targets @ problem.targets)
    left = total - 2.0 * gate @ moments + gate @ gram @ gate
    r2 = 1.0 - float(left) / total if total > 0.0 else 1.0
    return gate, loss / float(problem.weights.sum()), r2
