"""What the commands that run on this machine share: the data folder, and the settings of the environment."""

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


def read_settings(**given: Any) -> Settings:
    """Settings from the environment, with the options that were given on top."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def operator() -> Actor:
    """Who sits at this machine, as far as it says: the one who does what commands do to the database."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have a number only.
        name = str(os.getuid())
    return Actor("cli", name)
