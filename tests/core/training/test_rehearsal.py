"""Scores of rows with gaps keep what is promised for whole rows."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.column_kinds import infer_schema
from core.data.table import NumberCells, Table
from core.encoding.labelled_table import LabelledTable
from core.packed import PackedStudent
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows, record_scorers
from core.run import Run
from core.students.base import StudentSpec
from core.students.gated import GSVM
from core.students.rivals import Rivals
from core.training.config import AUTOMATIC_CALIBRATION, AUTOMATIC_FOLDS, AUTOMATIC_STUDENT, TrainingConfig
from core.training.pipeline import prepare, train_student
from core.training.rehearsal import Rehearsal, with_gaps

BUDGET = 0.05
N, D = 1500, 6


def some_rows(n: int, seed: int) -> LabelledTable:
    """Rows of which a fifth is of class "b", told by the sum of columns that hang together."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) + 0.7 * rng.normal(size=(n, 1))
    y = (X.sum(axis=1) + rng.normal(size=n) > 3.0).astype(np.int32)
    table = Table(tuple(f"c{k}" for k in range(D)), tuple(NumberCells(X[:, k]) for k in range(D)))
    return LabelledTable(table, tuple(infer_schema(table)), y, ("a", "b"))


@pytest.fixture(scope="module")
def trained() -> tuple[Encoder, dict[str, tuple[PackedStudent, PackedStudent]]]:
    """Students of both classes without and with what gaps change."""
    rows = some_rows(N, 0)
    encoder = rows.encoder()
    config = TrainingConfig(
        automatic=True,
        students=(AUTOMATIC_STUDENT,),
        threshold="fpr",
        budget=BUDGET,
        calibration=AUTOMATIC_CALIBRATION,
        folds=AUTOMATIC_FOLDS,
    )
    run = Run(n_threads=1)
    preparation = prepare(rows.encoded(encoder), config, run)
    students = {}
    for target, label in enumerate(rows.classes):
        student = train_student(preparation, target, run=run)
        adjusted = with_gaps(student, preparation, encoder, run)
        assert with_gaps(student, preparation, encoder, run).packed.digest == adjusted.packed.digest
        students[label] = student.packed, adjusted.packed
    return encoder, students


def rate_with_gaps(encoder: Encoder, student: PackedStudent, label: str, share: float) -> float:
    """False-positive rate on new rows of which this share of cells is missing."""
    rows = some_rows(3000, 7)
    rng = np.random.default_rng(3)
    records = RecordRows(encoder)
    score = record_scorers(student, records).one
    negatives = np.flatnonzero(rows.y != rows.classes.index(label))
    yes = 0
    for row in negatives.tolist():
        record = rows.table.record(row)
        values = [None if rng.random() < share else record[column.name] for column in records.columns]
        if any(value is not None for value in values):
            yes += score(values) >= student.threshold
    return yes / len(negatives)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_promised_rate_of_false_positives_holds_with_gaps(trained, share: float):
    encoder, students = trained
    # Without the rehearsal the rate of the frequent class breaks the promise.
    assert rate_with_gaps(encoder, students["a"][0], "a", 0.3) > 1.5 * BUDGET
    for label, (_, student) in students.items():
        error = np.sqrt(BUDGET * (1 - BUDGET) / 600)
        assert rate_with_gaps(encoder, student, label, share) <= BUDGET + 2 * error, label


def test_whole_rows_have_the_scores_that_they_had(trained):
    encoder, students = trained
    records = RecordRows(encoder)
    record = some_rows(5, 9).table.record(2)
    values = [record[column.name] for column in records.columns]
    for plain, adjusted in students.values():
        assert adjusted.gaps is not None
        assert record_scorers(plain, records).one(values) == record_scorers(adjusted, records).one(values)
        assert plain.threshold == adjusted.threshold


@pytest.mark.parametrize(("spec", "folds"), [(GSVM(), 0), (Rivals(), 4)])
def test_a_rehearsal_has_teachers_of_folds_for_copies_of_their_scores_only(spec: StudentSpec, folds: int):
    rows = some_rows(300, 0)
    encoder = rows.encoder()
    preparation = prepare(rows.encoded(encoder), TrainingConfig(threshold="f1", folds=4))
    assert len(preparation.fold_teachers) == 4
    rehearsal = Rehearsal.of(preparation, spec, encoder, Run(n_threads=1))
    assert rehearsal is not None
    assert len(rehearsal.made.fold_teachers) == folds
    assert (rehearsal.made.held_out is not None) == bool(folds)
