"""Kinds of columns, each found by the rule that is stated for it."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.cell_values import NULLS, category_key, microseconds_of, number_of
from core.data.column_kinds import infer_column, infer_schema
from core.data.schema import ColumnSchema, Kind, KindSpec, cells_as
from core.data.table import NumberCells, Table, TextCells, Texts, VectorCells
from core.errors import InvalidProblem
from tests.refusals import at_fault


def column(*cells: str, times: int = 1, said: str | None = None) -> ColumnSchema:
    texts = [None if cell in NULLS else cell for cell in cells * times]
    return infer_column("c", TextCells.of(texts), None if said is None else KindSpec.parse(said))


@pytest.mark.parametrize(
    ("cells", "times", "kind", "code"),
    [
        (["1", "2.5", "-3e2"], 5, "number", "numbers"),
        (["1", "?", "2"], 5, "number", "numbers"),
        (["00501", "10001", "90210"], 5, "category", "few_texts"),
        (["true", "False", "TRUE"], 5, "boolean", "truth"),
        (["yes", "no"], 5, "category", "few_texts"),
        (["0", "1"], 5, "number", "numbers"),
        (["2024-02-29", "2024-03-01T10:00", "2024-03-01T10:00:00Z"], 5, "date", "iso_dates"),
        (["2024-02-30", "2024-03-01"], 5, "category", "few_texts"),
        (["", "NA"], 5, "ignore", "no_values"),
        (["x", "x"], 5, "ignore", "constant"),
        (["x", "?"], 5, "category", "few_texts"),
        ([f"id-{i}" for i in range(20)], 1, "ignore", "identifier"),
        ([str(i) for i in range(20)], 1, "ignore", "counts_rows"),
        ([str(i * i) for i in range(20)], 1, "number", "numbers"),
        ([f"the card {i} is lost in town" for i in range(100)], 1, "text", "sentences"),
        (["the card is lost", "where is my card"], 50, "category", "few_texts"),
        ([f"カードが届かない番号{i}" for i in range(100)], 1, "text", "sentences"),
    ],
)
def test_kinds_follow_the_rules(cells: list[str], times: int, kind: str, code: str):
    found = column(*cells, times=times)
    assert (found.kind, found.code) == (kind, code)


def test_numbers_with_a_few_other_cells_are_refused_with_both_remedies():
    with pytest.raises(InvalidProblem) as refused:
        column(*map(str, range(0, 400, 2)), "####", "####", "####")
    [fault] = refused.value.faults
    assert fault.code == "mixed_column"
    assert fault.row == 200
    assert "all but 3 of 203 cells: '####', first in row 200" in fault.message
    assert "null_values=####" in fault.message
    assert "columns=c:category" in fault.message
    assert column("1", "2", "####", "####", times=5).kind == "category"


def test_hints_say_what_else_a_column_may_be():
    assert "say category" in (column("1", "2", "3", times=100).hint or "")
    assert "say ignore" in (column(*(str(i * i) for i in range(20))).hint or "")


def test_a_kind_that_is_said_is_taken():
    assert column("1", "2", "x", said="category") == ColumnSchema("c", Kind.CATEGORY, "given", "given", 0, 3)
    dates = TextCells.of(["03/04/2024", "31/12/2023"])
    assert cells_as("c", dates, KindSpec(Kind.DATE, "%d/%m/%Y")) is dates
    with pytest.raises(InvalidProblem, match=r"Row 1 .*'31/12/2023' is not a date like the pattern %m/%d/%Y"):
        cells_as("c", dates, KindSpec(Kind.DATE, "%m/%d/%Y"))
    for wrong in ("colour", "number:%d", "", "date:%Y-%Y", "date:%c %d", "date:%Q", "date:%d%"):
        with pytest.raises(InvalidProblem):
            KindSpec.parse(wrong)
    assert str(KindSpec.parse("date:%d.%m.%Y %H:%M")) == "date:%d.%m.%Y %H:%M"


def test_faults_of_all_columns_are_reported_together():
    mixed = TextCells.of([*map(str, range(100)), "x", "y"])
    with pytest.raises(InvalidProblem) as refused:
        infer_schema(Table(("a", "b"), (mixed, mixed)))
    assert len(refused.value.faults) == 2
    with pytest.raises(InvalidProblem, match="no column 'z'"):
        infer_schema(Table(("a",), (mixed,)), {"z": KindSpec(Kind.TEXT)})


def test_one_value_has_one_key():
    assert {category_key(value) for value in (3, 3.0, "3", " 3.0", "+3", "3.")} == {"3"}
    assert category_key(2.5) == category_key("2.50") == "2.5"
    assert category_key("007") == "007"
    assert category_key(True) == category_key("TRUE") == "true"
    assert category_key("cafe\u0301") == "café"
    assert category_key(-0.0) == category_key("-0") == "0"
    assert category_key(1e300) == "1e+300"


def test_numbers_become_categories_and_back():
    numbers = NumberCells(np.array([1.0, 2.5, np.nan, 1.0]))
    keys = cells_as("c", numbers, KindSpec(Kind.CATEGORY))
    assert isinstance(keys, TextCells)
    assert [None if code < 0 else keys.texts[code] for code in keys.codes.tolist()] == ["1", "2.5", None, "1"]
    back = cells_as("c", keys, KindSpec(Kind.NUMBER))
    assert isinstance(back, NumberCells)
    np.testing.assert_array_equal(back.values, numbers.values)
    with pytest.raises(InvalidProblem, match=r"Row 1 .*'x' is not a number"):
        cells_as("c", TextCells.of(["1", "x"]), KindSpec(Kind.NUMBER))
    for cells, words in (
        (numbers, "other numbers than 0 and 1"),
        (TextCells.of(["yes", "x"]), "neither true"),
    ):
        with at_fault(InvalidProblem, "not_boolean", match=words):
            cells_as("c", cells, KindSpec(Kind.BOOLEAN))
    with at_fault(InvalidProblem, "bad_kind", match="cannot be of kind vector"):
        cells_as("c", numbers, KindSpec(Kind.VECTOR))


def test_moments_have_an_offset_or_are_utc():
    assert microseconds_of("1970-01-02") == 86_400_000_000
    assert microseconds_of("1970-01-01T02:00:00+02:00") == microseconds_of("1970-01-01 00:00") == 0
    assert microseconds_of("02.01.70", "%d.%m.%y") == 86_400_000_000
    for wrong in ("2024-02-30", "2024-1-1", "20240101", "2024-W01-1", "now", "9999999-01-01"):
        assert microseconds_of(wrong) is None
    assert number_of("1e400") is number_of("0x1") is number_of("1_0") is number_of("nan") is None


def test_tables_give_rows_as_records():
    vector = VectorCells(np.array([[1.0, 2.0], [np.nan, np.nan]]))
    truth = NumberCells(np.array([1.0, np.nan]), is_truth=True)
    table = Table(
        ("a", "b", "c", "d"), (TextCells.of(["x", None]), NumberCells(np.array([1.5, 2.0])), vector, truth)
    )
    assert table.record(0) == {"a": "x", "b": 1.5, "c": [1.0, 2.0], "d": True}
    assert table.take(np.array([1])).record(0) == {"a": None, "b": 2, "c": None, "d": None}
    found = infer_column("c", vector)
    assert (found.kind, found.code) == ("vector", "lists")
    with pytest.raises(InvalidProblem, match="same name"):
        Table(("a", "a"), (truth, truth))
    with pytest.raises(InvalidProblem, match="differ in length"):
        Table(("a", "b"), (truth, NumberCells(np.zeros(3))))
    texts = Texts.of(["", "é", "日本"])
    assert list(texts) == [texts[0], texts[1], texts[-1]] == ["", "é", "日本"]
