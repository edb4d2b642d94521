"""Limits of the memory of solvers, in a module that can be imported without loading a solver."""

from __future__ import annotations

from typing import Final

MOST_PLANE_ENTRIES: Final = 50_000_000
"""With more dual variables of active examples, ``crammer_singer`` combines no steps, see `PLANE_BYTES`."""
PLANE_BYTES: Final = 32
"""Bytes for each of these variables while steps are combined."""
