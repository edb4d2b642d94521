"""Samples that people look at, and what they said of the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from app.domain.monitors import Monitor, SampleView
from app.store.monitor_tables import feedback, samples
from app.store.repositories.monitors import view_of
from app.store.repositories.scoped import Scoped

_HALF: Final = 0.5
"""The probability of an uncalibrated student's answer."""


class CellSums(NamedTuple):
    """Sampled answers of a class in one cell. mass: Σ 1/q. expected: Σ p/q."""

    label: str
    cell: int
    answered: int
    waiting: int
    mass: float
    expected: float


class Candidate(NamedTuple):
    """A sample that waits for somebody to look at it."""

    id: str
    label: str
    cell: int


class Reviews(Scoped):
    """Queries on the samples of a monitor's present run. Cells are numbered from 0; the first is of yes."""

    def cells(self, monitor: Monitor, label: str | None, bins: int) -> list[CellSums]:
        """The samples by class and cell. bins: of the probabilities of no answers."""
        table, cell = samples.c, _cell(bins)
        weight = 1.0 / table.q
        waits = table.correct.is_(None) & sa.not_(table.skipped)
        query = (
            sa.select(
                table.label,
                cell.label("cell"),
                sa.func.sum(sa.case((table.correct.is_not(None), 1), else_=0)),
                sa.func.sum(sa.case((waits, 1), else_=0)),
                sa.func.sum(weight),
                sa.func.sum(weight * sa.func.coalesce(table.probability, _HALF)),
            )
            .where(self._of(monitor, label))
            .group_by(table.label, cell)
            .order_by(table.label, cell)
        )
        return [
            CellSums(name, number, int(answered), int(waiting), float(mass), float(expected))
            for name, number, answered, waiting, mass, expected in self._connection.execute(query)
        ]

    def candidates(self, monitor: Monitor, label: str | None, bins: int, limit: int) -> list[Candidate]:
        """The newest samples that wait."""
        table = samples.c
        where = self._of(monitor, label) & table.correct.is_(None) & sa.not_(table.skipped)
        query = sa.select(table.id, table.label, _cell(bins)).where(where).order_by(table.id.desc())
        return [Candidate(*row) for row in self._connection.execute(query.limit(limit))]

    def shown(self, monitor: Monitor, ids: Collection[str]) -> dict[str, tuple[SampleView, bytes | None]]:
        """Samples with their rows, by id."""
        rows = self._connection.execute(
            sa.select(samples).where(samples.c.monitor_id == monitor.id, samples.c.id.in_(list(ids)))
        )
        return {row.id: (view_of(row, monitor.alias), row.content) for row in rows}

    def skip(self, sample_id: str) -> None:
        """Note that somebody has looked at a sample and does not know."""
        where = self._owns(samples) & (samples.c.id == sample_id)
        self._connection.execute(sa.update(samples).where(where).values(skipped=True))

    def labelled(self, monitor: Monitor, limit: int) -> Iterator[Any]:
        """(request_id, row, label, answer, correct, truth, content) of samples with a row and feedback.

        Of all runs, newest first.
        """
        sample, given = samples.c, feedback.c
        query = (
            sa.select(
                *(sample[name] for name in ("request_id", "row", "label", "answer")),
                given.correct,
                given.truth,
                sample.content,
            )
            .join(feedback, (given.sample_id == sample.id) & given.superseded_by.is_(None))
            .where(sample.monitor_id == monitor.id, sample.content.is_not(None))
            .order_by(sample.id.desc())
            .limit(limit)
        )
        yield from self._connection.execute(query)

    @staticmethod
    def _of(monitor: Monitor, label: str | None) -> sa.ColumnElement[bool]:
        where = (samples.c.monitor_id == monitor.id) & (samples.c.run == monitor.run)
        return where if label is None else where & (samples.c.label == label)


def _cell(bins: int) -> sa.ColumnElement[int]:
    """0 of a yes answer, otherwise 1 more than the bin of the probability."""
    p = sa.func.coalesce(samples.c.probability, _HALF)
    ends: Sequence[tuple[sa.ColumnElement[bool], int]] = [
        (p < (number + 1) / bins, number + 1) for number in range(bins - 1)
    ]
    return sa.case((samples.c.answer, 0), *ends, else_=bins)
