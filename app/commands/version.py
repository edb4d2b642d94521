"""`stms version`."""

from __future__ import annotations

import platform
from importlib.metadata import version as installed_version

from app.commands.output import say


def version() -> None:
    """Show the versions of STMS and Python."""
    say(f"stms {installed_version('stms')}, Python {platform.python_version()}")
