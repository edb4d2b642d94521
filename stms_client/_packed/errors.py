# Copied from `core/errors.py` by ``make client``: do not edit.
"""What can go wrong in the numerical core.

CoreError
├── InvalidProblem      the caller's data or hyper-parameters cannot be used; carries every Fault found
├── InvalidPackage      bytes that are not a packed student or teacher
└── Cancelled           the caller asked to stop
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input.

    field: name of the argument or column at fault, e.g. ``"X"`` or ``"student.C"``.
    code: short stable word for programs, e.g. ``"not_finite"``.
    message: one sentence for people.
    row, column: zero-based position where there is one.
    """

    field: str
    code: str
    message: str
    row: int | None = None
    column: int | None = None


class CoreError(Exception):
    """Base of all errors raised by ``core``."""


class InvalidProblem(CoreError, ValueError):
    """Data or hyper-parameters that cannot be used. ``faults`` holds at least one Fault."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults
        super().__init__("; ".join(fault.message for fault in faults))


class InvalidPackage(CoreError, ValueError):
    """Bytes that are not a packed student or teacher, or that fail their digest."""


class Cancelled(CoreError):
    """The caller's ``should_cancel`` said yes."""
