"""The parameters of a query string or form: those that a path does not have are refused, never ignored."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from app.domain.errors import InputFault, InvalidRequest
from app.domain.near_names import near_name

_MAX_UNKNOWN: Final = 20


def check_known(given: Iterable[str], known: Collection[str], *, noun: str = "parameter") -> None:
    """Raise InvalidRequest for parameters that are not ``known``; it says which there are.

    noun: what they are, ``parameter`` of a query string or ``field`` of a form.
    """
    unknown = sorted(set(given).difference(known))
    if not unknown:
        return
    names = sorted(known)
    there = f"only {', '.join(names)}" if names else "and this path has none"
    near = near_name(unknown[0], names)
    hint = f" Is {near!r} meant?" if near else ""
    faults = [
        InputFault(name, f"unknown_{noun}", f"There is no {noun} {name!r:.100}, {there}.")
        for name in unknown[:_MAX_UNKNOWN]
    ]
    raise InvalidRequest(faults[0].message + hint, code=f"unknown_{noun}", faults=faults)
