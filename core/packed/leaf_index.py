"""Which leaves of many trees a row reaches, without a walk: a leaf is a box, and boxes are kept as bits.

For every column and every number of its thresholds there is a string of bits, one for each leaf: 1 where the
leaf's box admits a value above so many thresholds. A row has one string for each column, and the bits that
are 1 in all of them are the leaves that it reaches. Compare QuickScorer (Lucchese et al., SIGIR 2015), which
finds the first such leaf of each tree from the tests that fail; here both sides of a test are in the bits, so
that no other leaves remain, and leaves that add nothing need no bit.

The leaves of a tree begin with a byte of their own. A row reaches one leaf of a tree, so that a byte of the
result is 0 or a power of two, which a table says the place of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.packed.tree_references import at_references

_WORD_BYTES = 8
_PLACES = np.array([max(byte.bit_length() - 1, 0) for byte in range(256)])
"""Of the highest bit of a byte, counted from 0."""


class Trees(Protocol):
    """What the index is made of: arrays as in ``core.packed.trees.TreesBasis``."""

    @property
    def feature(self) -> NDArray[np.int32]: ...
    @property
    def threshold(self) -> NDArray[np.float64]: ...
    @property
    def roots(self) -> NDArray[np.int32]: ...
    @property
    def test(self) -> NDArray[np.int32]: ...
    @property
    def children(self) -> NDArray[np.int32]: ...
    @property
    def values(self) -> NDArray[np.float64]: ...
    @property
    def output(self) -> NDArray[np.int32]: ...
    def levels(self) -> Iterable[NDArray[np.intp]]:
        """Inner nodes by their depth, the roots' first."""
        ...


def bytes_of_bits(trees: Trees) -> int:
    """How many bytes the bits of the index would take, in O(M) and without making it."""
    return bytes_of_index(trees.feature, _sizes(trees)[2])


def bytes_of_index(feature: NDArray[np.int32], leaves: NDArray[np.int64]) -> int:
    """The same of tests of these columns, (E,), and of trees with so many leaves that add something, (T,)."""
    rows = len(feature) + len(np.unique(feature))
    return rows * _string_bytes(int(_whole_bytes(leaves).sum()))


def _whole_bytes(leaves: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bits of trees with so many leaves (T,): whole bytes."""
    return -(-leaves // 8) * 8


def _string_bytes(bits: int) -> int:
    """Bytes of a string of bits: whole words, which are compared at once."""
    return -(-bits // (8 * _WORD_BYTES)) * _WORD_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class LeafIndex:
    """Of leaves with a value that is not 0, in the order of their trees, by F columns that are tested.

    columns: their numbers, (F,). thresholds: j + i·threshold for column j of these, rising, (E,) complex.
    bits: (E + F, words) uint64, of each column one row more than it has thresholds. value: row of the values
    of the leaf that a bit stands for, (L,); 0 for a bit without a leaf. output: the first sum that it adds
    to, (L,). places: 0 to F − 1, (F,), complex and as integers, which every search begins with.
    """

    columns: NDArray[np.intp]
    thresholds: NDArray[np.complex128]
    bits: NDArray[np.uint64]
    value: NDArray[np.int32]
    output: NDArray[np.int32]
    places: tuple[NDArray[np.complex128], NDArray[np.intp]]

    @classmethod
    def of(cls, trees: Trees, max_bytes: int) -> LeafIndex | None:
        """The index of the trees; None if it took more than ``max_bytes``, or for trees without nodes."""
        if bytes_of_bits(trees) > max_bytes or not len(trees.test):
            return None
        leaves = _Leaves(trees)
        columns, first, tests = np.unique(trees.feature, return_index=True, return_counts=True)
        rows = len(trees.feature) + len(columns)
        bits = np.zeros((rows, _string_bytes(leaves.n)), dtype=np.uint8)
        nodes = np.argsort(trees.test, kind="stable")
        start = np.searchsorted(trees.test[nodes], first)
        for number, (of_column, count) in enumerate(zip(np.split(nodes, start[1:]), tests, strict=True)):
            above = trees.test[of_column] - first[number] + 1
            packed = np.packbits(leaves.admitted(of_column, above, int(count) + 1), axis=1, bitorder="little")
            row = int(first[number]) + number
            bits[row : row + count + 1, : packed.shape[1]] = packed
        place = np.arange(len(columns))
        thresholds = np.repeat(place, tests) + 1j * trees.threshold
        places = place.astype(np.complex128), place
        return cls(columns.astype(np.intp), thresholds, bits.view("<u8"), leaves.value, leaves.output, places)

    def reached(self, x: NDArray[np.float64]) -> NDArray[np.intp]:
        """Numbers of the leaves that a row (d,) reaches, rising."""
        values = self.places[0].copy()
        values.imag = x.take(self.columns)
        # Complex numbers are ordered by their real part first: one search finds the rows of all columns.
        rows = self.thresholds.searchsorted(values)
        rows += self.places[1]
        common = np.bitwise_and.reduce(self.bits.take(rows, axis=0), axis=0).view(np.uint8)
        # Of truth values NumPy finds those that are not 0 several times faster than of numbers.
        found: NDArray[np.intp] = (common != 0).nonzero()[0]
        place = _PLACES.take(common.take(found))
        found <<= 3
        found += place
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays: tuple[NDArray[Any], ...] = (self.thresholds, self.bits, self.value, self.output)
        return sum(array.nbytes for array in arrays)


class _Leaves:
    """The leaves that add something, numbered from left to right in their trees, and the range of each node.

    n: bits that they take, since the numbers of a tree begin with a multiple of 8. value, output: of each
    number, (n,). first, middle, end: the leaves below a node are those from ``first`` to ``end``, and those
    below its first child end at ``middle``, (M,).
    """

    def __init__(self, trees: Trees) -> None:
        self._counts, self._sizes, of_tree = _sizes(trees)
        taken = _whole_bytes(of_tree)
        self.n = int(taken.sum())
        self.value = np.zeros(self.n, dtype=np.int32)
        self._is_leaf = np.zeros(self.n, dtype=np.bool_)
        self.output = np.repeat(trees.output, taken)
        self.first, self.middle = np.zeros_like(self._sizes), np.zeros_like(self._sizes)
        self._place(trees.roots, np.cumsum(taken) - taken)
        for level in trees.levels():
            left, right = trees.children[level].T
            self.middle[level] = self.first[level] + self._below(left)
            self._place(left, self.first[level])
            self._place(right, self.middle[level])
        self.end = self.first + self._sizes

    def _below(self, references: NDArray[np.int32]) -> NDArray[np.int64]:
        """How many leaves are below each reference."""
        return at_references(references, self._counts, self._sizes)

    def _place(self, references: NDArray[np.int32], first: NDArray[np.int64]) -> None:
        """Say which is the first leaf below each reference."""
        inner = references >= 0
        self.first[references[inner]] = first[inner]
        leaf = ~inner & (self._below(references) > 0)
        self.value[first[leaf]] = ~references[leaf]
        self._is_leaf[first[leaf]] = True

    def admitted(self, nodes: NDArray[np.intp], above: NDArray[np.integer], rows: int) -> NDArray[np.bool_]:
        """Which leaves the tests of one column admit, (rows, n): row c for a value above c of its thresholds.

        nodes: that test the column. above: from which row on the test of each fails, in [1, rows).
        """
        # A node excludes the leaves of its second child in the rows before, those of its first child from
        # there on: corners of rectangles, whose sums over both axes are the numbers of exclusions.
        corners = np.zeros((rows, self.n + 1), dtype=np.int32)
        add: Any = np.add.at
        first, middle, end = self.first[nodes], self.middle[nodes], self.end[nodes]
        add(corners, (0, middle), 1)
        add(corners, (0, end), -1)
        add(corners, (above, first), 1)
        add(corners, (above, middle), -2)
        add(corners, (above, end), 1)
        np.cumsum(corners, axis=0, out=corners)
        np.cumsum(corners, axis=1, out=corners)
        admitted: NDArray[np.bool_] = corners[:, :-1] == 0
        admitted &= self._is_leaf
        return admitted


def _sizes(trees: Trees) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Leaves that add something: of each row of the values (V,), below each inner node (M,), of each tree."""
    counts = (trees.values != 0.0).any(axis=1).astype(np.int64)
    below = np.zeros(len(trees.test), dtype=np.int64)
    for level in reversed(list(trees.levels())):
        below[level] = at_references(trees.children[level], counts, below).sum(axis=1)
    return counts, below, at_references(trees.roots, counts, below)
