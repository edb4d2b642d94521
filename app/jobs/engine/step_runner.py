"""Running the steps of a workflow: each in one transaction with the engine's checkpoint of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dbos import SQLAlchemyDatasource
from dbos._datasource import DatasourceOptions, IsolationLevel
from sqlalchemy.exc import DBAPIError

from app.domain.entities import Json
from app.jobs.workflow.cancellation import JobStopped, stop_if
from app.jobs.workflow.steps import Refused
from app.store.db_errors import unavailable_of
from app.store.unit_of_work import Store, UnitOfWork


class Ledger:
    """The database as the workflows write to it. One that is away is waited for, until the worker ends."""

    def __init__(self, store: Store, datasource: SQLAlchemyDatasource, stopping: threading.Event) -> None:
        self.store = store
        self._datasource = datasource
        on_sqlite = store.engine.dialect.name == "sqlite"
        # Writers of one job wait for each other on its row, so a stricter level would only make them fail.
        self._isolation: IsolationLevel = "SERIALIZABLE" if on_sqlite else "READ COMMITTED"
        _be_patient(datasource, stopping)

    def step(self, function: Callable[..., Json], *arguments: Any) -> Json:
        """Run one of `steps`; after a crash what it gave then. Raises JobStopped when it refuses."""
        return self.step_anew(function, *arguments)[0]

    def step_anew(self, function: Callable[..., Json], *arguments: Any) -> tuple[Json, bool]:
        """As `step`, and whether it was run now, not before a crash. Raises JobStopped."""
        ran = False

        def in_transaction() -> Json:
            nonlocal ran
            ran = True
            uow = UnitOfWork(self._datasource.sql_session().connection())
            try:
                return function(uow, *arguments)
            except Refused as refused:
                # Not an error to the engine, which would note it with a traceback: nothing was written.
                return {"refused": str(refused)}

        options = DatasourceOptions(name=function.__name__, isolation_level=self._isolation)
        found = self._datasource.run_tx_step(options, in_transaction)
        if "refused" in found:
            raise JobStopped(found["refused"])
        return found, ran


def _be_patient(datasource: SQLAlchemyDatasource, stopping: threading.Event) -> None:
    """Have the engine try a step again after every error that waiting may cure, not only those it knows."""
    known = datasource._is_serialization_error

    def may_pass(error: Exception) -> bool:
        stop_if(stopping)
        return known(error) or (isinstance(error, DBAPIError) and unavailable_of(error) is not None)

    datasource._is_serialization_error = may_pass  # type: ignore[method-assign]
