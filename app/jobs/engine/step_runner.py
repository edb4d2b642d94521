"""Runs durable steps, each in one transaction together with its checkpoint by DBOS."""

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
from app.jobs.errors import JobError, JobStopped
from app.store.db_errors import exceeded_limit, unavailable_of
from app.store.unit_of_work import Store, UnitOfWork

P = ParamSpec("P")

_MAX_TIMEOUTS: Final = 10
"""Largest number of attempts at a step that exceed the database's time limits; a frozen worker causes one."""


@dataclass(frozen=True, slots=True)
class Step(Generic[P]):
    """A function that writes in one transaction and returns JSON. Calling it runs it without a checkpoint.

    name: DBOS stores it with every result, and compares it when an interrupted job of an earlier release
    continues. It never changes, even if the function is renamed.
    """

    name: str
    function: Callable[Concatenate[UnitOfWork, P], Json]

    def __call__(self, uow: UnitOfWork, *arguments: P.args, **options: P.kwargs) -> Json:
        return self.function(uow, *arguments, **options)


def durable_step(
    name: str,
) -> Callable[[Callable[Concatenate[UnitOfWork, P], Json]], Step[P]]:
    """Declare a function as the step with this name in DBOS's records."""
    return lambda function: Step(name, function)


class StepRunner:
    """Runs steps of workflows. While the database is unavailable, it waits until ``check_stop`` raises.

    A step that exceeds the database's time limits ten times ends its job, because it would never succeed.
    """

    def __init__(
        self, store: Store, datasource: SQLAlchemyDatasource, check_stop: Callable[[], None]
    ) -> None:
        self.store = store
        self._datasource = datasource
        self._is_sqlite = store.engine.dialect.name == "sqlite"
        self._attempts = _Attempts(check_stop)
        event.listen(store.engine, "handle_error", self._attempts.note)

    def run(self, step: Step[P], *arguments: P.args, **options: P.kwargs) -> Json:
        """The step's result; after a crash, the recorded result.

        Raises JobStopped as the step does, and JobError (``step_too_slow``).
        """
        return self.run_if_new(step, *arguments, **options)[0]

    def run_if_new(self, step: Step[P], *arguments: P.args, **options: P.kwargs) -> tuple[Json, bool]:
        """Like `run`; also returns whether the step ran now, and not before a crash."""
        ran = False

        def in_transaction() -> Json:
            nonlocal ran
            ran = True
            if self._attempts.timeouts >= _MAX_TIMEOUTS:
                return {"timeouts": self._attempts.timeouts}
            uow = UnitOfWork(self._datasource.sql_session().connection(), tenant=None)
            try:
                return step(uow, *arguments, **options)
            except JobStopped as stopped:
                # DBOS would log an exception with its traceback, although the step has written nothing.
                return {"refused": str(stopped)}

        # Steps of one job already wait for each other on the job's row, so PostgreSQL's
        # SERIALIZABLE would only
        # add failures.
        with self._attempts:
            result = self._datasource.run_tx_step(
                {
                    "name": step.name,
                    "isolation_level": "SERIALIZABLE" if self._is_sqlite else "READ COMMITTED",
                },
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


class _Attempts(threading.local):
    """The attempts at this thread's current step. DBOS repeats attempts whose errors may pass.

    DBOS does so after certain errors, and after each error that ends the connection. After other such errors,
    `note` ends the connection.
    timeouts: number of attempts that exceeded the database's time limits.
    """

    def __init__(self, check_stop: Callable[[], None]) -> None:
        self._check_stop = check_stop
        self._is_running = False
        self.timeouts = 0

    def __enter__(self) -> None:
        self._is_running = True
        self.timeouts = 0

    def __exit__(self, *_error: object) -> None:
        self._is_running = False

    def note(self, context: ExceptionContext) -> None:
        """Listener of SQLAlchemy's "handle_error". An exception from the check for a stop ends the step."""
        error = context.sqlalchemy_exception
        if not self._is_running or not isinstance(error, DBAPIError):
            return
        self._check_stop()
        self.timeouts += exceeded_limit(error)
        if unavailable_of(error) is not None and not context.is_disconnect:
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False
