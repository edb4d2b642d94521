"""`stms db`: the database of the service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import DataOption, read_settings
from app.commands.output import CommandFailed, say

if TYPE_CHECKING:
    from app.store.unit_of_work import Store

commands = typer.Typer(no_args_is_help=True)

_PAUSE_SECONDS = 0.5


@commands.command()
def upgrade(
    data_dir: DataOption = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for a database that is still starting.")
    ] = 0,
) -> None:
    """Bring the database (STMS_DATABASE_URL, or SQLite in the data folder) to the newest schema.

    Safe to run again; run it before starting API processes of a new release.
    """
    address = read_settings(data_dir=data_dir).app_database_url
    upgrade_database(address, wait)
    say("The database is up to date.")


def upgrade_database(address: str, wait: float = 0.0) -> None:
    """Run all migrations, for ``wait`` seconds again and again if the database is not there yet."""
    from app.store.migrate import upgrade as migrate

    deadline = time.monotonic() + wait
    while True:
        try:
            with database_reached():
                migrate(address)
        except CommandFailed:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


@commands.command()
def current(data_dir: DataOption = None) -> None:
    """Say whether the database has the newest schema; exit code 1 if not."""
    with open_store(data_dir):
        say("The database is up to date.")


@contextmanager
def open_store(data_dir: Path | None) -> Iterator[Store]:
    """The database of this machine's settings. Raises CommandFailed if it is unreachable or out of date."""
    from app.store.engine import open_engine
    from app.store.migrate import schema_is_current
    from app.store.unit_of_work import Store

    store = Store(open_engine(read_settings(data_dir=data_dir).app_database_url))
    try:
        with database_reached():
            if not schema_is_current(store.engine):
                raise CommandFailed("The database has an older schema, or none.", ["Run `stms db upgrade`."])
            yield store
    finally:
        store.dispose()


@contextmanager
def database_reached() -> Iterator[None]:
    """A database that cannot be reached is a sentence, not a traceback."""
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except OperationalError as error:
        raise CommandFailed("The database cannot be reached.", [str(error.orig).strip()]) from error
