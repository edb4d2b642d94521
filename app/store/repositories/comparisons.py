"""Compares the students of two jobs, which the database matches by their labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.repositories.students import rows_of

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
    """Numbers of classes whose metric is ``larger``, ``smaller`` or equal in the second job.

    only_first, only_second: numbers of classes that have the metric in one of the jobs only.
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


@dataclass(frozen=True, slots=True)
class Overview:
    """A summary of two jobs. larger, smaller: the classes with the largest changes in either direction.

    sample: classes that both jobs have, evenly spread over the class numbers of the first job.
    """

    counts: PairCounts
    larger: Sequence[Pair]
    smaller: Sequence[Pair]
    sample: Sequence[Pair]


class Comparisons:
    """Queries on pairs of students."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pairs(
        self, sides: tuple[Side, Side], metric: str, *, limit: int, largest: bool, offset: int = 0
    ) -> Sequence[Pair]:
        """Classes that have changed, the largest change first or, unless ``largest``, the smallest first.

        Changes of equal size are in the order of the first job's classes. Unchanged classes are left out.
        """
        query = _changed(self._matched(sides, metric), largest).limit(limit).offset(offset)
        return [Pair(*row) for row in self._connection.execute(query)]

    def overview(self, sides: tuple[Side, Side], metric: str, *, listed: int, sampled: int) -> Overview:
        """Counts, at most ``listed`` classes of each direction, and at most ``sampled`` of all classes.

        It is one statement, so that the database reads and matches the metrics once.
        """
        last = sa.select(sa.func.max(rows_of(self._connection, sides[0][0]).c.class_index))
        every = -(-(int(self._connection.execute(last).scalar() or 0) + 1) // sampled)
        matched = self._matched(sides, metric)
        change = _change(matched)
        sample = sa.select(matched).where(change.is_not(None), matched.c.first % every == 0)
        parts = {
            "larger": _changed(matched, True).limit(listed),
            "smaller": _changed(matched, False).limit(listed),
            "sample": sample.order_by(matched.c.first).limit(sampled),
        }
        lists = sa.union_all(
            *(sa.select(sa.literal(name).label("part"), part.subquery()) for name, part in parts.items())
        ).subquery()
        tests = change > 0, change < 0, change == 0, matched.c.after.is_(None), matched.c.before.is_(None)
        counts = sa.select(*(sa.func.count(sa.case((test, 1))) for test in tests)).subquery()
        statement = sa.select(counts, lists).join_from(counts, lists, sa.true(), isouter=True)
        rows = self._connection.execute(statement).all()
        found: dict[str | None, list[Pair]] = defaultdict(list)
        for row in rows:
            found[row.part].append(Pair(*row[len(tests) + 1 :]))
        return Overview(PairCounts(*rows[0][: len(tests)]), *(found[name] for name in parts))

    def _matched(self, sides: tuple[Side, Side], metric: str) -> sa.CTE:
        """The classes that have the metric in either job, with the columns of `Pair`."""
        no_number, no_value = sa.cast(sa.null(), sa.Integer), sa.cast(sa.null(), sa.Double)
        names = "first", "second", "before", "after"

        def side(which: Side, *, is_first: bool) -> sa.Select[Any]:
            rows = rows_of(self._connection, which[0]).c
            value = rows.metrics[metric].as_float()
            columns: tuple[sa.ColumnElement[Any], ...] = (no_number, rows.class_index, no_value, value)
            if is_first:
                columns = (rows.class_index, no_number, value, no_value)
            named = (column.label(name) for name, column in zip(names, columns, strict=True))
            return sa.select(rows.label, *named).where(rows.method == which[1])

        both = sa.union_all(side(sides[0], is_first=True), side(sides[1], is_first=False)).subquery()
        first, second, before, after = (sa.func.max(both.c[name]).label(name) for name in names)
        query = sa.select(both.c.label, first, second, before, after).group_by(both.c.label)
        return query.having(sa.or_(before.is_not(None), after.is_not(None))).cte("matched")


def _changed(matched: sa.CTE, largest: bool) -> sa.Select[Any]:
    change = _change(matched)
    query = sa.select(matched).where(change > 0 if largest else change < 0)
    return query.order_by(change.desc() if largest else change.asc(), matched.c.first)


def _change(matched: sa.CTE) -> sa.ColumnElement[float]:
    """None for a class that has the metric in one job alone."""
    change: sa.ColumnElement[float] = matched.c.after - matched.c.before
    return change
