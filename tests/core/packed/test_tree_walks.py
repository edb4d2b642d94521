"""Compiled walks through trees: wrong arrays are refused, and memory is never left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.packed import trees as trees_module
from tests.compiled import compiled
from tests.reference.trees import random_trees, rows, walked
from tests.sanitizers import run_sanitized

NAMES = ("feature", "threshold", "roots", "test", "children", "values", "output")


def arguments(**changes: Any) -> list[Any]:
    """What trees of 3 sums are prepared from."""
    trees = random_trees(0)
    given = {name: np.array(getattr(trees, name)) for name in NAMES}
    given |= {"columns": trees.columns, "sums": trees.sums, "width": 3, "divisor": trees.divisor}
    for name, change in changes.items():
        given[name] = change(given[name])
    return list(given.values())


def with_first(number: int):
    def change(array: np.ndarray) -> np.ndarray:
        array.flat[0] = number
        return array

    return change


@compiled
@pytest.mark.parametrize("number", [-(10**6), 10**6])
@pytest.mark.parametrize("name", ["feature", "roots", "test", "children", "output"])
def test_references_to_what_is_not_there_are_refused(name: str, number: int):
    with pytest.raises(ValueError, match="no trees"):
        trees_module.prepare(*arguments(**{name: with_first(number)}))


@compiled
@pytest.mark.parametrize(
    "changes",
    [
        {"children": with_first(0)},
        {"feature": lambda array: array[:-1]},
        {"threshold": lambda array: array[:-1]},
        {"children": lambda array: array[:-1]},
        {"output": lambda array: array[:-1]},
        {"output": lambda array: array + 1},
        {"values": lambda array: array[:0]},
        {"columns": lambda columns: columns - 1},
        {"columns": lambda columns: 0},
        {"columns": lambda columns: -columns},
        {"sums": lambda sums: 0},
        {"sums": lambda sums: sums - 1},
        {"width": lambda width: 2},
        {"width": lambda width: 0},
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, Any]):
    with pytest.raises(ValueError, match="no trees"):
        trees_module.prepare(*arguments(**changes))


@compiled
def test_rows_and_sums_of_other_shapes_are_refused():
    trees = random_trees(0)
    prepared, X = trees_module.prepare(*arguments()), rows(4)
    for given, sums in [
        (X[:, :-1].copy(), np.empty((4, 3))),
        (X, np.empty((4, 2))),
        (X, np.empty((3, 3))),
        (X[:0], np.empty((1, 3))),
    ]:
        with pytest.raises(ValueError, match="shape"):
            trees_module.add_leaves(prepared, given, sums)
    with pytest.raises((ValueError, BufferError)):
        trees_module.add_leaves(prepared, X.T, np.empty((4, 3)))
    with pytest.raises(ValueError, match="Capsule"):
        trees_module.add_leaves(trees, X, np.empty((4, 3)))
    with pytest.raises(TypeError):
        trees_module.prepare(*arguments()[:-1])
    with pytest.raises((BufferError, TypeError)):
        trees_module.prepare(*arguments(output=lambda array: None))


@compiled
@pytest.mark.parametrize("size", [1, 3, 129])
@pytest.mark.parametrize("seed", range(3))
def test_trees_are_counted_at_every_depth_that_is_asked_for(seed: int, size: int):
    trees, counts, depths = random_trees(seed, trees=20), np.full(size, -1), np.zeros(129, dtype=np.int64)
    trees_module.count_levels(trees.roots, trees.children, counts)
    for root in trees.roots.tolist():
        level, depth = [root], 0
        while level := [node for node in level if node >= 0]:
            depths[depth] += 1
            level, depth = trees.children[level].ravel().tolist(), depth + 1
    np.testing.assert_array_equal(counts, depths[:size])


@compiled
@pytest.mark.parametrize(("name", "number"), [("roots", 10**6), ("children", 10**6), ("children", 0)])
def test_depths_of_what_is_not_there_are_refused(name: str, number: int):
    trees = random_trees(0)
    given = {"roots": np.array(trees.roots), "children": np.array(trees.children)}
    given[name] = with_first(number)(given[name])
    with pytest.raises(ValueError, match="no trees"):
        trees_module.count_levels(given["roots"], given["children"], np.empty(129, dtype=np.int64))
    with pytest.raises((TypeError, BufferError)):
        trees_module.count_levels(trees.roots, trees.children, np.empty((129, 2), dtype=np.int64).T)


@compiled
@pytest.mark.parametrize("n", [1, 2, 8, 9, 65, 130])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 17])
@pytest.mark.parametrize("wide", [True, False])
def test_walks_side_by_side_add_the_leaves_in_the_order_of_the_trees(wide: bool, count: int, n: int):
    trees, X = random_trees(count, trees=count, wide=wide), rows(n)
    expected = [walked(trees, x) for x in X]
    np.testing.assert_array_equal(trees.block(X), expected)
    np.testing.assert_array_equal(trees.row(X[0]), expected[0])


SANITIZED = """
import array, random
made = random.Random(1)
def numbers(kind, low, high, n):
    draw = made.uniform if kind == "d" else lambda low, high: made.randrange(low, high + 1)
    return array.array(kind, [draw(low, high) for _ in range(n)])
refused = walked = deep_refused = 0
for _ in range(20_000):
    nodes, tests, leaves, trees = (made.randrange(0, most) for most in (9, 9, 9, 20))
    columns, sums = made.randrange(1, 5), made.randrange(1, 4)
    width = made.choice([1, sums])
    far = made.choice([0, 0, 0, 1])
    def reference(node):
        leaf = made.randrange(-leaves - far, 0) if leaves + far else 0
        return leaf if node + 1 == nodes else made.choice([leaf, made.randrange(node + 1 - far, nodes + 1)])
    children = array.array("i", [reference(node) for node in range(nodes) for _ in (0, 1)])
    roots = numbers("i", -leaves - far, nodes - 1 + far, trees) if nodes or leaves else array.array("i")
    try:
        module.count_levels(roots, children, array.array("q", bytes(8 * made.randrange(0, 9))))
    except ValueError:
        deep_refused += 1
    try:
        prepared = module.prepare(
            numbers("i", -far, columns - 1 + far, tests), numbers("d", -1, 1, tests),
            roots, numbers("i", -far, max(tests - 1 + far, 0), nodes), children,
            numbers("d", -1, 1, leaves * width), numbers("i", 0, sums - width + far, trees),
            columns, sums, width, 3.0,
        )
    except ValueError:
        refused += 1
        continue
    walked += 1
    for n in (0, 1, 3, 70):
        module.add_leaves(prepared, numbers("d", -1, 1, n * columns), array.array("d", bytes(8 * n * sums)))
assert min(refused, walked, deep_refused) > 1000, (refused, walked, deep_refused)
empty = array.array("i")
for size in (2**31, 2**60, 2**61, 2**62, 2**63 - 1):
    for columns, sums, width in ((1, size, size), (1, size, 1), (size, 1, 1)):
        try:
            module.prepare(empty, array.array("d"), empty, empty, empty, array.array("d"), empty,
                           columns, sums, width, 1.0)
        except ValueError:
            continue
        raise AssertionError((columns, sums, width))
"""


@pytest.mark.long
def test_the_address_and_undefined_behaviour_sanitizers_find_nothing(tmp_path: Path):
    run_sanitized(Path(trees_module.__file__).with_name("_tree_walks.c"), SANITIZED, tmp_path)
