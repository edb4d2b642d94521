"""The vectors of pictures that the worker has stored, read beside the rows of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.encoders.specification import BUILT_IN, EncoderSpecification
from app.store.unit_of_work import Store
from core.data.table import PictureCells, Table
from core.encoding.labelled_table import LabelledTable


def with_vectors(
    store: Store, dataset_id: str, part: str, rows: LabelledTable, said: Mapping[str, Sequence[str]]
) -> LabelledTable:
    """The rows with the vectors of their pictures by every encoder that has encoded all of them.

    said: references to the encoders of some columns, by name; other columns have the built-in ones. Raises
    NotFound for an encoder that the tenant no longer has.
    """
    cells = [*rows.table.cells]
    for number, of_column in enumerate(cells):
        if isinstance(of_column, PictureCells):
            references = said.get(rows.table.names[number], tuple(BUILT_IN))
            with store.read() as uow:
                encoders = [uow.own_encoders.specification(reference) for reference in references]
            vectors = _vectors(store, dataset_id, part, number, len(of_column.pictures), encoders)
            names = {one.identity: (one.name, one.pixels) for one in encoders if one.identity in vectors}
            cells[number] = replace(of_column, vectors=vectors, encoders=names)
    return replace(rows, table=Table(rows.table.names, tuple(cells)))


def _vectors(
    store: Store,
    dataset_id: str,
    part: str,
    number: int,
    count: int,
    encoders: Sequence[EncoderSpecification],
) -> Mapping[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    for encoder in encoders:
        table = np.empty((count, encoder.width), dtype=np.float32)
        done = 0
        with store.read() as uow:
            for pictures, data in uow.picture_vectors.data(dataset_id, part, number, encoder.identity):
                portion = np.frombuffer(data, dtype="<f4").reshape(pictures, encoder.width)
                table[done : done + pictures] = portion
                done += pictures
        if done == count:
            found[encoder.identity] = table
    return found
