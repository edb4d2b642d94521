"""Records to ask about, read from files of every kind: the same cells, matched by the names of columns."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from app.domain.errors import InvalidRequest, UnsupportedFormat
from app.domain.file_formats import TABLES, FileFormat
from app.ingest.options import ReadingOptions
from app.ingest.raw import FeatureRows, Known
from app.ingest.rows import read_rows
from core.data.schema import Kind, KindSpec

KINDS = {
    "age": Kind.NUMBER,
    "zip": Kind.CATEGORY,
    "note": Kind.TEXT,
    "since": Kind.TEXT,
    "member": Kind.BOOLEAN,
}
KNOWN = Known(
    tuple(KINDS),
    kinds={name: KindSpec(kind) for name, kind in KINDS.items()},
    required=frozenset({"zip"}),
)
RECORDS = [
    {"age": 39, "zip": "0501", "note": 'lost, "again"', "since": "2019-05-06", "member": True},
    {"age": None, "zip": "9000", "note": None, "since": None, "member": False},
    {"age": 1.5, "zip": "1", "note": "two\nlines", "since": "2020-01-01", "member": None},
]
FILE = [{"id": 100 + k, "kind": "x", **record} for k, record in enumerate(RECORDS)]


def turned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(reversed(record.items())) for record in records]


def csv_of(records: list[dict[str, Any]], **form: Any) -> bytes:
    out = io.StringIO()
    table = csv.DictWriter(out, list(records[0]), **{"lineterminator": "\n", **form})
    table.writeheader()
    table.writerows(
        {name: str(cell).lower() if isinstance(cell, bool) else cell for name, cell in record.items()}
        for record in records
    )
    return out.getvalue().encode()


def jsonl_of(records: list[dict[str, Any]]) -> bytes:
    return "\n\n".join(map(json.dumps, records)).encode()


def parquet_of(records: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(records), out)
    return out.getvalue()


def arrow_of(records: list[dict[str, Any]]) -> bytes:
    table, out = pa.Table.from_pylist(records), io.BytesIO()
    with ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return out.getvalue()


def arff_of(records: list[dict[str, Any]]) -> bytes:
    kinds = {"age": "numeric", "id": "numeric", "member": "{true, false}"}
    lines = [f"@attribute {name} {kinds.get(name, 'string')}" for name in records[0]]
    rows = [
        ",".join(
            "?" if cell is None else json.dumps(cell) if isinstance(cell, bool) else f"'{cell}'"
            for cell in record.values()
        )
        for record in records
    ]
    return "\n".join(["@relation r", *lines, "@data", *rows]).encode()


def read(folder: Path, content: bytes, known: Known = KNOWN, name: str = "rows", **said: str) -> FeatureRows:
    path = folder / name
    path.write_bytes(content)
    return read_rows(path, ReadingOptions.parse(**said), known)


def records_of(rows: FeatureRows) -> list[dict[str, Any]]:
    columns = rows.body["columns"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("order", [list, turned], ids=["as trained", "turned"])
@pytest.mark.parametrize(
    ("form", "lines"),
    [(csv_of, [2, 3, 4]), (jsonl_of, [1, 3, 5]), (parquet_of, None), (arrow_of, None)],
)
def test_the_records_of_a_file_are_those_of_every_other(tmp_path: Path, form: Any, lines: Any, order: Any):
    rows = read(tmp_path, form(order(FILE)))
    assert records_of(rows) == RECORDS
    assert rows.n == 3
    assert rows.names == tuple(KINDS)
    assert sorted(rows.ignored) == ["id", "kind"]
    assert (rows.lines if lines is None else list(rows.lines or ())) == lines


def test_an_arff_file_has_records_too(tmp_path: Path):
    plain = [record | {"note": "lost"} for record in FILE]
    rows = read(tmp_path, arff_of(plain))
    assert records_of(rows) == [record | {"note": "lost"} for record in RECORDS]
    assert list(rows.lines or ()) == [10, 11, 12]


def test_semicolons_decimal_commas_and_tokens_of_missing_values_are_read_as_in_an_upload(tmp_path: Path):
    content = b"zip;age;member\n0501;39,5;true\n9000;n.a.;false\n"
    rows = read(tmp_path, content, null_values="n.a.")
    assert records_of(rows) == [
        {"age": 39.5, "zip": "0501", "member": True},
        {"age": None, "zip": "9000", "member": False},
    ]
    title = b"A title\n\n" + content.replace(b"zip;age;member\n", b"")
    said = {"skip_lines": "2", "column_names": "zip,age,member", "null_values": "n.a."}
    again = read(tmp_path, title, **said)
    assert again.body == rows.body
    assert list(again.lines or ()) == [3, 4]


def test_a_file_of_one_column_of_texts_is_read(tmp_path: Path):
    known = Known(("text",), kinds={"text": KindSpec(Kind.TEXT)})
    rows = read(tmp_path, b'text\nlost my card\n"a, b\nc"\n12\n', known)
    assert [record["text"] for record in records_of(rows)] == ["lost my card", "a, b\nc", "12"]
    assert list(rows.lines or ()) == [2, 3, 5]


def test_numbers_are_booleans_where_the_model_has_these(tmp_path: Path):
    assert records_of(read(tmp_path, b"zip,member\n1,0\n2,1\n")) == [
        {"zip": "1", "member": False},
        {"zip": "2", "member": True},
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"zip,age\n1,new\n2,old\n", "Line 2, column 'age': 'new' is not a number"),
        (b"age,note\n1,a\n2,b\n", "The file lacks 'zip'. The columns of the model are 'age', 'zip'"),
        (b"1,2\n3,4\n", "column_names=a,b,c (--column-names a,b,c)"),
        (b"zip,age\n", "no rows"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_by_its_lines(tmp_path: Path, content: bytes, said: str):
    with pytest.raises(InvalidRequest) as caught:
        read(tmp_path, content)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"zip,age\n1,39\n2,old\n", "Line 3, column 'age': 'old' is not a number."),
        (b"zip,member\n1,true\n2,yes\n", "Line 3, column 'member': 'yes' is neither true nor false."),
        (
            b'{"zip": "1", "age": 2}\n\n{"zip": "2", "age": "old"}',
            "Line 3, column 'age': 'old' is not a number.",
        ),
    ],
)
def test_a_row_with_a_wrong_cell_is_left_out_and_told_by_its_line(tmp_path: Path, content: bytes, said: str):
    rows = read(tmp_path, content)
    assert [fault.message for fault in rows.faults] == [said]
    assert (rows.n, rows.numbers) == (1, [0])


def test_very_many_rows_with_wrong_cells_are_refused(tmp_path: Path):
    cells = "".join(f"1,{'old' if k % 2 else k}\n" for k in range(4000))
    with pytest.raises(InvalidRequest, match="Line 3, column 'age': 'old' is not a number"):
        read(tmp_path, f"zip,age\n{cells}".encode())


@pytest.mark.parametrize("form", [parquet_of, arrow_of])
def test_a_column_of_another_type_is_told(tmp_path: Path, form: Any):
    with pytest.raises(InvalidRequest, match="type struct"):
        read(tmp_path, form([{"zip": "1", "note": {"a": 1}}]))
    rows = read(tmp_path, form([{"zip": "1", "age": "x"}, {"zip": "1", "age": "2"}]))
    assert (rows.n, rows.numbers, "'age': 'x' is not a number" in rows.faults[0].message) == (1, [1], True)


def test_a_column_of_texts_is_told_where_the_model_has_numbers_only(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="Column 'b' is of type string, not a number") as refused:
        read(tmp_path, parquet_of([{"a": 1.0, "b": "x"}]), Known(("a", "b")))
    assert refused.value.faults[0].column == 1


def test_a_header_is_known_by_a_name_of_the_model(tmp_path: Path):
    assert records_of(read(tmp_path, b"note,zip\nlost,a\nlost,b\n")) == [
        {"zip": "a", "note": "lost"},
        {"zip": "b", "note": "lost"},
    ]


def test_options_and_formats_that_say_nothing_are_refused(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="null_values says nothing"):
        read(tmp_path, b"a,b\n1,2\n", Known(("a", "b")), null_values="x")
    table = io.BytesIO()
    np.save(table, np.eye(2))
    with pytest.raises(InvalidRequest, match="null_values says nothing"):
        read(tmp_path, table.getvalue(), Known(("a", "b")), null_values="x")
    with pytest.raises(UnsupportedFormat, match="CSV, Parquet and"):
        read(tmp_path, jsonl_of(RECORDS), Known(("a", "b")))
    with pytest.raises(UnsupportedFormat, match="CSV, JSON Lines, Parquet, Arrow"):
        read(tmp_path, b"1 1:2\n2 1:3\n", name="rows.svm")


@pytest.mark.parametrize("kind", TABLES)
def test_records_come_from_files_of_every_format_of_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: FileFormat
):
    monkeypatch.setattr("app.ingest.rows.detect", lambda *args, **options: kind)
    with pytest.raises(InvalidRequest):  # The file is damaged; UnsupportedFormat is another error.
        read(tmp_path, b"no table")


NUMBERS = [[k + 0.5, float(k % 7), k * 3 % 5 + 0.25] for k in range(7)]


@pytest.mark.parametrize("names", ["0,1,2", "1,2,3", "x0,x1,x2", "V1,V2,V3"])
@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("with_label", [False, True])
def test_names_that_count_the_columns_are_no_row_to_ask_about(
    tmp_path: Path, names: str, with_index: bool, with_label: bool
) -> None:
    lines = [[names], *([str(value) for value in row] for row in NUMBERS)]
    if with_index:
        lines = [["" if k == 0 else str(k - 1), *line] for k, line in enumerate(lines)]
    if with_label:
        lines = [[*line, "label" if k == 0 else "a"] for k, line in enumerate(lines)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    rows = read_rows(path, ReadingOptions())
    assert isinstance(rows.X, np.ndarray)
    assert rows.X.tolist() == NUMBERS


def test_a_row_that_counts_is_not_taken_for_names_silently(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("0,1,2,3\n3,2,1,0\n")
    with pytest.raises(InvalidRequest, match="--header yes") as raised:
        read_rows(path, ReadingOptions())
    assert raised.value.reason == "ambiguous_header"
    assert read_rows(path, ReadingOptions(header="no")).n == 2
    path.write_text("0,1,2,3\n")
    assert read_rows(path, ReadingOptions()).n == 1
