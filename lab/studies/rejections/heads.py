"""Students of a head of 10 000 classes without any data: agreement with the head against p, the rivals.

Each class has to score higher than its p nearest rivals, which are taken from the weights, and in a second
series than a threshold, too: the median of the largest score on random rows of the rows' length. Both are
what ``POST /v1/teachers?rivals=p&row_norm=…`` stores. A head has normal weights of 128 columns (``normal``),
groups of 20 similar classes on 64 (``groups``), or weights of rank 64 with unequal lengths and biases on 256
(``low_rank``). Rows are normal (``noise``), or lie in the direction of a random class, with noise of the same
length (``classes``).

For every row all classes are asked, "is it class k?", and the answers are held against the head's argmax, in
per cent. ``agree``: share of all answers that agree. ``alone``: share of the rows to which the class of the
argmax says yes and no other. ``precision``, ``recall`` and ``f1``: of the answer yes. With p = K − 1 the
students are the head. The last line is a JSON object.

    python -m lab.studies.rejections.heads [--classes K] [--rows N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from core.packed import PackedHead, PackedLabels
from core.packed.codec import encode
from core.packed.head import head_header
from core.teachers.rivals import nearest_rivals, typical_largest_score
from core.types import FloatArray, IntArray

RIVALS = (1, 2, 4, 8, 16)
CHECKED = 20
_ROWS_AT_A_TIME = 100


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.rejections.heads", description=__doc__)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {"classes": options.classes, "rows": options.rows}
    for name, make in HEADS.items():
        weights, bias = make(options.classes, np.random.default_rng(1))
        started = time.perf_counter()
        rivals = nearest_rivals(weights, bias, RIVALS[-1])
        figures[f"{name}_rivals_s"] = round(time.perf_counter() - started, 1)
        for kind, draw in ROWS.items():
            X = draw(weights, options.rows, np.random.default_rng(2))
            norm = float(np.linalg.norm(X, axis=1).mean())
            threshold = typical_largest_score(weights, bias, norm)
            check(weights, bias, threshold, rivals, X)
            series = agreement(X @ weights.T.astype(np.float64) + bias, rivals, threshold)
            figures |= {f"{name}_{kind}_{key}": one for key, one in series.items()}
            for key, one in series.items():
                print(f"{name:9} {kind:8} {key:14}", *(f"{k} {v:8.3f}" for k, v in one.items()), flush=True)
    print(json.dumps(figures))
    return 0


def normal(K: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Independent normal weights (K, 128), no bias."""
    return rng.normal(size=(K, 128)).astype(np.float32), np.zeros(K)


def groups(K: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Weights (K, 64) in groups of 20, whose classes have a correlation of 0.7, no bias."""
    centres = np.repeat(rng.normal(size=(-(-K // 20), 64)), 20, axis=0)[:K]
    return (np.sqrt(0.7) * centres + np.sqrt(0.3) * rng.normal(size=(K, 64))).astype(np.float32), np.zeros(K)


def low_rank(K: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Weights (K, 256) of rank 64 whose lengths differ by some 10 %, and normal biases."""
    weights = rng.normal(size=(K, 64)) @ rng.normal(size=(64, 256)) / 8.0
    return (weights * np.exp(0.1 * rng.normal(size=(K, 1)))).astype(np.float32), rng.normal(size=K)


def noise(weights: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
    """Normal rows (n, d)."""
    return rng.normal(size=(n, weights.shape[1]))


def of_classes(weights: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
    """Rows (n, d) in the direction of a random class, and normal noise of the same length."""
    d = weights.shape[1]
    rows = weights[rng.integers(len(weights), size=n)].astype(np.float64)
    return np.sqrt(d) * rows / np.linalg.norm(rows, axis=1, keepdims=True) + rng.normal(size=(n, d))


HEADS: dict[str, Callable[[int, np.random.Generator], tuple[FloatArray, FloatArray]]] = {
    "normal": normal,
    "groups": groups,
    "low_rank": low_rank,
}
ROWS: dict[str, Callable[[FloatArray, int, np.random.Generator], FloatArray]] = {
    "noise": noise,
    "classes": of_classes,
}


def agreement(scores: FloatArray, rivals: IntArray, threshold: float) -> dict[str, dict[str, float]]:
    """Figures for every p, and with the threshold, from the head's scores (n, K) and the rivals (K, p)."""
    found: dict[str, dict[str, float]] = {}
    for suffix, least in (("", -np.inf), ("_threshold", threshold)):
        counts = {p: np.zeros(4) for p in (*RIVALS, scores.shape[1] - 1)}
        for start in range(0, len(scores), _ROWS_AT_A_TIME):
            block = scores[start : start + _ROWS_AT_A_TIME]
            largest = np.full(block.shape, least)
            for p in range(1, RIVALS[-1] + 1):
                np.maximum(largest, block[:, rivals[:, p - 1]], out=largest)
                if p in counts:
                    counts[p] += _counts(block, block >= largest)
            counts[scores.shape[1] - 1] += _counts(
                block, block >= np.maximum(block.max(axis=1, keepdims=True), least)
            )
        for p, (exact, right, said, n) in counts.items():
            wrong = said - right + n - right
            values = {"agree": 1.0 - wrong / (n * scores.shape[1]), "alone": exact / n}
            values |= {"precision": right / max(said, 1.0), "recall": right / n}
            values["f1"] = 2.0 * right / (said + n)
            found[f"p{p}{suffix}"] = {key: round(100.0 * value, 3) for key, value in values.items()}
    return found


def _counts(scores: FloatArray, accepted: np.ndarray) -> np.ndarray:
    """Rows with exactly the right yes, right answers yes, answers yes, and rows."""
    right = accepted[np.arange(len(scores)), scores.argmax(axis=1)]
    exact = right & (accepted.sum(axis=1) == 1)
    return np.array([exact.sum(), right.sum(), accepted.sum(), len(scores)], dtype=np.float64)


def check(weights: FloatArray, bias: FloatArray, threshold: float, rivals: IntArray, X: FloatArray) -> None:
    """Raise RuntimeError unless packed students answer as `agreement` counts, for a few classes."""
    K = len(weights)
    arrays = {"weights": weights, "bias": bias, "threshold": np.full(K, threshold), "rivals": rivals}
    labels = PackedLabels.of([str(k) for k in range(K)])
    head = PackedHead.from_bytes(encode(head_header("head"), arrays), labels)
    for k in range(0, K, -(-K // CHECKED)):
        near = X @ weights[rivals[k]].T.astype(np.float64) + bias[rivals[k]]
        rejection = np.maximum(near.max(axis=1), threshold)
        expected = X @ weights[k].astype(np.float64) + bias[k] - rejection
        if not np.allclose(head.student(k).scores(X), expected, atol=1e-6):
            raise RuntimeError(f"The student of class {k} does not answer as the head's weights say.")


if __name__ == "__main__":
    sys.exit(main())
