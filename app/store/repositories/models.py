"""Published model versions and their aliases."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.audit_context import current_context
from app.domain.entities import Alias, AliasMove, ModelSummary, ModelVersion
from app.domain.errors import Conflict, NotFound, PreconditionFailed
from app.domain.near_names import known_names
from app.store.dialect import batched, on_postgresql, upsert
from app.store.monitor_tables import monitors
from app.store.paging import bounded_page, fitting
from app.store.repositories.outbox import Outbox
from app.store.repositories.registry import Registry
from app.store.repositories.scoped import Scoped
from app.store.row_bytes import set_row_bytes
from app.store.schedule_tables import schedules
from app.store.tables import alias_moves, aliases, model_versions, retired_numbers

MAX_ALIASES: Final = 1000
"""Most aliases of a model."""
KEPT_MOVES: Final = 1000
"""Newest moves of the aliases of a model that are kept."""
KEPT_NAMES: Final = 10_000
"""Names of models without a version whose numbers a tenant keeps one by one."""
ALIAS_BYTES: Final = 500
"""Bytes of an alias, or of a move of one, in the quota and in the bytes of a page."""
_ALL_NAMES: Final = ""
_COLUMNS: Final = [model_versions.c[field.name] for field in dataclasses.fields(ModelVersion)]


class Models(Scoped):
    """Queries on models. Those that name a model need the repository of one tenant."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        super().__init__(connection, tenant)
        self._registry = Registry(connection)

    def publish(self, version: ModelVersion) -> None:
        """Store a version, and its event for webhooks; its number must be the model's `next_version`."""
        self._check_owner(version.tenant)
        values = dataclasses.asdict(version) | {"classes": list(version.classes)}
        self._connection.execute(sa.insert(model_versions), values)
        table = model_versions.c
        inserted = (table.tenant == version.tenant, table.model == version.model)
        set_row_bytes(self._connection, model_versions, sa.and_(*inserted, table.version == version.version))
        self._registry.model_changed(version.tenant, version.model)
        facts = {name: getattr(version, name) for name in ("job_id", "method", "class_count")}
        Outbox(self._connection).version_published(version.tenant, version.model, version.version, facts)

    def next_version(self, model: str) -> int:
        """As `next_number`; other publishers are blocked until the end of the transaction."""
        self._registry.lock()
        return self.next_number(model)

    def next_number(self, model: str) -> int:
        """The number after the highest one of any version of the model, deleted ones included; from 1."""
        newest, retired = self.newest(model), self._retired(model)[0]
        return max(newest or self._retired(_ALL_NAMES)[0], retired) + 1

    def newest(self, model: str) -> int | None:
        """Number of the model's newest version; None without versions."""
        numbers = sa.select(sa.func.max(model_versions.c.version)).where(self._is(model_versions, model))
        return self._connection.execute(numbers).scalar()

    def delete(self, model: str, version: int) -> ModelVersion:
        """Delete a version and return it. Its number is never reused.

        Raises NotFound, and Conflict while an alias points to it.
        """
        self._registry.lock()
        deleted = self.version(model, version)
        pointing = sa.select(aliases.c.alias).where(self._is(aliases, model), aliases.c.version == version)
        alias = self._connection.execute(pointing.order_by(aliases.c.alias).limit(1)).scalar()
        if alias is not None:
            text = f"Alias {alias!r} points to version {version} of model {model!r}. Move it first."
            raise Conflict(text, code="version_has_alias")
        self._retire(model, version=version)
        where = self._is(model_versions, model) & (model_versions.c.version == version)
        self._connection.execute(sa.delete(model_versions).where(where))
        if self.newest(model) is None:
            self._forget_model(model)
        self._registry.model_changed(self.tenant, model)
        return deleted

    def lock(self, model: str, version: int) -> None:
        """Lock a version, so that no job can take it as its teacher meanwhile, or so that it is not deleted.

        Raises NotFound.
        """
        if on_postgresql(self._connection):
            where = self._is(model_versions, model) & (model_versions.c.version == version)
            self._connection.execute(sa.select(model_versions.c.version).where(where).with_for_update())
        self.version(model, version)

    def of_job(self, job_id: str) -> ModelVersion | None:
        query = sa.select(*_COLUMNS)
        query = query.where(model_versions.c.job_id == job_id, self._owns(model_versions))
        row = self._connection.execute(query).first()
        return None if row is None else _version(row)

    def same_import(self, wanted: ModelVersion) -> ModelVersion | None:
        """The newest version of the same model that was imported from the same content, or None."""
        table = model_versions.c
        query = (
            sa.select(*_COLUMNS)
            .where(
                self._is(model_versions, wanted.model), table.method == wanted.method, table.job_id.is_(None)
            )
            .where(table.teacher_digest == wanted.teacher_digest, table.class_table == wanted.class_table)
            .order_by(table.version.desc())
        )
        row = self._connection.execute(query).first()
        return None if row is None else _version(row)

    def of_bundle(self, model: str, manifest: str) -> ModelVersion | None:
        """The newest version of a model that was imported from the bundle with this manifest, or None."""
        origin = model_versions.c.metrics["imported"]
        query = sa.select(*_COLUMNS).where(self._is(model_versions, model))
        query = query.where(origin["manifest"].as_string() == manifest)
        row = self._connection.execute(query.order_by(model_versions.c.version.desc()).limit(1)).first()
        return None if row is None else _version(row)

    def newest_of_origin(self, model: str, origin: str) -> int | None:
        """The highest original number of the versions that bundles of ``origin`` brought."""
        imported = model_versions.c.metrics["imported"]
        query = sa.select(sa.func.max(imported["version"].as_integer())).where(
            self._is(model_versions, model), imported["model"].as_string() == origin
        )
        return self._connection.execute(query).scalar()

    def numbers(
        self, model: str | None = None, *, limit: int, among: Collection[str] = ()
    ) -> Sequence[tuple[str, int]]:
        """(model, version) of all versions, of one model, or of the models ``among``, by name and version."""
        table = model_versions.c
        query = sa.select(table.model, table.version).order_by(table.tenant, table.model, table.version)
        query = query.where(self._owns(model_versions)).limit(limit)
        if model is not None:
            query = query.where(table.model == model)
        if among:
            query = query.where(table.model.in_(among))
        return [(name, version) for name, version in self._connection.execute(query)]

    def summaries(
        self, *, limit: int, after: tuple[str, str] | None = None, among: Collection[str] = ()
    ) -> tuple[Sequence[ModelSummary], bool]:
        """One page of models after (tenant, name), in this order, and whether there are more.

        It is bounded in bytes, too: a model may have a thousand aliases.
        among: the names of the models to list; empty for all.
        """
        table = model_versions.c
        group = (table.tenant, table.model)
        query = (
            sa.select(*group, sa.func.count(), sa.func.max(table.version), sa.func.max(table.created_at))
            .where(self._owns(model_versions))
            .group_by(*group)
            .order_by(*group)
            .limit(limit + 1)
        )
        if after is not None:
            # With a further condition on the tenant, PostgreSQL would read all rows of the
            # tenant from the first on.
            is_own = after[0] == self._tenant
            query = query.where(table.model > after[1] if is_own else sa.tuple_(*group) > after)
        if among:
            query = query.where(table.model.in_(among))
        rows = list(self._connection.execute(query))
        numbers = self._alias_counts([(row[0], row[1]) for row in rows[:limit]])
        shown = rows[: fitting(ALIAS_BYTES * (1 + numbers[row[0], row[1]]) for row in rows[:limit])]
        known = self._aliases_of_all([(row[0], row[1]) for row in shown])
        page = [
            ModelSummary(model, versions, newest, updated_at, tuple(known[tenant, model]), tenant)
            for tenant, model, versions, newest, updated_at in shown
        ]
        return page, len(rows) > len(shown)

    def versions(
        self, model: str, *, limit: int, before: int | None = None
    ) -> tuple[Sequence[ModelVersion], bool]:
        """One page of versions with numbers below ``before``, newest first, and whether there are more.

        It is bounded in bytes, too: each version may list a thousand labels.
        Raises NotFound if the model has no version at all.
        """
        query = (
            sa.select(*_COLUMNS)
            .where(self._is(model_versions, model))
            .order_by(model_versions.c.version.desc())
        )
        if before is not None:
            query = query.where(model_versions.c.version < before)
        rows, has_more = bounded_page(self._connection, query, model_versions.c.row_bytes, limit)
        if not rows and (before is None or self.newest(model) is None):
            raise NotFound(f"There is no model {model!r}.", code="model_not_found")
        return [_version(row) for row in rows], has_more

    def counts(self, model: str) -> tuple[int, int, int, int]:
        """Newest version, number of versions, number of aliases, and the sum of the aliases' revisions."""
        versions = sa.select(sa.func.max(model_versions.c.version), sa.func.count())
        newest, count = self._connection.execute(versions.where(self._is(model_versions, model))).one()
        moves = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(aliases.c.revision), 0))
        moved = self._connection.execute(moves.where(self._is(aliases, model))).one()
        return newest or 0, count, moved[0], int(moved[1])

    def version(self, model: str, version: int) -> ModelVersion:
        query = sa.select(*_COLUMNS).where(
            self._is(model_versions, model), model_versions.c.version == version
        )
        row = self._connection.execute(query).first()
        if row is None:
            newest = self.newest(model)
            hint = "" if newest is None else f" Its newest version is {newest}."
            raise NotFound(f"Model {model!r} has no version {version}.{hint}", code="version_not_found")
        return _version(row)

    def some_versions(
        self, numbers: Collection[tuple[str, str, int]]
    ) -> dict[tuple[str, str, int], ModelVersion]:
        """Those of some versions that exist, by (tenant, model, version), of any tenant."""
        table = model_versions.c
        versions: dict[tuple[str, str, int], ModelVersion] = {}
        for some in batched(numbers):
            key = sa.tuple_(table.tenant, table.model, table.version)
            found = map(_version, self._connection.execute(sa.select(*_COLUMNS).where(key.in_(some))))
            versions.update({(row.tenant, row.model, row.version): row for row in found})
        return versions

    def newest_of(self, models: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """The newest version of each of some models that have one, by (tenant, model), of any tenant."""
        found: dict[tuple[str, str], int] = {}
        for some in batched(models):
            key = (model_versions.c.tenant, model_versions.c.model)
            newest = sa.select(*key, sa.func.max(model_versions.c.version)).where(sa.tuple_(*key).in_(some))
            rows = self._connection.execute(newest.group_by(*key))
            found.update({(tenant, model): version for tenant, model, version in rows})
        return found

    def aliased(self, names: Collection[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
        """Versions of those of ``names``, (tenant, model, alias) of any tenant, that exist."""
        found: dict[tuple[str, str, str], int] = {}
        for some in batched(names):
            key = (aliases.c.tenant, aliases.c.model, aliases.c.alias)
            query = sa.select(*key, aliases.c.version).where(sa.tuple_(*key).in_(some))
            rows = self._connection.execute(query)
            found.update({(tenant, model, alias): version for tenant, model, alias, version in rows})
        return found

    def aliases_of(self, model: str) -> Sequence[Alias]:
        """The aliases of a model, at most `MAX_ALIASES`, by name."""
        query = sa.select(aliases).where(self._is(aliases, model)).order_by(aliases.c.alias)
        return [Alias(**row._mapping) for row in self._connection.execute(query)]

    def _aliases_of_all(self, models: Sequence[tuple[str, str]]) -> defaultdict[tuple[str, str], list[Alias]]:
        """The aliases of several (tenant, model), each by name."""
        among = sa.tuple_(aliases.c.tenant, aliases.c.model).in_(models)
        query = sa.select(aliases).where(among).order_by(aliases.c.alias)
        found: defaultdict[tuple[str, str], list[Alias]] = defaultdict(list)
        for row in self._connection.execute(query):
            found[row.tenant, row.model].append(Alias(**row._mapping))
        return found

    def _alias_counts(self, models: Sequence[tuple[str, str]]) -> Counter[tuple[str, str]]:
        key = (aliases.c.tenant, aliases.c.model)
        query = sa.select(*key, sa.func.count()).where(sa.tuple_(*key).in_(models)).group_by(*key)
        rows = self._connection.execute(query)
        return Counter({(tenant, model): count for tenant, model, count in rows})

    def alias(self, model: str, alias: str) -> Alias:
        found = self.find_alias(model, alias)
        if found is None:
            names = [one.alias for one in self.aliases_of(model)]
            message = f"Model {model!r} has no alias {alias!r}; {known_names(alias, names, 'aliases')}"
            raise NotFound(message, code="alias_not_found")
        return found

    def find_alias(self, model: str, alias: str) -> Alias | None:
        """As `alias`; None if it does not exist."""
        query = sa.select(aliases).where(self._is(aliases, model), aliases.c.alias == alias)
        row = self._connection.execute(query).first()
        return None if row is None else Alias(**row._mapping)

    def delete_alias(self, model: str, alias: str, *, expected_revision: int) -> None:
        """Delete an alias. Raises NotFound, and PreconditionFailed if its revision is another."""
        self._registry.lock()
        present = self.alias(model, alias).revision
        if present != expected_revision:
            raise PreconditionFailed(f"Alias {alias!r} of {model!r} has changed since it was read.")
        self._retire(model, revision=present)
        self._note_move(model, alias, None)
        where = self._is(aliases, model) & (aliases.c.alias == alias)
        self._connection.execute(sa.delete(aliases).where(where))
        self._registry.model_changed(self.tenant, model)

    def alias_revision(self, model: str, alias: str) -> int:
        """The revision of an alias; 0 if it does not exist."""
        query = sa.select(aliases.c.revision).where(self._is(aliases, model), aliases.c.alias == alias)
        return int(self._connection.execute(query).scalar() or 0)

    def point(self, model: str, alias: str, version: int, *, expected_revision: int | None = None) -> Alias:
        """Create an alias, or move it, to an existing version; the move counts as one by an operator.

        expected_revision: the alias's revision as the caller read it; 0 if it must not exist; None for any.
        Raises NotFound, PreconditionFailed if the revision is another, and Conflict if the model has its full
        number of aliases.
        """
        self._registry.lock()
        self.version(model, version)
        present = self.alias_revision(model, alias)
        if expected_revision is not None and expected_revision != present:
            raise PreconditionFailed(f"Alias {alias!r} of {model!r} has changed since it was read.")
        if not present and self._is_full(model):
            text = f"Model {model!r} has {MAX_ALIASES} aliases, which is the most. Delete one first."
            raise Conflict(text, code="too_many_aliases")
        return self._move(model, alias, version, present, by_hand=True)

    def advance(self, model: str, alias: str, version: int, *, seen: int) -> bool:
        """Move an alias to a version that was just published, or create it; returns whether it did.

        seen: the alias's revision when the publication was requested, 0 if it did not exist. An alias that an
        operator has moved, made or deleted since then is not changed, and a model that has its full number of
        aliases gets no new one.
        """
        self._registry.lock()
        where = self._is(aliases, model) & (aliases.c.alias == alias)
        query = sa.select(aliases.c.revision, aliases.c.manual_revision).where(where)
        present, moved_by_hand = self._connection.execute(query).first() or (0, 0)
        if moved_by_hand > seen or (seen > 0 and present == 0) or (not present and self._is_full(model)):
            return False
        self._move(model, alias, version, present, by_hand=False)
        return True

    def was_moved_by_hand(self, model: str, alias: str) -> bool:
        """Whether a person made the last move of an alias."""
        where = self._is(aliases, model) & (aliases.c.alias == alias)
        query = sa.select(aliases.c.revision, aliases.c.manual_revision).where(where)
        row = self._connection.execute(query).first()
        return row is not None and row.manual_revision >= row.revision

    def roll_back(self, model: str, alias: str, version: int) -> Alias:
        """Move an existing alias back to a version, as a program does. The caller has locked the registry."""
        return self._move(model, alias, version, self.alias_revision(model, alias), by_hand=False)

    def _move(self, model: str, alias: str, version: int, present: int, *, by_hand: bool) -> Alias:
        """Point an alias to a version. present: its revision, 0 if it does not exist."""
        self._note_move(model, alias, version)
        revision = (present or max(self._retired(model)[1], self._retired(_ALL_NAMES)[1])) + 1
        values = {"version": version, "revision": revision, "updated_at": time.time()}
        if by_hand:
            values["manual_revision"] = revision
        if present:
            where = self._is(aliases, model) & (aliases.c.alias == alias)
            self._connection.execute(sa.update(aliases).where(where).values(**values))
            # A promise is one of a version.
            watched = self._is(monitors, model) & (monitors.c.alias == alias)
            new_run = {"run": monitors.c.run + 1, "started_at": values["updated_at"]}
            self._connection.execute(sa.update(monitors).where(watched).values(new_run))
        else:
            names = {"tenant": self.tenant, "model": model, "alias": alias}
            self._connection.execute(sa.insert(aliases), names | values)
        self._registry.model_changed(self.tenant, model)
        return self.alias(model, alias)

    def _note_move(self, model: str, alias: str, version: int | None) -> None:
        """Store a move that is about to happen, and its event. The caller has locked the registry."""
        query = sa.select(aliases.c.version).where(self._is(aliases, model), aliases.c.alias == alias)
        actor, now = current_context().actor, time.time()
        move = AliasMove(
            id=f"mov_{int(1e6 * now):014x}{secrets.token_hex(5)}",
            model=model,
            alias=alias,
            at=now,
            version=version,
            previous=self._connection.execute(query).scalar(),
            actor=actor.id,
            actor_name=actor.name,
            tenant=self.tenant,
        )
        self._connection.execute(sa.insert(alias_moves), dataclasses.asdict(move))
        Outbox(self._connection).alias_moved(self.tenant, model, alias, version, move.previous)
        of_model = self._is(alias_moves, model)
        ids = sa.select(alias_moves.c.id).where(of_model).order_by(alias_moves.c.id.desc())
        last_kept = ids.offset(KEPT_MOVES - 1).limit(1).scalar_subquery()
        self._connection.execute(sa.delete(alias_moves).where(of_model, alias_moves.c.id < last_kept))

    def _is_full(self, model: str) -> bool:
        count = sa.select(sa.func.count()).where(self._is(aliases, model))
        return self._connection.execute(count).scalar_one() >= MAX_ALIASES

    def moves(
        self, model: str, alias: str, *, limit: int, after: str | None = None
    ) -> tuple[Sequence[AliasMove], bool]:
        """One page of the moves of an alias older than id ``after``, newest first; and if there are more."""
        query = sa.select(alias_moves).where(self._is(alias_moves, model), alias_moves.c.alias == alias)
        if after is not None:
            query = query.where(alias_moves.c.id < after)
        query = query.order_by(alias_moves.c.id.desc()).limit(limit + 1)
        page = [AliasMove(**row._mapping) for row in self._connection.execute(query)]
        return page[:limit], len(page) > limit

    def has_pointed(self, model: str, alias: str, version: int) -> bool:
        """Whether an alias points to a version, or has pointed to it in one of its moves that are kept."""
        move, present = alias_moves.c, aliases.c
        moved = sa.select(move.id).where(
            self._is(alias_moves, model), move.alias == alias, move.version == version
        )
        points = sa.select(present.alias).where(
            self._is(aliases, model), present.alias == alias, present.version == version
        )
        queries = (moved.limit(1), points.limit(1))
        return any(self._connection.execute(query).first() is not None for query in queries)

    def _forget_model(self, model: str) -> None:
        """Delete the moves of a model whose last version was deleted. Its highest number is kept.

        If there are very many such models, only the highest number of all of them is kept.
        """
        self._connection.execute(sa.delete(alias_moves).where(self._is(alias_moves, model)))
        self._connection.execute(sa.delete(schedules).where(self._is(schedules, model)))
        table = retired_numbers.c
        of_tenant = table.tenant == self.tenant
        if self._connection.execute(sa.select(sa.func.count()).where(of_tenant)).scalar_one() <= KEPT_NAMES:
            return
        highest = sa.select(sa.func.max(table.version), sa.func.max(table.revision)).where(of_tenant)
        version, revision = self._connection.execute(highest).one()
        self._retire(_ALL_NAMES, version=version, revision=revision)
        exists = sa.exists().where(
            model_versions.c.tenant == table.tenant, model_versions.c.model == table.model
        )
        gone = sa.delete(retired_numbers).where(of_tenant, table.model != _ALL_NAMES, ~exists)
        self._connection.execute(gone)

    def _retired(self, model: str) -> tuple[int, int]:
        """The highest number of a deleted version, and the highest revision of a deleted alias."""
        table = retired_numbers.c
        row = self._connection.execute(
            sa.select(table.version, table.revision).where(self._is(retired_numbers, model))
        ).first()
        return (0, 0) if row is None else (row[0], row[1])

    def _retire(self, model: str, *, version: int = 0, revision: int = 0) -> None:
        """Store numbers that must not be reused. The caller has locked the registry."""
        before = self._retired(model)
        values = {"version": max(version, before[0]), "revision": max(revision, before[1])}
        statement = upsert(self._connection, retired_numbers)
        statement = statement.values(tenant=self.tenant, model=model, **values)
        keys = ["tenant", "model"]
        self._connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))

    def _is(self, table: sa.Table, model: str) -> sa.ColumnElement[bool]:
        return sa.and_(table.c.tenant == self.tenant, table.c.model == model)


def _version(row: sa.Row[tuple[object, ...]]) -> ModelVersion:
    values = dict(row._mapping)
    return ModelVersion(**values | {"classes": tuple(values["classes"])})
