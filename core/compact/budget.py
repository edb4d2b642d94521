"""How many landmarks a budget buys: by cost, or by F on held-out folds of the training part."""

from __future__ import annotations

from dataclasses import dataclass

from core.compact.course import Course
from core.errors import Fault, InvalidProblem
from core.packed import PackedMap
from core.students.compact import Floats
from core.students.spec import DEFAULT_LANDMARKS, MAX_LANDMARKS, CompactSpec
from core.training.preparation import Preparation

SIZES = (12, 25, 50, 100, 200, 400)
"""Numbers of landmarks tried, rising, for a budget of F."""


@dataclass(frozen=True, slots=True)
class SizePoint:
    """F in [0, 1] on the held-out folds with so many landmarks."""

    n_landmarks: int
    f1: float


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """How a budget of F was spent.

    full_f1: F of the full student, as it is configured, on the same folds. points: sizes tried, rising.
    met: whether the last of them is within the budget; if not, the size with the best F was taken.
    n_landmarks: the size taken.
    """

    full_f1: float
    points: tuple[SizePoint, ...]
    met: bool
    n_landmarks: int


def query_cost(basis: PackedMap, n_outputs: int) -> int:
    """Multiplications of one query: the basis of p values from d columns, then ``n_outputs`` products of it.

    An exponential or cosine is not counted: there is one for d + n_outputs multiplications.
    """
    mapped = 0 if basis.kind == "linear" else basis.n_basis * basis.n_columns
    return mapped + basis.n_basis * n_outputs


def affordable(preparation: Preparation, spec: CompactSpec) -> int:
    """Landmarks that the number or the relative cost of ``spec`` buys."""
    if spec.relative_cost is None:
        return DEFAULT_LANDMARKS if spec.n_landmarks is None else spec.n_landmarks
    teacher = query_cost(preparation.packed_teacher().map, len(preparation.classes))
    per_landmark = preparation.feature_map.n_columns + 1
    size = int(spec.relative_cost * teacher) // per_landmark
    if size < 1:
        message = (
            f"a relative cost of {spec.relative_cost:g} does not buy one landmark:"
            f" the least is {per_landmark / teacher:.3g}"
        )
        raise InvalidProblem(Fault("compact.relative_cost", "too_small", message))
    return min(size, MAX_LANDMARKS)


def smallest(course: Course, max_f1_loss: float) -> tuple[int, Floats, SizeChoice]:
    """The first size whose F is near enough to the full student's; if none is, the one with the best F.

    Returns the size, its held-out scores (n,), and how it was chosen. Raises InvalidProblem, Cancelled.
    """
    n = course.n_rows
    sizes = [size for size in SIZES if size <= n] or [n]
    course.run.report("sizes", 0, len(sizes))
    full = course.f1(course.full_held_out())
    tried: list[tuple[SizePoint, Floats]] = []
    met = False
    for done, size in enumerate(sizes, 1):
        scores = course.held_out(size)
        tried.append((SizePoint(size, course.f1(scores)), scores))
        course.run.report("sizes", done, len(sizes))
        met = tried[-1][0].f1 >= full - max_f1_loss / 100.0
        if met:
            break
    best, scores = tried[-1] if met else max(tried, key=lambda one: one[0].f1)
    choice = SizeChoice(full, tuple(point for point, _ in tried), met, best.n_landmarks)
    return best.n_landmarks, scores, choice
