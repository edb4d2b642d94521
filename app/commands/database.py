"""`stms db`: the database of the service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import DataOption, operator, read_settings
from app.commands.output import CommandFailed, say
from app.domain.audit_context import AuditContext, audit_context

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
            with database_reached(), audit_context(AuditContext(operator())):
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


@commands.command()
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    data_dir: DataOption = None,
) -> None:
    """Delete what the settings (STMS_RETAIN_…) do not keep any longer. A worker does so once an hour."""
    from app.services.retention import clean as clean_up
    from app.services.retention import what_to_clean

    settings = read_settings(data_dir=data_dir)
    with open_store(data_dir) as store:
        found = what_to_clean(store, settings) if dry_run else clean_up(store, settings)
    done = "Would delete" if dry_run else "Deleted"
    say(
        f"{done}: {found.jobs} old jobs, {found.requests} idempotency keys, {found.audit} audit records, "
        f"{found.blobs} unused blobs of {found.bytes / 1e6:.1f} MB."
    )


@commands.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")], data_dir: DataOption = None
) -> None:
    """Copy the embedded databases, both as of one moment, while the service runs. For SQLite.

    Example:  stms db backup /backups/$(date +%F)
    """
    from app.store.backup import back_up

    manifest = back_up(read_settings(data_dir=data_dir), folder)
    total = sum(stored.size for stored in manifest.files.values())
    say(f"{folder}: {', '.join(manifest.files)}, {total / 1e6:.1f} MB, schema {manifest.schema}.")


@commands.command()
def restore(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="What `backup` made.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the databases that are there.")
    ] = False,
    data_dir: DataOption = None,
) -> None:
    """Put a backup in the place of the embedded databases. Stop the service first. For SQLite."""
    from app.store.backup import restore as put_back

    manifest = put_back(read_settings(data_dir=data_dir), folder, overwrite=overwrite)
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created_at))
    say(f"Restored the state of {made}. Run `stms db upgrade` before starting the service.")


@contextmanager
def open_store(data_dir: Path | None) -> Iterator[Store]:
    """The database of this machine's settings. Raises CommandFailed if it is unreachable or out of date."""
    from app.store.engine import open_database
    from app.store.migrate import schema_is_current
    from app.store.unit_of_work import Store

    store = Store(open_database(read_settings(data_dir=data_dir), "command"))
    try:
        with database_reached(), audit_context(AuditContext(operator())):
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
