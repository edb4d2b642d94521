"""The file format of stored data sets: one safetensors file with both parts, written and read without copies.

Arrays ``train.X`` (or ``train.X.data``, ``.indices``, ``.indptr``) and ``train.y``, ``train.privileged`` and
``train.teacher_scores`` if there are any, marks of the rows (``train.ids``, I64 (n,), ``train.subjects``, U8
(n, 16), ``train.held_out``, U8 (n,)) if there are any, the same for ``test`` if there is a test part, and
``names``: UTF-8 JSON of classes, feature names, the number of columns, and ``extras``, names and views of
each part. This is format 1, of numbers; tables of raw cells are stored in format 2, see
`app.ingest.table_format`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from app.ingest.dataset_rows import DTYPES, FORMAT, TABLE_FORMAT
from app.ingest.table_format import arrays_of, parts_of
from core.data.dataset import LabelledData
from core.data.extras import Extras, View
from core.data.row_marks import RowMarks
from core.encoding.labelled_table import LabelledTable
from core.packed.codec import safetensors_header
from core.types import Matrix

_CHUNK_BYTES = 1024**2


Parts: TypeAlias = tuple[LabelledData, LabelledData | None] | tuple[LabelledTable, LabelledTable | None]
"""Training part and test part, if there is one, of numbers or of raw cells."""


def encode(train: LabelledData | LabelledTable, test: LabelledData | LabelledTable | None) -> Iterator[bytes]:
    """Yield the file in chunks of at most 1 MiB. Equal data give equal bytes."""
    if isinstance(train, LabelledTable):
        arrays = arrays_of(train, test if isinstance(test, LabelledTable) else None)
        return _file(TABLE_FORMAT, arrays)
    arrays = dict(_arrays("train", train))
    parts = {"train": train}
    if isinstance(test, LabelledData):
        arrays |= dict(_arrays("test", test))
        parts["test"] = test
    arrays["names"] = np.frombuffer(_names(parts), dtype=np.uint8)
    return _file(FORMAT, arrays)


def _file(name: str, arrays: dict[str, NDArray[Any]]) -> Iterator[bytes]:
    # The widest items come first, so that every array begins at a multiple of its item size.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header, _ = safetensors_header(
        {"format": name}, ((name, array.dtype, array.shape) for name, array in ordered)
    )
    yield header
    for _, array in ordered:
        view = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        for start in range(0, len(view), _CHUNK_BYTES):
            yield bytes(view[start : start + _CHUNK_BYTES])


def decode(buffer: bytearray | memoryview) -> Parts:
    """Training part and test part of a file that `encode` wrote; the arrays are views of ``buffer``.

    The caller has verified the digest, so the content is not checked again. Raises ValueError for a file of
    another format.
    """
    length = int.from_bytes(buffer[:8], "little")
    index = json.loads(bytes(buffer[8 : 8 + length]))
    file_format = index.pop("__metadata__", {}).get("format")
    if file_format not in (FORMAT, TABLE_FORMAT):
        raise ValueError(f"The blob is not a data set of format {FORMAT} or {TABLE_FORMAT}.")
    arrays = {
        name: np.frombuffer(
            memoryview(buffer)[8 + length :][entry["data_offsets"][0] : entry["data_offsets"][1]],
            dtype=DTYPES[entry["dtype"]],
        ).reshape(entry["shape"])
        for name, entry in index.items()
    }
    if file_format == TABLE_FORMAT:
        return parts_of(arrays)
    names = json.loads(arrays["names"].tobytes())
    train = _part("train", arrays, names)
    return train, _part("test", arrays, names) if "test.y" in arrays else None


def _arrays(part: str, data: LabelledData) -> Iterator[tuple[str, NDArray[Any]]]:
    yield f"{part}.y", data.y
    if sp.issparse(data.X):
        for name in ("data", "indices", "indptr"):
            yield f"{part}.X.{name}", np.ascontiguousarray(getattr(data.X, name))
    else:
        yield f"{part}.X", np.ascontiguousarray(data.X)
    for name, array in (data.extras.arrays | data.marks.arrays).items():
        yield f"{part}.{name}", np.ascontiguousarray(array)


def _names(parts: dict[str, LabelledData]) -> bytes:
    train = parts["train"]
    names: dict[str, Any] = {
        "classes": train.classes,
        "feature_names": train.feature_names,
        "columns": train.d,
    }
    extras = {part: _named(data.extras) for part, data in parts.items() if data.extras.offers}
    if extras:
        names["extras"] = extras
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")).encode()


def _named(extras: Extras) -> dict[str, Any]:
    views = [(view.name, view.start, view.stop) for view in extras.views]
    return {"privileged_names": extras.privileged_names, "views": views}


def _part(part: str, arrays: dict[str, NDArray[Any]], names: dict[str, Any]) -> LabelledData:
    y = arrays[f"{part}.y"]
    if f"{part}.X" in arrays:
        X: Matrix = arrays[f"{part}.X"]
    else:
        triple = tuple(arrays[f"{part}.X.{name}"] for name in ("data", "indices", "indptr"))
        X = sp.csr_array(triple, shape=(len(y), names["columns"]))
        # The stored matrix was canonical; setting the flag saves SciPy a check of all entries.
        X.has_canonical_format = True
    features = None if names["feature_names"] is None else tuple(names["feature_names"])
    named = names.get("extras", {}).get(part)
    marks = RowMarks.of_part(part, arrays)
    if named is None:
        return LabelledData(X, y, tuple(names["classes"]), features, marks=marks)
    extras = Extras(
        privileged=arrays.get(f"{part}.privileged"),
        privileged_names=None if named["privileged_names"] is None else tuple(named["privileged_names"]),
        views=tuple(View(*view) for view in named["views"]),
        teacher_scores=arrays.get(f"{part}.teacher_scores"),
    )
    return LabelledData(X, y, tuple(names["classes"]), features, extras, marks=marks)
