"""The vectors of pictures that the worker has stored, read beside the rows of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.encoders.specification import BUILT_IN
from app.store.unit_of_work import Store
from core.data.table import PictureCells, Table
from core.encoding.labelled_table import LabelledTable


def with_vectors(store: Store, dataset_id: str, part: str, rows: LabelledTable) -> LabelledTable:
    """The rows with the vectors of their pictures by every encoder that has encoded all of them."""
    cells = [*rows.table.cells]
    for number, of_column in enumerate(cells):
        if isinstance(of_column, PictureCells):
            vectors = _vectors(store, dataset_id, part, number, len(of_column.pictures))
            encoders = {
                encoder.digest: (encoder.name, encoder.pixels)
                for encoder in BUILT_IN.values()
                if encoder.digest in vectors
            }
            cells[number] = replace(of_column, vectors=vectors, encoders=encoders)
    return replace(rows, table=Table(rows.table.names, tuple(cells)))


def _vectors(
    store: Store, dataset_id: str, part: str, number: int, count: int
) -> Mapping[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    for encoder in BUILT_IN.values():
        table = np.empty((count, encoder.width), dtype=np.float32)
        done = 0
        with store.read() as uow:
            for pictures, data in uow.picture_vectors.data(dataset_id, part, number, encoder.digest):
                portion = np.frombuffer(data, dtype="<f4").reshape(pictures, encoder.width)
                table[done : done + pictures] = portion
                done += pictures
        if done == count:
            found[encoder.digest] = table
    return found
