"""Students that are copied from a teacher's trees: choice of rivals, and the margin over them as a form."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import numpy as np

from core.errors import Fault, InvalidProblem
from core.packed import LinearForm, PolytopeForm, TreesBasis
from core.packed.forms import Form
from core.packed.trees import INDEX_BYTES
from core.parameters import Doc, Ge, Le, check_parameters
from core.students.base import TIE, Decision, MetadataValue, Need, Problem, Student, StudentSpec
from core.students.tree_copy import Cut, class_copy
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.run import Run
    from core.solvers.solution import Summary

RIVALS_OF_A_FOREST: Final = (8, 5, 3)
"""Numbers of rivals to try: the first with which queries of single rows can use a leaf index is taken.

With an index, a query with 8 rivals takes a quarter more time than with 3. Without an index, trees are
traversed, and more rivals take no more time.
"""
_EVEN: Final = 2.0**-40
"""Added to the margin over the rest, so that rounding never decides between equal values."""


@dataclass(frozen=True, slots=True)
class Trees(StudentSpec):
    """What a forest or boosted trees say of one class and its nearest rivals, with exactly the same scores.

    Nothing is trained: what makes no difference to these classes is cut off the teacher's trees. The student
    answers yes where S^y is at least each rival's score and, of a forest, a share of all others' together.
    With all K − 1 rivals this is the teacher's own answer. Threshold and calibration follow from the
    teacher's held-out scores. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "trees"
    needs: ClassVar[frozenset[Need]] = frozenset({"trees"})
    copies_teacher: ClassVar[bool] = True

    rivals: Annotated[
        int | None,
        Ge(0),
        Le(10_000),
        Doc(
            "p, the number of rivals, at most one for each other class: those whose rows have the largest"
            " scores of the class. null: 8 of a forest, or 5 or 3 where only these have an index of leaves,"
            " which answers single rows fastest, and none where the class's score alone predicts held-out"
            " rows better; all of boosted trees, whose scores have no sum."
        ),
    ] = None

    rest: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc(
            "Of a forest: the student answers yes only where S^y is at least this share of the score of all"
            " classes together that are no rivals. 1 suits where one of these has nearly all of it."
        ),
    ] = 0.5

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Run) -> TreeStudent:
        """Copy the teacher's trees. Raises InvalidProblem for a teacher without trees."""
        del run
        return copy_trees(self, problem)

    def metadata(self) -> dict[str, MetadataValue]:
        """Empty: the fitted student reports its number of rivals."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class TreeStudent(Student):
    """Scores: the least of S^y − S^j over rivals j, and S^y minus a share of all other classes' scores.

    whole: the teacher's trees. copy: the trees for ``classes``, (q,), codes that include the student's class.
    form: the margin on the sums of ``copy``. rivals: codes in the order of the form's functions.
    """

    whole: TreesBasis
    copy: TreesBasis
    form: Form
    classes: IntArray
    rivals: tuple[int, ...]
    summary: Summary

    def scores(self, examples: Examples) -> FloatArray:
        """Margins of raw rows, (n,), from the teacher's scores, which all students share."""
        from core.features.tree_sums import sums_of_trees

        return self.of_teacher(sums_of_trees(self.whole, examples))

    def of_teacher(self, scores: FloatArray) -> FloatArray:
        """The same margins computed from the teacher's scores (n, K); NaN where these are NaN."""
        return self.form.block(scores[:, self.classes].astype(np.float64, copy=False))

    def pack(self) -> Decision:
        """The copied trees and the form."""
        return Decision(self.copy, self.form)

    def rival_codes(self) -> tuple[int, ...]:
        """The codes of the rivals."""
        return self.rivals

    def metadata(self) -> dict[str, MetadataValue]:
        """Numbers of rivals, of trees, and of inner nodes."""
        return {"rivals": len(self.rivals), "trees": len(self.copy.roots), "nodes": len(self.copy.test)}

    def facts(self) -> dict[str, Any]:
        """The same as the metadata."""
        return dict(self.metadata())


def copy_trees(spec: Trees, problem: Problem) -> TreeStudent:
    """The student of ``problem``. Raises InvalidProblem for a teacher without trees."""
    from core.solvers.solution import Summary

    started = time.perf_counter()
    trees = problem.trees
    if trees is None:
        message = f"students of kind {spec.name} need a teacher of trees"
        raise InvalidProblem(Fault("teacher", "no_trees", message))
    target = int(problem.codes[problem.positive.argmax()])
    most = trees.sums - 1
    if not _are_shares(trees):
        p = most if spec.rivals is None else min(spec.rivals, most)
        classes, rivals = _kept_classes(problem, target, p, has_shares=False)
        copy, rest = class_copy(trees, classes), None
    else:
        sizes = RIVALS_OF_A_FOREST if spec.rivals is None else (spec.rivals,)
        classes, rivals, copy = _of_a_forest(problem, trees, target, sizes)
        rest = spec.rest if len(rivals) < most else None
    form = _margin(classes, target, rivals, rest)
    summary = Summary(0.0, None, None, 0, time.perf_counter() - started, None)
    return TreeStudent(trees, copy, form, classes, tuple(rivals.tolist()), summary)


def _of_a_forest(
    problem: Problem, trees: TreesBasis, target: int, sizes: Sequence[int]
) -> tuple[IntArray, IntArray, TreesBasis]:
    """Classes, rivals and copy for the largest number of rivals whose copy has a leaf index.

    If no copy has an index, the largest number of rivals is taken.
    """
    found = []
    for size in sorted({min(size, trees.sums - 1) for size in sizes}, reverse=True):
        classes, rivals = _kept_classes(problem, target, size, has_shares=True)
        found.append((classes, rivals, Cut.of(trees, classes)))
        if found[-1][2].index_bytes <= INDEX_BYTES:
            break
    else:
        found = found[:1]
    classes, rivals, cut = found[-1]
    return classes, rivals, cut.copy()


def _kept_classes(problem: Problem, target: int, p: int, *, has_shares: bool) -> tuple[IntArray, IntArray]:
    """Codes of the classes in a copy with p rivals, and of the rivals."""
    rivals = rivals_of_most_score(problem, target, p, has_shares=has_shares)
    # With all classes in their order, the copies of all students are equal.
    all_classes = len(rivals) + 1 == (0 if problem.trees is None else problem.trees.sums)
    return (np.sort(np.append(rivals, target)) if all_classes else np.concatenate([[target], rivals])), rivals


def rivals_of_most_score(problem: Problem, target: int, p: int, *, has_shares: bool) -> IntArray:
    """Codes of the ``p`` other classes whose rows have the largest sum of the class's score, (p,).

    If p is the number of all other classes, the result is all of them in their order. Scores that are not
    shares are treated as log odds.
    """
    trees = problem.trees
    K = 0 if trees is None else trees.sums
    others = np.delete(np.arange(K), target)
    if p == len(others):
        return others
    weight = problem.gate if has_shares else np.exp(np.minimum(problem.gate, 100.0))
    mass = np.bincount(problem.codes, weights=weight, minlength=K)[others]
    return others[np.argsort(-mass, kind="stable")[:p]]


def _margin(classes: IntArray, target: int, rivals: IntArray, rest: float | None) -> Form:
    """Margins S^y − S^j for each rival j, and S^y − rest · (1 − Σ S over ``classes``) unless rest is None."""
    own, zero = (classes == target).astype(np.float64), 0.0
    faces = [own - (classes == rival) for rival in rivals]
    intercepts = [TIE if rival < target else zero for rival in rivals.tolist()]
    if rest is not None:
        faces.append(own + rest)
        intercepts.append(_EVEN - rest)
    if not faces:
        faces, intercepts = [own], [zero]
    if len(faces) == 1:
        return LinearForm(faces[0], intercepts[0], own, zero)
    return PolytopeForm(np.stack(faces), np.array(intercepts), own, zero)


def _are_shares(trees: TreesBasis) -> bool:
    """Whether the sums of every row are shares that add up to 1."""
    if trees.values.shape[1] != trees.sums or trees.divisor != len(trees.roots):
        return False
    return bool(np.allclose(trees.values.sum(axis=1), 1.0, rtol=0.0, atol=1e-9))
