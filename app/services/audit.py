"""Use cases of the audit log: what was refused, summed up, and looking it up.

What is done is written by the use case that does it, in its own transaction (`uow.audit.append`). What is
refused changes nothing, and anybody can cause it as often as they like: so it is summed up, and written once
in a while as one row for each address and caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from app.domain.audit_context import AuditContext
from app.domain.entities import AuditRecord
from app.store.unit_of_work import Store

REFUSED: Final = "request.refused"
_MAX_WHO: Final = 256
"""Addresses and callers between two writes that get a row of their own; all others share one."""
_MAX_CODES: Final = 16

Who: TypeAlias = tuple[str | None, str]
_OTHERS: Final[Who] = (None, "others")


@dataclass(slots=True)
class Refused:
    """What one caller at one address was refused. context, what: of the first time."""

    context: AuditContext
    what: str
    codes: Counter[str] = field(default_factory=Counter)


class Refusals:
    """What was refused since it was written last. Belongs to one thread: that of the event loop."""

    def __init__(self) -> None:
        self._seen: dict[Who, Refused] = {}

    def note(self, context: AuditContext, what: str, code: str, count: int = 1) -> None:
        """``what`` was refused with an error ``code``, so many times."""
        who = (context.address, context.actor.id)
        if who not in self._seen and len(self._seen) >= _MAX_WHO:
            who, context = _OTHERS, AuditContext()
        seen = self._seen.setdefault(who, Refused(context, what))
        seen.codes[code if code in seen.codes or len(seen.codes) < _MAX_CODES else "others"] += count

    def take(self) -> Mapping[Who, Refused]:
        """What there is to write; from now on it is somebody else's."""
        seen, self._seen = self._seen, {}
        return seen

    def put_back(self, seen: Mapping[Who, Refused]) -> None:
        """It could not be written: next time, together with what came since."""
        newer, self._seen = self._seen, dict(seen)
        for refused in newer.values():
            for code, count in refused.codes.items():
                self.note(refused.context, refused.what, code, count)


def write_refusals(store: Store, seen: Mapping[Who, Refused]) -> None:
    """One row each."""
    if seen:
        with store.begin() as uow:
            for refused in seen.values():
                [(code, _)] = refused.codes.most_common(1)
                details = {"count": refused.codes.total(), "codes": dict(refused.codes)}
                uow.audit.append(
                    REFUSED, refused.what, outcome=code, details=details, context=refused.context
                )


def list_records(
    store: Store,
    *,
    limit: int,
    after: str | None = None,
    since: float | None = None,
    until: float | None = None,
    **equal: str | None,
) -> tuple[Sequence[AuditRecord], bool]:
    """Records newest first, as `Audit.page` gives them; and whether there are more."""
    with store.read() as uow:
        return uow.audit.page(limit=limit, after=after, since=since, until=until, **equal)
