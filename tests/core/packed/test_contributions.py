"""What columns add to scores, against scores of rows that are changed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidProblem
from core.packed import LinearBasis, LinearForm, PackedStudent
from core.packed.contributions import Baseline, effects_of_words, explainer
from core.packed.encoder import Encoder
from core.packed.forms import GaussianForm
from core.packed.maps import RbfBasis
from core.packed.record_rows import EncodedRecord, RecordRows
from core.packed.term_table import term_entries
from core.packed.tree_effects import score_effects
from tests.app.serving.written_records import encoder, people, random_form, random_map, text_encoder
from tests.reference.trees import random_trees

CASES = [
    (with_note, kind, faces) for with_note in (False, True) for kind in ("linear", "rbf") for faces in (1, 3)
]


def record(known: Encoder, i: int, *, with_note: bool) -> EncodedRecord:
    rows = RecordRows(known)
    values = people(with_note=with_note).record(i)
    return rows.encode([values[column.name] for column in rows.columns])


def full_row(known: Encoder, encoded: EncodedRecord) -> np.ndarray:
    row = np.zeros(known.layout.columns)
    row[: known.layout.dense] = encoded.dense
    row[known.layout.dense + encoded.columns] = encoded.values
    return row


@pytest.mark.parametrize(("with_note", "kind", "faces"), CASES)
@pytest.mark.parametrize("i", [0, 1, 12, 17])
def test_sums_are_exact_and_kernels_are_compared_with_usual_values(with_note, kind, faces, i):
    known = encoder(with_note=with_note)
    packed = random_map(known, kind)
    student = PackedStudent(packed, random_form(packed.n_basis, faces), 0.0, "a")
    baseline = Baseline.of_encoder(known)
    encoded = record(known, i, with_note=with_note)
    row = full_row(known, encoded)
    [score] = student.scores(row[np.newaxis])
    found = explainer(student, baseline)(encoded)
    pieces = student.pieces(row[np.newaxis])
    form = (
        student.form
        if faces == 1
        else LinearForm(student.form.coef[pieces[0]], student.form.intercept[pieces[0]], *student.form.gate)
    )
    deciding = PackedStudent(packed, form, 0.0, "a") if kind == "linear" or with_note else student
    k = known.layout.dense
    assert found.is_exact is (kind == "linear")
    if found.is_exact:
        typical = np.concatenate([known.means, np.zeros(len(row) - k)])
        assert found.base + found.columns.sum() == pytest.approx(score, rel=1e-9)
    else:
        typical = np.concatenate([baseline.usual, np.zeros(len(row) - k)])
    assert found.base == pytest.approx(deciding.scores(typical[np.newaxis])[0], rel=1e-9)
    for place in range(len(known.columns)):
        changed = row.copy()
        for offsets, first in ((baseline.dense, 0), (baseline.terms, k)):
            within = slice(first + offsets[place], first + offsets[place + 1])
            changed[within] = typical[within]
        expected = deciding.scores(row[np.newaxis])[0] - deciding.scores(changed[np.newaxis])[0]
        assert found.columns[place] == pytest.approx(expected, rel=1e-7, abs=1e-10)
    if with_note:
        assert found.terms.sum() == pytest.approx(found.columns[-1])


def test_a_column_of_terms_alone_is_the_whole_of_its_score():
    known = text_encoder()
    student = PackedStudent(LinearBasis(known.layout.columns), random_form(known.layout.columns, 1), 0.0, "a")
    encoded = RecordRows(known).encode(["my card is lost"])
    found = explainer(student, Baseline.of_encoder(known))(encoded)
    assert found.base == student.form.intercept
    assert found.base + found.columns[0] == pytest.approx(
        student.scores(full_row(known, encoded)[np.newaxis])[0]
    )


def test_a_score_that_is_no_sum_is_compared_as_a_whole():
    known = encoder()
    d, rng = known.layout.columns, np.random.default_rng(3)
    packed = RbfBasis(np.zeros(d), np.full(d, 0.05), rng.normal(size=(6, d)))
    student = PackedStudent(
        packed, GaussianForm(rng.normal(size=6), 0.5, rng.normal(size=(4, 6)) / 9), 0.0, "a"
    )
    found = explainer(student, Baseline.of_encoder(known))(record(known, 3, with_note=False))
    assert not found.is_exact
    assert found.terms is None
    assert found.base == pytest.approx(student.scores(Baseline.of_encoder(known).usual[np.newaxis])[0])


def test_usual_values_are_medians_and_the_most_frequent_values():
    known, table = encoder(), people()
    usual = Baseline.of_encoder(known).usual
    rows = RecordRows(known)
    ages = table.column("age").values
    expected = {
        "age": float(np.median(ages[~np.isnan(ages)])),
        "hours": float(np.median(table.column("hours").values)),
        "member": float(np.median(table.column("member").values)),
        "place": np.median(table.column("place").values, axis=0).tolist(),
    }
    for name in ("job", "grade"):
        texts = [cell for cell in (table.record(i)[name] for i in range(table.n)) if cell is not None]
        expected[name] = max(sorted(set(texts)), key=texts.count)
    days = sorted(table.record(i)["since"] for i in range(table.n))
    expected["since"] = days[table.n // 2]
    # Truth values have a median that is one of them, too.
    expected["member"] = expected["member"] >= 0.5
    values = [expected[column.name] for column in rows.columns]
    np.testing.assert_allclose(usual, rows.encode(values).dense, rtol=1e-12)


def test_effects_beyond_float64_are_refused():
    d = 3
    student = PackedStudent(LinearBasis(d), LinearForm(np.full(d, 1e300), 0.0, np.zeros(d), 0.0), 0.0, "a")
    row = EncodedRecord([1e20, 0.0, 0.0], np.empty(0, dtype=np.int64), np.empty(0))
    with pytest.raises(InvalidProblem):
        explainer(student, Baseline.of_numbers(np.zeros(d)))(row)


def test_the_effect_of_a_text_is_shared_by_its_words():
    tables = text_encoder().columns[0].tables
    text = "My card, my CARD is ärger zzz"
    entries = term_entries(tables, [text])
    effects = np.random.default_rng(0).normal(size=len(entries.columns))
    words = effects_of_words(tables, text, entries.columns, effects)
    assert list(words) == ["my", "card", "is", "ärger", "zzz"]
    assert sum(words.values()) == pytest.approx(effects.sum())


def test_each_word_has_its_own_term_half_of_its_pairs_and_its_runs_of_characters():
    tables = text_encoder().columns[0].tables
    assert [table.family for table in tables] == ["words", "pairs", "characters3"]
    firsts = np.cumsum([0, *map(len, tables)])
    entries = term_entries(tables, ["lost today"])
    for number, expected in enumerate(({"lost": 2.0, "today": 2.0}, {"lost": 1.0, "today": 1.0})):
        is_own = (entries.columns >= firsts[number]) & (entries.columns < firsts[number + 1])
        words = effects_of_words(tables, "lost today", entries.columns, np.where(is_own, 2.0, 0.0))
        found = {word: effect for word, effect in words.items() if effect > 1e-9}
        assert found == pytest.approx(expected if is_own.any() else {})
    is_run = entries.columns >= firsts[2]
    words = effects_of_words(tables, "lost today", entries.columns, np.where(is_run, 1.0, 0.0))
    # " lo", "los", "ost", "st " and " to", "tod", "oda", "day", "ay ".
    assert words == pytest.approx({"lost": 4.0, "today": 5.0})


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab cd,.ä日本 1\n", max_size=60))
def test_no_effect_is_lost_whatever_the_text(text):
    tables = text_encoder().columns[0].tables
    entries = term_entries(tables, [text])
    words = effects_of_words(tables, text, entries.columns, np.ones(len(entries.columns)))
    assert sum(words.values()) == pytest.approx(len(entries.columns), abs=1e-9)


def test_paths_through_trees_are_summed_by_columns_of_the_table():
    known = encoder()
    trees = random_trees(trees=20, columns=known.layout.dense)
    student = PackedStudent(trees, random_form(trees.n_basis, 3), 0.0, "a")
    baseline = Baseline.of_encoder(known)
    encoded = record(known, 3, with_note=False)
    base, effects = score_effects(student, np.array(encoded.dense))
    found = explainer(student, baseline)(encoded)
    assert (found.base, found.is_exact) == (base, True)
    assert found.base + found.columns.sum() == pytest.approx(student.scores([encoded.dense])[0], abs=1e-12)
    np.testing.assert_allclose(found.columns, np.add.reduceat(effects, baseline.dense[:-1]), atol=1e-12)


def test_paths_through_trees_that_test_terms_are_summed_for_the_text_too():
    known = encoder(with_note=True)
    k, terms = known.layout.dense, known.layout.terms
    encoded = record(known, 3, with_note=True)
    picked = np.concatenate([np.arange(k), k + np.sort(encoded.columns)[:2], [k + terms - 1]])
    picked = np.unique(picked)
    trees = random_trees(trees=20, columns=len(picked)).on_columns(picked, known.layout.columns)
    student = PackedStudent(trees, random_form(trees.n_basis, 3), 0.0, "a")
    baseline = Baseline.of_encoder(known)
    row = full_row(known, encoded)
    _, effects = score_effects(student, row)
    found = explainer(student, baseline)(encoded)
    assert found.is_exact
    assert found.base + found.columns.sum() == pytest.approx(student.score(row), abs=1e-12)
    np.testing.assert_array_equal(found.terms, effects[k + encoded.columns])
    assert found.columns[-1] == pytest.approx(effects[k:].sum(), abs=1e-12)
