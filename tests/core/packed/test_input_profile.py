"""Bins of values, the distance of two distributions, and packages of profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest

from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.encoding import profile as fitting
from core.encoding.fit import fit_encoder
from core.encoding.profile import fit_profile
from core.errors import InvalidPackage
from core.packed.encoded_columns import TextColumn
from core.packed.encoder import Encoder
from core.packed.input_profile import (
    BINS,
    GAP_BIN,
    MOST_COLUMNS,
    OTHERS,
    InputProfile,
    bins_of,
    count_words,
    stability_index,
)
from tests.app.serving.written_records import encoder, people

N = 1000
COLORS = [f"colour{k}" for k in range(30)]


def mixed() -> tuple[Table, Encoder]:
    """1000 rows: numbers with 100 gaps, colours of which the k-th has about 2 k rows, days, truth values."""
    numbers = np.arange(N, dtype=np.float64)
    numbers[::10] = np.nan
    colors = [COLORS[k] for k in range(30) for _ in range(2 * k + 3)]
    colors = (colors + ["colour29"] * N)[:N]
    days = [f"2024-01-{1 + k % 20:02d}" for k in range(N)]
    table = Table(
        ("number", "color", "day", "truth", "spot"),
        (
            NumberCells(numbers),
            TextCells.of(colors),
            TextCells.of(days),
            NumberCells((np.arange(N) % 4 == 0).astype(np.float64), is_truth=True),
            VectorCells(np.arange(2.0 * N).reshape(N, 2)),
        ),
    )
    said = {"color": KindSpec(Kind.CATEGORY)}
    return table, fit_encoder(table, infer_schema(table, said))


def test_the_rows_of_training_are_spread_over_the_bins():
    table, known = mixed()
    columns = dict(zip(known.names, fit_profile(table, known).columns, strict=True))
    number, color, day, truth, spot = (columns[name] for name in table.names)
    assert number.counts == (*[45] * 20, 100)
    assert number.edges[:2] == (51.0, 101.0)
    assert day.counts == (*[50] * 20, 0)
    assert truth.counts[:2] == (750, 250)
    assert spot.counts == (N, *[0] * 20)
    encoder_of = dict(zip(known.names, known.columns, strict=True))
    values: Any = encoder_of["color"]
    assert [values.values[place] for place in color.top[:3]] == ["colour29", "colour28", "colour27"]
    counts = table.column("color").counts  # type: ignore[union-attr]
    assert color.counts[:3] == (*counts[[29, 28, 27]].tolist(),)
    assert color.counts[OTHERS] == counts[: 30 - OTHERS].sum()
    assert sum(color.counts) == N


def test_a_value_has_the_bin_that_it_had_in_training():
    table, known = mixed()
    for column, profile in zip(known.columns, fit_profile(table, known).columns, strict=True):
        found = np.zeros(BINS, dtype=int)
        find = bins_of(column, profile)
        for row in range(N):
            value = table.record(row)[column.name]
            found[GAP_BIN if value is None else find(value)[0]] += 1
        assert found.tolist() == [*profile.counts], column.name


def test_values_that_training_did_not_have_are_with_the_nearest_or_the_others():
    table, known = mixed()
    find = {
        column.name: bins_of(column, profile)
        for column, profile in zip(known.columns, fit_profile(table, known).columns, strict=True)
    }
    assert find["number"](-1e9) == (0,)
    assert find["number"](1e9) == (19,)
    assert find["color"]("none of them") == (OTHERS,)
    assert find["color"](" colour29 ") == (0,)
    assert find["day"]("1999-12-31T23:59:59+02:00") == (0,)
    assert find["truth"](True) == (1,)


def text_table(texts: list[str | None]) -> tuple[Table, Encoder]:
    table = Table(("text",), (TextCells.of(texts),))
    return table, fit_encoder(table, infer_schema(table, {"text": KindSpec(Kind.TEXT)}))


def test_a_row_of_training_does_not_know_its_own_words():
    # "one" is in one row, "two" in two and "three" in three; the others are in all.
    texts: list[str | None] = ["aa bb one two three", "aa bb two three", "aa bb three", None]
    table, known = text_table(texts)
    [column] = known.columns
    assert isinstance(column, TextColumn)
    first = str(texts[0])
    assert count_words(column, first) == (5, 5), "a row of training has it"
    assert count_words(column, first, of_training=True) == (5, 4), "another row has it"
    [profile] = fit_profile(table, known).columns
    # Of the first row 4 words of 5 are known, of the others all.
    assert [profile.counts[tenth] for tenth in (8, 9)] == [1, 2]
    assert profile.counts[GAP_BIN] == 1
    assert sum(profile.counts[10:20]) == 3
    find = bins_of(column, profile)
    assert find("aa bb new words here or")[0] == 3
    assert find("!")[0] == 0


def test_new_texts_of_the_same_kind_are_no_drift():
    rng = np.random.default_rng(3)
    words = np.array([f"word{k}" for k in range(3000)])
    weights = 1.0 / np.arange(1, 3001)
    weights /= weights.sum()

    def texts(n: int) -> list[str | None]:
        return [" ".join(rng.choice(words, int(rng.integers(5, 40)), p=weights)) for _ in range(n)]

    table, known = text_table(texts(1500))
    [column], [profile] = known.columns, fit_profile(table, known).columns
    find, found = bins_of(column, profile), [0] * BINS
    for text in texts(1500):
        for number in find(text):
            found[number] += 1
    same = stability_index(column, profile.counts, found)
    assert same is not None
    assert same < 0.1
    assert isinstance(column, TextColumn)
    own = [count_words(column, str(text)) for text in table.column("text").texts]  # type: ignore[union-attr]
    naive = [0] * 10
    for all_words, known_words in own:
        naive[min(10 * known_words // all_words, 9)] += 1
    biased = stability_index(column, (*naive, *profile.counts[10:]), found)
    assert biased is not None
    assert biased > 2 * same, "rows of training would look more familiar than they are"


def test_only_some_rows_of_large_tables_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitting, "MOST_ROWS", 100)
    monkeypatch.setattr(fitting, "MOST_TEXTS", 40)
    table, known = mixed()
    assert {sum(column.counts) for column in fit_profile(table, known).columns} == {100}
    with_texts, texts_known = text_table([f"some words {k % 7} here" for k in range(60)])
    [profile] = fit_profile(with_texts, texts_known).columns
    assert sum(profile.counts[:10]) == sum(profile.counts[10:]) == 40


def test_the_index_of_stability_is_the_one_computed_by_hand():
    [column] = text_table(["aa bb", "aa bb"])[1].columns
    number = encoder().columns[0]
    training = [50, 30, 20, *[0] * 18]
    found = [10, 30, 50, *[0] * 17, 10]
    # Bins of 0.5 and 0.1, 0.3 and 0.3, 0.2 and 0.5, and one that training did not have, 0.0001 and 0.1.
    wanted = -0.4 * log(0.2) + 0.3 * log(2.5) + 0.0999 * log(1000.0)
    assert stability_index(number, training, found) == pytest.approx(wanted, abs=1e-12)
    assert wanted == pytest.approx(1.60874, abs=1e-5)
    assert stability_index(number, training, training) == 0.0
    assert stability_index(number, training, [0] * BINS) is None
    # Of texts the larger one of the two: here the second differs.
    both = [5, 5, *[0] * 8, 5, 5, *[0] * 9]
    other = [5, 5, *[0] * 8, 9, 1, *[0] * 9]
    assert stability_index(column, both, other) == pytest.approx(0.4 * log(1.8) - 0.4 * log(0.2))


def test_the_first_columns_are_looked_at():
    names = tuple(f"c{k}" for k in range(MOST_COLUMNS + 6))
    rng = np.random.default_rng(0)
    table = Table(names, tuple(NumberCells(rng.normal(size=30)) for _ in names))
    known = fit_encoder(table, infer_schema(table))
    assert len(fit_profile(table, known).columns) == MOST_COLUMNS


def test_a_profile_survives_its_package():
    known = encoder(with_note=True)
    profile = fit_profile(people(with_note=True), known)
    data = profile.to_bytes()
    again = InputProfile.from_bytes(data, known)
    assert again == profile
    assert again.to_bytes() == data
    with pytest.raises(InvalidPackage, match="does not fit"):
        InputProfile.from_bytes(data, encoder())


def damaged() -> dict[str, Any]:
    """Packages that are none of the encoder of `people`, by what is wrong with them."""
    document = json.loads(fit_profile(people(), encoder()).to_bytes())

    def changed(place: int, **fields: Any) -> Any:
        columns = [*document["columns"]]
        columns[place] = columns[place] | fields
        return document | {"columns": columns}

    age, job = 0, 3
    return {
        "no JSON": "{",
        "no object": 5,
        "another format": document | {"format": "stms.profile.9"},
        "no columns": {"format": document["format"]},
        "too few columns": document | {"columns": document["columns"][1:]},
        "too few bins": changed(age, counts=[1]),
        "a negative count": changed(age, counts=[-1, *[0] * 20]),
        "a text for a count": changed(age, counts=["1", *[0] * 20]),
        "no list of counts": changed(age, counts=7),
        "edges that do not ascend": changed(age, edges=[2.0, 1.0]),
        "too many edges": changed(age, edges=[*range(20)]),
        "an infinite edge": changed(age, edges=[1e999]),
        "edges of a category": changed(job, edges=[1.0]),
        "an unknown value": changed(job, top=[99]),
        "half a place": changed(job, top=[0.5]),
        "a very large count": changed(age, counts=[10**400, *[0] * 20]),
        "a very large edge": changed(age, edges=[10**400]),
    }


@pytest.mark.parametrize("what", sorted(damaged()))
def test_a_damaged_profile_is_refused(what: str):
    found = damaged()[what]
    data = found if isinstance(found, str) else json.dumps(found)
    with pytest.raises(InvalidPackage):
        InputProfile.from_bytes(data.encode(), encoder())


def test_a_text_without_known_words_has_no_known_part():
    _, known = text_table(["aa bb", "aa bb"])
    [column] = known.columns
    assert isinstance(column, TextColumn)
    [table] = column.tables[:1]
    without = replace(column, term_tables=(replace(table, terms=table.terms[:0], idf=table.idf[:0]),))
    assert count_words(without, "aa bb") == (2, 0)
