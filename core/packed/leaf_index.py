"""Finds the leaves of many trees that a row reaches without traversing them: leaves are boxes, kept as bits.

For every column and every number of its thresholds there is a bit string with one bit for each leaf. The bit
is 1 if the leaf's box contains values that are above this number of thresholds. A row selects one string for
each column, and the bits that are 1 in all of them are the leaves that it reaches. Compare QuickScorer
(Lucchese et al., SIGIR 2015), which finds the first such leaf of each tree from the tests that fail. Here the
bits represent both sides of a test, so that no other leaves remain, and leaves that add nothing need no bit.

The leaves of each tree begin at a new byte. A row reaches one leaf of a tree, so each byte of the result is 0
or a power of two, whose bit position is looked up in a table.
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
"""Position of the highest bit of each byte, from 0."""


class Trees(Protocol):
    """Trees from which an index is made; the arrays are those of ``core.packed.trees.TreesBasis``."""

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
    """Number of bytes of the index's bits, in O(M) without making the index."""
    return bytes_of_index(trees.feature, _sizes(trees)[2])


def bytes_of_index(feature: NDArray[np.int32], leaves: NDArray[np.int64]) -> int:
    """The same for tests of columns ``feature``, (E,), and numbers of leaves that add something, (T,)."""
    rows = len(feature) + len(np.unique(feature))
    return rows * _string_bytes(int(_whole_bytes(leaves).sum()))


def _whole_bytes(leaves: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of bits for trees with these numbers of leaves, (T,), in whole bytes."""
    return -(-leaves // 8) * 8


def _string_bytes(bits: int) -> int:
    """Bytes of a bit string, in whole words, which are compared at once."""
    return -(-bits // (8 * _WORD_BYTES)) * _WORD_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class LeafIndex:
    """Index of the leaves with a value other than 0, in the order of their trees, for F tested columns.

    columns: their numbers, (F,). thresholds: j + i·threshold for the j-th of these columns, rising, (E,)
    complex. bits: (E + F, words) uint64; each column has one row more than thresholds. value: row of the
    values for the leaf of each bit, (L,); 0 for a bit without a leaf. output: the first sum that the leaf
    adds to, (L,). places: 0 to F − 1, (F,), as complex numbers and as integers; every search starts with
    these.
    """

    columns: NDArray[np.intp]
    thresholds: NDArray[np.complex128]
    bits: NDArray[np.uint64]
    value: NDArray[np.int32]
    output: NDArray[np.int32]
    places: tuple[NDArray[np.complex128], NDArray[np.intp]]

    @classmethod
    def of(cls, trees: Trees, max_bytes: int) -> LeafIndex | None:
        """The index of the trees; None if it takes more than ``max_bytes``, or if the trees have no nodes."""
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
        """Rising numbers of the leaves that a row (d,) reaches."""
        values = self.places[0].copy()
        values.imag = x.take(self.columns)
        # Complex numbers are ordered by their real part first, so one search finds the rows of all columns.
        rows = self.thresholds.searchsorted(values)
        rows += self.places[1]
        common = np.bitwise_and.reduce(self.bits.take(rows, axis=0), axis=0).view(np.uint8)
        # NumPy finds non-zero truth values several times faster than non-zero numbers.
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

    n: number of bits; the numbers of each tree begin at a multiple of 8. value, output: for each number,
    (n,). first, middle, end: the leaves below a node are those from ``first`` to ``end``, and those below its
    first child end at ``middle``, (M,).
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
        """Number of leaves below each reference."""
        return at_references(references, self._counts, self._sizes)

    def _place(self, references: NDArray[np.int32], first: NDArray[np.int64]) -> None:
        """Set the first leaf below each reference."""
        inner = references >= 0
        self.first[references[inner]] = first[inner]
        leaf = ~inner & (self._below(references) > 0)
        self.value[first[leaf]] = ~references[leaf]
        self._is_leaf[first[leaf]] = True

    def admitted(self, nodes: NDArray[np.intp], above: NDArray[np.integer], rows: int) -> NDArray[np.bool_]:
        """Leaves that the tests of a column admit, (rows, n): row c is for values above c of its thresholds.

        nodes: nodes that test the column. above: first row in which each node's test fails, in [1, rows).
        """
        # A node excludes the leaves of its second child in earlier rows, and those of its first child from
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
    """Numbers of leaves that add something: per row of values (V,), below each inner node (M,), per tree."""
    counts = (trees.values != 0.0).any(axis=1).astype(np.int64)
    below = np.zeros(len(trees.test), dtype=np.int64)
    for level in reversed(list(trees.levels())):
        below[level] = at_references(trees.children[level], counts, below).sum(axis=1)
    return counts, below, at_references(trees.roots, counts, below)
