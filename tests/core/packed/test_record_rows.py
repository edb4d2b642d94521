"""Scores of records are those of their rows, with each form and map of a student."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.column_kinds import infer_schema
from core.data.table import NumberCells, Table
from core.encoding.fit import ColumnRules, fit_encoder
from core.errors import InvalidProblem
from core.packed import LinearBasis, PackedStudent
from core.packed.encoder import Encoder
from core.packed.forms import Form, GaussianForm, LinearForm, PolytopeForm
from core.packed.maps import BesideTerms, PackedMap, RbfBasis
from core.packed.record_rows import RecordRows, record_decider, record_scorers
from core.packed.sparse import StoredBasis
from tests.app.serving.written_records import encoder, people

P, TERMS = 7, 5
RNG = np.random.default_rng(0)
FORMS: list[Form] = [
    LinearForm(RNG.normal(size=P + TERMS), 0.5, RNG.normal(size=P + TERMS), 0.25),
    PolytopeForm(RNG.normal(size=(3, P + TERMS)), RNG.normal(size=3), RNG.normal(size=P + TERMS), 0.25),
    GaussianForm(RNG.normal(size=P + TERMS), 0.5, RNG.normal(size=(4, P + TERMS)) / 9.0),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@pytest.mark.parametrize("columns", [[], [0], [1, 4]])
def test_forms_have_the_same_values_where_most_basis_values_are_0(form: Form, columns: list[int]):
    dense, values = RNG.normal(size=P), RNG.normal(size=len(columns))
    full = np.concatenate([dense, np.zeros(TERMS)])
    full[P + np.array(columns, dtype=np.int64)] = values
    stored = StoredBasis(dense, np.array(columns, dtype=np.int64), values)
    assert form.at_stored(stored) == pytest.approx(form.at(full), rel=1e-12)


def maps(known: Encoder) -> list[PackedMap]:
    layout = known.layout
    d = layout.columns
    rbf = RbfBasis(np.zeros(layout.dense), np.full(layout.dense, 0.1), RNG.normal(size=(6, layout.dense)))
    whole = RbfBasis(np.zeros(d), np.full(d, 0.1), RNG.normal(size=(6, d)))
    return [LinearBasis(d), whole, *([BesideTerms(rbf, layout.terms)] if layout.terms else [])]


@pytest.mark.parametrize("with_note", [False, True])
@pytest.mark.parametrize("faces", [1, 2])
def test_decisions_on_records_are_those_on_rows(with_note: bool, faces: int):
    known = encoder(with_note=with_note)
    rows = RecordRows(known)
    table = people(with_note=with_note)
    encoded = known.encode(table)
    X = np.zeros((table.n, known.layout.columns))
    X[:, : known.layout.dense] = encoded.dense
    if encoded.entries is not None:
        X[encoded.entries.rows, known.layout.dense + encoded.entries.columns] = encoded.entries.values
    students = []
    for packed in maps(known):
        p = packed.n_basis
        form: Form = LinearForm(RNG.normal(size=p), 0.5, RNG.normal(size=p), 0.25)
        if faces > 1:
            form = PolytopeForm(RNG.normal(size=(faces, p)), RNG.normal(size=faces), RNG.normal(size=p), 0.25)
        students.append(PackedStudent(packed, form, 0.0, f"class {len(students)}"))
    explained = record_decider(students, rows, explain=True)
    plain = record_decider(students, rows, explain=False)
    scorers = [record_scorers(student, rows).one for student in students]
    for i in range(0, table.n, 11):
        record = table.record(i)
        values = [record[column.name] for column in rows.columns]
        decisions = explained(values)
        scores = [score for score, _, _ in decisions]
        assert [scorer(values) for scorer in scorers] == scores
        assert plain(values) == [(score, None, None) for score in scores]
        for student, (score, gate, piece) in zip(students, decisions, strict=True):
            row = X[i : i + 1]
            assert score == pytest.approx(student.scores(row)[0], rel=1e-10)
            assert gate == pytest.approx(student.gate(row)[0], rel=1e-10)
            pieces = student.pieces(row)
            assert piece == (None if pieces is None else pieces[0])


def test_columns_are_scored_together_only_where_that_is_a_sum_of_weights():
    without, with_note = RecordRows(encoder()), RecordRows(encoder(with_note=True))
    for rows, expected in ((without, True), (with_note, False)):
        d = rows.encoder.layout.columns
        linear = PackedStudent(LinearBasis(d), LinearForm(np.ones(d), 0.0, np.zeros(d), 0.0), 0.0, "a")
        assert (record_scorers(linear, rows).many is not None) is expected
    d = without.encoder.layout.columns
    huge = PackedStudent(LinearBasis(d), LinearForm(np.full(d, 1e290), 0.0, np.zeros(d), 0.0), 0.0, "a")
    assert record_scorers(huge, without).many is None
    values = [1e50 if column.kind == "number" else None for column in without.columns]
    with pytest.raises(InvalidProblem):
        record_scorers(huge, without).one(values)


def test_gaps_that_have_a_column_are_no_numbers_in_order():
    values = np.arange(40.0) ** 2
    values[::4] = np.nan
    table = Table(("p",), (NumberCells(values),))
    refused = fit_encoder(table, infer_schema(table), {"p": ColumnRules(missing=False)})
    assert refused.columns[0].required
    assert refused.layout.columns == 2
    assert not refused.takes_numbers
