"""Computes what each column adds to a score of trees: on a row's path each test changes the expected value.

The expected value of a node is the mean of its leaves, weighted by the training weight that reaches them. The
effect of a tested column is the change from the value of the node to that of the child. The base is the mean
of the whole trees. Base and effects of all columns add up to the score: exactly in real numbers, and in
float64 to 1e-16 times the size of the values for each step of a path. Compare Saabas, treeinterpreter (2014).

A score is a linear function of the sums, so each leaf is represented by one number, its addition to the
score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.packed.forms import Linear, PolytopeForm
from core.packed.maps import Floats
from core.packed.student import PackedStudent
from core.packed.tree_references import at_references
from core.packed.trees import TreesBasis


def score_effects(student: PackedStudent, x: Floats) -> tuple[float, Floats]:
    """Base, and the effect of each column (d,), on the score of one checked row (d,); see `ScoreEffects`."""
    return ScoreEffects(student).of(x)


class ScoreEffects:
    """Effects of columns on the scores of one student of trees.

    Values shared by all rows are computed once for each rejection that decides some of them, in O(V q + M)
    for V leaves and M inner nodes. Not thread-safe. Raises InvalidProblem if the student has another map, or
    if its score is not linear.
    """

    def __init__(self, student: PackedStudent) -> None:
        trees, form = student.map, student.form
        if not isinstance(trees, TreesBasis):
            raise InvalidProblem(Fault("map", "no_trees", "Effects of columns are those of trees."))
        if form.linear is None and not isinstance(form, PolytopeForm):
            raise InvalidProblem(Fault("form", "no_effects", "A score that is not linear has no effects."))
        self._trees, self._form = trees, form
        self._of_faces: dict[int, _LinearEffects] = {}

    def of(self, x: Floats) -> tuple[float, Floats]:
        """Base, and the effect of each column (d,), on the score of a checked row (d,).

        Of several rejections, the deciding one is used.
        """
        form, face = self._form, 0
        if isinstance(form, PolytopeForm) and form.linear is None:
            face = int(form.faces(self._trees.row(x)[np.newaxis])[0].argmin())
        effects = self._of_faces.get(face)
        if effects is None:
            linear = form.linear
            if linear is None:
                assert isinstance(form, PolytopeForm)  # noqa: S101 - __init__ refuses others
                linear = form.coef[face], float(form.intercept[face])
            effects = self._of_faces[face] = _LinearEffects(self._trees, linear)
        return effects.of(x)


class _LinearEffects:
    """Effects of columns on coef·b + intercept.

    base: value at the mean of the training rows. of_leaves, of_nodes: addition of each leaf (V,), and mean
    addition of each inner node (M,); times a factor of its tree, (T,).
    """

    def __init__(self, trees: TreesBasis, linear: Linear) -> None:
        coef, intercept = linear
        self._trees = trees
        self._of_leaves: Floats = trees.values @ coef if trees.is_wide else trees.values[:, 0]
        self._of_nodes = trees.mean_values(self._of_leaves)
        self._factor: Floats = np.ones(len(trees.roots)) if trees.is_wide else coef.take(trees.output)
        self._factor = self._factor / trees.divisor
        self._of_roots = at_references(trees.roots, self._of_leaves, self._of_nodes)
        self._base = float(self._of_roots @ self._factor) + intercept

    def of(self, x: Floats) -> tuple[float, Floats]:
        """Base, and the effect of each column, (d,)."""
        trees = self._trees
        node, factor, before = trees.roots, self._factor, self._of_roots
        columns: list[NDArray[np.int32]] = []
        changes: list[Floats] = []
        while True:
            inner = node >= 0
            node, factor, before = node[inner], factor[inner], before[inner]
            if not len(node):
                break
            test = trees.test[node]
            column = trees.feature[test]
            node = trees.children[node, (x[column] > trees.threshold[test]).astype(np.intp)]
            after = at_references(node, self._of_leaves, self._of_nodes)
            columns.append(column)
            changes.append((after - before) * factor)
            before = after
        effects = np.zeros(trees.columns)
        if columns:
            effects += np.bincount(np.concatenate(columns), np.concatenate(changes), trees.columns)
        return self._base, effects
