"""Numbers and dates as people of ten countries write them are the same in every format, and in a query."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from babel.numbers import format_currency, format_decimal, format_percent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from core.data.column_kinds import infer_schema
from core.data.frames import table_of_frame, without_tokens
from core.data.schema import ColumnSchema, cells_as
from core.data.table import NumberCells, Table
from core.encoding.fit import fit_encoder
from core.packed.record_rows import RecordRows, canonical
from tests.core.data.test_number_texts import CURRENCIES, LOCALES

SETTINGS = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FIRST = ((0.25, 0, 27), (1234.5, 1000, 1), (-7.75, 7, 400))
"""Rows that settle how numbers and dates are written."""
DATES = ("%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d %b %Y", "%d/%m/%y")
NULLS = ("-", "n.a.", r"\N", "", "NA", "unknown")
rows = st.lists(
    st.tuples(
        st.integers(-(10**8), 10**8).map(lambda cents: cents / 4), st.integers(0, 10**7), st.integers(0, 9999)
    ),
    min_size=9,
    max_size=20,
)


def written(locale: str, pattern: str, table: Sequence[tuple[float, int, int]]) -> dict[str, list[str]]:
    """The columns as somebody there writes them."""
    form = "#,##,##0.##" if locale.endswith("IN") else "#,##0.##"
    currency = CURRENCIES.get(locale, "EUR")
    days = [date(1970, 1, 1) + timedelta(days=day) for _, _, day in table]
    return {
        "price": [format_currency(price, currency, locale=locale) for price, _, _ in table],
        "share": [format_percent(price / 100, f"{form}%", locale=locale) for price, _, _ in table],
        "number": [format_decimal(price, form, locale) for price, _, _ in table],
        "count": [format_decimal(count, form, locale) for _, count, _ in table],
        "day": [f"{day:{pattern}}" for day in days],
    }


def csv_of(columns: Mapping[str, Sequence[str]], separator: str) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue().encode()


def files_of(columns: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    table = pa.table(dict(columns))
    of_parquet, of_arrow = io.BytesIO(), io.BytesIO()
    parquet.write_table(table, of_parquet)
    with ipc.new_file(of_arrow, table.schema) as writer:
        writer.write_table(table)
    attributes = "".join(f"@attribute {name} string\n" for name in columns if name != "label")
    header = f"@relation r\n{attributes}@attribute label {{a,b}}\n@data\n"
    data = csv_of(columns, ",").partition(b"\n")[2]
    return {
        "csv": csv_of(columns, ","),
        "semicolon": csv_of(columns, ";"),
        "tab": csv_of(columns, "\t"),
        "jsonl": "".join(json.dumps(record) + "\n" for record in records).encode(),
        "parquet": of_parquet.getvalue(),
        "arrow": of_arrow.getvalue(),
        # A backslash before a letter stands for that letter in ARFF.
        "arff": header.encode() + data.replace(b"\\", b"\\\\"),
    }


def described(schema: Sequence[ColumnSchema]) -> dict[str, Any]:
    return {one.name: (one.kind, one.pattern, one.gaps, sorted(one.nulls)) for one in schema}


def values_of(table: Table, schema: Sequence[ColumnSchema]) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for one in schema:
        cells = cells_as(one.name, table.column(one.name), one.spec)
        if isinstance(cells, NumberCells):
            found[one.name] = [None if value != value else value for value in cells.values.tolist()]
        else:
            texts = [None if code < 0 else cells.texts[code] for code in cells.codes.tolist()]  # type: ignore[union-attr]
            found[one.name] = [None if text is None else one.spec.value_of(text) for text in texts]
    return found


@SETTINGS
@given(st.sampled_from(LOCALES), st.sampled_from(DATES), st.sampled_from(NULLS), st.integers(0, 8), rows)
def test_cells_have_one_value_in_every_format_and_in_a_query(
    ingest: Any, locale: str, pattern: str, null: str, gap: int, table: Any
) -> None:
    table = [*FIRST, *table]
    columns = written(locale, pattern, table)
    for texts in columns.values():
        texts[len(FIRST) + gap] = null
    labelled = columns | {"label": ["ab"[row % 2] for row in range(len(table))]}
    frame = without_tokens(table_of_frame(columns))
    schema = infer_schema(frame)
    truth = {
        "price": [price for price, _, _ in table],
        "share": [price for price, _, _ in table],
        "number": [price for price, _, _ in table],
        "count": [float(count) for _, count, _ in table],
        "day": [86_400_000_000.0 * day for _, _, day in table],
    }
    for one, (name, values) in zip(schema, truth.items(), strict=True):
        assert (one.kind, one.gaps) == ("date" if name == "day" else "number", 1), (name, columns[name])
        wanted = [None if row == len(FIRST) + gap else value for row, value in enumerate(values)]
        assert values_of(frame, schema)[name] == pytest.approx(wanted, abs=0.006), columns[name]
    for kind, content in files_of(labelled).items():
        train, _, _ = ingest(content, declared="csv" if kind in ("csv", "semicolon", "tab") else None)
        assert described(train.schema) == described(schema), kind
        assert values_of(train.table, train.schema) == values_of(frame, schema), kind
    # A question has the values of training, written as there or as numbers.
    encoder = fit_encoder(frame, schema)
    rows = RecordRows(encoder)
    encoded = encoder.encode(frame).dense
    for row in range(len(table)):
        record = {name: texts[row] for name, texts in columns.items()}
        values = [canonical(column, record[column.name]) for column in rows.columns]
        if all(value is None for value in values):
            # Nothing follows from such a record.
            continue
        dense = rows.encode(values).dense
        np.testing.assert_array_equal(dense, encoded[row])


def test_decimals_are_told_from_thousands_in_files_of_either_sign(ingest: Any) -> None:
    thousands = ["400", "800", "1,200", "24,000"] * 3
    columns = {"v": thousands, "label": ["a", "b"] * 6}
    for content in (csv_of(columns, ","), csv_of(columns, ";")):
        assert ingest(content, declared="csv")[2]["schema"][0]["max"] == 24000
    points = {"v": [text.replace(",", ".") for text in thousands], "label": ["a", "b"] * 6}
    for content in (csv_of(points, ","), csv_of(points, ";")):
        assert ingest(content, declared="csv")[2]["schema"][0]["max"] == 24000
    decimals = csv_of({"v": ["1,5", "2.400", "3,25"] * 4, "label": ["a", "b"] * 6}, ";")
    assert ingest(decimals, declared="csv", decimal=",")[2]["schema"][0]["max"] == 2400
    only = csv_of({"v": ["1.200", "2.400", "3.600"] * 4, "label": ["a", "b"] * 6}, ";")
    assert ingest(only, declared="csv", decimal=",")[2]["schema"][0]["max"] == 3600
    assert ingest(only, declared="csv")[0].X.max() == 3.6
