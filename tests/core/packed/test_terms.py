"""Terms of texts against a plain implementation of their definition, one text at a time."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from itertools import pairwise
from math import log, log1p, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.data.table import TextCells
from core.encoding.fit import fit_terms
from core.errors import InvalidProblem
from core.packed.term_table import TermTable, term_entries
from core.packed.terms import FAMILIES, MAX_TEXT_BYTES, TextBatch, batches, count_terms, cut_text, words_of
from tests.refusals import at_fault

_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15
WORDS = [
    "card",
    "Card",
    "my",
    "a",
    "7",
    "42",
    "naïve",
    "é",
    "don't",
    "e-mail",
    "straße",
    "日本",
    "語",
    "ไทย",
    "—",
    "!",
]
texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join) | st.text(max_size=30)


def mixed(number: int, family: str) -> int:
    number = number * (1 + 2 * FAMILIES.index(family)) & _MASK  # type: ignore[arg-type]
    for _ in range(2):
        number = (number ^ (number >> 32)) * 0xD6E8FEB86659FD93 & _MASK
    return number ^ (number >> 32)


def number(term: str, family: str) -> int:
    return mixed(sum((ord(c) + 1) * pow(_BASE, j, 1 << 64) for j, c in enumerate(term)) & _MASK, family)


def ascii_terms(text: str, family: str) -> Counter[int]:
    """The terms of a text of ASCII."""
    runs = re.findall(r"[a-z0-9]+", text.lower())
    words = [run for run in runs if len(run) > 1]
    if family == "words":
        return Counter(number(word, family) for word in words)
    if family == "pairs":
        numbers = [number(word, "words") for word in words]
        pairs = pairwise(numbers)
        return Counter(mixed((one * 0xC2B2AE3D27D4EB4F + two) & _MASK, family) for one, two in pairs)
    length = int(family[-1])
    padded = [f" {run} " for run in runs]
    return Counter(
        number(run[i : i + length], family) for run in padded for i in range(len(run) - length + 1)
    )


def counter_of(text: str, family: str) -> Counter[int]:
    counted = count_terms([text], family)  # type: ignore[arg-type]
    return Counter(dict(zip(counted.terms.tolist(), counted.counts.tolist(), strict=True)))


@given(st.text(st.characters(max_codepoint=127), max_size=60), st.sampled_from(FAMILIES))
def test_terms_of_ascii_are_those_of_the_definition(text: str, family: str):
    assert counter_of(text, family) == ascii_terms(text, family)


@given(st.lists(texts, max_size=6), st.sampled_from(FAMILIES))
def test_a_text_has_the_same_terms_alone_and_among_others(some: list[str], family: str):
    counted = count_terms(some, family)  # type: ignore[arg-type]
    for row, text in enumerate(some):
        own = counted.rows == row
        among = Counter(dict(zip(counted.terms[own].tolist(), counted.counts[own].tolist(), strict=True)))
        assert among == counter_of(text, family)


@given(texts)
def test_case_and_composition_do_not_count(text: str):
    decomposed = unicodedata.normalize("NFD", text)
    if unicodedata.normalize("NFC", decomposed.lower()) == unicodedata.normalize("NFC", text.lower()):
        assert words_of(decomposed) == words_of(text)
    assert words_of("CAFÉ au LAIT") == words_of("cafe\u0301 au lait") == ["café", "au", "lait"]


def test_scripts_without_spaces_have_characters_and_their_neighbours_as_words():
    assert words_of("東京 is 日本!") == ["東", "東京", "京", "is", "日", "日本", "本"]
    assert words_of("สวัสดี")[:3] == ["ส", "สว", "ว"]
    assert words_of("“quoted” … em—dash") == ["quoted", "em", "dash"]


def test_long_texts_are_cut_at_a_character():
    assert cut_text("é" * 40_000) == "é" * (MAX_TEXT_BYTES // 2)
    assert cut_text("a" * 70_000) == "a" * MAX_TEXT_BYTES
    assert [len(batch) for batch in batches(["a" * 600_000, "b", "c" * 600_000, "d"])] == [2, 2]


@given(st.lists(texts, min_size=1, max_size=12), texts)
def test_weights_are_those_of_the_formula(training: list[str], text: str):
    [table] = fit_terms(TextCells.of(training), ["words"])
    entries = term_entries([table], [text])
    n = len(training)
    rows = Counter(term for one in training for term in set(counter_of(one, "words")))
    if max(rows.values(), default=0) < 2:
        rows.clear()
    counts = counter_of(text, "words")
    weights = {term: log1p(count) * (1 + log((1 + n) / (1 + rows[term]))) for term, count in counts.items()}
    norm = sqrt(sum(weight**2 for weight in weights.values()))
    known = sorted(term for term in weights if rows[term])
    assert table.terms[entries.columns].tolist() == known
    np.testing.assert_allclose(entries.values, [weights[term] / norm for term in known], rtol=1e-3)


def test_terms_of_a_single_row_count_where_rows_share_others():
    lone, shared = (fit_terms(TextCells.of(some), ["words"])[0] for some in (["a1", "b1"], ["a1", "a1 b1"]))
    assert (len(lone), len(shared)) == (0, 2)


def test_families_share_the_norm_of_a_text():
    tables = fit_terms(TextCells.of(["red card", "red card lost"]), ["words", "pairs", "characters3"])
    entries = term_entries(tables, ["red card"])
    assert sum(entries.values**2) == pytest.approx(1.0)
    assert entries.columns.max() < sum(map(len, tables))


@pytest.mark.parametrize(
    ("terms", "idf", "unknown", "code"),
    [
        ([2, 1], [1, 1], 1, "not_ascending"),
        ([1, 1], [1, 1], 1, "not_ascending"),
        ([1], [1, 2], 1, "wrong_shape"),
        ([1], [0], 1, "out_of_range"),
        ([1], [1], 1 << 40, "out_of_range"),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(
    terms: list[int], idf: list[int], unknown: int, code: str
):
    with at_fault(InvalidProblem, code):
        TermTable("words", np.array(terms, dtype=np.uint64), np.array(idf), unknown)


def test_a_table_of_another_family_is_refused():
    with at_fault(InvalidProblem, "unknown_family"):
        TermTable("syllables", np.array([1], dtype=np.uint64), np.array([1]), 1)  # type: ignore[arg-type]


def test_a_batch_of_no_texts_has_no_terms():
    assert len(TextBatch([]).count("characters3").terms) == 0
    assert term_entries([], ["a b"]).values.size == 0
