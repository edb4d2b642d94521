"""The models of the server under attack that take records and texts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.store.unit_of_work import Store
from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.encoding.fit import fit_encoder
from core.packed.encoder import Encoder
from tests.system.published import linear_student, linear_teacher, publish

_ROWS: Final = 60


def publish_models(store: Store) -> None:
    """A model of records with columns of all kinds but texts, and one of texts."""
    _publish(store, "customers", _customers())
    _publish(store, "notes", _notes())


def _publish(store: Store, name: str, encoder: Encoder) -> None:
    weights = np.random.default_rng(0).normal(size=(2, encoder.layout.columns))
    students = {label: linear_student(label, row) for label, row in zip(("yes", "no"), weights, strict=True)}
    publish(store, name, students, linear_teacher(list(students), weights), encoder=encoder)


def _customers() -> Encoder:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "age": NumberCells(rng.normal(40.0, 10.0, _ROWS)),
        "job": TextCells.of(
            [None if k % 4 == 0 else ("clerk", "cook", "nurse")[k % 3] for k in range(_ROWS)]
        ),
        "since": TextCells.of([f"2021-05-{1 + k % 28:02}" for k in range(_ROWS)]),
        "member": NumberCells(np.arange(_ROWS) % 2.0, is_truth=True),
        "place": VectorCells(rng.normal(size=(_ROWS, 2))),
    }
    table = Table(tuple(columns), tuple(columns.values()))
    return fit_encoder(table, infer_schema(table), ignored=["id"])


def _notes() -> Encoder:
    texts = [f"my card number {k % 9} is lost again" for k in range(_ROWS)]
    table = Table(("note",), (TextCells.of(texts),))
    return fit_encoder(table, infer_schema(table, {"note": KindSpec(Kind.TEXT)}))
