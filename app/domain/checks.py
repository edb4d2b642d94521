"""Checks of whether a server can do its work, for probes and operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.domain.errors import ServiceError


class CheckFailed(Exception):
    """Why a check failed, as a message for the operator."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. needed: whether the server is not ready if it fails."""

    name: str
    ok: bool
    needed: bool
    detail: str


def check(name: str, run: Callable[[], str], *, needed: bool = True) -> Check:
    """The result of ``run``, which returns a detail or raises CheckFailed or a ServiceError."""
    try:
        return Check(name, True, needed, run())
    except (CheckFailed, ServiceError) as error:
        return Check(name, False, needed, str(error))


def is_ready(checks: Sequence[Check]) -> bool:
    """Whether all needed checks succeeded."""
    return all(each.ok for each in checks if each.needed)
