"""Compiled walks over the nodes of trees, whose children come after their parents (``TreesBasis``)."""

from __future__ import annotations

from core.solvers.jit import compiled
from core.types import BoolArray, IntArray


@compiled
def merge_equal_leaves(children: IntArray, roots: IntArray, merged: BoolArray) -> None:
    """Let references to nodes with two equal leaves refer to that leaf, and write which nodes these are.

    children: (M, 2), roots: (T,), both int64 and changed in place. merged: (M,), all False.
    """
    for node in range(children.shape[0] - 1, -1, -1):
        for side in range(2):
            below = children[node, side]
            if below >= 0 and merged[below]:
                children[node, side] = children[below, 0]
        merged[node] = children[node, 0] < 0 and children[node, 0] == children[node, 1]
    for tree in range(roots.shape[0]):
        root = roots[tree]
        if root >= 0 and merged[root]:
            roots[tree] = children[root, 0]


@compiled
def mark_below(children: IntArray, roots: IntArray, marked: BoolArray) -> None:
    """Mark the nodes that are roots or below them. marked: (M,), all False."""
    for tree in range(roots.shape[0]):
        if roots[tree] >= 0:
            marked[roots[tree]] = True
    for node in range(children.shape[0]):
        if marked[node]:
            for side in range(2):
                if children[node, side] >= 0:
                    marked[children[node, side]] = True
