"""Assembles the command line ``stms`` from the commands in `app.commands`."""

from __future__ import annotations

from app.import_path import leave_out_working_folder

if __name__ == "__main__":
    # With `python -m` the imports below would be looked up in the working folder first.
    leave_out_working_folder()

import platform
import sys
from importlib.metadata import version as installed_version
from typing import Any

import typer
from typer.core import TyperGroup

from app.commands import (
    audit,
    bundles,
    database,
    datasets,
    demo,
    hyperparameters,
    jobs,
    keys,
    labels,
    models,
    openapi,
    ping,
    processes,
    query,
    reproduce,
    servers,
    train,
    usage,
    webhooks,
    workers,
)
from app.commands.output import CommandFailed, print_failure, say
from app.domain.errors import ServiceError
from app.plugins import PluginFailed, load_plugins

_ABOUT = """Single-teacher multi-student classification: train one teacher and a small student for each class,
then ask “is this the target class?” at the cost of one student.

Start with `stms demo`, or with `stms serve` and then `stms train FILE --model NAME`.
The address of a server comes from --server or STMS_URL, the API key from STMS_API_KEY or, on the server's
machine, from the file admin.key in STMS_DATA_DIR or ./stms-data.
Exit codes: 0 success, 1 failure, 2 invalid usage."""


class _Commands(TyperGroup):
    """Prints expected errors as a message with exit code 1; other exceptions are bugs and are not caught."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except CommandFailed as failure:
            print_failure(failure)
        except ServiceError as error:
            print_failure(
                CommandFailed(error.message, [f"{fault.field}: {fault.message}" for fault in error.faults])
            )
        raise typer.Exit(1)


def build() -> typer.Typer:
    """Build the Typer application."""
    app = typer.Typer(
        name="stms", help=_ABOUT, cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False
    )
    home, remote = "On this machine", "On a running server"
    app.command(rich_help_panel=home)(processes.serve)
    app.command(rich_help_panel=home)(processes.api)
    app.command(rich_help_panel=home)(processes.worker)
    app.command(rich_help_panel=home)(demo.demo)
    app.add_typer(database.commands, name="db", help="The database of the service.", rich_help_panel=home)
    app.add_typer(keys.commands, name="keys", help="API keys.", rich_help_panel=home)
    app.command(rich_help_panel=home)(hyperparameters.hyperparameters)
    app.command(rich_help_panel=home)(reproduce.reproduce)
    app.command(rich_help_panel=home)(openapi.openapi)
    app.command(rich_help_panel=home)(version)
    app.add_typer(datasets.commands, name="datasets", help="Data sets.", rich_help_panel=remote)
    app.command(rich_help_panel=remote)(train.train)
    jobs.commands.command()(labels.labels)
    jobs.commands.command()(labels.correct)
    app.add_typer(jobs.commands, name="jobs", help="Training jobs.", rich_help_panel=remote)
    app.add_typer(models.commands, name="models", help="Models, versions, aliases.", rich_help_panel=remote)
    app.add_typer(bundles.commands, name="bundle", help="Versions as files.", rich_help_panel=remote)
    app.add_typer(
        webhooks.commands, name="webhooks", help="Events sent to other programs.", rich_help_panel=remote
    )
    app.command(rich_help_panel=remote)(workers.workers)
    app.command(rich_help_panel=remote)(servers.servers)
    app.command(rich_help_panel=remote)(servers.whoami)
    app.command(rich_help_panel=remote)(usage.usage)
    app.command(rich_help_panel=remote)(query.query)
    app.command(rich_help_panel=remote)(audit.audit)
    app.command(rich_help_panel=remote)(ping.ping)
    return app


def version() -> None:
    """Show the versions of STMS and Python."""
    say(f"stms {installed_version('stms')}, Python {platform.python_version()}")


def main() -> None:
    """Entry point of the command ``stms``."""
    leave_out_working_folder()
    try:
        load_plugins()
    except PluginFailed as failure:
        print_failure(CommandFailed(str(failure)))
        sys.exit(1)
    build()()


if __name__ == "__main__":
    main()
