"""Runs durable steps: each in one transaction with DBOS's checkpoint of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, Final, Generic, ParamSpec

from dbos import SQLAlchemyDatasource
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from app.domain.entities import Json
from app.jobs.engine.patches import retry_steps_while_unavailable
from app.jobs.errors import JobError, JobStopped
from app.store.db_errors import exceeded_limit
from app.store.unit_of_work import Store, UnitOfWork

P = ParamSpec("P")

_MAX_TIMEOUTS: Final = 10
"""Attempts at one step that the database ended for their duration. A frozen worker causes a single one."""


@dataclass(frozen=True, slots=True)
class Step(Generic[P]):
    """A function that writes in one transaction and returns JSON. Calling it runs it without a checkpoint.

    name: stored by DBOS with every result, and compared when an interrupted job of an earlier release goes
    on. It never changes, even if the function is renamed.
    """

    name: str
    function: Callable[Concatenate[UnitOfWork, P], Json]

    def __call__(self, uow: UnitOfWork, *arguments: P.args, **options: P.kwargs) -> Json:
        return self.function(uow, *arguments, **options)


def durable_step(
    name: str,
) -> Callable[[Callable[Concatenate[UnitOfWork, P], Json]], Step[P]]:
    """Declare a function as the step that DBOS knows by ``name``."""
    return lambda function: Step(name, function)


class StepRunner:
    """Runs steps of workflows. It waits for a database that is away until ``check_stop`` raises.

    A step that exceeds the database's time limits ten times ends its job: it would never succeed.
    """

    def __init__(
        self, store: Store, datasource: SQLAlchemyDatasource, check_stop: Callable[[], None]
    ) -> None:
        self.store = store
        self._datasource = datasource
        self._is_sqlite = store.engine.dialect.name == "sqlite"
        retry_steps_while_unavailable(datasource, check_stop)
        self._timeouts = _Timeouts()
        # DBOS decides itself to repeat a step after some of these errors, so that no predicate sees them all.
        event.listen(store.engine, "handle_error", self._timeouts.note)

    def run(self, step: Step[P], *arguments: P.args, **options: P.kwargs) -> Json:
        """The step's result, which after a crash is the recorded one.

        Raises JobStopped as the step does, and JobError (``step_too_slow``).
        """
        return self.run_if_new(step, *arguments, **options)[0]

    def run_if_new(self, step: Step[P], *arguments: P.args, **options: P.kwargs) -> tuple[Json, bool]:
        """As `run`, with whether the step ran now and not before a crash."""
        ran = False
        self._timeouts.count = 0

        def in_transaction() -> Json:
            nonlocal ran
            ran = True
            if self._timeouts.count >= _MAX_TIMEOUTS:
                return {"timeouts": self._timeouts.count}
            uow = UnitOfWork(self._datasource.sql_session().connection(), tenant=None)
            try:
                return step(uow, *arguments, **options)
            except JobStopped as stopped:
                # DBOS would log an exception with its traceback. The step has written nothing.
                return {"refused": str(stopped)}

        # Steps of one job wait for each other on the job's row, so PostgreSQL's SERIALIZABLE would only add
        # failures.
        result = self._datasource.run_tx_step(
            {"name": step.name, "isolation_level": "SERIALIZABLE" if self._is_sqlite else "READ COMMITTED"},
            in_transaction,
        )
        if "refused" in result:
            raise JobStopped(result["refused"])
        if "timeouts" in result:
            text = (
                f"The database ended step {step.name!r} {result['timeouts']} times, because it took too long."
            )
            raise JobError("step_too_slow", text)
        return result, ran


class _Timeouts(threading.local):
    """Number of the errors of this thread's current step that were time limits of the database."""

    count = 0

    def note(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        self.count += isinstance(error, DBAPIError) and exceeded_limit(error)
