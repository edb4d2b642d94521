"""What makes results too good is said of files of every kind, with the way out."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from app.ingest.several_labels import several_labels_warning
from core.data.dataset import LabelledData

CODES = (
    "tells_label", "repeated_rows", "contradictory_rows", "rows_in_both_parts", "several_labels",
)  # fmt: skip


def told(summary: Any) -> dict[str, str]:
    """The warnings that this module is about, by their codes."""
    return {one["code"]: one["message"] for one in summary["warnings"] if one["code"] in CODES}


def table(names: str, *columns: Any) -> bytes:
    """A CSV file of some columns."""
    lines = [
        ",".join("" if cell is None else str(cell) for cell in row) for row in zip(*columns, strict=True)
    ]
    return "\n".join([names, *lines, ""]).encode()


RNG = np.random.default_rng(3)
N = 60
NOISE = RNG.normal(size=N).round(6).tolist()
LABELS = RNG.permutation(["yes", "no"] * (N // 2)).tolist()


def test_a_column_that_tells_the_label_is_named_with_the_way_out(ingest: Any) -> None:
    shape = [{"yes": "round", "no": "square"}[label] for label in LABELS]
    copy = [{"yes": 1, "no": 0}[label] for label in LABELS]
    for columns, text in (
        ({"shape": shape}, "Column 'shape' tells the class by itself: each of its values stands for one"),
        ({"copy": copy}, "Column 'copy' tells the class by itself"),
        ({"shape": shape, "copy": copy}, "Each of the columns 'shape', 'copy' tells the class by itself"),
    ):
        content = table(",".join(["p", *columns, "label"]), NOISE, *columns.values(), LABELS)
        message = told(ingest(content)[2])["tells_label"]
        assert message.startswith(text)
        name = next(iter(columns))
        assert f"leave it out: columns={name}:ignore (--column {name}:ignore)." in message
        ignored = ",".join(f"{name}:ignore" for name in columns)
        assert told(ingest(content, columns=ignored)[2]) == {}, "the way out is one"


def test_a_column_that_is_filled_in_afterwards_is_named_with_its_class(ingest: Any) -> None:
    left = [f"2024-05-{1 + i % 28:02d}" if label == "yes" else None for i, label in enumerate(LABELS)]
    message = told(ingest(table("p,left,label", NOISE, left, LABELS))[2])["tells_label"]
    assert "Column 'left' has a value nearly only in rows of the class 'yes'" in message
    assert "all of 30 are so" in message
    honest = [day if i % 3 else None for i, day in enumerate(RNG.permutation(np.array(left, dtype=object)))]
    assert told(ingest(table("p,left,label", NOISE, honest, LABELS))[2]) == {}


def test_a_column_that_counts_rows_has_one_warning(ingest: Any) -> None:
    labels = sorted(LABELS)
    codes = [one["code"] for one in ingest(table("n,p,label", range(N), NOISE, labels))[2]["warnings"]]
    assert codes == ["counts_rows"]
    squares = [k * k for k in range(N)]
    message = told(ingest(table("n,p,label", squares, NOISE, labels))[2])["tells_label"]
    assert "sorted by it, the rows of each class stand together" in message


@pytest.mark.parametrize("texts", [False, True])
def test_rows_that_occur_again_are_counted_and_named_by_their_lines(ingest: Any, texts: bool) -> None:
    colours = [("red", "blue", "grey")[k % 3] if texts else k % 3 for k in range(N)]
    rows = [*zip(NOISE, colours, LABELS, strict=True)]
    assert told(ingest(table("p,c,label", *zip(*rows, strict=True)))[2]) == {}
    again = [*rows, *rows[10:13]]
    summary = ingest(table("p,c,label", *zip(*again, strict=True)))[2]
    assert summary["repeated_rows"] == 3
    assert (
        "3 rows (5%) equal an earlier row of their class, such as lines 12 and 62:"
        in told(summary)["repeated_rows"]
    )
    other = [*rows, (*rows[10][:2], {"yes": "no", "no": "yes"}[rows[10][2]])]
    summary = ingest(table("p,c,label", *zip(*other, strict=True)))[2]
    assert told(summary).keys() == {"contradictory_rows"}
    assert (
        "2 rows equal a row of another class, such as lines 12 and 62:" in told(summary)["contradictory_rows"]
    )


def test_lines_are_those_of_the_file_where_rows_were_left_out(ingest: Any) -> None:
    rows = [*zip(NOISE, reversed(NOISE), LABELS, strict=True)] * 3
    rows[0] = (*rows[0][:2], "")
    message = told(ingest(table("p,q,label", *zip(*rows, strict=True)))[2])["repeated_rows"]
    assert "such as lines 3 and 63:" in message


def test_columns_of_few_values_repeat_without_a_warning(ingest: Any) -> None:
    for cells in ([k % 3 for k in range(N)], ["abc"[k % 3] for k in range(N)]):
        assert "repeated_rows" not in told(ingest(table("c,d,label", cells, cells, LABELS))[2])


def test_rows_of_both_parts_of_an_archive_are_counted(ingest: Any) -> None:
    X = RNG.normal(size=(90, 3))
    y = np.arange(90) % 2

    def archive(test: Any) -> bytes:
        file = io.BytesIO()
        np.savez(file, X_train=X[:60], y_train=y[:60], X_test=test, y_test=y[60:])
        return file.getvalue()

    assert told(ingest(archive(X[60:]), filename="a.npz")[2]) == {}
    X[70:73] = X[5:8]
    message = told(ingest(archive(X[60:]), filename="a.npz")[2])["rows_in_both_parts"]
    assert "3 of 30 rows of the test part (10%)" in message
    assert "such as its row 10, which is row 5 there" in message


@pytest.mark.parametrize(
    "classes",
    [
        ["a", "b", "a|b"], ["a", "b", "a;b"], ["a", "b", "a, b"], ["a", "b", "b/a"], ["a", "b", "A + b"],
        ["a", "b", "a b"], ["cats", "dogs", "cats and dogs"], ["|a|", "|a|b|", "|b|"], ["a", "b", "a,b,"],
        ["['a']", "['a', 'b']"], ['["a","b"]', "a"], ["{a}", "{a,b}"], ["[a, b]", "c"], ["#a", "#b #a"],
        ["x|y", "y|z", "x|z"], ["Action", "Drama", "Action|War", "War|Drama"],
    ],
)  # fmt: skip
def test_classes_that_are_several_labels_are_told(classes: list[str]) -> None:
    y = np.arange(4 * len(classes)) % len(classes)
    data = LabelledData(y[:, None].astype(float), y.astype(np.int32), tuple(classes))
    ((code, message),) = several_labels_warning(data)
    assert code == "several_labels"
    joined = [name for name in classes if any(sign in name.strip("|,") for sign in "|;,/+ ")]
    assert all(repr(name) in message for name in joined)
    assert f"({4 * len(joined)} rows)" in message
    assert "label_column=" in message


@pytest.mark.parametrize(
    "classes",
    [
        ["rock & roll", "jazz", "blues"], ["New York, NY", "Boston, MA", "Albany, NY", "Salem, MA"],
        ["Springfield, MA", "Springfield, IL", "Boston, MA", "Chicago, IL"], ["science/technology", "sports"],
        ["comp.sys.ibm", "comp.sys.mac", "rec.autos"], ["[0, 10]", "[10, 20]"], ["(0, 10]", "(10, 20]"],
        ["0-10", "10-20", "20-30"], ["C", "C++"], ["Iris-setosa", "Iris-virginica"], [">50K", "<=50K"],
        ["New York", "York", "New", "New Jersey", "San Jose", "Santa Fe"], ["very good", "good", "bad"],
        ["Smith, John", "Smith, Jane", "Lee, John"], ["lost_card", "card", "lost_or_stolen_card"],
    ],
)  # fmt: skip
def test_names_with_separators_are_names(classes: list[str]) -> None:
    y = np.arange(4 * len(classes)) % len(classes)
    data = LabelledData(y[:, None].astype(float), y.astype(np.int32), tuple(classes))
    assert several_labels_warning(data) == []


def test_the_summary_has_examples_of_columns_as_they_stand_in_the_file(ingest: Any) -> None:
    prices = [f"${k}.50" if k % 5 else "-" for k in range(N)]
    notes = ["x" * 500 if k == 0 else f"note {k % 7}" for k in range(N)]
    schema = {
        one["name"]: one for one in ingest(table("price,note,label", prices, notes, LABELS))[2]["schema"]
    }
    assert schema["price"]["examples"] == ["$1.50", "$2.50", "$3.50"]
    assert schema["price"]["pattern"] == "$1,234.5"
    assert schema["note"]["examples"] == ["x" * 99 + "…", "note 1", "note 2"]
    features = ingest(table("a,b,label", range(5, 5 + N), NOISE, LABELS))[2]["features"]
    assert features[0]["examples"] == ["5", "6", "7"]
    assert features[1]["examples"] == [str(value) for value in NOISE[:3]]


def test_the_examples_of_a_wide_table_are_bounded(ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ingest.table_summary._ALL_CHARACTERS", 10)
    cells = [f"word {k}" for k in range(N)]
    schema = ingest(table("a,b,label", cells, cells, LABELS))[2]["schema"]
    assert ["examples" in one for one in schema] == [True, False]
