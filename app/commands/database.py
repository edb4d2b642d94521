"""`stms db`: migrate, clean up, back up, restore and copy the database."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from app.commands.options import DataOption, operator, read_settings
from app.commands.output import CommandFailed, error_console, field, listing, say
from app.domain.audit_context import AuditContext, audit_context

if TYPE_CHECKING:
    from app.store.backup import Restored
    from app.store.unit_of_work import Store

commands = typer.Typer(no_args_is_help=True)

_PAUSE_SECONDS = 0.5
_REPORT_SECONDS = 2.0
_SHOWN_MISSING = 20
_PLACES = {"objects": "object store", "database": "database"}
_COPIED = (field("name", "table"), field("rows"), ("digest", lambda row: row["digest"][:16]))


@commands.command()
def upgrade(
    data_dir: DataOption = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for a database that is starting.")
    ] = 0,
) -> None:
    """Migrate the database (STMS_DATABASE_URL, or SQLite in the data folder) to the newest schema.

    Run it before starting API processes of a new release. Running it again changes nothing.
    """
    address = read_settings(data_dir=data_dir).app_database_url
    upgrade_database(address, wait)
    say("The database is up to date.")


def upgrade_database(address: str, wait: float = 0.0) -> None:
    """Run all migrations; retry for ``wait`` seconds while the database is unreachable."""
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
def current(
    data_dir: DataOption = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for the database and its migration.")
    ] = 0,
) -> None:
    """Check that the database has the newest schema; exit code 1 if not.

    With --wait, as in an init container, it is checked until then; what is waited for goes to standard error.

    Example:  stms db current --wait 300
    """
    read_settings(data_dir=data_dir)  # Settings that are not valid are no reason to wait.
    deadline, reported = time.monotonic() + wait, ""
    while True:
        try:
            with open_store(data_dir):
                break
        except CommandFailed as failure:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            if failure.message != reported:
                error_console().print(f"Waiting for up to {left:.0f} s: {escape(failure.message)}")
                reported = failure.message
            time.sleep(min(_PAUSE_SECONDS, left))
    say("The database is up to date.")


@commands.command()
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted.")] = False,
    data_dir: DataOption = None,
) -> None:
    """Delete data that the retention settings (STMS_RETAIN_…) no longer keep. A worker does so every hour."""
    from app.services.performance import forget_old_samples
    from app.services.retention import clean as clean_up
    from app.services.retention import what_to_clean

    settings = read_settings(data_dir=data_dir)
    with open_store(data_dir) as store:
        counts = what_to_clean(store, settings) if dry_run else clean_up(store, settings)
        old = forget_old_samples(store, settings, dry_run=dry_run)
    done = "Would delete" if dry_run else "Deleted"
    say(
        f"{done}: {counts.jobs} old jobs, {counts.requests} idempotency keys, {counts.audit} audit records, "
        f"{counts.blobs} unused blobs of {counts.bytes / 1e6:.1f} MB."
    )
    say(f"{done}: {counts.keys} API keys that have ended.")
    say(f"{done}: {counts.inputs} hourly counts of the inputs and answers of queries.")
    say(f"{done}: {counts.deliveries} deliveries to webhooks, {counts.evaluations} evaluations.")
    say(f"{done}: {old} samples of answers.")


@commands.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")], data_dir: DataOption = None
) -> None:
    """Copy the SQLite databases consistently. The service may be running.

    Example:  stms db backup /backups/$(date +%F)
    """
    from app.store.backup import back_up

    manifest = back_up(read_settings(data_dir=data_dir), folder)
    total = sum(file.size for file in manifest.files.values())
    say(f"{folder}: {', '.join(manifest.files)}, {total / 1e6:.1f} MB, schema {manifest.schema}.")


@commands.command()
def restore(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder made by `backup`.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing databases.")] = False,
    revoke_keys: Annotated[
        bool, typer.Option("--revoke-keys", help="Revoke all keys, and make a new first key in admin.key.")
    ] = False,
    data_dir: DataOption = None,
) -> None:
    """Replace the SQLite databases with a backup. Stop the service first.

    All sessions of the dashboard end. A key that was revoked or rotated after the backup stays so if the
    replaced database can still be read; otherwise its old text is valid again, unless --revoke-keys is given.
    """
    from app.services.first_key import replace_all_keys
    from app.store.backup import restore as restore_backup

    settings = read_settings(data_dir=data_dir)
    restored = restore_backup(settings, folder, overwrite=overwrite)
    say(f"Restored the backup of {local(restored.manifest.created_at)}. All sessions have ended.")
    _say_what_is_missing(restored.missing)
    if revoke_keys:
        upgrade_database(settings.app_database_url)
        with open_store(data_dir) as store:
            path = replace_all_keys(store, settings.data_dir)
        say(f"All keys are revoked; a new first key is in {path}. Start the service.")
        return
    _say_which_keys_are_valid(restored)
    say("Run `stms db upgrade` before starting the service.")


@commands.command()
def copy(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="An empty database, postgresql://USER@HOST/NAME. A password is better kept in ~/.pgpass or"
            " PGPASSWORD: other users see options in the list of processes.",
        ),
    ],
    data_dir: DataOption = None,
) -> None:
    """Copy everything from SQLite to PostgreSQL: data sets, jobs, models, keys, audit log. Stop the service.

    Both copies of each table are compared. The SQLite files stay as they are.

    Example:  stms db copy --to postgresql://stms@db.example/stms
    """
    from app.store.database_copy import copy_database

    with database_reached():
        copied = copy_database(read_settings(data_dir=data_dir), to)
    listing([table._asdict() for table in copied if table.rows], _COPIED, empty="").print(as_json=False)
    say("All tables are the same in both databases. Set STMS_DATABASE_URL to the new one, and start again.")


@commands.command("move-blobs")
def move_blobs(
    to: Annotated[
        Literal["objects", "database"],
        typer.Option("--to", help="objects: the object store of STMS_BLOBS, for blobs of 256 KiB and more."),
    ],
    data_dir: DataOption = None,
) -> None:
    """Move the bytes of data sets, teachers and students to the object store of STMS_BLOBS, or back.

    The service may be running, if its processes have the same STMS_BLOBS. Each blob is copied, read back and
    compared before it is used in its new place. Run it again after an interruption: it goes on.

    Example:  stms db move-blobs --to objects
    """
    from app.store.blob_moves import Moved
    from app.store.blob_moves import move_blobs as move
    from app.store.bodies import Place

    last = 0.0

    def report(moved: Moved) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_SECONDS:
            last = time.monotonic()
            error_console().print(
                f"{moved.blobs} of {moved.total_blobs} blobs, {moved.bytes / 1e6:.1f} of"
                f" {moved.total_bytes / 1e6:.1f} MB"
            )

    _require_blobs(data_dir)
    with open_store(data_dir) as store:
        moved = move(store, Place(to), report)
    say(f"Moved {moved.blobs} blobs of {moved.bytes / 1e6:.1f} MB to the {_PLACES[to]}.")


@commands.command("check-blobs")
def check_blobs(data_dir: DataOption = None) -> None:
    """Check that the object store of STMS_BLOBS has every blob that the database says to be there.

    Run it after restoring a database. Exit code 1 if any is missing; each is named with what refers to it.
    """
    from app.store.blob_moves import missing_objects

    _require_blobs(data_dir)
    with open_store(data_dir) as store:
        with store.read() as uow:
            count = uow.blobs.count_objects()
        missing = [
            f"{one.digest} of {one.size} bytes, used by: {', '.join(one.used_by)}"
            for one in missing_objects(store)
        ]
    if missing:
        raise CommandFailed(f"{len(missing)} of {count} objects are missing or cut off.", missing)
    say(f"The object store has all {count} blobs that the database says to be there.")


def _require_blobs(data_dir: Path | None) -> None:
    if not read_settings(data_dir=data_dir).blobs:
        raise CommandFailed("There is no object store.", ["Set STMS_BLOBS, such as to s3://bucket/stms."])


def _say_what_is_missing(digests: Sequence[str]) -> None:
    for digest in digests[:_SHOWN_MISSING]:
        say(f"Missing in the object store: {digest}")
    if digests:
        say(
            f"{len(digests)} objects are missing: what needs them answers with the error blob_missing."
            " Restore them from older versions of the bucket; `stms db check-blobs` looks again."
        )


def _say_which_keys_are_valid(restored: Restored) -> None:
    if restored.ended is None:
        say(
            "There was no readable database to replace, so keys that were revoked or rotated after the "
            "backup are valid again with their old texts. Revoke those (`stms keys revoke`), or restore with "
            "--overwrite --revoke-keys."
        )
    elif restored.ended:
        say(f"{restored.ended} keys that were revoked or rotated after the backup stay so.")
    for key in restored.valid:
        used = "never used" if key.last_used_at is None else f"last used {local(key.last_used_at)}"
        say(f"Valid: {key.id} {key.name!r} ({', '.join(key.scopes)}), {used} before the backup.")


def local(moment: float) -> str:
    """A time in seconds since the epoch as text, in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


@contextmanager
def open_store(data_dir: Path | None) -> Iterator[Store]:
    """Open the database of the settings.

    Raises CommandFailed if it is unreachable or out of date, and SchemaUnknown, for which no waiting helps.
    """
    from app.store.migrate import SchemaOutdated, require_current_schema
    from app.store.opening import open_store as open_parts

    store = open_parts(read_settings(data_dir=data_dir), "command")
    try:
        with database_reached(), audit_context(AuditContext(operator())):
            try:
                require_current_schema(store.engine)
            except SchemaOutdated as error:
                raise CommandFailed(str(error)) from error
            yield store
    finally:
        store.dispose()


@contextmanager
def database_reached() -> Iterator[None]:
    """Raise CommandFailed if the database cannot be reached."""
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except OperationalError as error:
        raise CommandFailed("The database cannot be reached.", [str(error.orig).strip()]) from error
