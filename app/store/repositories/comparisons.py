"""Students of two jobs beside each other, matched by their labels in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.tables import job_students

Side: TypeAlias = tuple[str, str]
"""Job and method."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A class of both jobs. first, second: its numbers in them. before, after: the metric, in [0, 1]."""

    label: str
    first: int
    second: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """How much larger the metric of the second job is."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Classes by their change: those whose metric is ``larger`` or ``smaller`` in the second job, or equal.

    only_first, only_second: classes that have the metric in one of the jobs alone.
    """

    larger: int
    smaller: int
    equal: int
    only_first: int
    only_second: int

    @property
    def both(self) -> int:
        """Classes that have the metric in both jobs."""
        return self.larger + self.smaller + self.equal


class Comparisons:
    """Queries on pairs of students."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pairs(
        self, sides: tuple[Side, Side], metric: str, *, limit: int, largest: bool, offset: int = 0
    ) -> Sequence[Pair]:
        """Classes that have changed, the largest change first or, unless ``largest``, the smallest one.

        Changes of equal size are in the order of the first job's classes. Unchanged classes are left out.
        """
        old, new, both = _joined(sides, metric)
        change = new.c.value - old.c.value
        query = both.where(change > 0 if largest else change < 0).limit(limit).offset(offset)
        query = query.order_by(change.desc() if largest else change.asc(), old.c.class_index)
        return [Pair(*row) for row in self._connection.execute(query)]

    def sample(self, sides: tuple[Side, Side], metric: str, *, limit: int) -> Sequence[Pair]:
        """At most ``limit`` classes that both jobs have, spread evenly over the numbers of the first job."""
        old, _, both = _joined(sides, metric)
        last = self._connection.execute(sa.select(sa.func.max(old.c.class_index))).scalar()
        every = -(-(int(last or 0) + 1) // limit)
        query = both.where(old.c.class_index % every == 0).order_by(old.c.class_index).limit(limit)
        return [Pair(*row) for row in self._connection.execute(query)]

    def counts(self, sides: tuple[Side, Side], metric: str) -> PairCounts:
        """How many classes have changed in which direction."""
        old, new, both = _joined(sides, metric)
        pairs = both.subquery()
        change = pairs.c.after - pairs.c.before
        signs = [sa.func.count(sa.case((test, 1))) for test in (change > 0, change < 0, change == 0)]
        row = self._connection.execute(sa.select(*signs).select_from(pairs)).one()
        larger, smaller, equal = int(row[0]), int(row[1]), int(row[2])
        alone = [
            int(self._connection.execute(sa.select(sa.func.count()).select_from(side)).scalar_one())
            - (larger + smaller + equal)
            for side in (old, new)
        ]
        return PairCounts(larger, smaller, equal, alone[0], alone[1])


def _joined(sides: tuple[Side, Side], metric: str) -> tuple[sa.Subquery, sa.Subquery, sa.Select[Any]]:
    """The students of both sides that have the metric, and the statement that matches them."""
    old, new = (_measured(side, metric, name) for side, name in zip(sides, ("old", "new"), strict=True))
    columns = (
        old.c.label,
        old.c.class_index.label("first"),
        new.c.class_index.label("second"),
        old.c.value.label("before"),
        new.c.value.label("after"),
    )
    return old, new, sa.select(*columns).join_from(old, new, old.c.label == new.c.label)


def _measured(side: Side, metric: str, name: str) -> sa.Subquery:
    table = job_students.c
    value = table.metrics[metric].as_float()
    query = sa.select(table.class_index, table.label, value.label("value"))
    return query.where(table.job_id == side[0], table.method == side[1], value.is_not(None)).subquery(name)
