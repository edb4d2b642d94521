"""Single texts have the terms and weights, to the last bit, that they have among others, by NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data.table import TextCells
from core.encoding.fit import fit_terms
from core.packed import single_text
from core.packed.single_text import SingleTexts
from core.packed.term_table import TermTable, term_entries
from core.packed.terms import FAMILIES, Family

WORDS = ["my", "card", "is", "lost", "a", "b2", "Ärger", "I.O.U.", "日本語", "x" * 40, "", "9", "ok-ay"]
FITTED = [" ".join([WORDS[k % 13], WORDS[(k * 5) % 13], WORDS[(k * 7) % 11]]) for k in range(60)]


@pytest.fixture(autouse=True, scope="module")
def by_numpy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single_text, "IS_COMPILED", False)
        yield


@cache
def tables(families: tuple[Family, ...]) -> tuple[TermTable, ...]:
    return fit_terms(TextCells.of(FITTED), families)


def check(families: tuple[Family, ...], text: str) -> int:
    known = tables(families)
    columns, values = SingleTexts(known).find(text)
    rows, expected_columns, expected = term_entries(known, [text, "beside card"])
    order, beside = np.argsort(columns), np.argsort(expected_columns[rows == 0])
    np.testing.assert_array_equal(columns[order], expected_columns[rows == 0][beside])
    np.testing.assert_array_equal(values[order], expected[rows == 0][beside])
    return len(columns)


@pytest.mark.parametrize("families", [("words",), ("pairs", "words"), FAMILIES, ("characters5", "pairs")])
@pytest.mark.parametrize(
    "text", ["", " ", "a", "my card", "my card my card is lost!", "zzz yyy", "\0my\0", "Ärger"]
)
def test_usual_and_odd_texts(families: tuple[Family, ...], text: str):
    check(families, text)


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=30), st.sampled_from(" .\n\0"))
@settings(max_examples=200, deadline=None)
def test_any_text(words: list[str], between: str):
    check(("words", "pairs", "characters3"), between.join(words))


def test_known_terms_are_found_at_all():
    assert check(("words", "pairs", "characters3"), "my card is lost") > 10
    assert check(("words",), "card " * 300) == 1


def test_tables_that_are_never_fitted_have_their_terms_too():
    words, pairs = tables(("words", "pairs"))
    empty = TermTable("characters3", np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64), 1 << 16)
    for known in (
        (words, empty),
        (words, TermTable("pairs", pairs.terms, pairs.idf, 1 << 17)),
        (words, words),
    ):
        columns, values = SingleTexts(known).find("my card is lost")
        _, expected_columns, expected = term_entries(known, ["my card is lost"])
        np.testing.assert_array_equal(columns, expected_columns)
        np.testing.assert_array_equal(values, expected)
