"""What a version answered and another one refuses: what is listed is what the reader of records refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.serving.columns.faults import RecordReader
from core.data.column_kinds import infer_schema
from core.data.schema import KindSpec
from core.data.table import Cells, NumberCells, Table, TextCells, VectorCells
from core.encoding.fit import ColumnRules, fit_encoder
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows
from core.packed.row_schema import RowSchema, SchemaChange, schema_changes

N = 40
COLOURS = TextCells.of(("red", "green", "blue", "red")[i % 4] for i in range(N))
NAMES_OF_NUMBERS = TextCells.of(str(i % 4) for i in range(N))
SENTENCES = TextCells.of(f"some words of row number {i} and more" for i in range(N))
DAYS = TextCells.of(f"2024-05-{1 + i % 28:02}" for i in range(N))
GERMAN_DAYS = TextCells.of(f"{1 + i % 28:02}.05.2024" for i in range(N))
NUMBERS = NumberCells(np.arange(N) ** 2 + 0.5)
PRICES = TextCells.of(f"${i}.50" for i in range(N))
TRUTHS = NumberCells(np.arange(N) % 2.0, is_truth=True)
GAPS = NumberCells(np.where(np.arange(N) % 3, np.arange(N) ** 2.0, np.nan))
WITH_WORD = TextCells.of("n.a." if i % 5 == 0 else f"{i}.5" for i in range(N))
VECTORS = VectorCells(np.ones((N, 3)) * np.arange(N)[:, np.newaxis])
SHORT_VECTORS = VectorCells(np.ones((N, 2)) * np.arange(N)[:, np.newaxis])

COLUMNS: dict[str, tuple[Cells, str | None]] = {
    "colours": (COLOURS, None),
    "names of numbers": (NAMES_OF_NUMBERS, "category"),
    "sentences": (SENTENCES, "text"),
    "days": (DAYS, None),
    "german days": (GERMAN_DAYS, None),
    "numbers": (NUMBERS, None),
    "prices": (PRICES, None),
    "truths": (TRUTHS, None),
    "gaps": (GAPS, None),
    "with a word": (WITH_WORD, None),
    "vectors": (VECTORS, None),
    "short vectors": (SHORT_VECTORS, None),
}


def encoder(said: dict[str, str] | None = None, *, extra: bool = False, **columns: Cells) -> Encoder:
    """The encoder of a table with these columns. said: kinds of some."""
    table = Table(tuple(columns), tuple(columns.values()))
    kinds = {name: KindSpec.parse(kind) for name, kind in (said or {}).items()}
    return fit_encoder(table, infer_schema(table, kinds), takes_others=extra, answers_gaps=False)


def changes(before: Encoder, after: Encoder) -> list[tuple[str, str]]:
    found = schema_changes(RowSchema.of_encoder(before), RowSchema.of_encoder(after))
    return [(change.code, change.name) for change in found if change.code != "form_refused"]


def of_column(name: str) -> Encoder:
    cells, kind = COLUMNS[name]
    return encoder({} if kind is None else {"v": kind}, v=cells, other=NUMBERS)


def values_of(cells: Cells) -> list[Any]:
    """Its values as a program sends them; of texts that are numbers, also the numbers."""
    table = Table(("v",), (cells,))
    sent = [table.record(row)["v"] for row in range(table.n)]
    return [*sent, *(float(text) for text in sent if isinstance(text, str) and text.isdigit())]


@pytest.mark.parametrize("before", COLUMNS)
@pytest.mark.parametrize("after", COLUMNS)
def test_a_change_is_listed_where_values_of_the_old_training_are_refused(before: str, after: str):
    old, new = of_column(before), of_column(after)
    sent = [*values_of(COLUMNS[before][0]), "a value that no row had", "word " * 1000, None]
    # Categories take any number, which says nothing where training had none.
    sent += [] if before == "colours" else [1.5]
    readers = [RecordReader(RecordRows(known)) for known in (old, new)]
    refused = {
        fault.code
        for value in sent
        if not readers[0].read_cells({"v": value, "other": 1.0}, "record", None)[1]
        for fault in readers[1].read_cells({"v": value, "other": 1.0}, "record", None)[1]
    }
    listed = changes(old, new)
    assert bool(refused) == bool(listed), (refused, listed)
    assert {name for _, name in listed} <= {"v"}


def test_each_change_says_what_happens_to_which_column():
    before = encoder(Age=GAPS, Fare=NUMBERS, Day=GERMAN_DAYS, Note=SENTENCES)
    after = encoder(Age=NUMBERS, Day=DAYS, Note=SENTENCES, PassengerId=NUMBERS, Cabin=GAPS)
    found = schema_changes(RowSchema.of_encoder(before), RowSchema.of_encoder(after))
    assert [(change.code, change.name) for change in found] == [
        ("column_required", "Age"),
        ("column_required", "PassengerId"),
        ("column_removed", "Fare"),
        ("column_retyped", "Day"),
    ]
    assert [change.message for change in found] == [
        "Column 'Age' is required, and could be missing.",
        "Column 'PassengerId' is required, and did not exist.",
        "Column 'Fare' is not known: rows that have it are refused.",
        (
            "Column 'Day' was date:%d.%m.%Y and is date: with '26.05.2024', as before, it is not a date like"
            " 2024-05-06 or 2024-05-06T07:08:09+02:00."
        ),
    ]
    assert schema_changes(RowSchema.of_encoder(before), RowSchema.of_encoder(before)) == []


def test_what_was_ignored_and_is_required_or_refused_is_listed():
    before = encoder({"Id": "ignore"}, Id=NUMBERS, Age=NUMBERS)
    [change, form] = schema_changes(
        RowSchema.of_encoder(before), RowSchema.of_encoder(encoder(Id=NUMBERS, Age=NUMBERS))
    )[::-1]
    assert (change.code, change.message) == ("column_required", "Column 'Id' is required, and was not used.")
    assert (form.code, form.name) == ("form_refused", "x")
    assert changes(before, encoder(Age=NUMBERS)) == [("column_removed", "Id")]
    assert changes(before, encoder(extra=True, Age=NUMBERS)) == []
    assert changes(encoder(Age=NUMBERS), before) == []


def test_categories_that_refuse_what_training_did_not_have_are_listed():
    table = Table(("v", "w"), (COLOURS, NUMBERS))
    schema = infer_schema(table)
    strict = fit_encoder(table, schema, {"v": ColumnRules(refuses_unseen=True)}, answers_gaps=False)
    known = fit_encoder(table, schema, answers_gaps=False)
    assert changes(known, strict) == [("column_retyped", "v")]
    assert changes(strict, known) == changes(strict, strict) == []


NUMBERS_2 = RowSchema.of_numbers(2, ["a", "b"], "label")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (NUMBERS_2, RowSchema.of_numbers(2, ["a", "b"], None), [("column_removed", "label")]),
        (NUMBERS_2, RowSchema.of_numbers(2, ["b", "a"], "label"), [("form_refused", "x")]),
        (NUMBERS_2, RowSchema.of_numbers(2, None, None), [("form_refused", "record")]),
        (RowSchema.of_numbers(2, None, None), RowSchema.of_numbers(3, None, None), [("form_refused", "x")]),
        (RowSchema.of_numbers(2, None, None), NUMBERS_2, []),
        (
            RowSchema.of_numbers(2, None, None, 0),
            RowSchema.of_numbers(2, None, None, 1),
            [("form_refused", "index_base")],
        ),
        (
            NUMBERS_2,
            RowSchema.of_encoder(encoder(a=GAPS, b=NUMBERS)),
            [("form_refused", "x"), ("column_removed", "label")],
        ),
        (RowSchema.of_encoder(encoder(a=GAPS, b=NUMBERS)), NUMBERS_2, [("column_required", "a")]),
        (
            RowSchema.of_encoder(encoder({"t": "text"}, t=SENTENCES)),
            RowSchema.of_encoder(encoder({"t": "text"}, t=SENTENCES, a=GAPS)),
            [("form_refused", "text")],
        ),
        (
            RowSchema.of_encoder(encoder(extra=True, a=GAPS)),
            RowSchema.of_encoder(encoder(a=GAPS)),
            [("form_refused", "record")],
        ),
    ],
)
def test_forms_of_rows_are_listed(before: RowSchema, after: RowSchema, expected: list[tuple[str, str]]):
    found: list[SchemaChange] = schema_changes(before, after)
    assert [(change.code, change.name) for change in found] == expected
