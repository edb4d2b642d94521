"""Priorities of work in the queue of units."""

from __future__ import annotations

from typing import Final

from app.domain.entities import Priority

_LEVELS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
_POSITIONS_PER_LEVEL: Final = 2**29


def priority_level(priority: Priority) -> int:
    """Level in the queue: units of a smaller level are always taken first."""
    return _LEVELS[priority]


def queue_priority(level: int, turn: int) -> int:
    """Priority for DBOS, from 1: smaller is sooner. turn: start tag of the tenant's fair queueing."""
    return level * _POSITIONS_PER_LEVEL + min(turn, _POSITIONS_PER_LEVEL - 1)
