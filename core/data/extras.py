"""What a data set may hold beside rows and labels: privileged columns, named views, scores of a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from core.data.labels import class_names
from core.data.validation import MAX_FAULTS, as_dense, not_whole, value_faults
from core.errors import Fault, InvalidProblem
from core.types import FloatArray, IntArray

EXTRAS: Final = {
    "privileged": "privileged columns",
    "views": "named views of the columns",
    "teacher_scores": "scores of a teacher (teacher_scores)",
}
"""Extras that learners may name in ``needs``, and how messages call them."""
MAX_VIEWS: Final = 256
MAX_NAME_LENGTH: Final = 256
"""Longest name of a privileged column or view, in characters."""


@dataclass(frozen=True, slots=True)
class View:
    """A named range of the columns of X: ``start`` to ``stop`` − 1, counted from 0."""

    name: str
    start: int
    stop: int

    @property
    def columns(self) -> slice:
        """The range, for indexing."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True, eq=False)
class Extras:
    """Checked extras of n rows.

    privileged: columns that are known in training only, (n, p), float, finite. privileged_names: p names, or
    None. views: ranges of columns of X that do not overlap, in the order of their columns.
    teacher_scores: S of a teacher from outside, (n, K), float, finite, columns in the order of the classes.
    """

    privileged: FloatArray | None = None
    privileged_names: tuple[str, ...] | None = None
    views: tuple[View, ...] = ()
    teacher_scores: FloatArray | None = None

    def take(self, rows: IntArray) -> Extras:
        """The extras of some of the rows, given by their numbers."""
        return Extras(
            None if self.privileged is None else self.privileged[rows],
            self.privileged_names,
            self.views,
            None if self.teacher_scores is None else self.teacher_scores[rows],
        )

    def of_classes(self, kept: Sequence[int] | IntArray) -> Extras:
        """The extras with the scores of these class codes only."""
        scores = None if self.teacher_scores is None else self.teacher_scores[:, kept]
        return Extras(self.privileged, self.privileged_names, self.views, scores)

    def followed_by(self, others: Extras) -> Extras:
        """The extras of these rows and of others after them, which must have the same ones.

        Raises InvalidProblem that names an array which only one of the two has, or of another width.
        """
        stacked = {}
        for name in self.arrays.keys() | others.arrays.keys():
            first, second = self.arrays.get(name), others.arrays.get(name)
            if first is None or second is None or first.shape[1] != second.shape[1]:
                message = f"rows with and without a label must have the same columns in {name}"
                raise InvalidProblem(Fault(name, "wrong_columns", message))
            stacked[name] = np.concatenate([first, second])
        return Extras(
            stacked.get("privileged"), self.privileged_names, self.views, stacked.get("teacher_scores")
        )

    @property
    def arrays(self) -> dict[str, FloatArray]:
        """The arrays that are present, by the names of their fields."""
        both = {"privileged": self.privileged, "teacher_scores": self.teacher_scores}
        return {name: array for name, array in both.items() if array is not None}

    @property
    def offers(self) -> frozenset[str]:
        """Names of what is present, as learners name it in ``needs``."""
        return frozenset(self.arrays) | ({"views"} if self.views else set())


NO_EXTRAS: Final = Extras()


@dataclass(frozen=True, slots=True, eq=False)
class RawExtras:
    """Extras as they are given, not yet checked.

    privileged: (n, p). views: (name, start, stop) of each. teacher_scores: (n, K). score_classes: the class
    of each column of the scores; None if they are in the order of the classes.
    """

    privileged: Any = None
    privileged_names: Sequence[str] | None = None
    views: Sequence[tuple[str, Any, Any]] = ()
    teacher_scores: Any = None
    score_classes: Sequence[str] | None = None

    def checked(self, n: int, d: int, classes: tuple[str, ...]) -> Extras:
        """The extras of n rows with d columns. Raises InvalidProblem with the first faults of each."""
        faults: list[Fault] = []
        privileged = _table(self.privileged, "privileged", n, self.privileged_names, faults)
        names = None if self.privileged_names is None else tuple(self.privileged_names)
        if names is not None:
            columns = None if privileged is None else privileged.shape[1]
            faults += _name_faults("privileged_names", names, columns)
        views = tuple(View(name, start, stop) for name, start, stop in self.views)
        faults += _view_faults(views, d)
        scores = _table(self.teacher_scores, "teacher_scores", n, self.score_classes, faults)
        order = None
        if scores is not None or self.score_classes is not None:
            width = None if scores is None else scores.shape[1]
            order, found = _score_order(self.score_classes, width, classes)
            faults += found
        if faults:
            raise InvalidProblem(*faults)
        if scores is not None and order is not None:
            scores = np.ascontiguousarray(scores[:, order])
        ordered = tuple(
            View(one.name, int(one.start), int(one.stop)) for one in sorted(views, key=lambda one: one.start)
        )
        return Extras(privileged, names, ordered, scores)


NO_RAW_EXTRAS: Final = RawExtras()


def _table(
    given: Any, field: str, n: int, names: Sequence[str] | None, faults: list[Fault]
) -> FloatArray | None:
    """A checked table (n, p ≥ 1) of finite numbers, or None; what is wrong with it goes to ``faults``."""
    if given is None:
        return None
    try:
        table: FloatArray = as_dense(given, field)
    except InvalidProblem as error:
        faults.extend(error.faults)
        return None
    if table.shape[0] != n or table.shape[1] == 0:
        message = f"{field} has {table.shape[0]} rows and {table.shape[1]} columns; X has {n} rows."
        faults.append(Fault(field, "wrong_length" if table.shape[1] else "no_columns", message))
        return None
    named = names if names is not None and len(names) == table.shape[1] else None
    faults.extend(value_faults(table, field, named))
    return table


def _name_faults(field: str, names: Sequence[Any], count: int | None) -> list[Fault]:
    """What is wrong with names, of which there must be ``count``; None where nothing has these names."""
    if len(names) != count:
        message = f"{field} has {len(names)} names for {count or 0} columns."
        return [Fault(field, "wrong_length", message)]
    faults, seen = [], set()
    for place, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_LENGTH:
            message = f"Name {place} (counted from 0) must be text of 1 to {MAX_NAME_LENGTH} characters."
            faults.append(Fault(field, "bad_name", message, column=place))
        elif not name.isprintable():
            message = f"Name {place} (counted from 0) has characters that cannot be printed."
            faults.append(Fault(field, "bad_name", message, column=place))
        elif name in seen:
            faults.append(Fault(field, "duplicate", f"The name {name!r:.80} occurs twice.", column=place))
        else:
            seen.add(name)
    return faults[:MAX_FAULTS]


def _view_faults(views: Sequence[View], d: int) -> list[Fault]:
    if len(views) > MAX_VIEWS:
        return [Fault("views", "too_many", f"There are {len(views)} views; the limit is {MAX_VIEWS}.")]
    faults = _name_faults("views", [view.name for view in views], len(views))
    for view in views:
        outside = not_whole("views", view.start, 0, d - 1) or not_whole("views", view.stop, 1, d)
        if outside is not None or view.start >= view.stop:
            message = (
                f"The view {view.name!r:.80} has columns {view.start} to {view.stop} (not included); it needs"
                f" at least one of the columns 0 to {d - 1}."
            )
            faults.append(Fault("views", "out_of_bounds", message))
    if faults:
        return faults[:MAX_FAULTS]
    return [
        Fault(
            "views",
            "overlapping",
            f"The views {first.name!r:.80} and {second.name!r:.80} both have column {second.start}.",
            column=second.start,
        )
        for first, second in pairwise(sorted(views, key=lambda view: view.start))
        if second.start < first.stop
    ][:MAX_FAULTS]


def _score_order(
    given: Sequence[str] | None, width: int | None, classes: tuple[str, ...]
) -> tuple[list[int] | None, list[Fault]]:
    """Where each class's scores stand, None if in order; and what is wrong with their columns."""
    field = "teacher_scores"
    if given is None:
        if width == len(classes):
            return None, []
        message = f"{field} has {width} columns; there are {len(classes)} classes."
        return None, [Fault(field, "wrong_columns", message)]
    names = [str(name) for name in given]
    if not set(names) <= set(classes):
        names = class_names(names)
    if width is not None and len(names) != width:
        message = f"{field} has {width} columns and {len(names)} names of classes."
        return None, [Fault(field, "wrong_columns", message)]
    place = {name: column for column, name in enumerate(names)}
    known = set(classes)
    faults = [
        Fault(field, "unknown_class", f"{field} has a column of the unknown class {name!r:.80}.", column=k)
        for k, name in enumerate(names)
        if name not in known
    ]
    faults += [
        Fault(field, "duplicate", f"{field} has two columns of the class {name!r:.80}.", column=k)
        for k, name in enumerate(names)
        if place[name] != k
    ]
    faults += [
        Fault(field, "missing_class", f"{field} has no column of the class {name!r:.80}.")
        for name in classes
        if name not in place
    ]
    return None if faults else [place[name] for name in classes], faults[:MAX_FAULTS]
