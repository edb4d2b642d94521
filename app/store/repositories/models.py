"""Published model versions, their aliases, and the revision of the registry."""

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
    """Queries on models."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def publish(self, version: ModelVersion) -> None:
        """Store a version; its number must be the model's `next_version`."""
        values = dataclasses.asdict(version) | {"classes": list(version.classes)}
        self._connection.execute(sa.insert(model_versions), values)
        self.bump_revision()

    def next_version(self, model: str) -> int:
        """As `next_number`; other publishers are blocked until the end of the transaction."""
        self._lock_registry()
        return self.next_number(model)

    def next_number(self, model: str) -> int:
        """The number after the highest one of any version of the model, deleted ones included; from 1."""
        return max(self.newest(model) or 0, self._retired(model)[0]) + 1

    def newest(self, model: str) -> int | None:
        """Number of the model's newest version; None without versions."""
        numbers = sa.select(sa.func.max(model_versions.c.version)).where(model_versions.c.model == model)
        return self._connection.execute(numbers).scalar()

    def delete(self, model: str, version: int) -> ModelVersion:
        """Delete a version and return it. Its number is never reused.

        Raises NotFound, and Conflict while an alias points to it.
        """
        self._lock_registry()
        deleted = self.version(model, version)
        pointing = [alias.alias for alias in self.aliases_of(model) if alias.version == version]
        if pointing:
            text = f"Alias {pointing[0]!r} points to version {version} of model {model!r}. Move it first."
            raise Conflict(text, code="version_has_alias")
        self._retire(model, version=version)
        where = (model_versions.c.model == model) & (model_versions.c.version == version)
        self._connection.execute(sa.delete(model_versions).where(where))
        self.bump_revision()
        return deleted

    def of_job(self, job_id: str) -> ModelVersion | None:
        query = sa.select(model_versions).where(model_versions.c.job_id == job_id)
        row = self._connection.execute(query).first()
        return None if row is None else _version(row)

    def same_import(self, wanted: ModelVersion) -> ModelVersion | None:
        """The newest version of the same model that was imported from the same content, or None."""
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
        """One page of model names after ``after``, in order, and whether there are more."""
        query = sa.select(model_versions.c.model).distinct().order_by(model_versions.c.model).limit(limit + 1)
        if after is not None:
            query = query.where(model_versions.c.model > after)
        names = list(self._connection.execute(query).scalars())
        return names[:limit], len(names) > limit

    def numbers(self, model: str | None = None, *, limit: int) -> Sequence[tuple[str, int]]:
        """(model, version) of all versions or of one model, by name and then version."""
        table = model_versions.c
        query = sa.select(table.model, table.version).order_by(table.model, table.version).limit(limit)
        if model is not None:
            query = query.where(table.model == model)
        return [(name, version) for name, version in self._connection.execute(query)]

    def summaries(self, *, limit: int, after: str | None = None) -> tuple[Sequence[ModelSummary], bool]:
        """One page of models after ``after``, by name, and whether there are more."""
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
        page = [
            ModelSummary(model, versions, newest, updated_at, tuple(self.aliases_of(model)))
            for model, versions, newest, updated_at in rows[:limit]
        ]
        return page, len(rows) > limit

    def versions(self, model: str) -> Sequence[ModelVersion]:
        """All versions of a model, newest first. Raises NotFound if there is none."""
        query = (
            sa.select(model_versions)
            .where(model_versions.c.model == model)
            .order_by(model_versions.c.version.desc())
        )
        versions = [_version(row) for row in self._connection.execute(query)]
        if not versions:
            raise NotFound(f"There is no model {model!r}.", code="model_not_found")
        return versions

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
        """Delete an alias. Raises NotFound, and PreconditionFailed if its revision is another."""
        self._lock_registry()
        present = self.alias(model, alias).revision
        if present != expected_revision:
            raise PreconditionFailed(f"Alias {alias!r} of {model!r} has changed since it was read.")
        self._retire(model, revision=present)
        where = (aliases.c.model == model) & (aliases.c.alias == alias)
        self._connection.execute(sa.delete(aliases).where(where))
        self.bump_revision()

    def point(self, model: str, alias: str, version: int, *, expected_revision: int | None = None) -> Alias:
        """Create an alias, or move it, to an existing version.

        expected_revision: the alias's revision as the caller read it; 0 if it must not exist; None for any.
        Raises NotFound, and PreconditionFailed if the revision is another.
        """
        self._lock_registry()
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
        """The highest number of a deleted version, and the highest revision of a deleted alias."""
        table = retired_numbers.c
        row = self._connection.execute(
            sa.select(table.version, table.revision).where(table.model == model)
        ).first()
        return (0, 0) if row is None else (row[0], row[1])

    def _retire(self, model: str, *, version: int = 0, revision: int = 0) -> None:
        """Store numbers that must not be reused. The caller has locked the registry."""
        before = self._retired(model)
        values = {"version": max(version, before[0]), "revision": max(revision, before[1])}
        statement = upsert(self._connection, retired_numbers).values(model=model, **values)
        self._connection.execute(statement.on_conflict_do_update(index_elements=["model"], set_=values))

    def bump_revision(self) -> None:
        """Signal to all servers that versions, aliases or keys changed."""
        self._connection.execute(sa.update(registry_clock).values(revision=registry_clock.c.revision + 1))

    def _lock_registry(self) -> None:
        """Serialise changes of the registry, so that no number is assigned twice. They are rare."""
        if on_postgresql(self._connection):
            self._connection.execute(sa.select(registry_clock.c.revision).with_for_update())

    def revision(self) -> int:
        """The registry's revision. While it is unchanged, the servers' caches are up to date."""
        return int(self._connection.execute(sa.select(registry_clock.c.revision)).scalar_one())


def _version(row: sa.Row[tuple[object, ...]]) -> ModelVersion:
    values = dict(row._mapping)
    return ModelVersion(**values | {"classes": tuple(values["classes"])})
