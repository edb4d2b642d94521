"""Shadows of aliases, and the answers that were counted of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from app.domain.errors import NotFound
from app.domain.names import split_qualified
from app.domain.shadows import MAX_SHADOW_CLASSES, ActiveShadow, Shadow, ShadowCounts
from app.store.dialect import batched, upsert
from app.store.monitor_tables import shadow_counts, shadows
from app.store.repositories.registry import Registry
from app.store.repositories.scoped import Scoped
from app.store.tables import aliases

_SHADOW: Final = [shadows.c[field.name] for field in dataclasses.fields(Shadow)]
_COUNTED: Final = ("both_yes", "only_present", "only_candidate", "both_no", "failed", "dropped")
_KEYS: Final = ("shadow_id", "present", "label")


class Shadows(Scoped):
    """Queries on the shadows of a tenant. An alias has one at most."""

    def count(self) -> int:
        """Number of shadows."""
        query = sa.select(sa.func.count()).select_from(shadows).where(self._owns(shadows))
        return int(self._connection.execute(query).scalar_one())

    def find(self, model: str, alias: str) -> Shadow | None:
        """The shadow of an alias, also one that has ended; None without one."""
        row = self._connection.execute(sa.select(*_SHADOW).where(self._is(model, alias))).first()
        return None if row is None else Shadow(**row._mapping)

    def get(self, model: str, alias: str) -> Shadow:
        """The shadow of an alias. Raises NotFound."""
        found = self.find(model, alias)
        if found is None:
            raise NotFound(f"Alias {alias!r} of model {model!r} has no shadow.", code="shadow_not_found")
        return found

    def replace(self, shadow: Shadow) -> None:
        """Store a shadow in place of the one that the alias has. Server processes follow it."""
        self._check_owner(shadow.tenant)
        self._connection.execute(sa.delete(shadows).where(self._is(shadow.model, shadow.alias)))
        self._connection.execute(sa.insert(shadows), dataclasses.asdict(shadow))
        Registry(self._connection).model_changed(shadow.tenant, shadow.model)

    def delete(self, shadow: Shadow) -> None:
        """Delete a shadow with its counts."""
        self._connection.execute(sa.delete(shadows).where(shadows.c.id == shadow.id))
        Registry(self._connection).model_changed(shadow.tenant, shadow.model)

    def active(self, models: Collection[str] | None, now: float) -> list[ActiveShadow]:
        """What processes know of the shadows of some models, each after its tenant; None for all."""
        same_alias = [shadows.c[name] == aliases.c[name] for name in ("tenant", "model", "alias")]
        query = (
            sa.select(
                *(shadows.c[name] for name in ("id", "tenant", "model")),
                aliases.c.version,
                shadows.c.version.label("candidate"),
                shadows.c.share,
                shadows.c.until,
            )
            .join(aliases, sa.and_(*same_alias))
            .where(shadows.c.until > now, shadows.c.version != aliases.c.version)
        )
        if models is None:
            return [ActiveShadow(**row._mapping) for row in self._connection.execute(query)]
        found: list[ActiveShadow] = []
        for some in batched([split_qualified(name) for name in models]):
            names = sa.tuple_(shadows.c.tenant, shadows.c.model)
            rows = self._connection.execute(query.where(names.in_(some)))
            found += [ActiveShadow(**row._mapping) for row in rows]
        return found

    def add_counts(self, counts: Iterable[ShadowCounts], now: float) -> None:
        """Add to the counts of shadows that still exist.

        Of a shadow `MAX_SHADOW_CLASSES` classes are counted at most: those that were asked first.
        """
        for one in sorted(counts):
            of_one = shadows.c.id == one.shadow_id
            query = sa.select(shadows.c.id).where(of_one).with_for_update()
            if self._connection.execute(query).first() is None:
                continue
            values = one._asdict() | {"last_at": now}
            if self._is_full(one):
                continue
            insert = upsert(self._connection, shadow_counts).values(values)
            grown = {name: shadow_counts.c[name] + insert.excluded[name] for name in _COUNTED}
            grown["last_at"] = insert.excluded.last_at
            self._connection.execute(insert.on_conflict_do_update(index_elements=list(_KEYS), set_=grown))

    def counts(self, shadow: Shadow, present: int) -> tuple[Sequence[ShadowCounts], float | None]:
        """What was counted beside a version, by class, and when something was counted last."""
        table = shadow_counts.c
        where = (table.shadow_id == shadow.id) & (table.present == present)
        columns = [table[name] for name in ShadowCounts._fields]
        rows = self._connection.execute(sa.select(*columns, table.last_at).where(where).order_by(table.label))
        found = [(ShadowCounts(*row[:-1]), row.last_at) for row in rows]
        return [counts for counts, _ in found], max((at for _, at in found), default=None)

    def _is_full(self, one: ShadowCounts) -> bool:
        table = shadow_counts.c
        of_one = table.shadow_id == one.shadow_id
        same = of_one & (table.present == one.present) & (table.label == one.label)
        if self._connection.execute(sa.select(table.label).where(same)).first() is not None:
            return False
        count = sa.select(sa.func.count()).where(of_one)
        return int(self._connection.execute(count).scalar_one()) >= MAX_SHADOW_CLASSES

    def _is(self, model: str, alias: str) -> ColumnElement[bool]:
        return sa.and_(self._owns(shadows), shadows.c.model == model, shadows.c.alias == alias)
