"""Sums of decision trees as the basis of a score: every tree adds the values of the leaf that a row reaches.

    b_c(x) = (Σ_t v_{t,c}(x)) / divisor        summed in the order of the trees, in float64

For a forest, v_{t,c} is the share of class c in the leaf and the divisor is the number of trees, so that b_c
is its score of class c. For boosted trees it is the raw score, and the divisor is 1. The coefficients of a
form combine the sums, for example to the margin of a class over its rivals, as on every other map.

Rows are compared with distinct tests, x[feature] ≤ threshold, each once. An inner node has the number of its
test, and references to its children for rows that pass and fail it (``tree_references``). Children come after
their parents, and no node is referenced twice, so every traversal ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from core.data.validation import MAX_MAGNITUDE, row_blocks
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.codec import Arrays, Header, take_array
from core.packed.leaf_index import LeafIndex
from core.packed.maps import Floats, PackedMap
from core.packed.tree_references import at_references, distinct_rows

try:
    from core.packed._tree_walks import add_leaves, count_levels, prepare

    IS_COMPILED = True
except ImportError:
    # The package was built without a C compiler: NumPy finds the same sums, more slowly.
    IS_COMPILED = False

Int32s: TypeAlias = NDArray[np.int32]

MAX_DEPTH: Final = 128
"""Largest number of inner nodes from a root to a leaf."""
MAX_COST: Final = 1 << 28
"""Limit of steps and additions for a row, because a few bytes of a package may stand for many of them."""
_STEP: Final = 16
_INTERPRETED: Final = 4
_DIVISION: Final = 3
"""Times in multiply-adds: of a step, the factor of a step without compiled code, and of a division."""
INDEX_BYTES: Final = 1 << 23
"""No larger leaf index is made; single rows then traverse the trees level by level."""
_WALKS_AT_ONCE: Final = 1 << 16
_NODE_BYTES: Final = 24
"""Bytes of an inner node in compiled code."""


@final
@dataclass(frozen=True, eq=False)
class TreesBasis(PackedMap):
    """q sums over T trees of d columns.

    columns: d. sums: q. feature, threshold: the E tests, rising by feature, then by threshold, (E,).
    roots: a reference for each tree, (T,). test: of each inner node, (M,). children: references, (M, 2), the
    first for rows that pass the test. share: share of a node's training weight that went to its first child,
    in [0, 1], (M,), for ``tree_effects``. values: of the leaves, (V, q), or (V, 1) if each tree adds to one
    sum only. output: the first sum that each tree adds to, (T,). divisor: at least 1.

    Arrays are kept read-only: references and numbers as int32, share as float32, the others as float64.
    Raises InvalidProblem.
    """

    kind: ClassVar[str] = "trees"
    columns: int
    sums: int
    feature: Int32s
    threshold: Floats
    roots: Int32s
    test: Int32s
    children: Int32s
    share: NDArray[np.float32]
    values: Floats
    output: Int32s
    divisor: float

    def __post_init__(self) -> None:
        tests, nodes, trees = np.size(self.feature), np.size(self.test), np.size(self.roots)
        for name, kind, shape in (
            ("feature", np.int32, (tests,)),
            ("threshold", np.float64, (tests,)),
            ("roots", np.int32, (trees,)),
            ("test", np.int32, (nodes,)),
            ("children", np.int32, (nodes, 2)),
            ("share", np.float32, (nodes,)),
            ("values", np.float64, (len(self.values), -1)),
            ("output", np.int32, (trees,)),
        ):
            object.__setattr__(self, name, _frozen(getattr(self, name), name, kind, shape))
        self._check_tests()
        self._check_nodes()
        self._check_values()

    def _check_tests(self) -> None:
        same = np.diff(self.feature) == 0
        rising = (np.diff(self.feature) > 0) | (same & (np.diff(self.threshold) > 0.0))
        _require(self.columns >= 1 and _is_within(self.feature, 0, self.columns), "feature", "a column")
        _require(bool(rising.all()), "threshold", "rising with the features")

    def _check_nodes(self) -> None:
        nodes, n = len(self.test), np.arange(len(self.test), dtype=np.int32)[:, np.newaxis]
        references = np.concatenate([self.roots, self.children.ravel()])
        _require(_is_within(self.test, 0, len(self.feature)), "test", "the number of a test")
        _require(_is_within(references, -len(self.values), nodes), "children", "a node or a leaf")
        _require(bool(((self.children < 0) | (self.children > n)).all()), "children", "after their parents")
        inner, is_used = references[references >= 0], np.zeros(nodes, dtype=np.bool_)
        is_used[inner] = True
        _require(len(inner) == nodes and bool(is_used.all()), "children", "referenced once each")
        _require(self.depth <= MAX_DEPTH, "children", f"at most {MAX_DEPTH} levels deep")
        low, high = self.share.min(initial=0.0), self.share.max(initial=0.0)
        _require(bool(low >= 0.0 and high <= 1.0), "share", "between 0 and 1")

    def _check_values(self) -> None:
        trees, width = len(self.roots), self.values.shape[1]
        _require(trees >= 1, "roots", "of at least one tree")
        _require(width in {1, self.sums}, "values", "of one sum or of all")
        _require(_is_within(self.output, 0, self.sums - width + 1), "output", "the number of a sum")
        largest = float(np.abs(self.values).max(initial=0.0)) * trees
        _require(largest <= MAX_MAGNITUDE, "values", f"such that no sum exceeds {MAX_MAGNITUDE:g}")
        _require(1.0 <= self.divisor <= MAX_MAGNITUDE, "divisor", "at least 1")

    @classmethod
    def tidy(
        cls,
        *,
        columns: int,
        sums: int,
        feature: NDArray[Any],
        threshold: NDArray[Any],
        roots: NDArray[Any],
        test: NDArray[Any],
        children: NDArray[Any],
        share: NDArray[Any],
        values: NDArray[Any],
        output: NDArray[Any],
        divisor: float,
    ) -> TreesBasis:
        """The same trees without unused tests and values; equal values are stored once."""
        used, test = _renumbered(test, len(feature))
        references = np.concatenate([roots, children.ravel()])
        is_leaf = references < 0
        rows, row = _renumbered(~references[is_leaf], len(values))
        distinct, value = distinct_rows(values[rows])
        references[is_leaf] = ~value[row]
        return cls(
            columns=columns,
            sums=sums,
            feature=feature[used],
            threshold=threshold[used],
            roots=references[: len(roots)],
            test=test.astype(np.int32),
            children=references[len(roots) :].reshape(-1, 2),
            share=share,
            values=distinct,
            output=output,
            divisor=divisor,
        )

    def on_columns(self, numbers: NDArray[np.integer], columns: int) -> TreesBasis:
        """The same trees for rows with more columns.

        numbers: the trees' columns among these, rising, (d,).
        """
        return replace(self, columns=columns, feature=numbers[self.feature].astype(np.int32))

    @property
    def n_columns(self) -> int:
        return self.columns

    @property
    def n_basis(self) -> int:
        return self.sums

    @property
    def cost(self) -> int:
        """One comparison for every level of every tree, and the additions of its leaf to the sums."""
        return self.steps + len(self.roots) * self._width + self.sums

    @property
    def work(self) -> int:
        """Steps wait for nodes, and each tree for its leaf; the rest is as fast as multiply-adds.

        Without compiled code all tests are evaluated, and a step takes several times as long.
        """
        of_walks = _STEP * (self.steps + len(self.roots))
        if not IS_COMPILED:
            of_walks = _INTERPRETED * of_walks + len(self.feature)
        return self.columns + of_walks + len(self.roots) * self._width + _DIVISION * self.sums

    @property
    def steps(self) -> int:
        """Largest number of inner nodes that a row passes in all trees: the sum of their depths."""
        return sum(self._trees_of_levels)

    @property
    def depth(self) -> int:
        """Largest number of inner nodes from a root to a leaf."""
        return len(self._trees_of_levels)

    @cached_property
    def _trees_of_levels(self) -> list[int]:
        """Number of trees with inner nodes at each depth."""
        if IS_COMPILED:
            found = np.empty(MAX_DEPTH + 1, dtype=np.int64)
            count_levels(self.roots, self.children, found)
            of_levels: list[int] = found[found > 0].tolist()
            return of_levels
        tree, counts = np.flatnonzero(self.roots >= 0), list[int]()
        for level in self.levels():
            # The trees of a level are in their order.
            counts.append(1 + int(np.count_nonzero(np.diff(tree))))
            tree = np.repeat(tree, 2)[self.children[level].ravel() >= 0]
        return counts

    def levels(self) -> Iterator[NDArray[np.intp]]:
        """Inner nodes by their depth, starting at the roots; ends after ``MAX_DEPTH`` levels."""
        level = self.roots[self.roots >= 0].astype(np.intp)
        for _ in range(MAX_DEPTH + 1):
            if not len(level):
                return
            yield level
            below = self.children[level].ravel()
            level = below[below >= 0].astype(np.intp)

    @cached_property
    def index(self) -> LeafIndex | None:
        """Index of the leaves with values other than 0; None if it takes more than ``INDEX_BYTES``."""
        return LeafIndex.of(self, INDEX_BYTES)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, and of the prepared nodes or the index."""
        size: int = super().nbytes
        if IS_COMPILED:
            return size + _NODE_BYTES * len(self.test)
        return size if self.index is None else size + self.index.nbytes

    def ready(self) -> TreesBasis:
        """The same trees, after preparing the nodes or the index with which rows are compared."""
        _ = self._prepared if IS_COMPILED else self.index
        return self

    @property
    def expected(self) -> Floats:
        """The mean value of every inner node, weighted by training weight, (M, q) or (M, 1)."""
        return self.mean_values(self.values)

    def mean_values(self, values: Floats) -> Floats:
        """Mean of the leaves' ``values`` (V, …) below every inner node, by training weight, (M, …)."""
        means = np.zeros((len(self.test), *values.shape[1:]))
        share = self.share.astype(np.float64).reshape(-1, *(1 for _ in values.shape[1:]))
        for level in reversed(list(self.levels())):
            first, second = (at_references(one, values, means) for one in self.children[level].T)
            means[level] = share[level] * first + (1.0 - share[level]) * second
        return means

    @cached_property
    def _prepared(self) -> object:
        """The nodes in the form that compiled code traverses."""
        return prepare(
            self.feature,
            self.threshold,
            self.roots,
            self.test,
            self.children,
            self.values,
            self.output,
            self.columns,
            self.sums,
            self._width,
            self.divisor,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Nodes prepared for compiled code are prepared again after unpickling.
        return {name: value for name, value in self.__dict__.items() if name != "_prepared"}

    def row(self, x: Floats) -> Floats:
        if IS_COMPILED:
            return self.block(x)
        index = self.index
        if index is None:
            leaves = self.leaves((x.take(self.feature) > self.threshold)[np.newaxis])[0]
            return self._summed(self.values.take(~leaves, axis=0), self.output)
        reached = index.reached(x)
        values = self.values.take(index.value.take(reached), axis=0)
        return self._summed(values, None if self.is_wide else index.output.take(reached))

    @property
    def _width(self) -> int:
        """Number of sums that every tree adds to."""
        return int(self.values.shape[1])

    @cached_property
    def is_wide(self) -> bool:
        """Whether every tree adds to all sums."""
        return self._width == self.sums

    def _summed(self, values: Floats, output: Int32s | None) -> Floats:
        """The sums of one row from the values of the leaves it reaches, in the order of the trees.

        output: of each leaf; not used if each leaf adds to all sums.
        """
        if output is not None and not self.is_wide:
            sums = np.zeros(self.sums)
            np.add.at(sums, output, values[:, 0])
        elif self.sums > 1 or not len(values):
            # With several columns NumPy adds row after row; with a single one it uses partial sums.
            sums = np.add.reduce(values, axis=0)
        else:
            sums = np.add.accumulate(values, axis=0)[-1]
        sums /= self.divisor
        return sums

    def block(self, X: Floats) -> Floats:
        if IS_COMPILED:
            found = np.empty((*X.shape[:-1], self.sums))
            add_leaves(self._prepared, np.ascontiguousarray(X, dtype=np.float64), found)
            return found
        sums = np.zeros((len(X), self.sums))
        width = self._width
        for rows in row_blocks(len(X), len(self.roots), _WALKS_AT_ONCE):
            leaves = self.leaves(X[rows].take(self.feature, axis=1) > self.threshold)
            part = sums[rows]
            for tree, first in enumerate(self.output.tolist()):
                part[:, first : first + width] += self.values.take(~leaves[:, tree], axis=0)
        sums /= self.divisor
        return sums

    def leaves(self, failed: NDArray[np.bool_]) -> Int32s:
        """The leaf of every tree, as its reference, (n, T), for rows that fail tests (n, E)."""
        n, tests = failed.shape
        reached = np.tile(self.roots, n)
        children, outcomes = self.children.ravel(), failed.ravel()
        walking = np.flatnonzero(reached >= 0)
        first = walking // len(self.roots) * tests
        node = reached.take(walking)
        while len(walking):
            node = children.take(2 * node + outcomes.take(first + self.test.take(node)))
            reached[walking] = node
            inside = node >= 0
            walking, first, node = walking[inside], first[inside], node[inside]
        return reached.reshape(n, -1)

    def sizes(self) -> Header:
        return {"n_basis": self.sums}

    def arrays(self) -> Arrays:
        return {
            "map.feature": self.feature,
            "map.threshold": self.threshold,
            "map.roots": self.roots,
            "map.test": self.test,
            "map.children": self.children,
            "map.share": self.share,
            "map.values": self.values,
            "map.output": self.output,
            "map.divisor": np.array([self.divisor]),
        }

    @classmethod
    def from_arrays(cls, columns: int, sums: int, arrays: Arrays) -> TreesBasis:
        """The trees that ``arrays()`` returned. Raises InvalidPackage, InvalidProblem."""
        names = ("feature", "threshold", "roots", "test", "children", "share", "values", "output")
        divisor = take_array(arrays, "map.divisor")
        if divisor.shape != (1,):
            raise InvalidPackage("The trees of the package have no single divisor.")
        parts: dict[str, Any] = {name: take_array(arrays, f"map.{name}") for name in names}
        trees = cls(columns=columns, sums=sums, divisor=float(divisor[0]), **parts)
        if trees.cost > MAX_COST:
            text = f"A row costs {trees.cost:.2g} steps and additions; of trees with more than {MAX_COST:.2g}"
            raise InvalidPackage(f"{text} no package is read.")
        return trees


def _frozen(value: Any, field: str, kind: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    """``value`` as a read-only, C-ordered and finite array of ``kind`` and ``shape`` (−1: any size).

    Raises InvalidProblem.
    """
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(
        want in {-1, size} for size, want in zip(array.shape, shape, strict=True)
    )
    _require(fits, field, "of the shape that belongs to the other arrays")
    _require(array.dtype.kind == np.dtype(kind).kind, field, f"numbers of type {np.dtype(kind)}")
    _require(bool(np.isfinite(array).all()), field, "finite")
    frozen = np.ascontiguousarray(array, dtype=kind).view()
    _require(bool((frozen == array).all()) or kind is np.float32, field, f"numbers of type {np.dtype(kind)}")
    frozen.setflags(write=False)
    return frozen


def _renumbered(numbers: NDArray[Any], size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The distinct ones of numbers below ``size`` (n,), rising, and each number's position there, (n,)."""
    used = np.zeros(size, dtype=np.bool_)
    used[numbers] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[numbers]


def _is_within(numbers: NDArray[Any], low: int, high: int) -> bool:
    """Whether all numbers are in [low, high)."""
    return not numbers.size or bool(numbers.min() >= low and numbers.max() < high)


def _require(holds: bool, field: str, what: str) -> None:
    if not holds:
        raise InvalidProblem(Fault(field, "unusable_trees", f"{field} of trees must be {what}."))
