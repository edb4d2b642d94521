"""Students of a linear head without any data: they compare each class with the classes nearest to it.

A student of class k answers yes where S^k ≥ S^j for its p nearest rivals j, that is where
min_j (w_k − w_j)·x + b_k − b_j ≥ 0: a polytope whose faces are boundaries of the head itself. With all K − 1
rivals it is the head's own answer. With fewer rivals it accepts every row that the head assigns to k, and
also rows that the head assigns to a class that is not among the p rivals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.data.validation import QUIET, row_blocks
from core.errors import Fault, InvalidProblem
from core.types import FloatArray, IntArray

_BLOCK_ENTRIES = 1 << 21
_DRAWN_ROWS = 1001


@QUIET
def nearest_rivals(weights: NDArray[Any], bias: FloatArray, rivals: int) -> IntArray:
    """The ``rivals`` nearest classes of each class, (K, p) with p = min(rivals, K − 1), the nearest first.

    The distance of a rival j of class k is that of the boundary S^k = S^j from the point w_k, the direction
    in which S^k rises fastest: ((w_k − w_j)·w_k + b_k − b_j) / ‖w_k − w_j‖. For weight rows of equal length
    and bias this is half the distance between w_k and w_j. Equal rows are at distance 0. Costs K² d
    multiply-adds.
    weights: (K, d), float32 or float64, computed in this precision. bias: (K,). Raises InvalidProblem for a
    single class.
    """
    K = len(weights)
    if K < 2:
        raise InvalidProblem(Fault("rivals", "no_rivals", "A head of one class has no rivals."))
    p = min(rivals, K - 1)
    nearest = np.empty((K, p), dtype=np.int64)
    shift = bias.astype(weights.dtype)
    squares = np.einsum("ij,ij->i", weights, weights)
    for rows in row_blocks(K, K, _BLOCK_ENTRIES):
        products = weights[rows] @ weights.T
        own = squares[rows, None]
        distances = own - products + shift[rows, None] - shift
        products *= -2.0
        products += own + squares
        distances /= np.sqrt(np.maximum(products, np.finfo(weights.dtype).tiny))
        # Weights near the limits of their type make distances that are not numbers.
        np.nan_to_num(distances, copy=False)
        codes = np.arange(rows.start, rows.start + len(distances))
        distances[np.arange(len(codes)), codes] = np.inf
        found = distances.argpartition(p - 1, axis=1)[:, :p]
        order = np.take_along_axis(distances, found, axis=1).argsort(axis=1, kind="stable")
        nearest[rows] = np.take_along_axis(found, order, axis=1)
    return nearest


@QUIET
def typical_largest_score(weights: NDArray[Any], bias: FloatArray, row_norm: float) -> float:
    """The median of max_k S^k over random rows of length ``row_norm``, a typical score of the answer's class.

    Half of the random rows have a largest score above it. Most classes of a large head never reach it on rows
    of another class, so it can reject rows in place of the rivals that a student does not have. A fixed seed
    draws the rows uniformly over the sphere.

    weights: (K, d), float32 or float64, computed in this precision. bias: (K,).
    """
    rows = np.random.default_rng(0).normal(size=(_DRAWN_ROWS, weights.shape[1]))
    rows *= row_norm / np.linalg.norm(rows, axis=1, keepdims=True)
    drawn = rows.astype(weights.dtype)
    largest = np.full(_DRAWN_ROWS, -np.inf)
    for classes in row_blocks(len(weights), _DRAWN_ROWS, _BLOCK_ENTRIES):
        scores = drawn @ weights[classes].T + bias[classes]
        np.maximum(largest, scores.max(axis=1), out=largest)
    return float(np.median(largest))
