"""Compiled steps of ``rbf_network.descend``: batches, gradients and Adam, in float32, without the GIL.

D is the gradient with respect to the exponents e_ij = −‖x_i − l_j‖² of rows x_i = s∘(row_i + η_i). Then

    ∂/∂l_j = 2 (Σ_i D_ij x_i − l_j Σ_i D_ij)
    ∂/∂log s = 2 (Σ_j l_j∘(Σ_i D_ij x_i) − Σ_i x_i∘x_i Σ_j D_ij)

so that one batch takes two matrix products, one for e and one for Dᵀx.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.solvers.jit import compiled

Singles = NDArray[np.float32]
Integers = NDArray[np.int64]

MIN_EXPONENT = -40.0
"""Lower limit of exponents: exp(−40) ≈ 4e-18. Far smaller values would be slow denormals in float32."""

MAX_LOG_SCALE = 10.0
"""Limit of |log s|: scales stay within [e⁻¹⁰, e¹⁰], so that no square overflows."""

_LOWEST = np.float32(MIN_EXPONENT)
_ZERO, _HALF, _ONE, _TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
_LOG2E, _LN2 = np.float32(1.44269504), np.float32(0.693147181)
_C2, _C3, _C4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
_C5, _C6, _C7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)


@compiled
def exponential(values: Singles, bits: NDArray[np.int32]) -> None:
    """values ← exp(values) for values clipped to [MIN_EXPONENT, 0], relative error below 1e-5.

    bits: scratch of the same length. x = k ln 2 + r with |r| ≤ ln 2 / 2; exp r is the polynomial of the
    Cephes library (S. Moshier), and 2^k is written into the bits of the exponent. Unlike libm's it
    vectorises.
    """
    powers = bits.view(np.float32)
    for j in range(values.shape[0]):
        x = min(max(values[j], _LOWEST), _ZERO)
        k = np.floor(x * _LOG2E + _HALF)
        r = x - k * _LN2
        tail = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
        bits[j] = (np.int32(k) + np.int32(127)) << np.int32(23)
        values[j] = tail * r * r + r + _ONE
    for j in range(values.shape[0]):
        values[j] *= powers[j]


@compiled
def slopes_of_batch(
    scaled: Singles,
    signs: Singles,
    targets: Singles,
    weights: Singles,
    target_weights: Singles,
    landmarks: Singles,
    coef: Singles,
    intercepts: Singles,
    gate_coef: Singles,
    values: Singles,
    slopes: Singles,
) -> None:
    """Gradient of Σ_i w_i [1 − z_i f(x_i)]²_+ + Σ_i u_i (t_i − g(x_i))² at scaled rows x (m, d).

    landmarks: (p, d). coef, gate_coef: (p,). intercepts: of f and g, (2,). values: scratch (m, p).
    slopes: receives the gradient, in the order landmarks, log s, coef, gate_coef, intercepts.
    """
    m, d = scaled.shape
    p = coef.shape[0]
    norms = np.zeros(p, dtype=np.float32)
    by_landmark = np.zeros(p, dtype=np.float32)
    bits = np.empty(p, dtype=np.int32)
    by_scale = slopes[p * d : p * d + d]
    by_coef = slopes[p * d + d : p * d + d + p]
    by_gate = slopes[p * d + d + p : p * d + d + 2 * p]
    slopes[:] = _ZERO
    for j in range(p):
        for k in range(d):
            norms[j] += landmarks[j, k] * landmarks[j, k]
    np.dot(scaled, landmarks.T, values)
    total, gate_total = _ZERO, _ZERO
    for i in range(m):
        row = values[i]
        norm = _ZERO
        for k in range(d):
            norm += scaled[i, k] * scaled[i, k]
        for j in range(p):
            row[j] = _TWO * row[j] - norm - norms[j]
        exponential(row, bits)
        f, g = intercepts[0], intercepts[1]
        for j in range(p):
            f += row[j] * coef[j]
            g += row[j] * gate_coef[j]
        slope = -_TWO * weights[i] * signs[i] * max(_ONE - signs[i] * f, _ZERO)
        gate_slope = _TWO * target_weights[i] * (g - targets[i])
        total += slope
        gate_total += gate_slope
        by_row = _ZERO
        for j in range(p):
            by_coef[j] += slope * row[j]
            by_gate[j] += gate_slope * row[j]
            row[j] *= slope * coef[j] + gate_slope * gate_coef[j]
            by_landmark[j] += row[j]
            by_row += row[j]
        for k in range(d):
            by_scale[k] -= _TWO * by_row * scaled[i, k] * scaled[i, k]
    moved = np.dot(values.T, scaled)
    for j in range(p):
        for k in range(d):
            by_scale[k] += _TWO * landmarks[j, k] * moved[j, k]
            slopes[j * d + k] = _TWO * (moved[j, k] - by_landmark[j] * landmarks[j, k])
    slopes[p * d + d + 2 * p] = total
    slopes[p * d + d + 2 * p + 1] = gate_total


@compiled
def adam_steps(
    rows: Singles,
    signs: Singles,
    targets: Singles,
    weights: Singles,
    target_weights: Singles,
    drawn: Integers,
    noise: Singles,
    offsets: Integers,
    jitter: np.float32,
    rates: Singles,
    decays: Singles,
    p: int,
    network: Singles,
    means: Singles,
    squares: Singles,
) -> None:
    """Steps of Adam on batches, in place.

    rows (n, d), signs, targets, weights, target_weights (n,): the problem, weights as for one draw.
    drawn: rows of each batch, (steps, m). noise: standard normal numbers, from offsets[step] on for a batch.
    rates: learning rate of landmarks and scales, and of the rest, (steps, 2). decays: of the moments, (2,).
    network, means, squares: parameters and moments in the order of ``slopes_of_batch``.
    """
    m, d = drawn.shape[1], rows.shape[1]
    landmarks = network[: p * d].reshape((p, d))
    log_scale = network[p * d : p * d + d]
    coef = network[p * d + d : p * d + d + p]
    gate_coef = network[p * d + d + p : p * d + d + 2 * p]
    intercepts = network[p * d + d + 2 * p :]
    slopes = np.empty_like(network)
    scaled, values = np.empty((m, d), dtype=np.float32), np.empty((m, p), dtype=np.float32)
    z, t = np.empty(m, dtype=np.float32), np.empty(m, dtype=np.float32)
    w, u = np.empty(m, dtype=np.float32), np.empty(m, dtype=np.float32)
    limit = np.float32(MAX_LOG_SCALE)
    for step in range(drawn.shape[0]):
        scale = np.exp(log_scale)
        for i in range(m):
            r, start = drawn[step, i], offsets[step] + i * d
            for k in range(d):
                scaled[i, k] = (rows[r, k] + jitter * noise[start + k]) * scale[k]
            z[i], t[i], w[i], u[i] = signs[r], targets[r], weights[r], target_weights[r]
        slopes_of_batch(scaled, z, t, w, u, landmarks, coef, intercepts, gate_coef, values, slopes)
        for q in range(network.shape[0]):
            slope = slopes[q]
            means[q] += (_ONE - decays[0]) * (slope - means[q])
            squares[q] += (_ONE - decays[1]) * (slope * slope - squares[q])
            rate = rates[step, 0] if q < p * d + d else rates[step, 1]
            network[q] -= rate * means[q] / (np.sqrt(squares[q]) + np.float32(1e-8))
        for k in range(d):
            log_scale[k] = min(max(log_scale[k], -limit), limit)
