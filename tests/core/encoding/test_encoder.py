"""Encoders: what each kind becomes, the same bits alone and among others, and bytes that are checked."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from math import cos, pi, sin
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.encoding.fit import fit_encoder, matrix_of
from core.encoding.labelled_table import LabelledTable
from core.encoding.rules import FEWEST_TERMS, ColumnRules, most_terms
from core.errors import InvalidPackage, InvalidProblem
from core.packed.encoder import Encoder
from core.packed.term_table import MAX_TERMS

N = 300


def mixed_table(n: int = N, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    ages = rng.normal(40, 10, n).round(1)
    ages[rng.random(n) < 0.1] = np.nan
    jobs = rng.choice(["clerk", "nurse", "cook", "judge"], n, p=[0.5, 0.3, 0.19, 0.01])
    towns = rng.choice([f"new town {i}" for i in range(80)], n)
    days = [str(date(2020, 1, 1) + timedelta(days=int(k))) for k in rng.integers(0, 1000, n)]
    texts = [
        " ".join(rng.choice(["my", "card", "is", "lost", "again", "today"], 6)) + f" {k}" for k in range(n)
    ]
    return Table(
        ("age", "job", "town", "since", "note", "member", "place"),
        (
            NumberCells(ages),
            TextCells.of([None if k % 20 == 0 else str(job) for k, job in enumerate(jobs)]),
            TextCells.of([*map(str, towns)]),
            TextCells.of(days),
            TextCells.of(texts),
            NumberCells((rng.random(n) < 0.5).astype(np.float64), is_truth=True),
            VectorCells(rng.normal(size=(n, 3))),
        ),
    )


def fitted(table: Table, **rules: ColumnRules) -> Encoder:
    return fit_encoder(table, infer_schema(table), rules, ignored=["label"])


def row_of(encoder: Encoder, record: dict[str, Any]) -> list[float]:
    row: list[float] = []
    for column in encoder.columns:
        value = record[column.name]
        row += column.row(None if value is None else column.checked(value))
    return row


def dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sp.issparse(rows) else rows


def test_every_kind_has_its_columns():
    encoder = fitted(mixed_table())
    assert [column.kind for column in encoder.columns] == [
        *("number", "category", "category", "date", "text", "boolean", "vector")
    ]
    age, job, town, since, note, member, place = encoder.columns
    assert age.labels == ("value", "missing")
    assert not age.required
    assert job.labels == ("clerk", "cook", "nurse", "rare", "missing")
    assert len(town.tables) == 3
    assert town.width <= 65
    assert since.labels == (
        "years",
        "sine of weekday",
        "cosine of weekday",
        "sine of yearday",
        "cosine of yearday",
    )
    assert [table.family for table in note.tables] == ["words", "pairs", "characters3"]
    assert (member.labels, place.width) == (("value",), 3)
    layout = encoder.layout
    assert layout.dense == sum(column.width for column in encoder.columns)
    assert layout.numbers == (0, 7 + town.width, layout.dense - 4)
    assert encoder.ignored == ("label",)
    assert not encoder.takes_numbers
    assert encoder.text_column is None


def test_rows_are_encoded_to_the_same_bits_alone_and_among_others():
    table = mixed_table()
    encoder = fitted(table)
    X = matrix_of(encoder.encode(table), encoder)
    X.check_format(full_check=True)
    for row in range(0, N, 17):
        alone = matrix_of(encoder.encode(table.take(np.array([row]))), encoder)
        np.testing.assert_array_equal(dense(alone)[0], dense(X[[row]])[0])
        np.testing.assert_array_equal(
            row_of(encoder, table.record(row)), dense(X[[row]])[0, : encoder.layout.dense]
        )


def test_numbers_are_stored_in_every_row_so_that_they_can_be_shifted():
    table = Table(("x", "t"), (NumberCells(np.zeros(4)), TextCells.of(["a card", "a card", "a dog", "no"])))
    schema = infer_schema(table, {"x": KindSpec(Kind.NUMBER), "t": KindSpec(Kind.TEXT)})
    encoder = fit_encoder(table, schema)
    X = matrix_of(encoder.encode(table), encoder)
    assert np.bincount(X.indices, minlength=X.shape[1])[0] == 4


def test_gaps_rare_and_unseen_values_differ():
    encoder = fitted(mixed_table())
    job = encoder.columns[1]
    one = {value: job.row(value) for value in ("clerk", "judge", "pilot", None)}
    assert one["clerk"] == [1, 0, 0, 0, 0]
    assert one["judge"] == one["pilot"] == [0, 0, 0, 1, 0]
    assert one[None] == [0, 0, 0, 0, 1]
    without = fitted(Table(("c",), (TextCells.of(["a", "b"] * 10),))).columns[0]
    assert without.row("z") == [0, 0]
    refusing = fitted(Table(("c",), (TextCells.of(["a", "b"] * 10),)), c=ColumnRules(refuses_unseen=True))
    with pytest.raises(InvalidProblem, match="a value that no row of training had"):
        refusing.columns[0].checked("z")


def test_dates_are_years_and_cycles():
    table = Table(("d",), (TextCells.of([f"2020-01-{day:02}T0{day % 3}:00" for day in range(1, 29)]),))
    encoder = fitted(table)
    [column] = encoder.columns
    assert column.labels == (
        "years",
        "sine of hour",
        "cosine of hour",
        "sine of weekday",
        "cosine of weekday",
    )
    # 6 January 2020 was a Monday; 1 January 1970, where weeks are counted from, a Thursday.
    row = column.row(column.checked("2020-01-06T06:00:00+00:00"))
    day = 2 * pi * (4.25 / 7)
    np.testing.assert_allclose(row, [5.25 / 365.25, 1.0, 0.0, sin(day), cos(day)], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("age", "39", "wrong_type"),
        ("age", True, "wrong_type"),
        ("age", [39], "wrong_type"),
        ("age", float("nan"), "not_finite"),
        ("age", 1e101, "too_large"),
        ("age", 10**400, "too_large"),
        ("job", ["clerk"], "wrong_type"),
        ("job", float("inf"), "wrong_type"),
        ("job", "é" * 3000, "too_long"),
        ("since", "2024-02-30", "bad_date"),
        ("since", 20240230, "wrong_type"),
        ("note", 3, "wrong_type"),
        ("member", 1, "wrong_type"),
        ("place", [1.0, 2.0], "wrong_type"),
        ("place", [1.0, 2.0, "3"], "wrong_type"),
        ("place", [1.0, 2.0, float("inf")], "not_finite"),
    ],
)
def test_values_that_are_nothing_of_their_kind_are_refused(name: str, value: Any, code: str):
    columns = {column.name: column for column in fitted(mixed_table()).columns}
    with pytest.raises(InvalidProblem) as refused:
        columns[name].checked(value)
    [fault] = refused.value.faults
    assert (fault.field, fault.code) == (name, code)


def test_columns_are_found_by_name_and_those_without_use_are_known():
    table = mixed_table()
    encoder = fitted(table)
    turned = Table(table.names[::-1], table.cells[::-1])
    np.testing.assert_array_equal(
        dense(matrix_of(encoder.encode(turned), encoder)), dense(matrix_of(encoder.encode(table), encoder))
    )
    with pytest.raises(InvalidProblem, match="no column 'age'"):
        encoder.encode(Table(table.names[1:], table.cells[1:]))
    constant = Table(("a", "b"), (NumberCells(np.arange(9.0) ** 2), TextCells.of(["x"] * 9)))
    assert fitted(constant).ignored == ("b", "label")
    with pytest.raises(InvalidProblem, match="No column of the table says anything"):
        fitted(Table(("b",), (TextCells.of(["x"] * 9),)))


@given(st.integers(0, 2**32 - 1))
def test_bytes_give_the_same_encoder(seed: int):
    encoder = fitted(mixed_table(60, seed))
    data = encoder.to_bytes()
    restored = Encoder.from_bytes(data)
    assert restored.to_bytes() == data
    table = mixed_table(5, seed + 1)
    for part in ("dense", "entries"):
        for one, two in zip(
            np.atleast_1d(getattr(encoder.encode(table), part)),
            np.atleast_1d(getattr(restored.encode(table), part)),
            strict=True,
        ):
            np.testing.assert_array_equal(one, two)


@given(st.data())
def test_damaged_bytes_are_refused_or_give_an_encoder(data: st.DataObject):
    good = bytearray(_good())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        encoder = Encoder.from_bytes(good)
    except InvalidPackage:
        return
    encoder.to_bytes()


def test_a_text_without_terms_is_refused():
    """What counts known words looks at the terms of the first family."""
    table = Table(("a",), (TextCells.of(["red blue", "red green"]),))
    schema = infer_schema(table, {"a": KindSpec(Kind.TEXT)})
    good = fit_encoder(table, schema, {}).to_bytes()
    assert Encoder.from_bytes(good).names == ("a",)
    assert b'"terms":' in good
    with pytest.raises(InvalidPackage, match="has no terms"):
        Encoder.from_bytes(good.replace(b'"terms":', b'"t_rms":'))


@cache
def _good() -> bytes:
    return fitted(mixed_table(60)).to_bytes()


def test_the_most_frequent_terms_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("core.encoding.fit.MAX_TERMS", 12)
    table = Table(
        ("a", "b"),
        (
            TextCells.of(["red red blue green", "red blue pink", "red green tree", "blue sea pink tree"]),
            TextCells.of(["one two", "one two three", "one", "four"]),
        ),
    )
    schema = infer_schema(table, {name: KindSpec(Kind.TEXT) for name in table.names})
    encoder = fit_encoder(
        table, schema, dict.fromkeys(table.names, ColumnRules(families=("words", "characters3")))
    )
    assert encoder.layout.terms <= 12
    assert sorted(len(one) for column in encoder.columns for one in column.tables) == [3, 3, 3, 3]


def test_tables_of_many_classes_have_so_many_terms_that_all_classes_can_be_rivals():
    assert most_terms(2) == most_terms(20) == MAX_TERMS
    assert FEWEST_TERMS < most_terms(77) < MAX_TERMS // 4
    assert most_terms(10_000) == FEWEST_TERMS
    texts = [f"word{k} word{k + 1} word{3 * k}" for k in range(6000)]
    rows = LabelledTable(
        Table(("a",), (TextCells.of(texts),)),
        infer_schema(Table(("a",), (TextCells.of(texts),)), {"a": KindSpec(Kind.TEXT)}),
        np.arange(6000, dtype=np.int32) % 77,
        tuple(map(str, range(77))),
    )
    few = replace(rows, y=rows.y % 3, classes=("0", "1", "2"))
    assert few.encoder().layout.terms > most_terms(77)
    assert 0 < rows.encoder().layout.terms <= most_terms(77)


def test_long_texts_have_words_and_pairs_and_short_ones_runs_of_characters_too():
    words = [f"word{k}" for k in range(200)]
    long = [" ".join(words[k : k + 60]) for k in range(70)]
    short = [" ".join(words[k : k + 6]) for k in range(70)]
    table = Table(("long", "short"), (TextCells.of(long), TextCells.of(short)))
    encoder = fit_encoder(table, infer_schema(table))
    assert [[one.family for one in column.tables] for column in encoder.columns] == [
        ["words", "pairs"],
        ["words", "pairs", "characters3"],
    ]
    said = fit_encoder(table, infer_schema(table), {"long": ColumnRules(families=("characters4",))})
    assert [one.family for one in said.columns[0].tables] == ["characters4"]
