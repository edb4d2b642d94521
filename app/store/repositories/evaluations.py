"""Evaluations of versions on data sets."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from app.domain.entities import JobState, Json
from app.domain.errors import Conflict, NotFound
from app.domain.evaluation import Evaluation, ListedEvaluation
from app.store.dialect import clock_expression, on_postgresql
from app.store.evaluation_tables import evaluations, is_evaluated
from app.store.paging import bounded_page
from app.store.repositories.outbox import Outbox
from app.store.repositories.scoped import Scoped
from app.store.row_bytes import set_row_bytes

_LISTED: Final = [evaluations.c[field.name] for field in dataclasses.fields(ListedEvaluation)]
_ACTIVE: Final = (JobState.QUEUED.value, JobState.RUNNING.value)
_REPORT: Final = ("classes", "not_compared")


class UnfinishedEvaluation(NamedTuple):
    """The fields of an evaluation that are needed to queue it."""

    id: str
    tenant: str
    created_by: str


class Evaluations(Scoped):
    """Queries on evaluations. A change of one that has ended changes nothing."""

    def add(self, evaluation: Evaluation) -> None:
        """Insert an evaluation."""
        self._check_owner(evaluation.tenant)
        values = {
            name: value for name, value in dataclasses.asdict(evaluation).items() if name not in _REPORT
        }
        values |= {"state": evaluation.state.value, "warnings": list(evaluation.warnings)}
        self._connection.execute(sa.insert(evaluations), values)
        set_row_bytes(self._connection, evaluations, evaluations.c.id == evaluation.id)

    def get(self, evaluation_id: str, *, lock: bool = False) -> Evaluation:
        """One evaluation. lock: lock its row until the end of the transaction. Raises NotFound."""
        query = sa.select(*_LISTED, evaluations.c.report).where(self._is(evaluation_id))
        if lock and on_postgresql(self._connection):
            query = query.with_for_update()
        row = self._connection.execute(query).first()
        if row is None:
            raise NotFound(f"There is no evaluation {evaluation_id!r}.", code="evaluation_not_found")
        values = dict(row._mapping)
        report = values.pop("report")
        found: Json = {} if report is None else json.loads(zlib.decompress(report))
        return Evaluation(**values | {"state": JobState(values["state"])} | found)

    def state(self, evaluation_id: str) -> JobState:
        """The state of an evaluation, for callers that read it often. Raises NotFound."""
        state = self._connection.execute(
            sa.select(evaluations.c.state).where(self._is(evaluation_id))
        ).scalar()
        if state is None:
            raise NotFound(f"There is no evaluation {evaluation_id!r}.", code="evaluation_not_found")
        return JobState(state)

    def page(
        self, *, limit: int, after: str | None = None, **equal: str | None
    ) -> tuple[Sequence[ListedEvaluation], bool]:
        """Evaluations older than id ``after``, newest first, and whether more follow; bounded in bytes, too.

        equal: required values of version, baseline and dataset_id.
        """
        query = sa.select(*_LISTED).where(
            self._owns(evaluations),
            *(evaluations.c[name] == value for name, value in equal.items() if value is not None),
        )
        if after is not None:
            query = query.where(evaluations.c.id < after)
        query = query.order_by(evaluations.c.id.desc())
        rows, has_more = bounded_page(self._connection, query, evaluations.c.row_bytes, limit)
        return [_listed(row) for row in rows], has_more

    def of_gate(
        self, version: str, baseline: str, dataset_id: str, alpha: float
    ) -> Sequence[ListedEvaluation]:
        """The succeeded evaluations of a version against another one on a data set, newest first."""
        query = sa.select(*_LISTED).where(
            self._owns(evaluations),
            evaluations.c.version == version,
            evaluations.c.dataset_id == dataset_id,
            evaluations.c.baseline == baseline,
            evaluations.c.alpha == alpha,
            evaluations.c.state == JobState.SUCCEEDED.value,
        )
        return [_listed(row) for row in self._connection.execute(query.order_by(evaluations.c.id.desc()))]

    def begin(self, evaluation_id: str) -> int | None:
        """Set an evaluation running; returns how many workers have begun it. None if it has ended."""
        started = sa.func.coalesce(evaluations.c.started_at, clock_expression(self._connection))
        return self._change_active(
            evaluation_id,
            returning=evaluations.c.starts,
            state=JobState.RUNNING.value,
            started_at=started,
            starts=evaluations.c.starts + 1,
        )

    def excuse(self, evaluation_id: str) -> None:
        """Take back a start: the worker gave the evaluation up in good order."""
        self._change_active(evaluation_id, starts=evaluations.c.starts - 1)

    def progress(self, evaluation_id: str, done: int, total: int) -> None:
        """Note how many classes are done."""
        self._change_active(evaluation_id, progress_done=done, progress_total=total)

    def succeed(self, evaluation_id: str, result: Json, report: Json) -> bool:
        """Store the result of an evaluation; returns False if it has ended already.

        result: values of columns. report: further fields of `Evaluation`.
        """
        packed = zlib.compress(json.dumps(report, separators=(",", ":")).encode("utf-8"))
        return self._end(evaluation_id, JobState.SUCCEEDED, report=packed, **result)

    def fail(self, evaluation_id: str, code: str, message: str) -> bool:
        """End an evaluation as failed; returns False if it has ended already."""
        return self._end(evaluation_id, JobState.FAILED, error_code=code, error_message=message)

    def cancel(self, evaluation_id: str) -> None:
        """End an evaluation as cancelled. Raises Conflict if it has ended."""
        if not self._end(evaluation_id, JobState.CANCELLED):
            text = f"Evaluation {evaluation_id} has already ended."
            raise Conflict(text, code="evaluation_ended")

    def delete(self, evaluation_id: str) -> None:
        """Delete an evaluation."""
        self._connection.execute(sa.delete(evaluations).where(self._is(evaluation_id)))

    def unfinished(self, *, limit: int) -> Sequence[UnfinishedEvaluation]:
        """The oldest evaluations that are queued or running."""
        columns = (evaluations.c[name] for name in UnfinishedEvaluation._fields)
        query = sa.select(*columns).where(is_evaluated, self._owns(evaluations))
        rows = self._connection.execute(query.order_by(evaluations.c.id).limit(limit))
        return [UnfinishedEvaluation(*row) for row in rows]

    def count_unfinished(self) -> int:
        """How many are queued or running."""
        query = sa.select(sa.func.count()).where(is_evaluated, self._owns(evaluations))
        return int(self._connection.execute(query).scalar_one())

    def unfinished_on(self, dataset_id: str) -> bool:
        """Whether an unfinished evaluation reads a data set."""
        query = sa.select(sa.literal(1)).where(
            is_evaluated, self._owns(evaluations), evaluations.c.dataset_id == dataset_id
        )
        return self._connection.execute(query.limit(1)).first() is not None

    def delete_before(self, moment: float) -> int:
        """Delete evaluations that ended before a time; returns how many were deleted."""
        old = sa.delete(evaluations).where(evaluations.c.finished_at < moment)
        return self._connection.execute(old).rowcount

    def count_before(self, moment: float) -> int:
        """Number of evaluations that `delete_before` would delete."""
        query = sa.select(sa.func.count()).where(evaluations.c.finished_at < moment)
        return int(self._connection.execute(query).scalar_one())

    def _end(self, evaluation_id: str, state: JobState, **values: Any) -> bool:
        values |= {"state": state.value, "finished_at": clock_expression(self._connection)}
        ended = self._change_active(evaluation_id, returning=evaluations.c.starts, **values) is not None
        if ended:
            set_row_bytes(self._connection, evaluations, self._is(evaluation_id))
            self._announce(evaluation_id)
        return ended

    def _announce(self, evaluation_id: str) -> None:
        names = ("tenant", "version", "baseline", "dataset_id", "state", "verdict")
        query = sa.select(*(evaluations.c[name] for name in names)).where(self._is(evaluation_id))
        row = dict(self._connection.execute(query).one()._mapping)
        tenant, model = row.pop("tenant"), row["version"].partition("@")[0]
        data = row | {"links": {"evaluation": f"/v1/evaluations/{evaluation_id}"}}
        Outbox(self._connection).announce("evaluation.ended", tenant, evaluation_id, data, model=model)

    def _change_active(
        self, evaluation_id: str, *, returning: sa.ColumnElement[int] | None = None, **values: Any
    ) -> int | None:
        is_active = sa.and_(self._is(evaluation_id), evaluations.c.state.in_(_ACTIVE))
        changed = sa.update(evaluations).where(is_active).values(**values)
        if returning is None:
            self._connection.execute(changed)
            return None
        found: int | None = self._connection.execute(changed.returning(returning)).scalar()
        return found

    def _is(self, evaluation_id: str) -> sa.ColumnElement[bool]:
        return sa.and_(evaluations.c.id == evaluation_id, self._owns(evaluations))


def _listed(row: sa.Row[Any]) -> ListedEvaluation:
    values = dict(row._mapping)
    return ListedEvaluation(**values | {"state": JobState(values["state"])})
