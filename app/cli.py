"""Assembles the command line ``stms`` from the commands in `app.commands`."""

from __future__ import annotations

from app.import_path import leave_out_working_folder

if __name__ == "__main__":
    # With `python -m` the imports below would be looked up in the working folder first.
    leave_out_working_folder()

import sys
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from app.commands.output import CommandFailed, failures_printed, print_failure
from app.domain.errors import SetupError
from app.plugins import load_plugins

_ABOUT = """Single-teacher multi-student classification: train one teacher and a small student for each class,
then ask “is this the target class?” at the cost of one student.

Start with `stms demo`, or with `stms serve` and then `stms train FILE --model NAME`.
The address of a server comes from --server or STMS_URL, the API key from STMS_API_KEY or, on the server's
machine, from the file admin.key in STMS_DATA_DIR or ./stms-data.
Exit codes: 0 success, 1 failure, 2 invalid usage."""


class _Commands(TyperGroup):
    """Prints expected errors as a message with exit code 1; other exceptions are bugs and are not caught."""

    def invoke(self, ctx: Any) -> object:
        with failures_printed():
            return super().invoke(ctx)


class _Entry(NamedTuple):
    """A command, which is the function of its name, or a group, which is what its module calls ``commands``.

    module: name of the module in `app.commands`. group_help: None for a command, whose docstring is its help.
    """

    name: str
    module: str
    group_help: str | None = None

    def add_to(self, app: typer.Typer, panel: str) -> None:
        """Import the module, and add the command to a panel of the help."""
        module = import_module(f"app.commands.{self.module}")
        if self.group_help is None:
            app.command(self.name, rich_help_panel=panel)(getattr(module, self.name))
        else:
            app.add_typer(module.commands, name=self.name, help=self.group_help, rich_help_panel=panel)


_PANELS: Final = {
    "On this machine": (
        _Entry("serve", "processes"),
        _Entry("api", "processes"),
        _Entry("worker", "processes"),
        _Entry("demo", "demo"),
        _Entry("db", "database", "The database of the service."),
        _Entry("keys", "keys", "API keys."),
        _Entry("hyperparameters", "hyperparameters"),
        _Entry("openapi", "openapi"),
        _Entry("version", "version"),
    ),
    "On a running server": (
        _Entry("datasets", "datasets", "Data sets."),
        _Entry("train", "train"),
        _Entry("jobs", "jobs", "Training jobs."),
        _Entry("models", "models", "Models, versions, aliases."),
        _Entry("evaluate", "evaluate"),
        _Entry("evaluations", "evaluations", "Evaluations of versions on data sets."),
        _Entry("aliases", "aliases", "Gates of aliases."),
        _Entry("classes", "classes", "Add, rename and remove classes of models."),
        _Entry("bundle", "bundles", "Versions as files."),
        _Entry("monitors", "monitors", "What aliases promise in production."),
        _Entry("feedback", "feedback", "Say of answers whether they were right."),
        _Entry("encoders", "encoders", "Own encoders of pictures."),
        _Entry("webhooks", "webhooks", "Events sent to other programs."),
        _Entry("workers", "workers"),
        _Entry("servers", "servers"),
        _Entry("whoami", "servers"),
        _Entry("usage", "usage"),
        _Entry("query", "query"),
        _Entry("audit", "audit"),
        _Entry("ping", "ping"),
    ),
}


def _no_options() -> None:
    """The program has no options of its own."""


def build(only: str | None = None) -> typer.Typer:
    """Build the Typer application: the command or group of this name alone, or all if there is none.

    A process of the server has 250 modules less to load than a program that lists all commands.
    """
    app = typer.Typer(
        name="stms",
        help=_ABOUT,
        cls=_Commands,
        callback=_no_options,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    alone = any(entry.name == only for entries in _PANELS.values() for entry in entries)
    for panel, entries in _PANELS.items():
        for entry in entries:
            if not alone or entry.name == only:
                entry.add_to(app, panel)
    return app


def main() -> None:
    """Entry point of the command ``stms``."""
    leave_out_working_folder()
    try:
        load_plugins()
    except SetupError as error:
        print_failure(CommandFailed(str(error)))
        sys.exit(1)
    build(sys.argv[1] if len(sys.argv) > 1 else None)()


if __name__ == "__main__":
    main()
