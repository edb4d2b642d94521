"""Several students of one model version at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from app.domain.errors import InputFault, NotFound
from app.serving.cache import ModelCache
from app.serving.servable import ServableStudent

_NO_STUDENT: Final = ("class_not_found", "student_not_found")
_NAMED: Final = 10


async def students_of(cache: ModelCache, reference: str, labels: Sequence[str]) -> list[ServableStudent]:
    """The students of different classes, all of one and the same version, loaded if need be.

    Raises NotFound naming every class that has none, and Unavailable.
    """
    found = [served for label in labels if (served := cache.get(reference, label)) is not None]
    if len(found) == len(labels):
        # Looked up in one go: no alias moved in between.
        return found
    found = await _load(cache, reference, labels)
    newest = max(served.version for served in found)
    if any(served.version != newest for served in found):
        # An alias moved while they were loaded.
        found = await _load(cache, f"{found[0].model}@{newest}", labels)
    return found


async def _load(cache: ModelCache, reference: str, labels: Sequence[str]) -> list[ServableStudent]:
    results = await asyncio.gather(
        *(cache.student(reference, label) for label in labels), return_exceptions=True
    )
    missing: dict[str, NotFound] = {}
    found: list[ServableStudent] = []
    for label, result in zip(labels, results, strict=True):
        if isinstance(result, NotFound) and result.reason in _NO_STUDENT:
            missing[label] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            found.append(result)
    if missing:
        raise _not_found(reference, missing)
    return found


def _not_found(reference: str, missing: dict[str, NotFound]) -> NotFound:
    names = ", ".join(repr(label) for label in list(missing)[:_NAMED])
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return NotFound(
        f"Model {reference!r} has no student for {names}{more}.",
        code=min(error.reason for error in missing.values()),
        faults=[InputFault("classes", error.reason, error.message) for error in missing.values()],
    )
