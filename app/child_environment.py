"""The environment variables of child processes that work on bytes of others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_KEPT_VARIABLES: Final = ("PATH", "PYTHON", "LANG", "LC_", "TMPDIR", "LD_LIBRARY_PATH")
"""Beginnings of the names of the environment variables that a child gets."""
_OWN_VARIABLES: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}


def child_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Variables of a child with one thread: ``own`` and few of this process, none with a secret.

    The address of the database, for one, is not among them.
    """
    kept = {name: text for name, text in os.environ.items() if name.startswith(_KEPT_VARIABLES)}
    return kept | _OWN_VARIABLES | dict(own)
