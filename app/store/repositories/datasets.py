"""Data sets, and the vectors of their pictures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import sqlalchemy as sa

from app.domain.entities import Dataset, ListedDataset
from app.domain.errors import NotFound
from app.domain.names import LATEST_SUFFIX
from app.store.dialect import batched, insert_once, on_postgresql, upsert
from app.store.encoder_tables import picture_vectors
from app.store.repositories.scoped import Scoped
from app.store.tables import dataset_classes, datasets

PIECE: Final = 256
"""Classes whose names are stored in one row."""
_LISTED: Final = [datasets.c[field.name] for field in dataclasses.fields(ListedDataset)]
_ALL: Final = [datasets.c[field.name] for field in dataclasses.fields(Dataset)]


class Datasets(Scoped):
    """Queries on data sets. Only methods that say so read the names of classes, which may take many MiB."""

    def add(self, dataset: Dataset, classes: Sequence[str]) -> bool:
        """Insert a data set; returns False, and changes nothing, if its tenant has one with its digest."""
        self._check_owner(dataset.tenant)
        if len(classes) != dataset.class_count:
            raise RuntimeError(f"{len(classes)} names are not those of {dataset.class_count} classes.")
        values = dataclasses.asdict(dataset) | {"row_bytes": row_bytes(dataset, classes)}
        if not insert_once(self._connection, datasets, values):
            return False
        pieces = [
            {"dataset_id": dataset.id, "first": first, "labels": list(classes[first : first + PIECE])}
            for first in range(0, len(classes), PIECE)
        ]
        if pieces:
            self._connection.execute(sa.insert(dataset_classes), pieces)
        return True

    def get(self, dataset_id: str) -> Dataset:
        """A data set by its id, or the newest revision of its series by ``id@latest``. Raises NotFound."""
        first = dataset_id.removesuffix(LATEST_SUFFIX)
        query = sa.select(*_ALL).where(datasets.c.id == first, self._owns(datasets))
        row = self._connection.execute(query).first()
        if first != dataset_id:
            # The series outlives its first data set.
            latest = self.latest(first if row is None else row.series or row.id)
            return self.get(first if latest is None else latest[0])
        if row is None:
            raise NotFound(f"There is no data set {dataset_id!r}.", code="dataset_not_found")
        return Dataset(**row._mapping)

    def marked(self, *, after: str = "", limit: int) -> Sequence[Dataset]:
        """Data sets with ids above ``after`` whose rows are about subjects, by their ids."""
        query = sa.select(*_ALL).where(self._owns(datasets), datasets.c.id > after)
        query = query.where(datasets.c.summary["subject_column"].as_string().is_not(None))
        rows = self._connection.execute(query.order_by(datasets.c.id).limit(limit))
        return [Dataset(**row._mapping) for row in rows]

    def name(self, dataset_id: str) -> str | None:
        """The name of a data set; None if no data set has this id."""
        query = sa.select(datasets.c.name).where(datasets.c.id == dataset_id, self._owns(datasets))
        name: str | None = self._connection.execute(query).scalar()
        return name

    def lock(self, dataset_id: str, *, exclusive: bool = False) -> Dataset:
        """Like `get`, with a shared or exclusive row lock until the end of the transaction. Raises NotFound.

        A job is submitted under a shared lock and a data set is deleted under an exclusive lock, so each
        transaction sees the other.
        """
        dataset_id = self.get(dataset_id).id if dataset_id.endswith(LATEST_SUFFIX) else dataset_id
        query = sa.select(datasets.c.id).where(datasets.c.id == dataset_id, self._owns(datasets))
        if on_postgresql(self._connection):
            self._connection.execute(query.with_for_update(read=not exclusive))
        return self.get(dataset_id)

    def by_digest(self, digest: str) -> Dataset | None:
        """The data set of the tenant with this digest, or None."""
        query = sa.select(*_ALL).where(datasets.c.tenant == self.tenant, datasets.c.digest == digest)
        row = self._connection.execute(query).first()
        return None if row is None else Dataset(**row._mapping)

    def latest(self, series: str) -> tuple[str, int] | None:
        """Id and number of the newest revision of a series, by the id of its first data set.

        None if neither a revision nor the first data set exists any more.
        """
        query = (
            sa.select(datasets.c.id, datasets.c.revision)
            .where(self._owns(datasets), sa.or_(datasets.c.series == series, datasets.c.id == series))
            .order_by(datasets.c.revision.desc())
            .limit(1)
        )
        row = self._connection.execute(query).first()
        return None if row is None else (row.id, row.revision)

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[ListedDataset], bool]:
        """One page of data sets older than ``after``, newest first, and whether there are more."""
        query = sa.select(*_LISTED).where(self._owns(datasets)).order_by(datasets.c.id.desc())
        if after is not None:
            query = query.where(datasets.c.id < after)
        page = [ListedDataset(**row._mapping) for row in self._connection.execute(query.limit(limit + 1))]
        return page[:limit], len(page) > limit

    def classes(self, dataset_id: str, *, after: int = -1, limit: int | None = None) -> tuple[str, ...]:
        """The names of classes with numbers above ``after``, at most ``limit``; by default of all."""
        first = after + 1
        is_wanted = dataset_classes.c.first > first - PIECE
        if limit is not None:
            is_wanted &= dataset_classes.c.first < first + limit
        pieces = list(self._pieces(dataset_id, is_wanted))
        labels = [label for _, piece in pieces for label in piece]
        skipped = max(0, first - pieces[0][0]) if pieces else 0
        return tuple(labels[skipped : None if limit is None else skipped + limit])

    def class_names(self, dataset_id: str, numbers: Collection[int]) -> dict[int, str]:
        """Names of those of ``numbers`` that the data set has, by class number."""
        wanted = frozenset(numbers)
        return {
            first + place: label
            for some in batched(sorted({number - number % PIECE for number in wanted}))
            for first, piece in self._pieces(dataset_id, dataset_classes.c.first.in_(some))
            for place, label in enumerate(piece)
            if first + place in wanted
        }

    def class_number(self, dataset_id: str, label: str) -> int | None:
        """The number of the class with this name, or None. Reads the names one piece after the other."""
        for first, piece in self._pieces(dataset_id, sa.true()):
            if label in piece:
                return first + piece.index(label)
        return None

    def delete(self, dataset_id: str) -> None:
        self._connection.execute(sa.delete(datasets).where(datasets.c.id == dataset_id, self._owns(datasets)))

    def _pieces(
        self, dataset_id: str, condition: sa.ColumnElement[bool]
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """(number of the first class, names) of some pieces, in order."""
        query = (
            sa.select(dataset_classes.c.first, dataset_classes.c.labels)
            .join(datasets, datasets.c.id == dataset_classes.c.dataset_id)
            .where(datasets.c.id == dataset_id, self._owns(datasets), condition)
            .order_by(dataset_classes.c.first)
        )
        for row in self._connection.execute(query):
            yield row.first, row.labels


def row_bytes(dataset: Dataset, classes: Sequence[str]) -> int:
    """Bytes of a data set besides its rows: name, summary, class names, description of its changes."""
    change = [] if dataset.change is None else [dataset.change]
    return len(json.dumps([dataset.name, dataset.summary, list(classes), *change]))


class PictureVectors(Scoped):
    """Queries on portions of the vectors that encoders have made of the pictures of data sets.

    part: ``"train"`` or ``"test"``. number: of the column. encoder: its digest. All methods raise NotFound
    for a data set that the tenant does not have.
    """

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
        query = sa.select(sa.literal(1)).where(datasets.c.id == dataset_id, self._owns(datasets))
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
