"""Limits of the memory that solvers take, which those who plan a run know without loading a solver."""

from __future__ import annotations

from typing import Final

MOST_PLANE_ENTRIES: Final = 50_000_000
"""Dual variables of active examples, beyond which ``crammer_singer`` combines no steps: see `PLANE_BYTES`."""
PLANE_BYTES: Final = 32
"""Bytes for each of these variables while steps are combined."""
