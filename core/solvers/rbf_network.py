"""Two linear functions on one small set of RBF landmarks, all trained by gradient descent.

    k_j(x) = exp(−‖s∘x − l_j‖²)        f(x) = a·k(x) + b        g(x) = h·k(x) + c

    min_{l,s,a,b,h,c}  Σ_i w_i E_η [1 − z_i f(x_i + η)]²_+ / Σ_i w_i
                       + (μ/n) Σ_i E_η (t_i − g(x_i + η))²,           η ~ N(0, σ² I)

f is the decision and g regresses on the targets t; they share landmarks l and column scales s. The jitter η
regularises: without it the network overfits the training rows. The problem is not convex, so there is no
duality gap to bound the distance from the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from core.data.validation import row_blocks
from core.run import Run
from core.solvers.rbf_kernels import MIN_EXPONENT, adam_steps, slopes_of_batch
from core.types import BoolArray, FloatArray

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]
T = TypeVar("T", np.float32, np.float64)

_MOMENT_DECAYS = (0.9, 0.99)
_BATCH = 256
_PASSES = 4
_REFRESH = (50, 250)
"""Steps between two updates of the sampling probabilities: ``_PASSES`` passes over the rows, bounded."""

_SETTLED = 5e-4
"""Loss as a share of the best constant decision's below which further steps change little."""

_FADE = 100
"""Steps of the decay once the loss is settled."""

_NEAR = 1.5
"""Rows with z f below this are sampled more often: they have a loss or are close to one."""

_LEARNING_RATE = 0.03
"""Learning rate of coefficients and intercepts."""

_MOVE = 0.12
"""Learning rate of landmarks and scales times √d, the length of a landmark's step in units of kernel widths.

The division by √d keeps that length independent of the number of columns d.
"""

_STOCK = 1 << 20
"""Least number of normal numbers drawn for the jitter of all batches."""

_POLL_ENTRIES = 1 << 24
_POLL_STEPS = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """landmarks: l (p, d), in the space of s∘x. log_scale: log s (d,). coef, gate_coef: a, h (p,).

    intercepts: b and c, (2,). All of one float type.
    """

    landmarks: FloatArray
    log_scale: FloatArray
    coef: FloatArray
    gate_coef: FloatArray
    intercepts: FloatArray

    @classmethod
    def of(cls, flat: FloatArray, p: int, d: int) -> Network:
        """Views of one vector that holds the arrays in the order of the fields."""
        ends = np.cumsum([p * d, d, p, p])
        landmarks, *rest = np.split(flat, ends)
        return cls(landmarks.reshape(p, d), *rest)

    def parts(self) -> tuple[FloatArray, ...]:
        """The arrays in the order of the fields."""
        return (self.landmarks, self.log_scale, self.coef, self.gate_coef, self.intercepts)

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
            scores[block] = self.values(rows[block]) @ self.coef + self.intercepts[0]
        return scores


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

    @property
    def positive(self) -> BoolArray:
        """Whether z is +1, (n,)."""
        return self.signs > 0.0

    def take(self, chosen: BoolArray) -> NetworkProblem:
        """The same problem on some of the rows."""
        return replace(
            self,
            rows=self.rows[chosen],
            signs=self.signs[chosen],
            targets=self.targets[chosen],
            weights=self.weights[chosen],
        )


def rbf_values(scaled: NDArray[T], landmarks: NDArray[T]) -> NDArray[T]:
    """exp(−‖x − l‖²), (n, p), of rows (n, d) and landmarks (p, d)."""
    values = scaled @ (2.0 * landmarks.T)
    values -= np.einsum("ij,ij->i", scaled, scaled)[:, np.newaxis]
    values -= np.einsum("ij,ij->i", landmarks, landmarks)
    np.clip(values, MIN_EXPONENT, 0.0, out=values)
    return np.exp(values, out=values)


def descend(
    problem: NetworkProblem,
    start: Network,
    steps: int,
    rng: np.random.Generator,
    run: Run,
) -> Descent:
    """At most ``steps`` steps of Adam (Kingma and Ba 2015) from ``start``; cosine decay of the rate to 0.

    Once the loss of the rows without jitter is settled, the rate decays to 0 within ``_FADE`` further steps.
    A batch takes its jitter from a random position of a stored list of normal numbers, which costs less than
    drawing new ones. Network and all sums are float32. run: reports completed steps as stage ``"student"``.

    Raises Cancelled.
    """
    (n, d), p = problem.rows.shape, len(start.coef)
    flat = np.concatenate([part.ravel() for part in start.parts()]).astype(np.float32)
    means, squares = np.zeros_like(flat), np.zeros_like(flat)
    current = Network.of(flat, p, d)
    signs, targets = problem.signs.astype(np.float32), problem.targets.astype(np.float32)
    noise = rng.standard_normal(max(_STOCK, 2 * _BATCH * d), dtype=np.float32)
    jitter, decays = np.float32(problem.jitter), np.array(_MOMENT_DECAYS, dtype=np.float32)
    schedule = Schedule(steps)
    refresh = int(np.clip(_PASSES * n // _BATCH, *_REFRESH))
    poll_every = min(_POLL_STEPS, max(1, _POLL_ENTRIES // (_BATCH * p * d)))
    done = 0
    while done < schedule.stop:
        run.report("student", done, schedule.stop)
        sampler = _Sampler.of(problem, current, run)
        if done and sampler.loss <= _SETTLED:
            schedule = schedule.fading(done)
        last = min(done + refresh, schedule.stop)
        drawn = sampler.draw(last - done, rng)
        offsets = rng.integers(len(noise) - _BATCH * d, size=last - done)
        rates = schedule.rates(done, last, d)
        for begin in range(0, last - done, poll_every):
            run.check_cancel()
            part = slice(begin, begin + poll_every)
            adam_steps(
                problem.rows,
                signs,
                targets,
                sampler.weights,
                sampler.target_weights,
                drawn[part],
                noise,
                offsets[part],
                jitter,
                rates[part],
                decays,
                p,
                flat,
                means,
                squares,
            )
        done = last
    run.report("student", done, schedule.stop)
    before, after = (_gradient_norm(problem, one, noise, run) for one in (start, current))
    relative = after / before if before > 0.0 else 0.0
    return Descent(current, done, relative, schedule.settled is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """The result of ``descend``.

    steps: number of steps. relative_gradient: norm of the gradient, at one jitter of all rows, relative to
    that at the start; 0 at a stationary point. settled: whether it ended because no loss was left.
    """

    network: Network
    steps: int
    relative_gradient: float
    settled: bool


def gradient(problem: NetworkProblem, network: Network, noise: Singles, run: Run) -> Singles:
    """The problem's gradient at one jitter of all rows from stored normal numbers, as for ``Network.of``."""
    n, d = problem.rows.shape
    total = np.zeros(sum(part.size for part in network.parts()))
    network = network.astype(np.float32)
    scale = np.exp(network.log_scale)
    weights = (problem.weights / problem.weights.sum()).astype(np.float32)
    slopes = np.empty(len(total), dtype=np.float32)
    for block in (slice(first, min(first + _BATCH, n)) for first in range(0, n, _BATCH)):
        run.check_cancel()
        size = block.stop - block.start
        offset = block.start * d % (len(noise) - _BATCH * d)
        eta = np.float32(problem.jitter) * noise[offset : offset + size * d].reshape(size, d)
        slopes_of_batch(
            (problem.rows[block] + eta) * scale,
            problem.signs[block].astype(np.float32),
            problem.targets[block].astype(np.float32),
            weights[block],
            np.full(size, problem.target_weight / n, dtype=np.float32),
            network.landmarks,
            network.coef,
            network.intercepts,
            network.gate_coef,
            np.empty((size, len(network.coef)), dtype=np.float32),
            slopes,
        )
        total += slopes
    return total.astype(np.float32)


def _gradient_norm(problem: NetworkProblem, network: Network, noise: Singles, run: Run) -> float:
    return float(np.linalg.norm(gradient(problem, network, noise, run)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates: cosine decay over ``steps``; from step ``settled`` on, a faster one that ends at 0."""

    steps: int
    settled: int | None = None

    @property
    def stop(self) -> int:
        """Number of steps."""
        return self.steps if self.settled is None else min(self.steps, self.settled + _FADE)

    def fading(self, done: int) -> Schedule:
        """The schedule that ends soon after ``done`` steps; unchanged if it is already ending."""
        return Schedule(self.steps, done) if self.settled is None else self

    def rates(self, first: int, last: int, d: int) -> Singles:
        """Rates of landmarks and scales, and of the rest, with Adam's bias corrections, (last − first, 2)."""
        step = np.arange(first, last)
        fast, slow = _MOMENT_DECAYS
        rate = 0.5 * (1.0 + np.cos(np.pi * step / self.steps))
        if self.settled is not None:
            rate *= 0.5 * (1.0 + np.cos(np.pi * (step - self.settled) / (self.stop - self.settled)))
        rate *= np.sqrt(1.0 - slow ** (step + 1)) / (1.0 - fast ** (step + 1))
        return np.outer(rate, (_MOVE / np.sqrt(d), _LEARNING_RATE)).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Sampler:
    """Importance sampling of rows: half uniform, half uniform over the rows near or inside the margin.

    near: numbers of these rows. loss: of all rows without jitter, relative to that of the best constant
    decision. weights, target_weights: w and μ/n divided by the expected number of draws of
    the row, so that the expected gradient of a batch is that of the problem, (n,).
    """

    near: NDArray[np.intp]
    loss: float
    weights: Singles
    target_weights: Singles

    @classmethod
    def of(cls, problem: NetworkProblem, network: Network, run: Run) -> _Sampler:
        n = len(problem.rows)
        margins = problem.signs * network.scores(problem.rows, run)
        near = margins < _NEAR
        chance = 0.5 / n + 0.5 * near / near.sum() if near.any() else np.full(n, 1.0 / n)
        per_draw = 1.0 / (_BATCH * chance)
        weights = problem.weights / problem.weights.sum() * per_draw
        target_weights = problem.target_weight / n * per_draw
        share = float(np.average(problem.positive, weights=problem.weights))
        loss = float(np.average(np.maximum(1.0 - margins, 0.0) ** 2, weights=problem.weights))
        loss /= 4.0 * share * (1.0 - share)
        return cls(np.flatnonzero(near), loss, weights.astype(np.float32), target_weights.astype(np.float32))

    def draw(self, steps: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Numbers of the rows of each batch, drawn with replacement, (steps, _BATCH)."""
        n = len(self.weights)
        if not len(self.near):
            return rng.integers(n, size=(steps, _BATCH))
        half = (steps, _BATCH // 2)
        return np.hstack([rng.integers(n, size=half), self.near[rng.integers(len(self.near), size=half)]])
