"""Use case of the audit log: list its records."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.entities import AuditRecord
from app.store.unit_of_work import Store


def list_records(
    store: Store,
    *,
    limit: int,
    after: str | None = None,
    since: float | None = None,
    until: float | None = None,
    oldest_first: bool = False,
    **equal: str | None,
) -> tuple[Sequence[AuditRecord], bool]:
    """A page of records, filtered and ordered as in `Audit.page`; and whether more follow."""
    with store.read() as uow:
        return uow.audit.page(
            limit=limit, after=after, since=since, until=until, oldest_first=oldest_first, **equal
        )
