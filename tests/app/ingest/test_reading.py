"""What readers take where a file leaves it open: it is said, can be said instead, or is refused."""

from __future__ import annotations

import decimal
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from app.domain.errors import InvalidRequest
from app.ingest.options import ReadingOptions

KINDS = ["cat", "dog"] * 6


def table(names: str, *columns: Any, separator: str = ",") -> bytes:
    """A CSV file with these columns; no header if names is empty."""
    rows = [separator.join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([names, *rows] if names else rows).encode()


def parquet_of(columns: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns).replace_schema_metadata(metadata), out)
    return out.getvalue()


def arrow_of(columns: dict[str, Any]) -> bytes:
    out, found = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_file(out, found.schema) as writer:
        writer.write_table(found)
    return out.getvalue()


def npy_of(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def decided(summary: Any) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["value"], one["reason"]) for one in summary["reading"]}


def codes(summary: Any) -> list[str]:
    return [warning["code"] for warning in summary["warnings"]]


def refused(ingest: Any, content: bytes, **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        ingest(content, **options)
    return caught.value


FRACTIONS = [k / 10 for k in range(12)]
SQUARES = [k * k for k in range(12)]


class TestLabelColumn:
    @pytest.mark.parametrize("name", ["label", "Class", "TARGET", "y", "species", "class label"])
    def test_the_one_with_a_usual_name_is_the_class_wherever_it_stands(self, ingest: Any, name: str) -> None:
        train, _, summary = ingest(table(f"{name},p1,p2", [0, 1] * 6, SQUARES, FRACTIONS))
        assert train.classes == ("0", "1")
        assert train.feature_names == ("p1", "p2")
        assert decided(summary)["label_column"] == (name, "the only column with a usual name of a label")

    def test_y_is_a_coordinate_beside_x(self, ingest: Any) -> None:
        train, _, _ = ingest(table("x,y,kind", SQUARES, FRACTIONS, KINDS))
        assert train.feature_names == ("x", "y")
        train, _, _ = ingest(table("x,y,label", SQUARES, FRACTIONS, KINDS))
        assert train.classes == ("cat", "dog")

    def test_several_usual_names_have_to_be_told_apart(self, ingest: Any) -> None:
        content = table("label,p,target", KINDS, FRACTIONS, [0, 1, 1] * 4)
        error = refused(ingest, content)
        assert error.reason == "ambiguous_label_column"
        assert "'label', 'target'" in error.message
        assert (
            ingest(table("label,p,target", [0, 1] * 6, FRACTIONS, [0, 1, 1] * 4), label_column="target")[0].K
            == 2
        )

    @pytest.mark.parametrize("label", ["kind", "0", "-3"])
    def test_a_last_column_that_measures_is_not_taken_for_the_class(self, ingest: Any, label: str) -> None:
        content = table("kind,p1,p2", KINDS, SQUARES, FRACTIONS)
        error = refused(ingest, content)
        assert error.reason == "ambiguous_label_column"
        assert "label_column=kind (--label-column kind)" in error.message
        train, _, summary = ingest(content, label_column=label)
        assert (train.classes, decided(summary)["label_column"]) == (("cat", "dog"), ("kind", "given"))

    def test_a_table_without_names_is_doubted_as_well(self, ingest: Any) -> None:
        rows = np.c_[[0, 1] * 6, SQUARES, FRACTIONS]
        for content in (npy_of(rows), table("", *rows.T)):
            error = refused(ingest, content)
            assert error.reason == "ambiguous_label_column"
            assert "Columns that may hold the classes: 0 (0.0, 1.0)." in error.message
            assert ingest(content, label_column="0")[0].classes == ("0", "1")

    def test_a_column_that_is_written_in_another_way_is_meant(self, ingest: Any) -> None:
        content = table("Survived,p1", [0, 1] * 6, SQUARES)
        message = refused(ingest, content, label_column="Survivd").message
        assert "Its columns are 'Survived', 'p1'. Is 'Survived' meant?" in message
        message = refused(ingest, content, label_column="Survived", columns="p2:category").message
        assert "'p2' is no column of features of the table; it has 1 columns of features: 'p1'." in message

    def test_a_name_that_is_often_that_of_a_label_is_taken_if_its_values_are_classes(
        self, ingest: Any
    ) -> None:
        kinds = [("yes", "no")[k % 2] for k in range(12)]
        for head, cells, label in (
            ("Churn,p1,kind", (kinds, SQUARES, KINDS), "Churn"),
            ("income,p1,class", (SQUARES, FRACTIONS, kinds), "class"),
        ):
            assert decided(ingest(table(head, *cells))[2])["label_column"][0] == label
        message = refused(ingest, table("rating,p1,kind", FRACTIONS, SQUARES, KINDS)).message
        assert "and the column 'rating' hardly holds classes: it has 12 different values" in message

    def test_a_last_column_with_gaps_is_not_taken_for_the_class(self, ingest: Any) -> None:
        gaps = ["", *KINDS[1:]]
        message = refused(ingest, table("p1,p2,port", SQUARES, FRACTIONS, gaps)).message
        assert "the last column, 'port', hardly holds classes: 1 of its 12 cells are empty." in message

    def test_columns_without_names_are_told_by_their_values_and_those_of_few_come_first(
        self, ingest: Any
    ) -> None:
        years = [70 + k % 5 for k in range(12)]
        power = ["?", *[100, 101, 102, 103, 104] * 2, 100]
        error = refused(ingest, table("", power, years, [1, 3] * 6, SQUARES, FRACTIONS))
        assert "classes: 2 (1, 3), 1 (70, 71, 72, …), 0 (?, 100, 101, …). Say" in error.message
        assert "--label-column 2" in error.message

    def test_parquet_names_the_columns_of_texts_first(self, ingest: Any) -> None:
        error = refused(ingest, parquet_of({"n": SQUARES, "kind": KINDS, "p": FRACTIONS}))
        assert error.reason == "ambiguous_label_column"
        assert "'kind', 'n'" in error.message

    def test_a_label_column_that_was_asked_for_may_hold_any_numbers(self, ingest: Any) -> None:
        columns = {"n": list(range(100, 150)), "code": [k % 25 * 3 for k in range(50)]}
        for content in (parquet_of(columns), arrow_of(columns)):
            assert "it holds 25 different numbers" in refused(ingest, content).message
            assert ingest(content, label_column="code")[0].K == 25

    def test_many_codes_in_order_are_classes(self, ingest: Any) -> None:
        train, _, _ = ingest(table("a,b", range(500), [k % 40 for k in range(500)]))
        assert train.K == 40
        assert refused(ingest, table("a,b", range(500), [k % 40 * 3 for k in range(500)])).reason == (
            "ambiguous_label_column"
        )


class TestIndexColumn:
    @pytest.mark.parametrize("name", ["", "Unnamed: 0", "index"])
    def test_a_first_column_that_counts_is_left_out(self, ingest: Any, name: str) -> None:
        columns = (range(3, 15), SQUARES, KINDS)
        train, _, summary = ingest(table(f"{name},a,kind", *columns))
        assert train.feature_names == ("a",)
        assert decided(summary)["index_column"][0] == (name or "0")
        assert "index_left_out" in codes(summary)
        assert not ingest(table("n,a,kind", *columns), index_column="0")[2]["warnings"]
        if name:
            kept, _, summary = ingest(table(f"{name},a,kind", *columns), index_column="none")
            assert kept.feature_names == (name, "a")
            assert codes(summary) == ["counts_rows"]

    @pytest.mark.parametrize(
        "numbers", [[7, 3, 11, 2, 5, 0, 1, 4, 6, 8, 9, 10], [f"car {k}" for k in range(12)]]
    )
    def test_rows_that_were_shuffled_keep_their_own_numbers_or_names(self, ingest: Any, numbers: Any) -> None:
        assert ingest(table(",a,kind", numbers, SQUARES, KINDS))[0].feature_names == ("a",)

    def test_a_column_without_a_name_that_numbers_nothing_is_refused_with_advice(self, ingest: Any) -> None:
        content = table(",a,kind", [1, 2] * 6, SQUARES, KINDS)
        error = refused(ingest, content)
        assert error.reason == "ambiguous_index_column"
        assert "index_column=0" in error.message
        assert ingest(content, index_column="0")[0].feature_names == ("a",)

    def test_a_column_of_a_usual_index_name_that_measures_stays(self, ingest: Any) -> None:
        train, _, summary = ingest(table("index,kind", [k % 5 for k in SQUARES], KINDS))
        assert train.feature_names == ("index",)
        assert [one["code"] for one in summary["warnings"]] == ["contradictory_rows"]

    def test_a_counting_column_elsewhere_is_warned_of(self, ingest: Any) -> None:
        train, _, summary = ingest(table("a,id,kind", SQUARES, range(12), KINDS))
        assert train.d == 2
        assert codes(summary) == ["counts_rows"]

    @pytest.mark.parametrize("written", [parquet_of, arrow_of], ids=["parquet", "arrow"])
    def test_a_first_column_of_parquet_or_arrow_that_counts_is_left_out(
        self, ingest: Any, written: Any
    ) -> None:
        columns = {"Unnamed: 0": list(range(12)), "a": [k * k for k in range(12)], "kind": KINDS}
        assert ingest(written(columns))[0].feature_names == ("a",)
        measured = columns | {"Unnamed: 0": [0.5 * (k % 5) for k in range(12)]}
        assert ingest(written(measured))[0].feature_names == ("Unnamed: 0", "a")

    def test_parquet_says_what_the_index_was(self, ingest: Any) -> None:
        columns = {"n": [4, 7, 1, 2], "a": [1.0, 2.0, 3.0, 5.0], "kind": ["x", "y"] * 2}
        said = {"pandas": json.dumps({"index_columns": ["n"], "columns": [], "column_indexes": []})}
        assert ingest(parquet_of(columns, said))[0].feature_names == ("a",)
        assert ingest(parquet_of(columns))[0].feature_names == ("n", "a")
        columns = {"__index_level_0__": columns.pop("n"), **columns}
        assert ingest(parquet_of(columns))[0].feature_names == ("a",)

    def test_arrays_with_names_of_features(self, ingest: Any) -> None:
        out = io.BytesIO()
        X = np.c_[np.arange(12), SQUARES]
        np.savez(out, X=X, y=KINDS, X_test=X[3:5], y_test=KINDS[3:5], feature_names=["Unnamed: 0", "a"])
        train, test, summary = ingest(out.getvalue())
        assert (train.d, test.d, train.feature_names) == (1, 1, ("a",))
        assert codes(summary)[0] == "index_left_out"


class TestHeader:
    def test_a_label_column_that_names_a_cell_of_line_1_proves_it(self, ingest: Any) -> None:
        content = table("2019,2020,kind", SQUARES, FRACTIONS, KINDS)
        assert ingest(content, label_column="kind")[0].feature_names == ("2019", "2020")
        assert ingest(content, header="yes")[0].feature_names == ("2019", "2020")
        assert refused(ingest, content).reason == "ambiguous_header"
        assert refused(ingest, content, header="no").faults[0].code == "class_too_small"

    def test_a_usual_name_that_is_no_class_proves_it(self, ingest: Any) -> None:
        train, _, summary = ingest(table("400.0,401.5,class", SQUARES, FRACTIONS, KINDS))
        assert train.feature_names == ("400.0", "401.5")
        assert decided(summary)["header"] == ("yes", "line 1 has the cell 'class', a usual name of a label")
        train, _, _ = ingest(table("", SQUARES, FRACTIONS, ["y", "n"] * 6))
        assert train.n == 12

    def test_a_class_with_the_usual_name_of_a_label_costs_no_row(self, ingest: Any) -> None:
        labels = ["target", *["decoy"] * 150, "target"]
        content = table("", range(152), labels)
        assert refused(ingest, content).reason == "ambiguous_header"
        assert ingest(content, header="no")[0].n == 152

    def test_a_first_row_of_gaps_or_booleans_is_no_header(self, ingest: Any) -> None:
        assert ingest(table("", ["True", "false"] * 6, KINDS))[0].n == 12
        train, _, _ = ingest(b"?,,cat\n1,2,dog\n1,2,cat\n3,4,dog\n")
        assert [train.table.record(row) for row in range(2)] == [{"0": None, "1": None}, {"0": 1, "1": 2}]

    @pytest.mark.parametrize(
        "title", ["# made by hand", "Results of 2020", "Results\n", "sep=,", "# a, b, c, d"]
    )
    def test_what_stands_above_the_table_is_told(self, ingest: Any, title: str) -> None:
        content = f"{title}\n".encode() + table("a,b,kind", SQUARES, FRACTIONS, KINDS)
        error = refused(ingest, content)
        assert error.reason == "title_line"
        assert error.message.startswith("Line")

    def test_a_header_without_the_column_of_row_names_is_told(self, ingest: Any) -> None:
        error = refused(ingest, table("a,kind", range(12), FRACTIONS, KINDS))
        assert (error.reason, "col.names=NA" in error.message) == ("short_header", True)


class TestSeparatorAndDecimal:
    @pytest.mark.parametrize("separator", [";", "\t", "|"])
    def test_decimal_commas_are_read_where_commas_separate_nothing(self, ingest: Any, separator: str) -> None:
        cells = [f"{k},5" for k in range(12)]
        for header in ("", separator.join(["a", "b", "kind"])):
            content = table(header, cells, SQUARES, KINDS, separator=separator)
            train, _, summary = ingest(content, declared="csv")
            assert train.X[:, 0].tolist() == [k + 0.5 for k in range(12)]
            assert decided(summary)["decimal"][0] == ","

    def test_a_decimal_comma_below_the_first_lines_is_found(self, ingest: Any) -> None:
        cells = ["1"] * 300 + ["0,5"]
        train, _, summary = ingest(table("a;kind", cells, ["x", "y"] * 150 + ["x"], separator=";"))
        assert train.X[-1, 0] == 0.5
        assert decided(summary)["decimal"] == (",", "the file has numbers with decimal commas")

    def test_points_and_commas_are_read_in_the_columns_that_have_them(self, ingest: Any) -> None:
        _, _, summary = ingest(b"a;b;k\n1,5;1.5;x\n1;2;y\n1,5;2.5;x\n1;2;y\n")
        kinds = {column["name"]: (column["kind"], column.get("pattern")) for column in summary["schema"]}
        assert kinds == {"a": ("number", "1.234,5"), "b": ("number", None)}
        assert [(column["min"], column["max"]) for column in summary["schema"]] == [(1, 1.5), (1.5, 2.5)]

    def test_a_quoted_decimal_comma_is_seen_and_can_be_said(self, ingest: Any) -> None:
        content = b'a,b,k\n"1,5",2,x\n"2,5",3,y\n"1,0",2,x\n"2",3,y\n'
        _, _, summary = ingest(content)
        assert (summary["schema"][0]["pattern"], summary["schema"][0]["max"]) == ("1.234,5", 2.5)
        assert ingest(content, decimal=",")[0].X[0].tolist() == [1.5, 2]

    def test_a_separator_can_be_said(self, ingest: Any) -> None:
        content = b"a b k\n1 2 x\n3 4 y\n1 2 x\n3 5 y\n"
        assert ingest(content, separator="space")[0].feature_names == ("a", "b")
        assert ingest(content.replace(b" ", b"~"), separator="~")[0].n == 4

    @pytest.mark.parametrize(
        ("option", "text"), [("header", "maybe"), ("separator", "ab"), ("decimal", ";"), ("index_base", "2")]
    )
    def test_other_words_are_refused(self, option: str, text: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            ReadingOptions.parse(**{option: text})
        assert [(fault.field, fault.code) for fault in caught.value.faults] == [(option, "unknown_choice")]

    def test_an_option_that_says_nothing_of_the_format_is_refused(self, ingest: Any) -> None:
        error = refused(ingest, parquet_of({"a": SQUARES, "kind": KINDS}), header="yes")
        assert (error.reason, error.faults[0].field) == ("option_not_used", "header")
        assert refused(ingest, b"1 1:2\n2 1:3\n", declared="svmlight", label_column="1").reason == (
            "option_not_used"
        )


def test_true_and_false_are_numbers_as_in_other_formats(ingest: Any) -> None:
    words = ["True", "FALSE", "true", " false"] * 3
    train, _, _ = ingest(table("a,b,kind", words, SQUARES, KINDS))
    assert train.X[:4, 0].tolist() == [1, 0, 1, 0]
    train, _, _ = ingest(table("a,kind", [*words[:-1], "?"], KINDS))
    assert [column.kind for column in train.schema] == ["boolean"]
    assert train.table.record(0) == {"a": True}
    assert train.table.record(11) == {"a": None}


@pytest.mark.parametrize(
    "values",
    [
        pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.00")] * 2),
        pa.array([1.5, 2.0, 1.5, 2.0]).dictionary_encode(),
        pa.array(np.array([1.5, 2.0, 1.5, 2.0], np.float16)),
    ],
    ids=lambda values: str(values.type),
)
def test_arrow_numbers_of_every_kind_are_numbers(ingest: Any, values: Any) -> None:
    train, _, _ = ingest(parquet_of({"a": values, "kind": ["x", "y"] * 2}))
    assert train.X[:, 0].tolist() == [1.5, 2.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (pa.array(["x", "y"] * 2, pa.large_string()), ("x", "y")),
        (pa.array(["x", "y"] * 2, pa.string_view()), ("x", "y")),
        (pa.array([b"x", b"y"] * 2), ("x", "y")),
        (pa.array([1, 2] * 2).dictionary_encode(), ("1", "2")),
        (pa.array([decimal.Decimal("1.00"), decimal.Decimal("2.00")] * 2), ("1", "2")),
        (pa.array([True, False] * 2), ("false", "true")),
    ],
    ids=lambda values: str(getattr(values, "type", "")),
)
def test_arrow_labels_of_every_kind_are_labels(ingest: Any, values: Any, classes: Any) -> None:
    assert ingest(parquet_of({"a": [1.0, 2.0, 3.0, 5.0], "kind": values}))[0].classes == classes


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.time32("ms")], ids=str)
def test_other_arrow_types_are_refused_by_their_names(ingest: Any, kind: pa.DataType) -> None:
    values = pa.array([1, 2, 3, 4], pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    for columns in ({"a": values, "kind": ["x", "y"] * 2}, {"a": [1.0, 2.0, 3.0, 5.0], "kind": values}):
        assert str(kind) in refused(ingest, parquet_of(columns)).message


class TestOptions:
    def test_columns_are_one_line_of_texts(self, ingest: Any) -> None:
        error = refused(ingest, b"a,b,label\n1,2,x\n3,4,y\n", columns='"a:text')
        assert error.faults[0].code == "bad_list"

    def test_an_index_column_is_one_of_the_table(self, ingest: Any) -> None:
        error = refused(ingest, b"a,b,label\n1,2,x\n3,4,y\n", index_column="c")
        assert error.reason == "no_index_column"


class TestSvmlight:
    def test_the_first_index_is_said_and_can_be(self, ingest: Any) -> None:
        content = b"1 1:2 3:4\n2 2:5\n1 1:2\n2 2:7\n"
        train, _, summary = ingest(content, declared="svmlight")
        assert (train.d, decided(summary)["index_base"]) == (3, ("1", "the index 0 does not occur"))
        train, _, summary = ingest(content, declared="svmlight", index_base="0")
        assert (train.d, decided(summary)["index_base"]) == (4, ("0", "given"))
        error = refused(ingest, content.replace(b"2:7", b"0:7"), declared="svmlight", index_base="1")
        assert error.message == "Line 4 has the index 0, but index_base is 1."
        assert error.faults[0].code == "bad_index"

    def test_a_ranking_is_told_by_its_name(self, ingest: Any) -> None:
        error = refused(ingest, b"1 qid:3 1:2\n2 qid:3 1:4\n", declared="svmlight")
        assert error.faults[0].code == "cannot_carry"
        assert "Remove the qid entries" in error.message

    def test_a_byte_order_mark_is_no_part_of_the_first_class(self, ingest: Any) -> None:
        assert ingest("\ufeff+1 1:2\n-1 1:3\n1 1:2\n-1 1:4\n".encode())[0].classes == ("-1", "1")

    def test_faults_are_counted_in_lines(self, ingest: Any) -> None:
        error = refused(ingest, b"# a comment\n1 1:2\n1 1:3\n2 1:4\n2 1:1 1:2\n", declared="svmlight")
        assert error.message == "Line 5 has index 1 twice."
        error = refused(ingest, b"# a comment\n1 1:2\n\x01 1:3\n", declared="svmlight")
        assert "It stands in line 3." in error.message


@pytest.mark.parametrize("head", ["a,b,kind\n", ""])
def test_faults_of_a_csv_file_are_counted_in_lines(ingest: Any, head: str) -> None:
    first = 1 + bool(head)
    error = refused(ingest, f"{head}1,2,x\n3,4,y\n5,6\n1,2,3,y\n".encode())
    assert [fault.message.split(" has")[0] for fault in error.faults] == [
        f"Line {first + 2}",
        f"Line {first + 3}",
    ]
    error = refused(ingest, head.encode() + b"1,2,x\n3,4,y\n" * 20 + b"5,1e200,x\n")
    assert error.faults[0].code == "not_finite"
    assert error.message.startswith(f"Line {first + 40}, column ")
    error = refused(ingest, head.encode() + b"1,2,x\n3,4,y\n" * 20 + b"5,blue,x\n")
    assert error.faults[0].code == "mixed_column"
    assert f"'blue', first in line {first + 40}." in error.message
    error = refused(ingest, f"{head}1,2,x\n3,4,y\n5,6,x\n1,7,\x01\n".encode())
    assert f"It stands in line {first + 3}." in error.message
    error = refused(ingest, f"{head}1,2,1\n3,4,0\n5,6,1\n1,7,nan\n".encode())
    assert error.message.startswith(f"Line {first + 3} has no label.")


def test_a_line_break_in_a_label_counts_as_a_line(ingest: Any) -> None:
    error = refused(ingest, b'a,k\n1,"x\ny"\n2,z\n3,\x02\n')
    assert [fault.message.rpartition(" ")[2] for fault in error.faults] == ["2.", "5."]
