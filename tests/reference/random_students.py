"""Random students of every map and form, of a size of one's choice, as imported packages may have them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.packed import (
    FourierBasis,
    GaussianForm,
    LinearBasis,
    LinearForm,
    PackedMap,
    PackedStudent,
    PolytopeForm,
    RbfBasis,
    TreesBasis,
)
from core.packed.forms import Form
from core.packed.maps import ROW_SCALED, BesideTerms
from core.packed.trees import MAX_COST, MAX_DEPTH

_KERNELS: Final = ("rbf", *(scaled.kind for scaled in ROW_SCALED), "fourier")
_TREES: Final = ("trees of all sums", "trees of one sum")
MAPS: Final = ("linear", *_KERNELS, *_TREES, "linear beside terms", "rbf beside terms")
FORMS: Final = ("linear", "polytope", "gaussian")
_TREE_BYTES: Final = 1 << 25
"""Arrays of the largest trees."""


def random_student(rng: np.random.Generator, kind: str, form: str, size: float) -> PackedStudent:
    """A student that costs about ``size`` multiply-adds, read from its package.

    kind, form: of `MAPS` and `FORMS`.
    """
    packed = _map(rng, kind, size if form == "linear" else size / 2)
    functions = 1 if form == "linear" else max(1, min(int(size / 2 / packed.n_basis), 2000))
    student = PackedStudent(packed, _form(rng, form, packed.n_basis, functions), 0.0, "a")
    return PackedStudent.from_bytes(student.to_bytes())


def deepest_row(student: PackedStudent) -> NDArray[np.float64]:
    """A row (d,) that passes all tests, and so takes the longest path of each tree of `random_student`."""
    return np.full(student.map.n_columns, -1.0)


def _map(rng: np.random.Generator, kind: str, size: float) -> PackedMap:
    if kind.endswith(" beside terms"):
        dense = _map(rng, kind.removesuffix(" beside terms"), size / 2)
        if isinstance(dense, LinearBasis):
            # Of a linear map the terms are columns as all others.
            return LinearBasis(2 * dense.columns)
        return BesideTerms(dense, max(1, int(size / 4)))
    if kind == "linear":
        return LinearBasis(max(1, int(size)))
    if kind in _TREES:
        return _trees(rng, size, is_wide=kind == _TREES[0])
    d = int(_between(rng, 1, min(size / 30, 2000)))
    p = max(1, int(size / (d + 1 + (96 if kind == "fourier" else 24))))
    if kind == "fourier":
        return FourierBasis(rng.normal(size=(p, d)), rng.uniform(-3, 3, p))
    basis = RbfBasis(rng.normal(size=d), np.full(d, 1 / np.sqrt(d)), rng.normal(size=(p, d)))
    return next((scaled(basis) for scaled in ROW_SCALED if scaled.kind == kind), basis)


def _form(rng: np.random.Generator, form: str, p: int, functions: int) -> Form:
    if form == "polytope":
        return PolytopeForm(rng.normal(size=(functions, p)), rng.normal(size=functions), np.zeros(p), 0.0)
    if form == "gaussian":
        return GaussianForm(rng.normal(size=p), 0.0, rng.normal(size=(functions, p)) / p, 1e6)
    return LinearForm(rng.normal(size=p), 0.0, np.zeros(p), 0.0)


def _trees(rng: np.random.Generator, size: float, *, is_wide: bool) -> TreesBasis:
    """Trees whose first children lead deepest, from single leaves to paths of 128 nodes."""
    size = min(size, MAX_COST / 2)
    sums = int(_between(rng, 1, size / 8))
    width = sums if is_wide else 1
    depth = int(rng.choice([0, 1, 3, 8, 14, MAX_DEPTH]))
    trees = max(1, int((size - 4 * sums) / (16 * (depth + 1) + width)))
    trees = min(trees, 1 << 20)
    branching = 1.0 if depth <= 8 else float(rng.uniform(0.0, 0.5))
    most = _TREE_BYTES // 28
    columns, tests = int(_between(rng, 1, 1000)), int(_between(rng, 1, 5000))
    leaves = max(1, min(int(_between(rng, 1, 5000)), _TREE_BYTES // (8 * width)))
    roots, children = _grown(rng, trees, depth, branching, leaves, most)
    feature = np.sort(rng.integers(0, columns, tests))
    # Distinct thresholds of all columns, all of which a row of −1 passes.
    threshold = np.arange(tests, dtype=float)
    return TreesBasis(
        columns=columns,
        sums=sums,
        feature=feature,
        threshold=threshold,
        roots=roots,
        test=rng.integers(0, tests, len(children)),
        children=children,
        share=np.full(len(children), 0.5),
        values=rng.normal(size=(leaves, width)),
        output=np.zeros(trees, dtype=int) if is_wide else rng.integers(0, sums, trees),
        divisor=1.0,
    )


def _grown(
    rng: np.random.Generator, trees: int, depth: int, branching: float, leaves: int, most: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Roots (T,), and children (M, 2) with at most about ``most`` nodes, level by level."""

    def leaf(n: int) -> NDArray[Any]:
        return ~rng.integers(0, leaves, n)

    if depth == 0:
        return leaf(trees), np.empty((0, 2), dtype=int)
    deep = min(trees, most // depth)
    roots = leaf(trees)
    roots[:deep] = np.arange(deep)
    level, count, levels = deep, deep, []
    for below in range(depth - 1, -1, -1):
        children = leaf(2 * level).reshape(-1, 2)
        if below:
            is_inner = np.zeros((level, 2), dtype=bool)
            # The first children of the first nodes of a level go on for each tree.
            is_inner[:deep, 0] = True
            if count + level + below * deep < most:
                is_inner[:, 1] = rng.random(level) < branching
                is_inner[deep:, 0] = rng.random(level - deep) < branching
            # Those of the deep paths are numbered first.
            order = np.concatenate(
                [2 * np.arange(deep), np.setdiff1d(np.flatnonzero(is_inner), 2 * np.arange(deep))]
            )
            children.ravel()[order] = count + np.arange(len(order))
            level, count = len(order), count + len(order)
        levels.append(children)
    return roots, np.concatenate(levels)


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(max(low, high)))))
