"""Published versions, their aliases, and the clock that says when either changed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Alias, ModelSummary, ModelVersion
from app.domain.errors import Conflict, NotFound, PreconditionFailed
from app.store.dialect import on_postgresql, upsert
from app.store.tables import aliases, model_versions, registry_clock, retired_numbers


class Models:
    """Every query on models."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def publish(self, version: ModelVersion) -> None:
        """Store a version; its number must be the model's `next_version`."""
        values = dataclasses.asdict(version) | {"classes": list(version.classes)}
        self._connection.execute(sa.insert(model_versions), values)
        self.bump_revision()

    def next_version(self, model: str) -> int:
        """As `next_number`, and other publishers wait until this transaction ends."""
        self._wait_for_turn()
        return self.next_number(model)

    def next_number(self, model: str) -> int:
        """The number after all that the model's versions, also deleted ones, ever had; 1 at first."""
        return max(self.newest(model) or 0, self._retired(model)[0]) + 1

    def newest(self, model: str) -> int | None:
        """Number of the model's newest version; None when it has none."""
        numbers = sa.select(sa.func.max(model_versions.c.version)).where(model_versions.c.model == model)
        return self._connection.execute(numbers).scalar()

    def delete(self, model: str, version: int) -> ModelVersion:
        """Forget a version; returns what it was. Its number is never given again.

        Raises NotFound, and Conflict while an alias points to it.
        """
        self._wait_for_turn()
        found = self.version(model, version)
        pointing = [alias.alias for alias in self.aliases_of(model) if alias.version == version]
        if pointing:
            text = f"Alias {pointing[0]!r} points to version {version} of model {model!r}. Move it first."
            raise Conflict(text, code="version_has_alias")
        self._retire(model, version=version)
        where = (model_versions.c.model == model) & (model_versions.c.version == version)
        self._connection.execute(sa.delete(model_versions).where(where))
        self.bump_revision()
        return found

    def of_job(self, job_id: str) -> ModelVersion | None:
        query = sa.select(model_versions).where(model_versions.c.job_id == job_id)
        row = self._connection.execute(query).first()
        return None if row is None else _version(row)

    def same_import(self, wanted: ModelVersion) -> ModelVersion | None:
        """The newest version of the same model that was imported from the same content, if there is one."""
        table = model_versions.c
        query = (
            sa.select(model_versions)
            .where(table.model == wanted.model, table.method == wanted.method, table.job_id.is_(None))
            .where(table.teacher_digest == wanted.teacher_digest, table.class_table == wanted.class_table)
            .order_by(table.version.desc())
        )
        row = self._connection.execute(query).first()
        return None if row is None else _version(row)

    def names(self, *, limit: int, after: str | None = None) -> tuple[Sequence[str], bool]:
        """Model names in order, those behind ``after``; and whether there are more."""
        query = sa.select(model_versions.c.model).distinct().order_by(model_versions.c.model).limit(limit + 1)
        if after is not None:
            query = query.where(model_versions.c.model > after)
        found = list(self._connection.execute(query).scalars())
        return found[:limit], len(found) > limit

    def numbers(self, model: str | None = None, *, limit: int) -> Sequence[tuple[str, int]]:
        """Models by name with their versions, the oldest first; of one model only, if it is named."""
        table = model_versions.c
        query = sa.select(table.model, table.version).order_by(table.model, table.version).limit(limit)
        if model is not None:
            query = query.where(table.model == model)
        return [(name, version) for name, version in self._connection.execute(query)]

    def summaries(self, *, limit: int, after: str | None = None) -> tuple[Sequence[ModelSummary], bool]:
        """Models in order of name, those behind ``after``; and whether there are more."""
        table = model_versions.c
        query = (
            sa.select(table.model, sa.func.count(), sa.func.max(table.version), sa.func.max(table.created_at))
            .group_by(table.model)
            .order_by(table.model)
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(table.model > after)
        rows = list(self._connection.execute(query))
        found = [
            ModelSummary(model, versions, newest, updated_at, tuple(self.aliases_of(model)))
            for model, versions, newest, updated_at in rows[:limit]
        ]
        return found, len(rows) > limit

    def versions(self, model: str) -> Sequence[ModelVersion]:
        """Newest first. Raises NotFound when there is none."""
        query = (
            sa.select(model_versions)
            .where(model_versions.c.model == model)
            .order_by(model_versions.c.version.desc())
        )
        found = [_version(row) for row in self._connection.execute(query)]
        if not found:
            raise NotFound(f"There is no model {model!r}.", code="model_not_found")
        return found

    def version(self, model: str, version: int) -> ModelVersion:
        query = sa.select(model_versions).where(
            model_versions.c.model == model, model_versions.c.version == version
        )
        row = self._connection.execute(query).first()
        if row is None:
            raise NotFound(f"Model {model!r} has no version {version}.", code="version_not_found")
        return _version(row)

    def aliases_of(self, model: str) -> Sequence[Alias]:
        query = sa.select(aliases).where(aliases.c.model == model).order_by(aliases.c.alias)
        return [Alias(**row._mapping) for row in self._connection.execute(query)]

    def alias(self, model: str, alias: str) -> Alias:
        query = sa.select(aliases).where(aliases.c.model == model, aliases.c.alias == alias)
        row = self._connection.execute(query).first()
        if row is None:
            raise NotFound(f"Model {model!r} has no alias {alias!r}.", code="alias_not_found")
        return Alias(**row._mapping)

    def delete_alias(self, model: str, alias: str, *, expected_revision: int) -> None:
        """Forget an alias. Raises NotFound, PreconditionFailed when it is not as the caller saw it."""
        self._wait_for_turn()
        present = self.alias(model, alias).revision
        if present != expected_revision:
            raise PreconditionFailed(f"Alias {alias!r} of {model!r} has changed since it was read.")
        self._retire(model, revision=present)
        where = (aliases.c.model == model) & (aliases.c.alias == alias)
        self._connection.execute(sa.delete(aliases).where(where))
        self.bump_revision()

    def point(self, model: str, alias: str, version: int, *, expected_revision: int | None = None) -> Alias:
        """Make or move an alias to a version that exists.

        expected_revision: the revision the caller saw; 0: it must not exist; None: any.
        Raises NotFound, and PreconditionFailed when the alias is not as the caller saw it.
        """
        self._wait_for_turn()
        self.version(model, version)
        where = (aliases.c.model == model) & (aliases.c.alias == alias)
        row = self._connection.execute(sa.select(aliases.c.revision).where(where)).first()
        present = 0 if row is None else int(row[0])
        if expected_revision is not None and expected_revision != present:
            raise PreconditionFailed(f"Alias {alias!r} of {model!r} has changed since it was read.")
        last = self._retired(model)[1] if row is None else present
        values = {"version": version, "revision": last + 1, "updated_at": time.time()}
        if row is None:
            self._connection.execute(sa.insert(aliases), {"model": model, "alias": alias, **values})
        else:
            self._connection.execute(sa.update(aliases).where(where).values(**values))
        self.bump_revision()
        return self.alias(model, alias)

    def _retired(self, model: str) -> tuple[int, int]:
        """Highest number of a deleted version, and highest revision of a deleted alias."""
        table = retired_numbers.c
        row = self._connection.execute(
            sa.select(table.version, table.revision).where(table.model == model)
        ).first()
        return (0, 0) if row is None else (row[0], row[1])

    def _retire(self, model: str, *, version: int = 0, revision: int = 0) -> None:
        """Note numbers that are not to be given again. The caller has waited for its turn."""
        before = self._retired(model)
        values = {"version": max(version, before[0]), "revision": max(revision, before[1])}
        noted = upsert(self._connection, retired_numbers).values(model=model, **values)
        self._connection.execute(noted.on_conflict_do_update(index_elements=["model"], set_=values))

    def bump_revision(self) -> None:
        """Say that versions, aliases or keys changed."""
        self._connection.execute(sa.update(registry_clock).values(revision=registry_clock.c.revision + 1))

    def _wait_for_turn(self) -> None:
        """Changes of the registry are rare, so they go one after another: no number is given twice."""
        if on_postgresql(self._connection):
            self._connection.execute(sa.select(registry_clock.c.revision).with_for_update())

    def revision(self) -> int:
        """The registry's revision: unchanged means that nothing a server caches has changed."""
        return int(self._connection.execute(sa.select(registry_clock.c.revision)).scalar_one())


def _version(row: sa.Row[tuple[object, ...]]) -> ModelVersion:
    values = dict(row._mapping)
    return ModelVersion(**values | {"classes": tuple(values["classes"])})
