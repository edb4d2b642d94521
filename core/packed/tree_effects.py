"""What each column adds to a score of trees: along a row's path the expected value changes at every test.

The expected value of a node is the mean of its leaves by the training weight that reaches them. A test moves
it from that of its node to that of the child, and this is the effect of the tested column. With the mean of
the whole trees, the base, the effects of all columns add up to the score: exactly in real numbers, and in
float64 to 1e-16 times the size of the values for each step of a path. Compare Saabas, treeinterpreter (2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.packed.forms import PolytopeForm
from core.packed.maps import Floats
from core.packed.student import PackedStudent
from core.packed.tree_references import at_references
from core.packed.trees import TreesBasis


def score_effects(student: PackedStudent, x: Floats) -> tuple[float, Floats]:
    """Base, and the effect of each column (d,), on the score of one checked row (d,).

    Of several rejections those of the one that decides. Raises InvalidProblem for a student of another map.
    """
    trees, form = student.map, student.form
    if not isinstance(trees, TreesBasis):
        raise InvalidProblem(Fault("map", "no_trees", "Effects of columns are those of trees."))
    if form.linear is not None:
        coef, intercept = form.linear
    elif isinstance(form, PolytopeForm):
        face = int(form.faces(trees.row(x)[np.newaxis])[0].argmin())
        coef, intercept = form.coef[face], float(form.intercept[face])
    else:
        raise InvalidProblem(Fault("form", "no_effects", "A score that is not linear has no effects."))
    base, effects = column_effects(trees, x)
    return float(base @ coef) + intercept, effects @ coef


def column_effects(trees: TreesBasis, x: Floats) -> tuple[Floats, Floats]:
    """Base (q,), and the effect of each column on each sum, (d, q), of one row (d,)."""
    base, effects = np.zeros((1, trees.sums)), np.zeros((trees.columns, trees.sums))
    failed = x.take(trees.feature) > trees.threshold
    node, output = trees.roots, trees.output
    before = at_references(node, trees.values, trees.expected)
    _add(base, np.zeros_like(node), output, before)
    while (node >= 0).any():
        inner = node >= 0
        node, output, before = node[inner], output[inner], before[inner]
        test = trees.test[node]
        node = trees.children[node, failed[test].astype(np.intp)]
        after = at_references(node, trees.values, trees.expected)
        _add(effects, trees.feature[test], output, after - before)
        before = after
    return base[0] / trees.divisor, effects / trees.divisor


def _add(sums: Floats, rows: NDArray[np.int32], output: NDArray[np.int32], values: Floats) -> None:
    """Add to rows of ``sums`` (r, q) the values (k, w), from column ``output`` on."""
    for offset in range(values.shape[1]):
        np.add.at(sums, (rows, output + offset), values[:, offset])
