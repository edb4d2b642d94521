"""Creates the database that both servers serve: ``python -P database.py FOLDER``, with the older program.

It is run by its path, so that it uses the packages of whichever tree PYTHONPATH names. Its last line is the
API keys as JSON: one that may query everything, one for one model only, one that has expired, and one of
another tenant.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from app.services.keys import create_key
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from benchmarks.published import linear_student, linear_teacher, publish
from core.data.column_kinds import infer_schema
from core.data.table import NumberCells, Table, TextCells
from core.encoding.fit import fit_encoder
from core.packed import LinearForm, PackedStudent, PackedTeacher, RbfBasis

COLUMNS = 8
CLASSES = ("cat", "dog", "Käse 犬")


def main() -> None:
    """Create the tables, publish models of three kinds, and print the keys."""
    folder = Path(sys.argv[1])
    address = f"sqlite:///{folder / 'stms.sqlite'}"
    upgrade(address)
    store = Store(open_engine(address))
    try:
        _publish(store)
        keys = {
            "all": create_key(store, "all", {"query"})[1],
            "one": create_key(store, "one", {"query"}, models={"kernel"})[1],
            "admin": create_key(store, "admin", {"admin"})[1],
            "old": create_key(store, "old", {"query"}, expires_at=time.time() + 1.0)[1],
            "other": create_key(store.of_tenant("other"), "other", {"query"})[1],
        }
    finally:
        store.dispose()
    print(json.dumps(keys))


def _publish(store: Store) -> None:
    rng = np.random.default_rng(5)
    coef = rng.normal(size=(len(CLASSES), COLUMNS))
    for _ in range(2):
        students = {name: linear_student(name, row, 0.25) for name, row in zip(CLASSES, coef, strict=True)}
        publish(store, "pets", students, linear_teacher(CLASSES, coef))
    basis = RbfBasis(np.zeros(COLUMNS), np.ones(COLUMNS), rng.normal(size=(20, COLUMNS)))
    weights = rng.normal(size=(2, 20))
    kernel = {
        name: PackedStudent(basis, LinearForm(row, 0.1, np.zeros(20), 0.0), 0.0, name)
        for name, row in zip("ab", weights, strict=True)
    }
    publish(store, "kernel", kernel, PackedTeacher(basis, weights, np.zeros(2), ("a", "b")))
    _publish_records(store)


def _publish_records(store: Store) -> None:
    cells = (NumberCells(np.array([1.0, 2.0, np.nan] * 8)), TextCells.of(["red", "blue", None] * 8))
    table = Table(("size", "hue"), cells)
    encoder = fit_encoder(table, infer_schema(table), None, [])
    coef = np.ones((2, encoder.layout.columns))
    students = {name: linear_student(name, row) for name, row in zip("ab", coef, strict=True)}
    publish(store, "things", students, linear_teacher("ab", coef), encoder=encoder)


if __name__ == "__main__":
    main()
