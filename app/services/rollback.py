"""Rollback on an alarm: an alias goes back to the version that it had before, where a monitor says so.

It undoes only what a program has done. It never goes past a move that a person made, goes back once and not
farther, and does nothing because feedback is missing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from app.domain.audit_context import SYSTEM, Actor, AuditContext, audit_context
from app.domain.entities import ModelVersion
from app.domain.errors import NotFound
from app.domain.monitors import Monitor
from app.services.schema_changes import changes_between
from app.store.unit_of_work import UnitOfWork

ROLLBACK: Final = Actor(SYSTEM.id, "rollback")
"""Who moves an alias back, in the audit log and in its history."""
MAX_AGE_DAYS: Final = 90.0
"""An older version is not gone back to."""
_DAY: Final = 86_400.0


class Rollback(NamedTuple):
    """What an alarm did to an alias. version: that it went back to; None where it stays. reason: why it
    stays, in a word.
    """

    version: int | None
    reason: str | None


def roll_back(uow: UnitOfWork, monitor: Monitor, present: ModelVersion, now: float) -> Rollback:
    """Move the alias of a monitor that has given an alarm back, if it may be.

    The alias stays, with the reason in the answer: ``moved_by_hand`` (a person chose this version),
    ``no_version_before``, ``after_rollback`` (it went back already), ``version_deleted``, ``too_old``,
    ``schema_change`` (the version before refuses what this one answers) and ``alarm_before`` (the version
    before broke a promise itself). The caller has locked the monitor.
    """
    model, alias = monitor.model, monitor.alias
    uow.registry.lock()
    target = _target(uow, monitor, present, now)
    if isinstance(target, str):
        return Rollback(None, target)
    with audit_context(AuditContext(ROLLBACK)):
        details = {"version": target.version, "from": present.version, "monitor": monitor.id}
        uow.audit.append("alias.rollback", f"{model}@{alias}", details=details)
        uow.models.roll_back(model, alias, target.version)
    return Rollback(target.version, None)


def _target(uow: UnitOfWork, monitor: Monitor, present: ModelVersion, now: float) -> ModelVersion | str:
    """The version to go back to, or why there is none."""
    model, alias = monitor.model, monitor.alias
    if uow.models.was_moved_by_hand(model, alias):
        return "moved_by_hand"
    moves, _ = uow.models.moves(model, alias, limit=1)
    if not moves or moves[0].previous is None or moves[0].version != present.version:
        return "no_version_before"
    if (moves[0].actor, moves[0].actor_name) == (ROLLBACK.id, ROLLBACK.name):
        return "after_rollback"
    try:
        target = uow.models.version(model, moves[0].previous)
    except NotFound:
        return "version_deleted"
    if now - target.created_at > _DAY * MAX_AGE_DAYS:
        return "too_old"
    if uow.evidence.had_alarm(monitor):
        return "alarm_before"
    return "schema_change" if changes_between(uow, present, target) else target


def rolled_back_from(uow: UnitOfWork, model: str, alias: str) -> tuple[int | None, float] | None:
    """(version, time) of the last move of an alias, if it was a rollback; None otherwise."""
    moves, _ = uow.models.moves(model, alias, limit=1)
    if not moves or (moves[0].actor, moves[0].actor_name) != (ROLLBACK.id, ROLLBACK.name):
        return None
    return moves[0].previous, moves[0].at
