"""Tables of raw cells: the same cells through every format, kinds and gaps, and what is refused."""

from __future__ import annotations

import csv
import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from app.domain.errors import InvalidRequest, TooLarge
from app.ingest.csv.quotes import quotes_of
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits
from core.data.dataset import LabelledData
from core.data.table import Cells, NumberCells, TextCells, VectorCells
from core.encoding.labelled_table import LabelledTable
from tests.refusals import at_fault

SETTINGS = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NAMES = ["size", "colour", "note", "seen", "is_new"]
words = st.text(st.characters(categories=["L"], max_codepoint=0x17F), min_size=1, max_size=5)
rows = st.lists(
    st.tuples(
        st.none() | st.floats(-1e9, 1e9) | st.integers(-1000, 1000).map(float),
        st.none() | st.sampled_from(["red", "blue", "light green", "größe"]),
        st.none() | st.lists(words, min_size=1, max_size=6).map(" ".join),
        st.none() | st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)).map(str),
        st.none() | st.booleans(),
    ),
    min_size=2,
    max_size=12,
)
LABELS = ["yes", "no"]


def csv_of(table: list[Any], labels: list[str], **form: Any) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, **({"lineterminator": "\n"} | form))
    writer.writerow([*NAMES, "label"])
    writer.writerows(
        [*("" if cell is None else cell for cell in row), one] for row, one in zip(table, labels, strict=True)
    )
    return out.getvalue().encode()


def arrow_of(table: list[Any], labels: list[str]) -> pa.Table:
    kinds = [pa.float64(), pa.string(), pa.string(), pa.date32(), pa.bool_()]
    columns = [list(column) for column in zip(*table, strict=True)]
    columns[3] = [None if cell is None else datetime.date.fromisoformat(cell) for cell in columns[3]]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table(dict(zip(NAMES, arrays, strict=True)) | {"label": labels})


def parquet_of(table: list[Any], labels: list[str]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(arrow_of(table, labels), out)
    return out.getvalue()


def ipc_of(table: list[Any], labels: list[str], make: Any, block: int) -> bytes:
    out, content = io.BytesIO(), arrow_of(table, labels)
    with make(out, content.schema) as writer:
        writer.write_table(content, max_chunksize=block)
    return out.getvalue()


def jsonl_of(table: list[Any], labels: list[str], *, leave_out: bool) -> bytes:
    lines = []
    for row, label in zip(table, labels, strict=True):
        record = dict(zip(NAMES, row, strict=True)) | {"label": label}
        if leave_out and len(lines):
            record = {name: value for name, value in record.items() if value is not None}
        lines.append(json.dumps(record))
    return "\n".join(lines).encode()


def arff_of(table: list[Any], labels: list[str]) -> bytes:
    head = (
        "% made here\n@RELATION r\n@attribute size numeric\n"
        "@attribute colour {red,blue,'light green',größe}\n"
        "@attribute note string\n@attribute seen date yyyy-MM-dd\n@attribute is_new {True,False}\n"
        "@attribute label {yes,no}\n\n@data\n"
    )
    lines = [
        ",".join("?" if cell is None else f"'{cell}'" if isinstance(cell, str) else str(cell) for cell in row)
        for row in ([*row, one] for row, one in zip(table, labels, strict=True))
    ]
    return (head + "\n".join(lines)).encode()


def listed(cells: Cells) -> tuple[Any, ...]:
    """Everything that cells hold, to compare them."""
    if isinstance(cells, TextCells):
        return "texts", cells.codes.tolist(), list(cells.texts)
    return type(cells).__name__, cells.is_gap.tolist(), np.nan_to_num(cells.values).tolist()


@SETTINGS
@given(rows, st.integers(1, 5))
def test_the_same_table_has_the_same_cells_in_every_format(ingest: Any, some: Any, block: int) -> None:
    # A row of gaps makes it a table; both classes occur twice.
    table = [*some, (None, "red", None, None, True), (1.5, None, "a note of words", "2024-05-06", None)]
    labels = [LABELS[k % 2] for k in range(len(table))]
    files = {
        "csv": (csv_of(table, labels), "csv"),
        "tab": (csv_of(table, labels, delimiter="\t", lineterminator="\r\n"), "csv"),
        "parquet": (parquet_of(table, labels), "parquet"),
        "arrow": (ipc_of(table, labels, ipc.new_file, block), "arrow"),
        "stream": (ipc_of(table, labels, ipc.new_stream, block), None),
        "jsonl": (jsonl_of(table, labels, leave_out=False), None),
        "gaps left out": (jsonl_of(table, labels, leave_out=True), "jsonl"),
        "arff": (arff_of(table, labels), None),
    }
    found: dict[str, LabelledTable] = {}
    for kind, (content, declared) in files.items():
        train, _, _ = ingest(content, declared=declared)
        assert isinstance(train, LabelledTable), kind
        found[kind] = train
        assert train.table.names == tuple(NAMES), kind
        assert (train.classes, train.y.tolist()) == (("no", "yes"), found["csv"].y.tolist()), kind
        for name, cells in zip(NAMES, train.table.cells, strict=True):
            assert listed(cells) == listed(found["csv"].table.column(name)), (kind, name)
    for row in range(len(table)):
        assert found["csv"].table.record(row) == dict(zip(NAMES, table[row], strict=True))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "arff"])
def test_numbers_without_gaps_are_a_table_of_numbers_in_every_format(ingest: Any, kind: str) -> None:
    X = np.arange(12.0).reshape(6, 2) / 4
    labels = ["a", "b"] * 3
    table = pa.table({"u": X[:, 0], "v": X[:, 1], "label": labels})
    out = io.BytesIO()
    if kind == "parquet":
        parquet.write_table(table, out)
    elif kind == "arrow":
        with ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    elif kind == "jsonl":
        out.write("\n".join(map(json.dumps, table.to_pylist())).encode())
    else:
        lines = [f"{u},{v},{label}" for (u, v), label in zip(X, labels, strict=True)]
        head = "@relation r\n@attribute u real\n@attribute v real\n@attribute label {a,b}\n@data\n"
        out.write((head + "\n".join(lines)).encode())
    train, _, _ = ingest(out.getvalue(), declared=kind)
    assert isinstance(train, LabelledData)
    np.testing.assert_array_equal(train.X, X)
    assert train.feature_names == ("u", "v")


def table(names: str, *columns: Any) -> bytes:
    body = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([names, *body] if names else body).encode()


def schema_of(summary: Any) -> dict[str, dict[str, Any]]:
    return {column["name"]: column for column in summary["schema"]}


def refused(ingest: Any, content: bytes, **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        ingest(content, **options)
    return caught.value


KINDS = ["cat", "dog"] * 20
SQUARES = [k * k for k in range(40)]


class TestGaps:
    def test_tokens_are_counted_in_columns_of_numbers_and_of_texts(self, ingest: Any) -> None:
        numbers = ["?", " NA", "", "nan ", *range(36)]
        texts = ["?", "None", " ", "null", *"abcdefghi" * 4]
        _, _, summary = ingest(table("n,t,kind", numbers, texts, KINDS))
        found = schema_of(summary)
        assert found["n"]["nulls"] == {"": 1, "?": 1, "NA": 1, "nan": 1}
        assert (found["n"]["kind"], found["n"]["gaps"]) == ("number", 4)
        assert found["t"]["nulls"] == {"": 1, "?": 1, "null": 1}
        assert {"value": "None", "rows": 1} in found["t"]["values"] or found["t"]["distinct"] == 10

    def test_a_token_that_is_said_is_a_gap_also_among_numbers(self, ingest: Any) -> None:
        content = table("n,m,kind", [-999, *SQUARES[1:]], SQUARES, KINDS)
        train, _, summary = ingest(content, null_values="-999,n.a.")
        assert train.table.record(0) == {"n": None, "m": 0}
        assert schema_of(summary)["n"]["nulls"] == {"-999": 1}
        assert isinstance(ingest(content, null_values="n.a.")[0], LabelledData)

    def test_a_token_of_a_label_leaves_it_missing(self, ingest: Any) -> None:
        content = table("n,kind", SQUARES, ["-", *KINDS[1:]])
        train, _, _ = ingest(content, null_values="-", unlabelled=True)
        assert (train.classes, train.unlabelled) == (("cat", "dog"), 1)

    def test_what_arrow_takes_for_a_number_and_is_none_is_text_or_refused(self, ingest: Any) -> None:
        train, _, _ = ingest(table("n,t,kind", ["00501"] * 20 + SQUARES[20:], KINDS, KINDS))
        assert train.table.record(0) == {"n": "00501", "t": "cat"}
        assert train.table.record(39) == {"n": "1521", "t": "dog"}
        for endless in ("inf", "-Infinity", "1e400"):
            with pytest.raises(InvalidRequest, match="is infinite or beyond") as refused:
                ingest(table("n,t,kind", [endless] * 20 + SQUARES[20:], KINDS, KINDS))
            assert (refused.value.faults[0].code, refused.value.faults[0].row) == ("not_finite", 0)

    def test_a_late_gap_or_text_is_found(self, ingest: Any) -> None:
        labels = ["a", "b"] * 400
        train, _, summary = ingest(table("n,kind", [*range(799), ""], labels))
        assert (train.table.record(799), train.table.record(0)) == ({"n": None}, {"n": 0})
        assert schema_of(summary)["n"]["nulls"] == {"": 1}
        late = table("n,m,kind", [*range(400), *(f"x{k % 3}" for k in range(400))], range(800), labels)
        train, _, _ = ingest(late)
        assert schema_of(ingest(late)[2])["n"]["kind"] == "category"
        assert train.table.record(0) == {"n": "0", "m": 0}


class TestKinds:
    def test_mostly_numbers_are_refused_by_line_with_both_remedies(self, ingest: Any) -> None:
        content = table("n,kind", [*SQUARES[:39], "###"], KINDS)
        (fault,) = refused(ingest, content).faults
        assert (fault.code, fault.row) == ("mixed_column", 39)
        assert "first in line 41." in fault.message
        assert schema_of(ingest(content, null_values="###")[2])["n"]["gaps"] == 1
        assert schema_of(ingest(content, columns="n:category")[2])["n"]["kind"] == "category"

    def test_codes_keep_their_texts_where_they_are_said_to_be_names(self, ingest: Any) -> None:
        content = table("zip,kind", ["00501", "1.0"] * 20, KINDS)
        train, _, summary = ingest(content, columns="zip:category")
        assert train.table.record(0) == {"zip": "00501"}
        assert train.table.record(1) == {"zip": "1.0"}
        assert schema_of(summary)["zip"]["reason"] == "given"

    def test_dates_of_a_pattern_are_checked(self, ingest: Any) -> None:
        content = table("seen,kind", ["24/12/2024", "01/02/2024"] * 20, KINDS)
        assert schema_of(ingest(content)[2])["seen"]["pattern"] == "%d/%m/%Y"
        _, _, summary = ingest(content, columns="seen:date:%d/%m/%Y")
        assert (schema_of(summary)["seen"]["kind"], schema_of(summary)["seen"]["pattern"]) == (
            "date",
            "%d/%m/%Y",
        )
        error = refused(ingest, content, columns="seen:date:%m/%d/%Y")
        assert error.faults[0].code == "bad_date"
        assert error.message.startswith("Line 2, column 'seen'")

    @pytest.mark.parametrize("said", ["other:number", "kind:category"])
    def test_a_column_that_is_no_feature_cannot_be_said(self, ingest: Any, said: str) -> None:
        error = refused(ingest, table("n,kind", SQUARES, KINDS), columns=said)
        assert [(fault.field, fault.code) for fault in error.faults] == [("columns", "unknown_column")]

    @pytest.mark.parametrize("said", ["n", "n:colour", "n:number:%d", "n:number,n:text", 'n:"number'])
    def test_a_kind_that_cannot_be_read_is_refused(self, said: str) -> None:
        with at_fault(InvalidRequest, field="columns"):
            ReadingOptions.parse(columns=said)

    def test_names_may_have_colons_and_commas(self) -> None:
        options = ReadingOptions.parse(columns='view:a:b:number,"x, y:category",t:date:%H:%M')
        assert options.columns == {"view:a:b": "number", "x, y": "category", "t": "date:%H:%M"}

    def test_a_column_of_a_view_may_be_of_any_kind(self, ingest: Any) -> None:
        names = "view:a:x,view:a:y,privileged:p,kind"
        content = table(names, KINDS, SQUARES, SQUARES, KINDS)
        train, _, summary = ingest(content)
        assert train.views == (("a", ("view:a:x", "view:a:y")),)
        assert summary["views"] == [{"name": "a", "start": 0, "stop": 2}]
        assert train.known == ("kind", "privileged:p")
        assert train.extras.privileged.shape == (40, 1)

    def test_long_texts_are_cut_and_long_values_of_categories_refused(self, ingest: Any) -> None:
        long = " ".join(["word"] * 20_000)
        notes = [f"{k} {long}" for k in range(40)]
        train, _, summary = ingest(table("note,kind", notes, KINDS), columns="note:text")
        assert len(train.table.record(0)["note"].encode()) == 64 * 1024
        assert "texts_cut" in [warning["code"] for warning in summary["warnings"]]
        error = refused(ingest, table("note,kind", ["x" * 5000, "y"] * 20, KINDS))
        assert (error.faults[0].code, error.faults[0].row) == ("value_too_long", 0)

    def test_tables_have_bounds(self, ingest: Any) -> None:
        wide = table(",".join([f"c{k}" for k in range(10_001)] + ["kind"]), *[["a", "b"] * 2] * 10_002)
        with pytest.raises(TooLarge, match="10001 columns, not all of them numbers"):
            ingest(wide, limits=DatasetLimits(10, 20_000, 10**8))
        with pytest.raises(TooLarge):
            ingest(
                table("t,kind", ["x" * 100 + str(k) for k in range(40)], KINDS),
                limits=DatasetLimits(99, 9, 1000),
            )


class TestLayout:
    def test_lines_above_the_table_are_left_out_and_lines_stay_lines(self, ingest: Any) -> None:
        content = b"|1x3 Cross validator\n# more of it\n" + table("n,kind", [*SQUARES[:39], "###"], KINDS)
        assert "first in line 43." in refused(ingest, content, skip_lines="2").message
        assert "skip_lines=2" in refused(ingest, content).message
        assert ingest(content, skip_lines="2", null_values="###")[0].n == 40

    def test_names_may_be_given(self, ingest: Any) -> None:
        body = table("", KINDS, SQUARES, KINDS)
        train, _, _ = ingest(body, column_names='"job, kind",n,label')
        assert (train.table.names, train.n) == (("job, kind", "n"), 40)
        train, _, _ = ingest(b"a,b,c\n" + body, column_names="job,n,label", header="yes")
        assert (train.table.names, train.n) == (("job", "n"), 40)
        assert refused(ingest, body, column_names="n,label").reason == "wrong_column_names"

    @pytest.mark.parametrize("names", ["a,a,kind", "a,kind,a,a_2", "a,a,a_2,kind"])
    def test_names_are_made_distinct(self, ingest: Any, names: str) -> None:
        columns = [KINDS if name == "kind" else SQUARES for name in names.split(",")]
        train, _, summary = ingest(table(names, *columns), label_column="kind")
        assert len(set(train.feature_names)) == names.count("a")
        assert "renamed_columns" in [warning["code"] for warning in summary["warnings"]]

    def test_a_separator_at_the_end_of_each_line_is_no_column(self, ingest: Any) -> None:
        train, _, summary = ingest(table("n,kind,", SQUARES, KINDS, [""] * 40))
        assert (train.d, train.classes) == (1, ("cat", "dog"))
        assert "index_left_out" in [warning["code"] for warning in summary["warnings"]]

    def test_a_header_that_is_shorter_than_its_rows_is_told(self, ingest: Any) -> None:
        assert refused(ingest, b"size,b,label\n,,ta,,", declared="csv").faults[0].code == "ragged_row"

    def test_rows_of_texts_are_no_header(self, ingest: Any) -> None:
        train, _, _ = ingest(table("", ["red", "blue"] * 20, ["big", "small"] * 20, KINDS))
        assert (train.n, train.table.names) == (40, ("0", "1"))
        train, _, _ = ingest(table("colour,size,pet", ["red", "blue"] * 20, ["big", "small"] * 20, KINDS))
        assert (train.n, train.table.names) == (40, ("colour", "size"))

    def test_other_encodings_are_said(self, ingest: Any) -> None:
        content = table("größe,kind", ["naïve", "café"] * 20, KINDS).decode().encode("latin-1")
        assert "encoding=latin-1" in refused(ingest, content).message
        train, _, _ = ingest(content, encoding="latin-1")
        assert train.table.record(1) == {"größe": "café"}
        cut = table("t,kind", ["a", "b"] * 20, KINDS).replace(b"b", b"\x81")
        assert refused(ingest, cut, encoding="windows-1252").reason == "bad_encoding"

    @pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
    @pytest.mark.parametrize("separator", [",", "\t"])
    def test_utf_16_is_known_by_its_mark(self, ingest: Any, order: str, separator: str) -> None:
        text = table("größe,kind", ["naïve", "café 🐈"] * 20, KINDS).decode().replace(",", separator)
        train, _, summary = ingest(("\ufeff" + text).encode(order))
        assert train.table.record(1) == {"größe": "café 🐈"}
        [decision] = [one for one in summary["reading"] if one["name"] == "encoding"]
        assert decision["value"] == "utf-16"
        assert refused(ingest, ("\ufeff" + text).encode(order)[:-1]).reason == "bad_encoding"

    def test_quoted_line_breaks_and_separators_are_read(self, ingest: Any) -> None:
        notes = [f"note, {k}\nof two lines" for k in range(40)]
        out = io.StringIO()
        csv.writer(out).writerows([("note", "kind"), *zip(notes, KINDS, strict=True)])
        train, _, _ = ingest(out.getvalue().encode())
        assert [train.table.record(row)["note"] for row in range(40)] == notes
        error = refused(ingest, out.getvalue().encode() + b"one\r\n")
        assert error.message == "Line 82 has 1 cell; 2 are expected."

    def test_quotes_are_letters_where_each_line_is_a_row(self, ingest: Any) -> None:
        notes = [f'"note {k} has one quote more' if k % 7 == 0 else f"note {k}" for k in range(40)]
        content = "\n".join(f"{kind}\t{note}" for kind, note in zip(KINDS, notes, strict=True)).encode()
        train, _, _ = ingest(content, label_column="0")
        assert [train.table.record(row)["1"] for row in range(40)] == notes

    @pytest.mark.parametrize("text", [b'no" separator\nat all\n', b'a,"more\nb,c,d\n'])
    def test_quotes_enclose_line_breaks_unless_every_line_has_as_many_cells(self, text: bytes) -> None:
        quotes = quotes_of(text, 0, len(text), ",")
        assert (quotes.enclose_line_breaks, quotes.are_letters) == (True, False)

    @given(st.lists(st.text('a,"\n', max_size=9), min_size=1, max_size=4))
    def test_quotes_of_written_rows_enclose_their_cells(self, cells: list[str]) -> None:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([cell, "x"] for cell in cells)
        text = out.getvalue().encode()
        quotes = quotes_of(text, 0, len(text), ",")
        lines = text.decode().splitlines()
        has_odd = any(line.count('"') % 2 for line in lines)
        assert quotes.enclose_line_breaks or quotes.are_letters or not has_odd

    def test_a_repeated_header_is_told(self, ingest: Any) -> None:
        content = table("a,b,kind", SQUARES, SQUARES, KINDS)
        error = refused(ingest, content + b"\n" + content)
        assert (error.faults[0].code, error.message) == (
            "repeated_header",
            "Line 42 repeats the header. Remove it, and the others like it.",
        )

    def test_numbers_with_another_sign_of_decimals_are_told(self, ingest: Any) -> None:
        content = b"a;b;kind\n" + b"1,5;red;x\n2,5;blue;y\n?;red;x\n1,0;blue;y\n" * 5
        train, _, _ = ingest(content)
        assert train.table.record(0) == {"a": 1.5, "b": "red"}
        assert ingest(content.replace(b"?", b"-"), null_values="-")[0].table.record(2)["a"] is None


class TestRareClasses:
    CONTENT = table("t,kind", ["x", *KINDS, "y"], ["fish", *KINDS, "bird"])

    def test_the_error_says_the_way_out(self, ingest: Any) -> None:
        error = refused(ingest, self.CONTENT)
        assert [fault.code for fault in error.faults] == ["class_too_small"] * 2
        assert "rare_classes=drop" in error.message

    @pytest.mark.parametrize("content", [CONTENT, table("n,kind", range(42), ["fish", *KINDS, "bird"])])
    def test_they_are_kept_in_a_file_to_test_on(self, ingest: Any, content: bytes) -> None:
        train, _, _ = ingest(content, rare_classes="keep")
        assert (train.n, train.classes) == (42, ("bird", "cat", "dog", "fish"))

    @pytest.mark.parametrize("content", [CONTENT, table("n,kind", range(42), ["fish", *KINDS, "bird"])])
    def test_their_rows_are_left_out_with_a_warning(self, ingest: Any, content: bytes) -> None:
        train, _, summary = ingest(content, rare_classes="drop")
        assert (train.n, train.classes) == (40, ("cat", "dog"))
        assert train.y.tolist() == [0, 1] * 20
        (message,) = [one["message"] for one in summary["warnings"] if one["code"] == "rare_classes_left_out"]
        assert message == "2 rows of classes of a single row are left out: 'bird', 'fish'."

    def test_two_classes_must_stay(self, ingest: Any) -> None:
        content = table("t,kind", "abc", ["x", "x", "y"])
        assert refused(ingest, content, rare_classes="drop").faults[0].code == "single_class"


class TestJsonLines:
    @pytest.mark.parametrize(
        ("line", "code"),
        [
            ('{"a": {"b": 1}, "label": "x"}', "nested_value"),
            ('{"a": [[1]], "label": "x"}', "nested_value"),
            ('{"a": 1e101, "label": "x"}', "too_large"),
            ('{"a": 1, "label": ', "bad_json"),
            ("[1, 2]", "no_object"),
            (b'{"\x8a": 1}', "bad_json"),
            ("[" * 100_000, "bad_json"),
            ('{"a": "' + "x" * 2**20 + '", "label": "x"}', "line_too_long"),
        ],
    )
    def test_faults_name_the_line(self, ingest: Any, line: str | bytes, code: str) -> None:
        good = b'{"a": 1, "label": "x"}\n\n{"a": 2.5, "label": "y"}\n'
        error = refused(ingest, good + (line.encode() if isinstance(line, str) else line), declared="jsonl")
        assert error.faults[0].code == code
        assert error.message.startswith("Line 4")

    def test_a_column_of_lists_has_lists_only(self, ingest: Any) -> None:
        lines = b'{"a": [1, 2], "label": "x"}\n{"a": [3, 4], "label": "y"}\n{"a": 5, "label": "x"}\n'
        error = refused(ingest, lines, declared="jsonl")
        assert error.faults[0].code == "no_list"
        assert error.message.startswith("Line 3")

    def test_blank_keys_are_columns_called_by_their_positions(self, ingest: Any) -> None:
        lines = [{"a": k, "": "pq"[k % 2], "label": "xy"[k % 2]} for k in range(6)]
        train, _, _ = ingest("\n".join(map(json.dumps, lines)).encode(), declared="jsonl")
        assert train.table.record(1) == {"a": 1.0, "1": "q"}
        assert train.classes == ("x", "y")
        lines = [{"a": k, "": "pq"[k % 2]} for k in range(6)]
        train, _, _ = ingest("\n".join(map(json.dumps, lines)).encode(), declared="jsonl")
        assert train.classes == ("p", "q")

    def test_lists_of_numbers_are_vectors(self, ingest: Any) -> None:
        lines = [{"v": [k, k / 2], "label": "xy"[k % 2]} for k in range(6)] + [{"v": None, "label": "x"}]
        train, _, summary = ingest("\n".join(map(json.dumps, lines)).encode())
        (cells,) = train.table.cells
        assert isinstance(cells, VectorCells)
        assert cells.values[:2].tolist() == [[0, 0], [1, 0.5]]
        assert (schema_of(summary)["v"]["kind"], schema_of(summary)["v"]["width"]) == ("vector", 2)
        assert train.table.record(6) == {"v": None}
        lines[3]["v"] = [1]
        error = refused(ingest, "\n".join(map(json.dumps, lines)).encode())
        assert (error.faults[0].code, error.faults[0].row) == ("ragged_vector", 3)

    def test_numbers_and_texts_of_a_column_are_texts(self, ingest: Any) -> None:
        lines = [{"a": [3, 2.5, "red", True][k % 4], "label": "xy"[k % 2]} for k in range(8)]
        train, _, _ = ingest("\n".join(map(json.dumps, lines)).encode())
        assert [train.table.record(row)["a"] for row in range(4)] == ["3", "2.5", "red", "true"]

    def test_labels_are_those_of_other_formats(self, ingest: Any) -> None:
        for labels in ([1, 2], ["1", "2"], [1.0, 2.0]):
            lines = [{"a": k, "label": labels[k % 2]} for k in range(6)]
            train, _, _ = ingest("\n".join(map(json.dumps, lines)).encode())
            assert train.classes == ("1", "2")


class TestArrow:
    @pytest.mark.parametrize(("part", "shown"), [(250_000, ":00.25"), (0, ":00"), (100, ":00.0001")])
    def test_moments_are_texts_of_iso_8601(self, ingest: Any, part: int, shown: str) -> None:
        noon = datetime.datetime(2024, 5, 6, 12, 0, 0, part)
        moments = pa.array([noon, None] * 3, pa.timestamp("us"))
        columns = {
            "at": moments,
            "zoned": moments.cast(pa.timestamp("ns", "Europe/Berlin")),
            "label": [1, 2] * 3,
        }
        out = io.BytesIO()
        parquet.write_table(pa.table(columns), out)
        train, _, summary = ingest(out.getvalue())
        expected = f"2024-05-06 12:00{shown}"
        assert train.table.record(0) == {"at": expected, "zoned": f"{expected}Z"}
        assert [column["kind"] for column in summary["schema"]] == ["date", "date"]

    @pytest.mark.parametrize(
        ("values", "code"),
        [
            (pa.array([[1.0], [2.0, 3.0]] * 3), "ragged_vector"),
            (pa.array([[1.0], [float("nan")]] * 3), "not_finite"),
            (pa.array([1.0, float("inf")] * 2 + [None, None]), "not_finite"),
            (pa.array([{"p": 1}] * 6), "bad_type"),
            (pa.array([b"\xff", b"a"] * 3), "bad_encoding"),
        ],
    )
    def test_unusable_cells_are_named(self, ingest: Any, values: pa.Array, code: str) -> None:
        out = io.BytesIO()
        content = pa.table({"a": values, "label": ["x", "y"] * 3})
        with ipc.new_stream(out, content.schema) as writer:
            writer.write_table(content)
        assert refused(ingest, out.getvalue(), declared="arrow").faults[0].code == code

    @pytest.mark.parametrize("make", [ipc.new_file, ipc.new_stream])
    def test_a_file_that_is_cut_off_is_refused(self, ingest: Any, make: Any) -> None:
        content = ipc_of([(1.0, "red", "a", "2024-01-01", True)] * 40, LABELS * 20, make, 7)
        for kept in (0.2, 0.5, 0.9):
            error = refused(ingest, content[: int(kept * len(content))], declared="arrow")
            assert error.reason in ("unreadable_file", "truncated_upload", "no_rows")

    def test_whole_numbers_that_are_names_keep_their_digits(self, ingest: Any) -> None:
        out = io.BytesIO()
        numbers = [9_007_199_254_740_993, 9_007_199_254_740_992] * 3
        parquet.write_table(pa.table({"id": numbers, "label": ["x", "y"] * 3}), out)
        train, _, _ = ingest(out.getvalue(), columns="id:category")
        assert train.table.record(0) == {"id": "9007199254740993"}


class TestArff:
    HEAD = "@relation r\n@attribute 'a b' numeric\n@attribute c {x,'y z'}\n@attribute class {p,q}\n@data\n"

    def test_types_are_kinds(self, ingest: Any) -> None:
        train, _, summary = ingest((self.HEAD + "1,x,p\n?,'y z',q\n% no row\n3,?,p\n4,x,q\n").encode())
        assert train.table.record(1) == {"a b": None, "c": "y z"}
        assert [(one["name"], one["kind"], one["code"]) for one in summary["schema"]] == [
            ("a b", "number", "numbers"),
            ("c", "category", "given"),
        ]
        assert train.classes == ("p", "q")

    @pytest.mark.parametrize(
        ("row", "code"),
        [("z,x,p", "wrong_value"), ("1,z,p", "wrong_value"), ("1,x", "ragged_row"), ("{0 1}", "sparse_row")],
    )
    def test_faults_name_the_line(self, ingest: Any, row: str, code: str) -> None:
        error = refused(
            ingest, (self.HEAD + f"1,x,p\n1,x,q\n{row}\n1,x,p\n2,x,q\n").encode(), declared="arff"
        )
        assert error.faults[0].code == code
        assert error.message.startswith("Line 8")

    @pytest.mark.parametrize(
        "line",
        [
            "@attribute d relational",
            "@attribute e",
            "@attribute d date yyyy-DDD",
            "@attribute d date yy~yy-MM-dd",
            "@attribute d date \udc87yy-MM-dd",
            "x",
        ],
    )
    def test_a_header_that_is_not_read_is_told(self, ingest: Any, line: str) -> None:
        file = f"@relation r\n{line}\n@data\n1\n".encode(errors="surrogateescape")
        assert refused(ingest, file).reason == "bad_header"

    def test_patterns_of_dates_are_translated(self, ingest: Any) -> None:
        head = "@relation r\n@attribute d date 'dd.MM.yyyy HH:mm'\n@attribute class {p,q}\n@data\n"
        _, _, summary = ingest((head + "'01.02.2024 03:04',p\n'02.02.2024 03:04',q\n" * 2).encode())
        assert schema_of(summary)["d"]["pattern"] == "%d.%m.%Y %H:%M"


def test_columns_of_numbers_and_texts_are_what_they_seem(ingest: Any, tmp_path: Path) -> None:
    train, _, _ = ingest(table("n,t,kind", ["1", "", *SQUARES[2:]], KINDS, KINDS))
    numbers, texts = train.table.cells
    assert isinstance(numbers, NumberCells)
    assert isinstance(texts, TextCells)
    assert list(texts.texts) == ["cat", "dog"]


def json_lines(cells: list[Any]) -> bytes:
    """As Python writes records, with NaN and Infinity."""
    rows = [{"v": cell, "n": k % 7, "label": "ab"[k % 2]} for k, cell in enumerate(cells)]
    return "\n".join(map(json.dumps, rows)).encode()


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("other", [1.5, "text", [1.0, 2.0]])
def test_numbers_that_are_not_finite_are_named(ingest: Any, word: str, other: Any) -> None:
    value = float(word)
    cells = [([1.0, value] if isinstance(other, list) else value) if k == 3 else other for k in range(20)]
    words = f"Line 4, column 'v': {word} is no JSON; write null for a missing value"
    with pytest.raises(InvalidRequest, match=words) as raised:
        ingest(json_lines(cells))
    assert raised.value.faults[0].code == "not_finite"
    train, _, _ = ingest(
        json_lines(cells)
        .replace(b"[1.0, %s]" % word.encode(), b"null")
        .replace(b": %s," % word.encode(), b": null,")
    )
    assert train.n == 20


def test_python_is_no_json(ingest: Any) -> None:
    with pytest.raises(InvalidRequest, match="keys and texts need double quotes"):
        ingest(b"{'a': 1, 'label': 'x'}\n" * 4, declared="jsonl")


def test_tokens_of_rows_that_were_left_out_are_counted_no_more(ingest: Any) -> None:
    lines = [f"{k}.5,{k % 7},{'ab'[k % 2]}" for k in range(300)]
    lines[40] = "none,3,"
    _, _, summary = ingest(("v,n,label\n" + "\n".join(lines) + "\n").encode())
    assert schema_of(summary)["v"]["kind"] == "number"
    assert summary["rows"] == 299
    assert "read_as_gaps" not in {warning["code"] for warning in summary["warnings"]}
