"""Columns of the types of `tests/types_table.py` in every way in: frames of every library, and files.

Libraries of data frames are imported where they are used: they are in an environment of their own.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np

from core.data.cell_values import microseconds_of
from core.data.column_kinds import infer_schema
from core.data.frames import table_of_frame, without_tokens
from core.data.schema import Kind, KindSpec, cells_as
from core.data.table import Cells, NumberCells, TextCells
from core.errors import InvalidProblem
from tests.types_table import ROWS_OF_COLUMN, Type

LABELS = [["p", "q"][k // 2 % 2] for k in range(ROWS_OF_COLUMN)]
BESIDE = [["u", "v", "w"][k * k % 3] for k in range(ROWS_OF_COLUMN)]
"""A column of texts, so that a table of numbers is one of raw cells, too."""


@dataclass(frozen=True)
class Outcome:
    """cell: the kind of the column, or the code of the error. values: see `Type.expected`."""

    cell: str
    values: list[Any] | None = None
    message: str = ""


def taken(cells: Cells, kind: str) -> Outcome:
    """The outcome of a column of this kind."""
    if kind == Kind.IGNORE:
        return Outcome(kind)
    found = cells_as("v", cells, KindSpec(Kind(kind)))
    if isinstance(found, TextCells):
        texts = [None if code < 0 else found.texts[code] for code in found.codes.tolist()]
        if kind == Kind.DATE:
            return Outcome(kind, [None if one is None else microseconds_of(one) for one in texts])
        return Outcome(kind, texts)
    values = found.values.tolist()
    if isinstance(found, NumberCells):
        return Outcome(kind, [None if one != one else one for one in values])
    return Outcome(kind, values)


def of_frame(frame: Any) -> Outcome:
    """What the estimator makes of the column "v" of a frame."""
    try:
        table = without_tokens(table_of_frame(frame))
        kinds = {column.name: column.kind for column in infer_schema(table)}
    except InvalidProblem as error:
        return Outcome(error.faults[0].code, message=error.faults[0].message)
    return taken(table.column("v"), kinds["v"])


def frame_of(one: Type, way: str) -> Any:
    """The column "v", a text beside it and the label as a frame of a library."""
    columns = {"v": column_of(one, way), "t": BESIDE, "label": LABELS}
    if way == "pandas":
        import pandas as pd

        return pd.DataFrame(columns)
    if way == "polars":
        import polars as pl

        return pl.DataFrame(columns)
    if way in ("pyarrow", "parquet", "arrow"):
        import pyarrow as pa

        return pa.table(columns)
    return columns


def column_of(one: Type, way: str) -> Any:
    """The values as a column of a library."""
    values = one.values()
    if way == "mapping":
        return values
    if way in ("numpy", "array"):
        return _of_numpy(one, values)
    return {"pandas": _of_pandas, "polars": _of_polars}.get(way, _of_arrow)(one, values)


def _of_numpy(one: Type, values: list[Any]) -> Any:
    if one.numpy == "masked":
        return np.ma.masked_array(
            [-999 if value is None else value for value in values], [value is None for value in values]
        )
    if one.numpy == "matrix":
        return np.array(values)
    if one.numpy == "object":
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    return np.array(values, dtype=one.numpy)


def _of_pandas(one: Type, values: list[Any]) -> Any:
    import pandas as pd

    if one.pandas == "period":
        return pd.PeriodIndex(values, freq="M")
    if one.pandas == "interval":
        return pd.arrays.IntervalArray.from_tuples([(start, start + 1) for start in values])
    return (
        pd.Series(values)
        if one.pandas == "datetime64[us, UTC+02:00]"
        else pd.Series(values, dtype=one.pandas)
    )


def _of_polars(one: Type, values: list[Any]) -> Any:
    import polars as pl

    name, _, rest = (one.polars or "").partition(" ")
    if name == "Datetime":
        unit, _, zone = rest.partition(" ")
        column = pl.Series(values, dtype=pl.Datetime(unit))
        return column.dt.convert_time_zone(zone) if zone else column
    return pl.Series(values) if name in ("", "List", "Struct") else pl.Series(values, dtype=getattr(pl, name))


def _of_arrow(one: Type, values: list[Any]) -> Any:
    import pyarrow as pa

    if one.arrow is None:
        return pa.array(values)
    if one.arrow.startswith("dictionary"):
        return pa.array(values).dictionary_encode()
    special = {
        "decimal128(10, 2)": pa.decimal128(10, 2),
        "timestamp[us, +02:00]": pa.timestamp("us", "+02:00"),
        "list<double>": pa.list_(pa.float64()),
        "list<string>": pa.list_(pa.string()),
        "struct<a: int64>": pa.struct({"a": pa.int64()}),
    }
    if one.arrow == "halffloat":
        return pa.array(np.array(values, dtype=np.float16))
    if one.arrow == "timestamp[s]":
        return pa.array([value and value.replace(microsecond=0) for value in values], pa.timestamp("s"))
    return pa.array(values, special.get(one.arrow) or pa.type_for_alias(one.arrow))


def file_of(one: Type, way: str) -> bytes:
    """The same columns as a file."""
    if way in ("parquet", "arrow"):
        return _arrow_file(frame_of(one, way), way)
    rows = [*zip(one.values(), BESIDE, LABELS, strict=True)]
    if way == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([("v", "t", "label"), *([_text(cell) for cell in row] for row in rows)])
        return out.getvalue().encode()
    if way == "jsonl":
        records = [dict(zip(("v", "t", "label"), row, strict=True)) for row in rows]
        return "\n".join(json.dumps(record, default=_json) for record in records).encode()
    return _arff(one, rows)


def _arff(one: Type, rows: list[Any]) -> bytes:
    kind = {"number": "numeric", "date": 'date "yyyy-MM-dd HH:mm:ss.SSS"'}.get(one.kind, "string")
    if one.kind == "date" and not isinstance(rows[0][0], datetime):
        kind = 'date "yyyy-MM-dd"'
    if one.cell("arff") != one.kind:
        kind = "string"
    head = f"@relation r\n@attribute v {kind}\n@attribute t string\n@attribute label {{p,q}}\n@data\n"

    def cell(value: Any) -> str:
        if value is None:
            return "?"
        if isinstance(value, datetime):
            return f"'{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}'"
        return str(value) if isinstance(value, int | float | Decimal) else f"'{value}'"

    return (head + "\n".join(",".join(map(cell, row)) for row in rows)).encode()


def _text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    return cell.isoformat() if isinstance(cell, date | time) else str(cell)


def _json(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value.isoformat()


def _arrow_file(table: Any, way: str) -> bytes:
    import pyarrow as pa
    from pyarrow import ipc, parquet

    out = io.BytesIO()
    if way == "parquet":
        parquet.write_table(table, out)
    else:
        with ipc.new_file(out, table.schema) as writer:
            writer.write_table(pa.table(table))
    return out.getvalue()


def labelled_file(labels: list[Any], way: str) -> bytes:
    """A column of numbers and labels as a file."""
    numbers = [float(k * k % 11) for k in range(len(labels))]
    if way == "csv":
        lines = [f"{number},{_label(one)}" for number, one in zip(numbers, labels, strict=True)]
        return "\n".join(["v,label", *lines]).encode()
    if way == "jsonl":
        records = [{"v": number, "label": one} for number, one in zip(numbers, labels, strict=True)]
        return "\n".join(json.dumps(record, default=_label) for record in records).encode()
    import pyarrow as pa

    return _arrow_file(pa.table({"v": numbers, "label": pa.array(labels)}), way)


def _label(label: Any) -> str:
    if label is None:
        return ""
    return label.decode() if isinstance(label, bytes) else str(label)


def asked_frame(one: Type, way: str) -> Any:
    """The frame without its label."""
    frame = frame_of(one, way)
    if way in ("pandas", "polars"):
        return frame[["v", "t"]]
    return {name: frame[name] for name in ("v", "t")}
