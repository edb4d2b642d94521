"""Two linear functions on one small set of RBF landmarks, all trained by gradient descent.

    k_j(x) = exp(−‖s∘x − l_j‖²)        f(x) = a·k(x) + b        g(x) = h·k(x) + c

    min_{l,s,a,b,h,c}  Σ_i w_i E_η [1 − z_i f(x_i + η)]²_+ / Σ_i w_i
                       + (μ/n) Σ_i E_η (t_i − g(x_i + η))²,           η ~ N(0, σ² I)

f is the decision and g regresses on the targets t; they share landmarks l and column scales s. The jitter η
regularises: without it the network overfits the training rows. The problem is not convex, so there is no
duality gap to bound the distance from the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from core.data.validation import row_blocks
from core.run import Run
from core.types import FloatArray

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]
T = TypeVar("T", np.float32, np.float64)

_MIN_EXPONENT = -40.0
"""Lower limit of exponents: exp(−40) ≈ 4e-18. Far smaller values would be slow denormals in float32."""

_MAX_LOG_SCALE = np.float32(10.0)
"""Limit of |log s|: scales stay within [e⁻¹⁰, e¹⁰], so that no square overflows."""

_MOMENT_DECAYS = (0.9, 0.99)
_ADAM_EPSILON = np.float32(1e-8)
_BATCH = 256
_REFRESH = 250
"""Steps between two updates of the sampling probabilities."""

_NEAR = 1.5
"""Rows with z f below this are sampled more often: they have a loss or are close to one."""

_LEARNING_RATE = 0.03
"""Learning rate of coefficients and intercepts."""

_MOVE = 0.12
"""Learning rate of landmarks and scales times √d, the length of a landmark's step in units of kernel widths.

The division by √d keeps that length independent of the number of columns d.
"""

_POLL_ENTRIES = 1 << 24
_POLL_STEPS = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """landmarks: l (p, d), in the space of s∘x. log_scale: log s (d,). coef, gate_coef: a, h (p,).

    intercept, gate_intercept: b, c (1,). All of one float type. Gradients have this type, too.
    """

    landmarks: FloatArray
    log_scale: FloatArray
    coef: FloatArray
    intercept: FloatArray
    gate_coef: FloatArray
    gate_intercept: FloatArray

    def parts(self) -> tuple[FloatArray, ...]:
        """The arrays in the order of the fields."""
        return (
            self.landmarks,
            self.log_scale,
            self.coef,
            self.intercept,
            self.gate_coef,
            self.gate_intercept,
        )

    def astype(self, dtype: type[np.float32] | type[np.float64]) -> Network:
        """A copy in another float type."""
        parts: list[FloatArray] = [part.astype(dtype) for part in self.parts()]
        return Network(*parts)

    def values(self, rows: FloatArray) -> FloatArray:
        """Kernel values (n, p) of rows (n, d)."""
        return rbf_values(rows * np.exp(self.log_scale), self.landmarks)

    def scores(self, rows: FloatArray, run: Run) -> Floats:
        """f of rows (n, d), shape (n,), computed by blocks with a cancel check per block."""
        scores = np.empty(len(rows))
        for block in row_blocks(len(rows), max(self.landmarks.shape)):
            run.check_cancel()
            scores[block] = self.values(rows[block]) @ self.coef + self.intercept
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows (m, d) with signs z, targets t, loss weights w and target weights u, each (m,)."""

    rows: FloatArray
    signs: FloatArray
    targets: FloatArray
    weights: FloatArray
    target_weights: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class NetworkProblem:
    """The problem of the module: rows x (n, d) float32, signs z (n,), targets t (n,), weights w (n,).

    target_weight: μ. jitter: σ.
    """

    rows: Singles
    signs: FloatArray
    targets: FloatArray
    weights: FloatArray
    target_weight: float
    jitter: float


def rbf_values(scaled: NDArray[T], landmarks: NDArray[T]) -> NDArray[T]:
    """exp(−‖x − l‖²), (n, p), of rows (n, d) and landmarks (p, d)."""
    values = scaled @ (2.0 * landmarks.T)
    values -= np.einsum("ij,ij->i", scaled, scaled)[:, np.newaxis]
    values -= np.einsum("ij,ij->i", landmarks, landmarks)
    np.clip(values, _MIN_EXPONENT, 0.0, out=values)
    return np.exp(values, out=values)


def gradient(network: Network, batch: Batch) -> Network:
    """Gradient of Σ_i w_i [1 − z_i f(x_i)]²_+ + Σ_i u_i (t_i − g(x_i))²."""
    landmarks = network.landmarks
    scaled = batch.rows * np.exp(network.log_scale)
    values = rbf_values(scaled, landmarks)
    margins = batch.signs * (values @ network.coef + network.intercept)
    slopes = -2.0 * batch.weights * batch.signs * np.maximum(1.0 - margins, 0.0)
    gate_slopes = (
        2.0 * batch.target_weights * (values @ network.gate_coef + network.gate_intercept - batch.targets)
    )
    # Derivative with respect to each exponent −‖s∘x_i − l_j‖².
    by_exponent = np.outer(slopes, network.coef)
    by_exponent += np.outer(gate_slopes, network.gate_coef)
    by_exponent *= values
    by_landmark, by_row = by_exponent.sum(axis=0), by_exponent.sum(axis=1)
    pulled = by_exponent @ landmarks - by_row[:, np.newaxis] * scaled
    return Network(
        landmarks=2.0 * (by_exponent.T @ scaled - by_landmark[:, np.newaxis] * landmarks),
        log_scale=2.0 * np.einsum("ij,ij->j", pulled, scaled),
        coef=values.T @ slopes,
        intercept=slopes.sum(keepdims=True),
        gate_coef=values.T @ gate_slopes,
        gate_intercept=gate_slopes.sum(keepdims=True),
    )


def descend(
    problem: NetworkProblem,
    start: Network,
    steps: int,
    rng: np.random.Generator,
    run: Run,
) -> Network:
    """``steps`` steps of Adam (Kingma and Ba 2015) from ``start``; cosine decay of the learning rate to 0.

    The result and all sums are float32. run: reports completed steps as stage ``"student"``.

    Raises Cancelled.
    """
    current = start.astype(np.float32)
    means = [np.zeros_like(part) for part in current.parts()]
    squares = [np.zeros_like(part) for part in current.parts()]
    p, d = current.landmarks.shape
    poll_every = min(_POLL_STEPS, max(1, _POLL_ENTRIES // (_BATCH * p * d)))
    fast, slow = _MOMENT_DECAYS
    rates = (_MOVE / np.sqrt(d),) * 2 + (_LEARNING_RATE,) * 4
    for step in range(steps):
        if step % _REFRESH == 0:
            sampler = _Sampler.of(problem, current, run)
            run.report("student", step, steps)
        if step % poll_every == 0:
            run.check_cancel()
        slopes = gradient(current, sampler.draw(problem, rng))
        rate = 0.5 * (1.0 + np.cos(np.pi * step / steps))
        rate *= np.sqrt(1.0 - slow ** (step + 1)) / (1.0 - fast ** (step + 1))
        for part, mean, square, slope, own in zip(
            current.parts(), means, squares, slopes.parts(), rates, strict=True
        ):
            mean += np.float32(1.0 - fast) * (slope - mean)
            square += np.float32(1.0 - slow) * (slope * slope - square)
            part -= np.float32(own * rate) * mean / (np.sqrt(square) + _ADAM_EPSILON)
        np.clip(current.log_scale, -_MAX_LOG_SCALE, _MAX_LOG_SCALE, out=current.log_scale)
    run.report("student", steps, steps)
    return current


@dataclass(frozen=True, slots=True, eq=False)
class _Sampler:
    """Importance sampling of rows: half uniform, half uniform over the rows near or inside the margin.

    cumulated: cumulative probabilities, (n,). weights, target_weights: w and μ/n divided by the expected
    number of draws of the row, so that the expected gradient of a batch is that of the problem.
    """

    cumulated: Floats
    weights: Singles
    target_weights: Singles

    @classmethod
    def of(cls, problem: NetworkProblem, network: Network, run: Run) -> _Sampler:
        n = len(problem.rows)
        near = problem.signs * network.scores(problem.rows, run) < _NEAR
        chance = 0.5 / n + 0.5 * near / near.sum() if near.any() else np.full(n, 1.0 / n)
        per_draw = 1.0 / (_BATCH * chance)
        weights = problem.weights / problem.weights.sum() * per_draw
        target_weights = problem.target_weight / n * per_draw
        return cls(np.cumsum(chance), weights.astype(np.float32), target_weights.astype(np.float32))

    def draw(self, problem: NetworkProblem, rng: np.random.Generator) -> Batch:
        """A batch drawn with replacement, with Gaussian jitter."""
        n, d = problem.rows.shape
        drawn = np.minimum(np.searchsorted(self.cumulated, rng.random(_BATCH)), n - 1)
        noise = rng.standard_normal((_BATCH, d), dtype=np.float32)
        return Batch(
            rows=problem.rows[drawn] + np.float32(problem.jitter) * noise,
            signs=problem.signs[drawn].astype(np.float32),
            targets=problem.targets[drawn].astype(np.float32),
            weights=self.weights[drawn],
            target_weights=self.target_weights[drawn],
        )
