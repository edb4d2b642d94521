"""Whether this installation trains: `requirements/serving.txt` has only what answers queries."""

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
    """Whether this installation has none of the packages that read files of data and train."""
    return find_spec(_ENGINE) is None


def has_jobs(bundle: Path | None) -> bool:
    """Whether a server of this installation has jobs. bundle: what it serves in place of a database."""
    return bundle is None and not only_serves()


def require_training() -> None:
    """Raise OnlyServes where `only_serves`."""
    if only_serves():
        raise only_serves_error()


def only_serves_error() -> OnlyServes:
    """What is raised where there is nothing that trains."""
    return OnlyServes(
        "This installation only answers queries. Data sets, heads and jobs need a full one:"
        " the packages of requirements/runtime.txt, or an image that is built without LOCK=serving."
    )
