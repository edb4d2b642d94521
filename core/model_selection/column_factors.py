"""Learns factors of the columns of an RBF kernel by gradient descent on leave-one-out errors.

    k(x, x') = exp(−Σ_j γ f_j² (x_j − x'_j)²)

With targets Y = ±1 (n, K), G = K + λI, α = G⁻¹Y and g = diag G⁻¹, the leave-one-out residuals are R = α/g
(Cawley, IJCNN 2006), and the squared hinge loss of the predictions Y − R is L = mean [Y∘R]²_+. With
B = (∂L/∂R)/g and D_i = Σ_c (∂L/∂R)_ic α_ic / g_i²,

    ∂L/∂K = −(G⁻¹B) αᵀ + G⁻¹ diag(D) G⁻¹                       compare Chapelle et al. (Machine Learning 2002)

Each step uses other rows, so that a step is cheap and the factors do not fit the noise of few rows. All
factors change by the same multiple of their gradients, so columns whose gradients are noise change little.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.linalg import inv

from core.features.base import before_terms, kernel_standardisation
from core.features.spec import FeatureSpec
from core.model_selection.row_samples import comparison_rows
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.types import FloatArray, IntArray, Matrix

STEPS: Final = 80
ROWS: Final = 400
"""Number of rows of a step; at most two thirds of all rows."""
_RATE: Final = 0.25
"""Initial step length: root mean square of the changes of the factors' logarithms. It falls to 0."""
_MEMORY: Final = 0.8
"""Share of the previous gradient that a step keeps."""
_BOUND: Final = 3.0
"""Largest absolute value of a factor's logarithm."""


def learn_column_factors(
    spec: FeatureSpec, X: Matrix, labels: IntArray, n_classes: int, ridge: float, run: Run = Run()
) -> tuple[float, ...]:
    """Factors (d,) for an RBF map of checked rows X (n, d) with class codes (n,); their mean is not fixed.

    spec: scaling and γ of the initial map. ridge: λ, for kernel values of 1 on the diagonal. The same
    arguments and seed give the same factors. Raises Cancelled.
    """
    with one_blas_thread():
        X, spec = before_terms(X, spec)
        standardisation, gamma = kernel_standardisation(X, spec)
        logs = np.zeros(X.shape[1])
        memory, size, limit = np.zeros_like(logs), 0.0, min(ROWS, 2 * len(labels) // 3)
        for step in range(STEPS):
            run.check_cancel()
            rows = comparison_rows(labels, n_classes, [run.seed, step], limit)
            scaled = standardisation.apply(X[rows])
            dense = scaled if isinstance(scaled, np.ndarray) else scaled.toarray()
            _, codes = np.unique(labels[rows], return_inverse=True)
            signs = np.where(codes[:, None] == np.arange(codes.max() + 1), 1.0, -1.0)
            _, slopes = loss_and_slopes(np.sqrt(gamma) * dense * np.exp(logs), signs, ridge)
            memory = _MEMORY * memory + (1.0 - _MEMORY) * slopes
            size = max(_MEMORY * size, float(np.sqrt(np.mean(memory**2))))
            if size > 0.0:
                logs -= _RATE * (1.0 - step / STEPS) * memory / size
            np.clip(logs, -_BOUND, _BOUND, out=logs)
    return tuple(float(factor) for factor in np.exp(logs))


def loss_and_slopes(scaled: FloatArray, signs: FloatArray, ridge: float) -> tuple[float, FloatArray]:
    """Leave-one-out squared hinge loss of rows (n, d) scaled for exp(−‖x − x'‖²), and its gradient, (d,).

    signs: Y, (n, K). ridge: λ. The gradient is with respect to the logarithms of the columns' factors.
    """
    products = scaled @ scaled.T
    norms = np.diag(products)
    kernel = np.exp(np.minimum(2.0 * products - norms[:, None] - norms, 0.0))
    inverse = inv(kernel + 1.0 + ridge * np.eye(len(scaled)), check_finite=False)
    alpha, leverage = inverse @ signs, np.diag(inverse)[:, None]
    residuals = alpha / leverage
    loss = np.maximum(signs * residuals, 0.0)
    outer = 2.0 * signs * loss / loss.size
    weights = np.sum(outer * alpha, axis=1) / leverage[:, 0] ** 2
    slope = (inverse * weights) @ inverse - (inverse @ (outer / leverage)) @ alpha.T
    slope = 0.5 * (slope + slope.T) * kernel
    squares = slope.sum(axis=1) @ scaled**2 - np.einsum("ij,ij->j", scaled, slope @ scaled)
    return float(np.mean(loss**2)), -4.0 * squares
