"""Stored data sets of raw cells: arrays and names of `app.ingest.dataset_format`, format 2.

Of part ``train`` and column j: ``train.cJ`` is F64 (n,) of numbers, NaN for gaps, or (n, w) of vectors, or
I32 codes (n,), −1 for gaps, of the texts in ``train.cJ.texts`` (U8) and ``train.cJ.offsets`` (I64); of
pictures, the bytes of their files are in ``train.cJ.pictures`` in place of texts.
``train.y``, ``train.privileged``, ``train.teacher_scores`` and the marks are those of format 1. ``names`` is
UTF-8 JSON of the classes, the names of columns, which of them are true and false, further known names, views
and names of extras; ``schema`` is UTF-8 JSON of the kinds of the columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.data.extras import Extras
from core.data.row_marks import RowMarks
from core.data.schema import ColumnSchema, Kind
from core.data.table import (
    ByteStrings,
    Cells,
    NumberCells,
    PictureCells,
    Table,
    TextCells,
    Texts,
    VectorCells,
)
from core.encoding.labelled_table import LabelledTable


def arrays_of(train: LabelledTable, test: LabelledTable | None) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name."""
    parts = {"train": train} if test is None else {"train": train, "test": test}
    arrays = {name: array for part, data in parts.items() for name, array in _part_arrays(part, data)}
    names = {
        "classes": train.classes,
        "columns": train.table.names,
        "truths": {
            part: [k for k, cells in enumerate(data.table.cells) if _is_truth(cells)]
            for part, data in parts.items()
        },
        "known": train.known,
        "views": train.views,
        "privileged_names": {part: data.extras.privileged_names for part, data in parts.items()},
    }
    schema = [asdict(column) for column in train.schema]
    return arrays | {"names": _json(names), "schema": _json(schema)}


def parts_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[LabelledTable, LabelledTable | None]:
    """Training part and test part of the arrays of a file."""
    names = json.loads(arrays["names"].tobytes())
    schema = tuple(
        ColumnSchema(**column | {"kind": Kind(column["kind"]), "nulls": tuple(column["nulls"])})
        for column in json.loads(arrays["schema"].tobytes())
    )
    train = _part("train", arrays, names, schema)
    return train, _part("test", arrays, names, schema) if "test.y" in arrays else None


def _json(content: object) -> NDArray[np.uint8]:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _is_truth(cells: Cells) -> bool:
    return isinstance(cells, NumberCells) and cells.is_truth


def _part_arrays(part: str, data: LabelledTable) -> Iterator[tuple[str, NDArray[Any]]]:
    yield f"{part}.y", data.y
    for name, array in (data.extras.arrays | data.marks.arrays).items():
        yield f"{part}.{name}", np.ascontiguousarray(array)
    for number, cells in enumerate(data.table.cells):
        place = f"{part}.c{number}"
        if isinstance(cells, TextCells):
            yield place, np.ascontiguousarray(cells.codes)
            yield f"{place}.texts", np.ascontiguousarray(cells.texts.data)
            yield f"{place}.offsets", np.ascontiguousarray(cells.texts.offsets)
        elif isinstance(cells, PictureCells):
            yield place, np.ascontiguousarray(cells.codes)
            yield f"{place}.pictures", np.ascontiguousarray(cells.pictures.data)
            yield f"{place}.offsets", np.ascontiguousarray(cells.pictures.offsets)
        else:
            yield place, np.ascontiguousarray(cells.values)


def _part(
    part: str, arrays: Mapping[str, NDArray[Any]], names: dict[str, Any], schema: tuple[ColumnSchema, ...]
) -> LabelledTable:
    columns = tuple(names["columns"])
    truths = set(names["truths"][part])
    cells = tuple(_cells(f"{part}.c{number}", arrays, number in truths) for number in range(len(columns)))
    privileged_names = names["privileged_names"][part]
    return LabelledTable(
        Table(columns, cells),
        schema,
        arrays[f"{part}.y"],
        tuple(names["classes"]),
        tuple(names["known"]),
        tuple((view, tuple(of_view)) for view, of_view in names["views"]),
        Extras(
            privileged=arrays.get(f"{part}.privileged"),
            privileged_names=None if privileged_names is None else tuple(privileged_names),
            teacher_scores=arrays.get(f"{part}.teacher_scores"),
        ),
        RowMarks.of_part(part, arrays),
    )


def _cells(place: str, arrays: Mapping[str, NDArray[Any]], is_truth: bool) -> Cells:
    values = arrays[place]
    if f"{place}.pictures" in arrays:
        return PictureCells(values, ByteStrings(arrays[f"{place}.pictures"], arrays[f"{place}.offsets"]))
    if values.dtype == np.int32:
        return TextCells(values, Texts(arrays[f"{place}.texts"], arrays[f"{place}.offsets"]))
    return VectorCells(values) if values.ndim == 2 else NumberCells(values, is_truth)
