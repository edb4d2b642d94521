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
    """Every query on data sets."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, dataset: Dataset) -> bool:
        """Store a data set; returns False when one of the same digest is already there, which then stays."""
        values = dataclasses.asdict(dataset) | {"classes": list(dataset.classes)}
        return insert_once(self._connection, datasets, values)

    def get(self, dataset_id: str) -> Dataset:
        row = self._connection.execute(sa.select(datasets).where(datasets.c.id == dataset_id)).first()
        if row is None:
            raise NotFound(f"There is no data set {dataset_id!r}.", code="dataset_not_found")
        return _entity(row)

    def lock(self, dataset_id: str, *, exclusive: bool = False) -> Dataset:
        """As `get`, and until the transaction ends no one deletes it (exclusive: no one else holds it).

        A job is submitted under a hold and a data set deleted under an exclusive one, so neither overlooks
        the other. Raises NotFound.
        """
        query = sa.select(datasets.c.id).where(datasets.c.id == dataset_id)
        if on_postgresql(self._connection):
            self._connection.execute(query.with_for_update(read=not exclusive))
        return self.get(dataset_id)

    def by_digest(self, digest: str) -> Dataset | None:
        row = self._connection.execute(sa.select(datasets).where(datasets.c.digest == digest)).first()
        return None if row is None else _entity(row)

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[Dataset], bool]:
        """Newest first, those older than ``after``; and whether there are more."""
        query = sa.select(datasets).order_by(datasets.c.id.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(datasets.c.id < after)
        found = [_entity(row) for row in self._connection.execute(query)]
        return found[:limit], len(found) > limit

    def delete(self, dataset_id: str) -> None:
        self._connection.execute(sa.delete(datasets).where(datasets.c.id == dataset_id))


def _entity(row: sa.Row[tuple[object, ...]]) -> Dataset:
    values = dict(row._mapping)
    return Dataset(**values | {"classes": tuple(values["classes"])})
