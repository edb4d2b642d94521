"""Models of numbers, of records and of texts with random weights, for measurements of queries."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.store.unit_of_work import Store
from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells
from core.encoding.fit import fit_encoder
from core.packed.encoder import Encoder
from tests.system.published import linear_student, linear_teacher, publish

NUMBERS: Final = 6
CATEGORIES: Final = 8
COLUMNS: Final = NUMBERS + CATEGORIES
WORDS: Final = 300
MANY: Final = 1000
"""Rows and records of `MixedModels`."""
_VOCABULARY: Final = 30_000
_ROWS: Final = 2000


def _record_table(rng: np.random.Generator) -> Table:
    numbers = {f"number{k}": NumberCells(rng.normal(size=_ROWS).round(3)) for k in range(NUMBERS)}
    categories = {
        f"category{k}": TextCells.of([f"value {v}" for v in rng.integers(0, 4 + 3 * k, _ROWS)])
        for k in range(CATEGORIES)
    }
    columns: dict[str, Any] = numbers | categories
    return Table(tuple(columns), tuple(columns.values()))


def _texts(rng: np.random.Generator, n: int) -> list[str]:
    """Texts of words whose frequencies fall as those of English do."""
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = ["".join(rng.choice(letters, rng.integers(2, 11))) for _ in range(_VOCABULARY)]
    share = 1.0 / np.arange(1, _VOCABULARY + 1)
    return [" ".join(rng.choice(words, WORDS, p=share / share.sum())) for _ in range(n)]


class MixedModels:
    """A model of 14 numbers, one of records of 14 columns and one of texts, with random weights."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        table = _record_table(rng)
        self.records = [table.record(k) for k in range(MANY)]
        self.rows = rng.normal(size=(MANY, COLUMNS)).round(3).tolist()
        texts = _texts(rng, _ROWS)
        self.text = texts[0]
        notes = Table(("text",), (TextCells.of(texts),))
        self._encoders = {
            "records": fit_encoder(table, infer_schema(table)),
            "texts": fit_encoder(notes, infer_schema(notes, {"text": KindSpec(Kind.TEXT)})),
        }

    def publish(self, store: Store) -> None:
        """Store all three."""
        self._publish(store, "numbers", COLUMNS, None)
        for name, encoder in self._encoders.items():
            self._publish(store, name, encoder.layout.columns, encoder)

    @staticmethod
    def _publish(store: Store, name: str, columns: int, encoder: Encoder | None) -> None:
        weights = np.random.default_rng(1).normal(size=(2, columns))
        students = {label: linear_student(label, row) for label, row in zip("ab", weights, strict=True)}
        publish(store, name, students, linear_teacher(list(students), weights), encoder=encoder)
