"""Vectors that encoders have made of the pictures of data sets, in portions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.errors import NotFound
from app.store.dialect import upsert
from app.store.tables import datasets, picture_vectors


class PictureVectors:
    """Queries on portions of vectors. tenant: the only one whose data sets they are of; None for all.

    part: ``"train"`` or ``"test"``. number: of the column. encoder: its digest. All methods raise NotFound
    for a data set that the tenant does not have.
    """

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        self._connection = connection
        self._tenant = tenant

    def save(
        self, dataset_id: str, part: str, number: int, encoder: str, first: int, count: int, data: bytes
    ) -> None:
        """Insert or replace a portion. first: number of its first picture. data: float32, little endian."""
        self._check(dataset_id)
        content = {"pictures": count, "size": len(data), "data": data}
        keys = {"dataset_id": dataset_id, "part": part, "number": number, "encoder": encoder, "first": first}
        statement = upsert(self._connection, picture_vectors).values(**keys, **content)
        self._connection.execute(statement.on_conflict_do_update(index_elements=[*keys], set_=content))

    def portions(self, dataset_id: str, part: str, number: int, encoder: str) -> Sequence[tuple[int, int]]:
        """First picture and number of pictures of each portion that is stored, ascending."""
        self._check(dataset_id)
        table = picture_vectors
        query = sa.select(table.c.first, table.c.pictures).where(*_of(dataset_id, part, number, encoder))
        return [(row.first, row.pictures) for row in self._connection.execute(query.order_by(table.c.first))]

    def data(self, dataset_id: str, part: str, number: int, encoder: str) -> Iterator[tuple[int, bytes]]:
        """Number of pictures and data of each portion in order; one portion in memory at a time."""
        for first, count in self.portions(dataset_id, part, number, encoder):
            where = (*_of(dataset_id, part, number, encoder), picture_vectors.c.first == first)
            query = sa.select(picture_vectors.c.data).where(*where)
            yield count, bytes(self._connection.execute(query).scalar_one())

    def _check(self, dataset_id: str) -> None:
        if self._tenant is None:
            return
        query = sa.select(sa.literal(1)).where(datasets.c.id == dataset_id, datasets.c.tenant == self._tenant)
        if self._connection.execute(query).first() is None:
            raise NotFound(f"There is no data set {dataset_id!r:.80}.", code="dataset_not_found")


def _of(dataset_id: str, part: str, number: int, encoder: str) -> tuple[sa.ColumnElement[bool], ...]:
    table = picture_vectors
    return (
        table.c.dataset_id == dataset_id,
        table.c.part == part,
        table.c.number == number,
        table.c.encoder == encoder,
    )
