"""Data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Dataset
from app.domain.errors import NotFound
from app.store.dialect import insert_once, on_postgresql
from app.store.tables import datasets


class Datasets:
    """Queries on data sets."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, dataset: Dataset) -> bool:
        """Insert a data set; returns False, and changes nothing, if one with the same digest exists."""
        values = dataclasses.asdict(dataset) | {"classes": list(dataset.classes)}
        return insert_once(self._connection, datasets, values)

    def get(self, dataset_id: str) -> Dataset:
        row = self._connection.execute(sa.select(datasets).where(datasets.c.id == dataset_id)).first()
        if row is None:
            raise NotFound(f"There is no data set {dataset_id!r}.", code="dataset_not_found")
        return _entity(row)

    def lock(self, dataset_id: str, *, exclusive: bool = False) -> Dataset:
        """As `get`, with a shared or exclusive row lock until the end of the transaction. Raises NotFound.

        A job is submitted under a shared lock and a data set is deleted under an exclusive one, so neither
        transaction can miss the other.
        """
        query = sa.select(datasets.c.id).where(datasets.c.id == dataset_id)
        if on_postgresql(self._connection):
            self._connection.execute(query.with_for_update(read=not exclusive))
        return self.get(dataset_id)

    def by_digest(self, digest: str) -> Dataset | None:
        row = self._connection.execute(sa.select(datasets).where(datasets.c.digest == digest)).first()
        return None if row is None else _entity(row)

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[Dataset], bool]:
        """One page of data sets older than ``after``, newest first, and whether there are more."""
        query = sa.select(datasets).order_by(datasets.c.id.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(datasets.c.id < after)
        page = [_entity(row) for row in self._connection.execute(query)]
        return page[:limit], len(page) > limit

    def delete(self, dataset_id: str) -> None:
        self._connection.execute(sa.delete(datasets).where(datasets.c.id == dataset_id))


def _entity(row: sa.Row[tuple[object, ...]]) -> Dataset:
    values = dict(row._mapping)
    return Dataset(**values | {"classes": tuple(values["classes"])})
