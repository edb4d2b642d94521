"""Trees for tests: drawn at random, and walked one node after the other."""

from __future__ import annotations

import numpy as np

from core.packed import TreesBasis

GRID = np.arange(-3.0, 4.0)
"""Values and thresholds of random trees, so that rows meet thresholds exactly."""


def random_trees(
    seed: int = 0, *, trees: int = 7, columns: int = 4, sums: int = 3, wide: bool = True, depth: int = 5
) -> TreesBasis:
    """Trees of random shape. wide: every tree adds to all sums, otherwise to one."""
    rng = np.random.default_rng(seed)
    feature, threshold = (part.ravel() for part in np.meshgrid(np.arange(columns), GRID, indexing="ij"))
    values = np.round(rng.normal(size=(9, sums if wide else 1)), 1)
    values[:4] *= rng.integers(0, 2, size=(4, 1))
    test: list[int] = []
    children: list[list[int]] = []

    def grow(left: int) -> int:
        if left == 0 or rng.random() < 0.2:
            return ~int(rng.integers(len(values)))
        node = len(test)
        test.append(int(rng.integers(len(feature))))
        children.append([0, 0])
        children[node] = [grow(left - 1), grow(left - 1)]
        return node

    roots = [grow(depth) for _ in range(trees)]
    return TreesBasis(
        columns=columns,
        sums=sums,
        feature=feature,
        threshold=threshold,
        roots=np.array(roots),
        test=np.array(test, dtype=int),
        children=np.array(children, dtype=int).reshape(-1, 2),
        share=np.round(rng.random(len(test)), 2),
        values=values,
        output=np.zeros(trees, dtype=int) if wide else rng.integers(0, sums, trees),
        divisor=float(trees) if wide else 1.0,
    )


def rows(n: int, columns: int = 4, seed: int = 0) -> np.ndarray:
    """Rows (n, d) on the grid, beside it, and far away."""
    rng = np.random.default_rng(seed)
    X = rng.choice(GRID, size=(n, columns)) + rng.choice([0.0, 0.0, 0.5, 1e-12], size=(n, columns))
    X[::7] *= 1e50
    return X


def walked(trees: TreesBasis, x: np.ndarray) -> np.ndarray:
    """The sums (q,) of one row (d,)."""
    total = np.zeros(trees.sums)
    for reference, first in zip(trees.roots.tolist(), trees.output.tolist(), strict=True):
        while reference >= 0:
            test = trees.test[reference]
            passes = x[trees.feature[test]] <= trees.threshold[test]
            reference = int(trees.children[reference, 0 if passes else 1])
        added = trees.values[~reference]
        total[first : first + len(added)] += added
    return total / trees.divisor
