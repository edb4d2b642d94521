from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest, TooLarge
from app.ingest.columns import Columns
from app.ingest.csv import diagnose, reader
from app.ingest.csv import lines as csv_lines
from app.ingest.csv.diagnose import find_faults
from app.ingest.csv.layout import CsvLayout
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits, Known
from tests.app.ingest.conftest import LIMITS
from tests.refusals import at_fault, refused_as

GOOD = b"a,b,kind\n1,2,cat\n3,4,dog\n5,6,cat\n7,8,dog\n"


def faults_of(
    ingest: Any, text: str | bytes, **options: Any
) -> list[tuple[str, str, int | None, int | None]]:
    with pytest.raises(InvalidRequest) as caught:
        ingest(text if isinstance(text, bytes) else text.encode(), declared="csv", **options)
    assert caught.value.faults
    return [(fault.field, fault.code, fault.row, fault.column) for fault in caught.value.faults]


def refused_rows(folder: Path, text: bytes, **said: str | None) -> InvalidRequest:
    """The error for rows of numbers to ask about, beside which the labels stand last."""
    (folder / "rows").write_bytes(text)
    options = ReadingOptions.parse(label_column="-1", **said)
    with pytest.raises(InvalidRequest) as caught:
        reader.read_csv_rows(folder / "rows", LIMITS, options, Known())
    assert caught.value.faults
    return caught.value


def test_a_header_names_the_columns_and_the_last_one_is_the_label(ingest: Any) -> None:
    train, test, summary = ingest(GOOD)
    np.testing.assert_array_equal(train.X, [[1, 2], [3, 4], [5, 6], [7, 8]])
    assert train.classes == ("cat", "dog")
    assert train.feature_names == ("a", "b")
    assert train.y.tolist() == [0, 1, 0, 1]
    assert (test, summary["label_column"], summary["warnings"]) == (None, "kind", [])


@pytest.mark.parametrize("wanted", ["kind", "0"])
def test_the_label_column_is_chosen_by_name_or_number(ingest: Any, wanted: str) -> None:
    train, _, summary = ingest(b"kind,a,b\ncat,1,2\ndog,3,4\ncat,5,6\ndog,7,8\n", label_column=wanted)
    assert train.feature_names == ("a", "b")
    assert train.classes == ("cat", "dog")
    assert summary["label_column"] == "kind"


def test_without_a_header_a_number_counts_columns_and_is_never_looked_for_in_the_data(ingest: Any) -> None:
    train, _, summary = ingest(b"1,7,2\n0,8,3\n1,9,4\n0,5,6\n", label_column="0")
    assert train.classes == ("0", "1")
    assert train.X[0].tolist() == [7, 2]
    assert (train.feature_names, summary["label_column"]) == (None, "0")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_separators_and_line_ends_are_found_out(ingest: Any, separator: str, end: str) -> None:
    rows = [["1.5", " 2 ", "x, y"], ["3", "-4e2", "z"], ["5", "6", "x, y"], ["7", "8", "z"]]
    out = io.StringIO()
    csv.writer(out, delimiter=separator, lineterminator=end).writerows(rows)
    train, _, _ = ingest(out.getvalue().encode() + 3 * end.encode())
    np.testing.assert_array_equal(train.X, [[1.5, 2], [3, -400], [5, 6], [7, 8]])
    assert train.classes == ("x, y", "z")


def test_unicode_names_and_a_byte_order_mark_are_read(ingest: Any) -> None:
    train, _, _ = ingest("\ufeffgröße,種類\n1,犬\n2,Käse\n3,犬\n4,Käse".encode())
    assert train.feature_names == ("größe",)
    assert train.classes == ("Käse", "犬")


def test_a_header_of_counted_columns_is_a_header(ingest: Any) -> None:
    train, _, _ = ingest(b"0,1,label\n5,6,0\n7,8,1\n5,7,0\n3,2,1\n")
    assert train.n == 4
    assert train.feature_names == ("0", "1")


def test_every_fault_is_told_with_its_line_row_and_column(ingest: Any, tmp_path: Path) -> None:
    text = "a,b,kind\n1,2,cat\n\n3,four,dog\n5,6\n7,,cat\n8,9,\n1,2,3,4\ninf,1_0,cat\n , ,\nnan,2,dog\n"
    structure = [
        ("X", "empty_row", 1, None),
        ("X", "ragged_row", 3, None),
        ("X", "ragged_row", 6, None),
        ("X", "empty_row", 8, None),
    ]
    assert faults_of(ingest, text) == [*structure[:2], ("y", "empty_label", 5, None), *structure[2:]]
    error = refused_rows(tmp_path, text.encode())
    assert [(fault.field, fault.code, fault.row, fault.column) for fault in error.faults] == [
        structure[0],
        ("X", "not_a_number", 2, 1),
        structure[1],
        ("X", "missing_value", 4, 1),
        structure[2],
        ("X", "not_finite", 7, 0),
        ("X", "not_a_number", 7, 1),
        structure[3],
        ("X", "not_finite", 9, 0),
    ]
    assert error.message == "Line 3 is empty. (9 faults are listed.)"
    messages = [fault.message for fault in error.faults]
    assert messages[1] == "Line 4, column 'b': 'four' is not a number."
    assert messages[2] == "Line 5 has 2 cells; 3 are expected."


@pytest.mark.parametrize(
    ("value", "code"), [("nan", "not_finite"), ("-inf", "not_finite"), ("1e400", "not_finite")]
)
def test_numbers_that_are_not_finite_are_named(tmp_path: Path, value: str, code: str) -> None:
    (fault,) = refused_rows(tmp_path, f"a,b,c\n1,2,x\n3,{value},y\n5,6,x\n7,8,y\n".encode()).faults
    assert (fault.field, fault.code, fault.row, fault.column) == ("X", code, 1, 1)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a,b,c\n1,2,x\n3,4,x\n", "single_class"),
        ("a,b,c\n1,2,x\n3,4,x\n5,6,y\n", "class_too_small"),
        ('1,2,"x\ny"\n3,4,z\n', "bad_label"),
        ('1,2\n3,"4\n5,6', "bad_label"),
        ('1,2,"x\ny"\n3,q,z\n', "bad_label"),
        ('1,2,"x\ny"\n3,q\n', "line_break"),
        (b"1,2,x\n3,4,\xff\n3,4,\xff\n", "bad_encoding"),
        ("1,2," + "x" * 300 + "\n3,4,b\n5,6,b\n", "label_too_long"),
        ('1,2,a\n1,2,"' + "x" * 200_000 + '"\n1,b\n', "unreadable_row"),
    ],
)
def test_unusable_labels_and_names_are_told_by_code(ingest: Any, text: str | bytes, code: str) -> None:
    assert code in [fault[1] for fault in faults_of(ingest, text)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"a,b,c\n", "no_rows"),
        (b"\n\n", "empty_file"),
        (b"\n1,2,x\n", "empty_row"),
        (b"1\n2\n3\n", "one_column"),
        (b"x" * 200_000, "unreadable_file"),
        (b"\xe9,b\n1,2\n", "bad_encoding"),
        (b"1,2,x\n3,4,y\r5,6,z\r7,8,z", "unreadable_file"),
    ],
)
def test_files_without_rows_to_name_are_refused(ingest: Any, text: bytes, code: str) -> None:
    with refused_as(InvalidRequest, code):
        ingest(text, declared="csv")


@pytest.mark.parametrize(("content", "said"), [(GOOD, "'a', 'b', 'kind'"), (b"1,2,x\n3,4,y\n", "no header")])
def test_a_label_column_that_is_not_there_is_told(ingest: Any, content: bytes, said: str) -> None:
    with at_fault(InvalidRequest, field="label_column", match=said):
        ingest(content, label_column="species")


def test_more_rows_columns_or_numbers_than_allowed_are_too_large(ingest: Any) -> None:
    for limits, code in (
        (DatasetLimits(3, 10, 10**6), "too_many_rows"),
        (DatasetLimits(10, 2, 10**6), "too_many_columns"),
        (DatasetLimits(10, 10, 50), "table_too_large"),
    ):
        with refused_as(TooLarge, code):
            ingest(GOOD, limits=limits)


def test_wide_rows_are_read(ingest: Any) -> None:
    X = np.random.default_rng(0).integers(0, 9, (4, 1500))
    text = "\n".join(",".join(map(str, row)) + f",{'ab'[k % 2]}" for k, row in enumerate(X))
    train, _, summary = ingest(text.encode())
    np.testing.assert_array_equal(train.X, X)
    assert "more_features_than_rows" in [warning["code"] for warning in summary["warnings"]]


def test_an_endless_first_line_is_refused(ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ingest.csv.reader._SNIFF_BYTES", 100)
    monkeypatch.setattr("app.ingest.csv.reader._LONGEST_FIRST_LINE", 1000)
    with pytest.raises(InvalidRequest, match="first line is longer than 1000 bytes"):
        ingest(b"1," * 5000 + b"\n")
    with pytest.raises(InvalidRequest, match="only one column"):
        ingest(b"1\n" * 5000)


def test_constant_and_duplicate_columns_are_accepted_with_a_warning(ingest: Any) -> None:
    _, _, summary = ingest(b"1,5,1,x\n2,5,2,y\n3,5,3,x\n4,5,4,y\n")
    assert [(warning["code"], warning["message"]) for warning in summary["warnings"]] == [
        ("constant_columns", "1 column has the same value in every row: 1."),
        ("duplicate_columns", "1 column has the same values as an earlier column."),
    ]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(st.floats(-1e99, 1e99), st.floats(-1e99, 1e99), st.sampled_from(["a", "b,c", "é", '"q"'])),
        min_size=1,
        max_size=20,
    )
)
def test_what_the_csv_module_writes_is_read_back_exactly(
    ingest: Any, rows: list[tuple[float, float, str]]
) -> None:
    # Every class twice.
    rows = [*rows, *rows, (0.0, 1.0, "other"), (1.0, 0.0, "other")]
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    train, _, _ = ingest(out.getvalue().encode(), declared="csv")
    np.testing.assert_array_equal(train.X, [row[:2] for row in rows])
    assert [train.classes[code] for code in train.y] == [row[2] for row in rows]


CELLS = st.sampled_from(
    [
        "7",
        "1.5",
        "x",
        "",
        " ",
        '"a\nb"',
        '"a\n',
        'a"b',
        "nan",
        "inf",
        "1_0",
        "\udcff",
        '"1"',
        "\r",
        '"',
        "1,2",
        "1e151",
        "TRUE",
        "no",
        "\0",
    ]
)
LAYOUTS = st.sampled_from(["numbers", "decimal commas", "booleans", "an index"])


def _layout(kind: str, names: list[str] | None) -> CsvLayout:
    columns = Columns.of(names, 3, ReadingOptions(), index={0: "it counts"} if kind == "an index" else None)
    commas = kind == "decimal commas"
    booleans = frozenset({1} if kind == "booleans" else ())
    return CsvLayout(";" if commas else ",", "," if commas else ".", columns, booleans, (), ())


def _middle(kind: str, row: int) -> str:
    return {"decimal commas": f"{row},5", "booleans": ("True", "false")[row % 2]}.get(kind, f"{row}.5")


@settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    faults=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 2), CELLS), min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    header=st.booleans(),
    kind=LAYOUTS,
    bytes_of_block=st.sampled_from([1, 30, 200]),
)
def test_faults_are_the_same_whether_or_not_blocks_are_skipped(
    faults: list[tuple[int, int, str]], end: str, header: bool, kind: str, bytes_of_block: int
) -> None:
    layout = _layout(kind, ["u", "v", "kind"] if header else None)
    cells = [["1", _middle(kind, row), "ab"[row % 2]] for row in range(60)]
    for row, column, cell in faults:
        cells[row][column] = cell
    lines = ["u,v,kind"] * header + [layout.separator.join(row) for row in cells]
    text = end.join(lines).encode(errors="surrogateescape").rstrip(b"\r\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose, "_BLOCK_BYTES", bytes_of_block)
        patch.setattr(diagnose, "_BLOCK_LINES", 1)
        patch.setattr(diagnose, "_SECONDS", 1e9)
        skipping = find_faults(b"{" + text + b"}", 1, 1 + len(text), layout)
        patch.setattr(diagnose._Rows, "_has_no_fault", lambda rows, block: False)
        every_row = find_faults(text, 0, len(text), layout)
    assert skipping == every_row or (not every_row and skipping[0].code == "unreadable_row")


def _late_fault(last: bytes) -> bytes:
    """Eight thousand rows, with a fault in the last row."""
    return b"a,b,kind\n" + b"1,2,cat\n3,4,dog\n" * 4000 + last


def test_only_rows_near_the_fault_are_looked_at_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at every row of a 20 MB file took ten times as long as reading it."""
    looked_at: list[int] = []
    is_clean = diagnose._is_clean
    monkeypatch.setattr(diagnose, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(diagnose, "_is_clean", lambda *of: looked_at.append(1) or is_clean(*of))
    error = refused_rows(tmp_path, _late_fault(b"x,1,cat"))
    assert error.faults[0].message == "Line 8002, column 'a': 'x' is not a number."
    assert error.faults[0].row == 8000
    assert len(looked_at) < 300


@pytest.mark.parametrize(
    ("rows", "last", "said", "fault"),
    [
        (b"0;1,5;cat\n1;2,5;dog\n", b"2;1.5;cat", {"decimal": ","}, "'1.5' is not a number"),
        (b"0,true,cat\n1,False,dog\n", b"2,1,cat", {}, "'1' is neither true nor false"),
        (b"x,1,cat\nx,2,dog\n", b"x,y,cat", {"index_column": "0"}, "'y' is not a number"),
        (b"0,1,cat\n1,2,dog\n", b"0,1e151,cat", {}, "'1e151' is beyond ±1e+100"),
        (b"0,1,cat\n1,2,dog\n", b"0,nan,cat", {}, "'nan' is not a finite number"),
    ],
)
def test_blocks_are_skipped_where_the_reader_reads_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: bytes,
    last: bytes,
    said: dict[str, str],
    fault: str,
) -> None:
    looked_at: list[int] = []
    is_clean = diagnose._is_clean
    monkeypatch.setattr(diagnose, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(diagnose, "_is_clean", lambda *of: looked_at.append(1) or is_clean(*of))
    error = refused_rows(tmp_path, rows * 4000 + last, header="no", **said)
    assert error.faults[0].message.startswith(f"Line 8001, column 2: {fault}")
    assert 0 < len(looked_at) < 300


@pytest.mark.parametrize("last", [b"1,cat", b"1,2,3,cat"])
def test_a_diagnosis_that_takes_too_long_names_the_line_that_arrow_names(
    ingest: Any, monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    monkeypatch.setattr(diagnose, "_SECONDS", 0.0)
    with pytest.raises(InvalidRequest) as caught:
        ingest(_late_fault(b"2,3,cat\n" + last), declared="csv")
    (fault,) = caught.value.faults
    assert fault.message.startswith("Line 8003 cannot be read: ")
    assert (fault.code, fault.row) == ("unreadable_row", 8001)


def _with_line_breaks(labels: list[str]) -> bytes:
    """The first cell of each row goes over two lines and is no number."""
    rows = "".join(f'"a\n{row}",{row % 3},{label}\n' for row, label in enumerate(labels))
    return f"id,size,label\n{rows}".encode()


BAD_LABELS = ["a", "b"] * 5 + [f"c\a{row}" for row in range(12)]


def test_faults_below_cells_with_line_breaks_are_named_by_their_lines_in_one_pass(
    ingest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    begins = reader.LineNumbers._begins
    monkeypatch.setattr(reader.LineNumbers, "_begins", lambda lines: passes.append(1) or begins(lines))
    with pytest.raises(InvalidRequest) as caught:
        ingest(_with_line_breaks(BAD_LABELS), declared="csv", index_column="id")
    assert [(fault.row, f"ine {2 + 2 * fault.row}" in fault.message) for fault in caught.value.faults] == [
        (row, True) for row in range(10, 20)
    ]
    assert passes == [1]


def test_lines_that_are_not_found_in_time_are_told_as_rows(
    ingest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_lines, "_SECONDS", 0.0)
    with pytest.raises(InvalidRequest) as caught:
        ingest(_with_line_breaks(BAD_LABELS), declared="csv", index_column="id")
    assert "row 10" in caught.value.faults[0].message


def test_contradictory_rows_are_named_by_their_lines(ingest: Any) -> None:
    labels = ["a", "a", "b", "b", "a", "b"]
    for text, lines in (
        (_with_line_breaks(labels), "2 and 8"),
        (_with_line_breaks(labels).replace(b'"a\n', b'"'), "2 and 5"),
    ):
        _, _, summary = ingest(text, index_column="id")
        (message,) = [one["message"] for one in summary["warnings"] if one["code"] == "contradictory_rows"]
        assert f"lines {lines}:" in message


FRACTIONS = "".join(f"{k}.5,{k % 7},{k * 3 % 5}.25,{'xy'[k % 2]}\n" for k in range(30))
WHOLE = "".join(f"{k},{k % 7},{k * 3 % 5},{k % 2}\n" for k in range(30))
COUNTED = "".join(f"{k},{line}\n" for k, line in enumerate(FRACTIONS.splitlines()))


@pytest.mark.parametrize(
    ("names", "rows", "features"),
    [
        ("0,1,2,3", FRACTIONS, ("0", "1", "2")),
        ("0,1,2,kind of it", FRACTIONS, ("0", "1", "2")),
        ("1,2,3,4", FRACTIONS, ("1", "2", "3")),
        (",0,1,2,3", COUNTED, ("0", "1", "2")),
        ("Unnamed: 0,0,1,2,3", COUNTED, ("0", "1", "2")),
        (",x0,x1,x2,x3", COUNTED, ("x0", "x1", "x2")),
        ('"","V1","V2","V3","V4"', COUNTED, ("V1", "V2", "V3")),
    ],
)
def test_names_that_count_the_columns_are_no_row(
    ingest: Any, names: str, rows: str, features: tuple[str, ...]
) -> None:
    train, _, _ = ingest(f"{names}\n{rows}".encode())
    assert (train.n, train.feature_names) == (30, features)


def test_a_first_row_that_counts_is_said_to_be_doubtful(ingest: Any) -> None:
    content = f"0,1,2,3\n{WHOLE}".encode()
    with pytest.raises(InvalidRequest, match=r"count the columns.*header=yes") as raised:
        ingest(content)
    assert raised.value.reason == "ambiguous_header"
    assert ingest(content, header="no", rare_classes="drop")[0].n == 30
    assert ingest(content, header="yes")[0].n == 30
    assert ingest(b"0,1\n1,0\n" * 10)[0].n == 20
