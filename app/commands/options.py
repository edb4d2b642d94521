"""Options shared by the local commands: data folder and settings."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from app.domain.audit_context import Actor
from app.settings import Settings

DataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the databases. [default: STMS_DATA_DIR or stms-data]"),
]


def read_settings(**options: Any) -> Settings:
    """Settings from the environment; options that are not None override them.

    Only this user can read the files that the process creates from now on, such as databases and backups.
    """
    os.umask(0o077)
    return Settings(**{name: value for name, value in options.items() if value is not None})


def operator() -> Actor:
    """The operating-system user, as the actor of audit records that local commands write."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # In a container the user may have a numeric id and no name.
        name = str(os.getuid())
    return Actor("cli", name)
