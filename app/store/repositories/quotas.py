"""The resources that each tenant uses, and the quotas that an operator has set for it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Resources
from app.store.dialect import on_postgresql, upsert
from app.store.encoder_tables import own_encoders, picture_vectors
from app.store.evaluation_tables import evaluations
from app.store.monitor_tables import monitors
from app.store.repositories.models import ALIAS_BYTES
from app.store.schedule_tables import schedules
from app.store.tables import (
    alias_moves,
    aliases,
    api_keys,
    blobs,
    datasets,
    is_unfinished,
    jobs,
    model_versions,
    remote_scores,
    tenant_quotas,
    webhook_deliveries,
    webhooks,
)

_NAMES = [field.name for field in dataclasses.fields(Resources)]
_BYTES: Final = (
    jobs.c.student_bytes,
    model_versions.c.input_bytes,
    monitors.c.sample_bytes,
    *(
        table.c.row_bytes
        for table in (
            *(api_keys, datasets, evaluations, jobs, model_versions, monitors, schedules),
            *(webhooks, webhook_deliveries),
        )
    ),
)
"""Columns of bytes that count, each in an index of its table that begins with the tenant: a sum must not read
the long columns of the rows. Another table with long rows adds its own column here."""


class Quotas:
    """Queries on use and quotas of any tenant."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def lock(self, tenant: str) -> None:
        """Serialise transactions that store something of a tenant, until the end of this one."""
        if on_postgresql(self._connection):
            name = sa.func.hashtextextended(f"stms quota {tenant}", 0)
            self._connection.execute(sa.select(sa.func.pg_advisory_xact_lock(name)))

    def used(self, tenant: str) -> Resources:
        """The resources that the tenant uses.

        Bytes that several of its objects share count once, students once for each job that trained them. Rows
        count as in `app.store.row_bytes`, aliases and their moves by their number.
        """
        alias_rows = self._count(aliases, tenant) + self._count(alias_moves, tenant)
        unfinished = sa.select(sa.func.count()).where(jobs.c.tenant == tenant, is_unfinished)
        return Resources(
            stored_bytes=self._blob_bytes(tenant) + self._row_bytes(tenant) + ALIAS_BYTES * alias_rows,
            datasets=self._count(datasets, tenant),
            versions=self._count(model_versions, tenant),
            unfinished_jobs=int(self._connection.execute(unfinished).scalar_one()),
            keys=self._valid_keys(tenant),
        )

    def set_quotas(self, tenant: str, quotas: Mapping[str, int | None]) -> None:
        """Replace the quotas of a tenant; None means the default."""
        values = {name: quotas.get(name) for name in _NAMES}
        statement = upsert(self._connection, tenant_quotas).values(tenant=tenant, **values)
        self._connection.execute(statement.on_conflict_do_update(index_elements=["tenant"], set_=values))

    def quotas(self, tenant: str) -> dict[str, int]:
        """The quotas that were set for a tenant, by name."""
        query = sa.select(tenant_quotas).where(tenant_quotas.c.tenant == tenant)
        row = self._connection.execute(query).mappings().first()
        return {} if row is None else {name: row[name] for name in _NAMES if row[name] is not None}

    def tenants(self, *, limit: int, after: str | None = None) -> tuple[Sequence[str], bool]:
        """One page of the tenants that have anything, by name, and whether there are more."""
        tables = (api_keys, datasets, evaluations, jobs, model_versions, webhooks, tenant_quotas)
        names = sa.union(*(sa.select(table.c.tenant) for table in tables)).subquery()
        query = sa.select(names.c.tenant).order_by(names.c.tenant).limit(limit + 1)
        if after is not None:
            query = query.where(names.c.tenant > after)
        page = list(self._connection.execute(query).scalars())
        return page[:limit], len(page) > limit

    def _row_bytes(self, tenant: str) -> int:
        scores = sa.select(_total(remote_scores.c.size)).join(jobs, jobs.c.id == remote_scores.c.job_id)
        sums = [sa.select(_total(column)).where(column.table.c.tenant == tenant) for column in _BYTES]
        sums.append(scores.where(jobs.c.tenant == tenant))
        vectors = sa.select(_total(picture_vectors.c.size))
        vectors = vectors.join(datasets, datasets.c.id == picture_vectors.c.dataset_id)
        sums.append(vectors.where(datasets.c.tenant == tenant))
        totals = self._connection.execute(sa.select(*(one.scalar_subquery() for one in sums))).one()
        return sum(map(int, totals))

    def _blob_bytes(self, tenant: str) -> int:
        columns = (
            datasets.c.blob_digest,
            jobs.c.preparation_digest,
            jobs.c.teacher_digest,
            jobs.c.labels_digest,
            jobs.c.suspects_digest,
            jobs.c.addition_digest,
            jobs.c.examples_digest,
            jobs.c.encoder_digest,
            jobs.c.profile_digest,
            jobs.c.rows_digest,
            model_versions.c.teacher_digest,
            model_versions.c.class_table,
            model_versions.c.encoder_digest,
            model_versions.c.profile_digest,
            own_encoders.c.digest,
        )
        digests = sa.union(
            *(sa.select(column.label("digest")).where(column.table.c.tenant == tenant) for column in columns)
        ).subquery()
        total = sa.select(_total(blobs.c.size)).join(digests, digests.c.digest == blobs.c.digest)
        return int(self._connection.execute(total).scalar_one())

    def _valid_keys(self, tenant: str) -> int:
        ends = api_keys.c.expires_at
        is_valid = api_keys.c.revoked_at.is_(None) & (ends.is_(None) | (ends > time.time()))
        query = sa.select(sa.func.count()).where(api_keys.c.tenant == tenant, is_valid)
        return int(self._connection.execute(query).scalar_one())

    def _count(self, table: sa.Table, tenant: str) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(table.c.tenant == tenant)
        return int(self._connection.execute(query).scalar_one())


def _total(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    total: sa.ColumnElement[int] = sa.func.coalesce(sa.func.sum(column), 0)
    return total
