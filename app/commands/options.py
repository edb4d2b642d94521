"""Options shared by the local commands: data folder and settings."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from app.commands.output import CommandFailed
from app.domain.audit_context import Actor
from app.settings import Settings

DataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the databases.", show_default="STMS_DATA_DIR or stms-data"),
]


def read_settings(**options: Any) -> Settings:
    """Settings from the environment and files; options that are not None override them.

    Only this user can read the files that the process creates from now on, such as databases and backups.
    Raises CommandFailed, and BadSecretFile for a file with a secret; neither quotes a value.
    """
    os.umask(0o077)
    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        faults = [_variable(fault["loc"]) + fault["msg"] for fault in error.errors()]
        raise CommandFailed("The settings are not valid.", faults) from None
    except SettingsError as error:
        raise CommandFailed("The settings are not valid.", [f"{error}: not JSON"]) from None


def _variable(location: tuple[int | str, ...]) -> str:
    """The environment variable of a setting that is not valid, and the place in it, before a colon.

    Empty for a fault of several settings together.
    """
    if not location:
        return ""
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location[1:])
    return f"STMS_{str(location[0]).upper()}{inner}: "


def operator() -> Actor:
    """The operating-system user, as the actor of audit records that local commands write."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # In a container the user may have a numeric id and no name.
        name = str(os.getuid())
    return Actor("cli", name)
