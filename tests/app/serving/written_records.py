"""A version of records for tests: columns of every kind, and students with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from typing import Any

import numpy as np

from app.domain.entities import ModelVersion
from app.serving.columns.encoded import Encoded
from app.serving.columns.of_version import columns_of as columns_of_version
from app.serving.columns.reading import Records
from app.serving.servable import ServableStudent, make_servable
from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.encoding.fit import ColumnRules, fit_encoder
from core.packed import LinearBasis, LinearForm, PackedMap, PackedStudent, RbfBasis
from core.packed.encoder import Encoder
from core.packed.forms import Form, PolytopeForm
from core.packed.maps import BesideTerms

N = 240
JOBS = ("clerk", "cook", "nurse")
VERSION = ModelVersion("people", 3, "job", "", "svm", ("a", "b"), 1, "", {}, 0.0)
RECORD: dict[str, Any] = {
    "age": 39.5,
    "hours": 40,
    "member": True,
    "job": "clerk",
    "grade": 3,
    "since": "2021-05-06",
    "place": [0.5, -1.0],
}


def people(*, with_note: bool = False) -> Table:
    """Columns of every kind but texts, or with these. Gaps are in "age", "job" and "note"."""
    rng = np.random.default_rng(0)
    ages = rng.normal(40, 10, N).round(1)
    ages[::12] = np.nan
    jobs = [None if k % 15 == 0 else JOBS[k % 3] for k in range(N)]
    jobs[1:3] = ["judge", "judge"]
    days = [str(date(2020, 1, 1) + timedelta(days=int(k))) for k in rng.integers(0, 1000, N)]
    columns: dict[str, Any] = {
        "age": NumberCells(ages),
        "hours": NumberCells(rng.integers(20, 60, N).astype(np.float64)),
        "member": NumberCells((rng.random(N) < 0.5).astype(np.float64), is_truth=True),
        "job": TextCells.of(jobs),
        "grade": TextCells.of([*map(str, rng.integers(1, 6, N))]),
        "since": TextCells.of(days),
        "place": VectorCells(rng.normal(size=(N, 2))),
    }
    if with_note:
        words = ["my", "card", "is", "lost", "again", "today", "ärger", "straße"]
        notes = [None if k % 13 == 0 else " ".join(rng.choice(words, 7)) for k in range(N)]
        columns["note"] = TextCells.of(notes)
    return Table(tuple(columns), tuple(columns.values()))


@cache
def encoder(*, with_note: bool = False, answers_gaps: bool = False) -> Encoder:
    """Fitted to `people`; "kind" and "id" are ignored."""
    table = people(with_note=with_note)
    said = {"grade": KindSpec(Kind.CATEGORY)} | ({"note": KindSpec(Kind.TEXT)} if with_note else {})
    schema = infer_schema(table, said)
    return fit_encoder(table, schema, None, ignored=["kind", "id"], answers_gaps=answers_gaps)


def numbers_table() -> Table:
    """Two columns of numbers without gaps."""
    rng = np.random.default_rng(0)
    return Table(("p", "q"), (NumberCells(rng.normal(size=N)), NumberCells(rng.normal(size=N))))


@cache
def numbers_encoder() -> Encoder:
    """Of two columns of numbers without gaps, so that a list of numbers is a row, too."""
    table = numbers_table()
    return fit_encoder(table, infer_schema(table), None, ignored=["kind"], answers_gaps=False)


@cache
def text_encoder() -> Encoder:
    """Of one column of texts, without gaps."""
    words = ["my", "card", "is", "lost", "again", "today", "ärger"]
    rng = np.random.default_rng(0)
    table = Table(("text",), (TextCells.of([" ".join(rng.choice(words, 7)) for _ in range(N)]),))
    return fit_encoder(table, infer_schema(table, {"text": KindSpec(Kind.TEXT)}))


@cache
def refusing_encoder() -> Encoder:
    """As `encoder`, but a value of "job" that training did not have is an error."""
    table = people()
    return fit_encoder(
        table,
        infer_schema(table, {"grade": KindSpec(Kind.CATEGORY)}),
        {"job": ColumnRules(refuses_unseen=True)},
        ignored=["kind", "id"],
        answers_gaps=False,
    )


def random_form(p: int, faces: int, seed: int = 0) -> Form:
    """With weights of a fixed seed; more than one face makes it a polytope."""
    rng = np.random.default_rng(seed)
    if faces == 1:
        return LinearForm(rng.normal(size=p), 0.25, rng.normal(size=p), 0.5)
    return PolytopeForm(rng.normal(size=(faces, p)), rng.normal(size=faces), rng.normal(size=p), 0.5)


def random_map(known: Encoder, kind: str) -> PackedMap:
    """A map of the columns of an encoder: "linear" or "rbf", the latter beside its terms."""
    layout = known.layout
    if kind == "linear":
        return LinearBasis(layout.columns)
    rng = np.random.default_rng(1)
    rbf = RbfBasis(np.zeros(layout.dense), np.full(layout.dense, 0.05), rng.normal(size=(9, layout.dense)))
    return BesideTerms(rbf, layout.terms) if layout.terms else rbf


def served(
    known: Encoder, kind: str = "linear", faces: int = 1, label: str = "a", seed: int = 0, **more: Any
) -> ServableStudent:
    """A loaded student of a version with an encoder."""
    packed = random_map(known, kind)
    student = PackedStudent(packed, random_form(packed.n_basis, faces, seed), 0.1, label, **more)
    version = replace(VERSION, columns=known.layout.columns, encoder_digest="0" * 64)
    return make_servable(student, version, columns_of_version(version, encoder=known))


def records_of(student: ServableStudent) -> Records:
    """What reads the records of a version with an encoder."""
    columns = student.columns
    assert isinstance(columns, Encoded)
    return columns.records


def columns_of(*records: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Records by columns."""
    return {name: [record.get(name) for record in records] for name in records[0]}
