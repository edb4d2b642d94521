"""Data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa

from app.domain.entities import Dataset
from app.domain.errors import NotFound
from app.store.dialect import insert_once, on_postgresql
from app.store.repositories.scoped import Scoped
from app.store.tables import datasets


class Datasets(Scoped):
    """Queries on data sets."""

    def add(self, dataset: Dataset) -> bool:
        """Insert a data set; returns False, and changes nothing, if its tenant has one with its digest."""
        self._check_owner(dataset.tenant)
        values = dataclasses.asdict(dataset) | {"classes": list(dataset.classes)}
        return insert_once(self._connection, datasets, values)

    def get(self, dataset_id: str) -> Dataset:
        query = sa.select(datasets).where(datasets.c.id == dataset_id, self._owns(datasets))
        row = self._connection.execute(query).first()
        if row is None:
            raise NotFound(f"There is no data set {dataset_id!r}.", code="dataset_not_found")
        return _entity(row)

    def name(self, dataset_id: str) -> str | None:
        """The name of a data set; None if there is none with this id."""
        query = sa.select(datasets.c.name).where(datasets.c.id == dataset_id, self._owns(datasets))
        name: str | None = self._connection.execute(query).scalar()
        return name

    def lock(self, dataset_id: str, *, exclusive: bool = False) -> Dataset:
        """As `get`, with a shared or exclusive row lock until the end of the transaction. Raises NotFound.

        A job is submitted under a shared lock and a data set is deleted under an exclusive one, so neither
        transaction can miss the other.
        """
        query = sa.select(datasets.c.id).where(datasets.c.id == dataset_id, self._owns(datasets))
        if on_postgresql(self._connection):
            self._connection.execute(query.with_for_update(read=not exclusive))
        return self.get(dataset_id)

    def by_digest(self, digest: str) -> Dataset | None:
        """The data set of the tenant with this digest, or None."""
        query = sa.select(datasets).where(datasets.c.tenant == self.tenant, datasets.c.digest == digest)
        row = self._connection.execute(query).first()
        return None if row is None else _entity(row)

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[Dataset], bool]:
        """One page of data sets older than ``after``, newest first, and whether there are more."""
        query = sa.select(datasets).where(self._owns(datasets)).order_by(datasets.c.id.desc())
        if after is not None:
            query = query.where(datasets.c.id < after)
        page = [_entity(row) for row in self._connection.execute(query.limit(limit + 1))]
        return page[:limit], len(page) > limit

    def delete(self, dataset_id: str) -> None:
        self._connection.execute(sa.delete(datasets).where(datasets.c.id == dataset_id, self._owns(datasets)))


def _entity(row: sa.Row[tuple[object, ...]]) -> Dataset:
    values = dict(row._mapping)
    return Dataset(**values | {"classes": tuple(values["classes"])})
