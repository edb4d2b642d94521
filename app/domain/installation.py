"""Whether this installation can train: with only `requirements/serving.txt` it answers queries only."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from app.domain.errors import OnlyServes

_ENGINE: Final = "dbos"
"""The package that runs jobs; installations that only answer queries have none."""


@cache
def only_serves() -> bool:
    """Whether this installation lacks the packages that read data files and train."""
    return find_spec(_ENGINE) is None


def has_jobs(bundle: Path | None) -> bool:
    """Whether a server of this installation runs jobs. bundle: what it serves instead of a database."""
    return bundle is None and not only_serves()


def require_training() -> None:
    """Raise OnlyServes if `only_serves` is true."""
    if only_serves():
        raise only_serves_error()


def only_serves_error() -> OnlyServes:
    """The error to raise if this installation cannot train."""
    return OnlyServes(
        "This installation only answers queries. Data sets, heads and jobs need a full one:"
        " the packages of requirements/runtime.txt, or an image that is built without LOCK=serving."
    )
