"""Checks of hyper-parameters: each gives the Fault it finds, so that all faults are told at once."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral, Real

from core.errors import Fault, InvalidProblem


def refuse(*faults: Fault | None) -> None:
    """Raise InvalidProblem with every fault that is not None; return when there is none."""
    found = [fault for fault in faults if fault is not None]
    if found:
        raise InvalidProblem(*found)


def out_of_bounds(
    field: str, value: object, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> Fault | None:
    """A Fault unless ``value`` is a real number in [low, high], the marked ends excluded. NaN is outside."""
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        above = low < number if open_low else low <= number
        below = number < high if open_high else number <= high
        if above and below:
            return None
    interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    return Fault(field, "out_of_bounds", f"{field} must be a number in {interval}, got {value!r}")


def not_whole(field: str, value: object, low: int, high: int) -> Fault | None:
    """A Fault unless ``value`` is an integer in [low, high]."""
    if isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high:
        return None
    return Fault(field, "out_of_bounds", f"{field} must be an integer in [{low}, {high}], got {value!r}")


def unknown_choice(field: str, value: object, choices: Collection[str]) -> Fault | None:
    """A Fault unless ``value`` is one of ``choices``."""
    if isinstance(value, str) and value in choices:
        return None
    return Fault(field, "unknown_choice", f"{field} must be one of {', '.join(choices)}, got {value!r}")
