"""The solver adds a class: the same student as by the core, from rows of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from app.domain.training_spec import TrainingSpec
from app.jobs.solver.job_data import load_job_data
from app.services.class_additions import pack_examples
from app.store.unit_of_work import Store
from core.monitoring.addition import AdditionBase, add_class
from core.packed import PackedStudent
from tests.app.jobs.solver.test_main import conversation, files, iris, register

__all__ = ["conversation", "files", "iris"]

EXAMPLES = np.random.default_rng(5).normal(size=(12, 4)) * 0.2 + 9.0


def order(store: Store, examples: np.ndarray = EXAMPLES, **changed: Any) -> dict[str, Any]:
    with store.begin() as uow:
        digest, _ = uow.blobs.put([pack_examples(examples)])
    usual = {
        "type": "add",
        "label": "new",
        "examples_digest": digest,
        "dataset_id": None,
        "base_digest": None,
    }
    usual |= {"budget": 0.05, "confidence": None, "students": [], "class_changes": []}
    return usual | changed


def test_the_student_is_that_of_the_core_and_the_base_is_made_once(conversation, sqlite_store, iris, files):
    first = conversation(order(sqlite_store))[-1]
    assert list(first.header["transfers"]) == ["student", "base"]
    rows = load_job_data(
        sqlite_store, files, iris.id, TrainingSpec.model_validate({"automatic": False})
    ).train
    mine = add_class(
        AdditionBase.fit(rows.X, rows.layout, 0), rows.X, "new", EXAMPLES, classes=rows.y, budget=0.05
    )
    assert first.blobs[0] == mine.student.to_bytes()
    assert first.header["row"]["threshold"] == mine.student.threshold
    assert {name: first.header["report"][name] for name in mine.as_dict()} == mine.as_dict()
    assert first.header["report"]["conflicts"] == []
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([first.blobs[1]])
        other = uow.blobs.put([PackedStudent.from_bytes(first.blobs[0]).to_bytes()])[0]
    again = conversation(order(sqlite_store, base_digest=digest, students=[["other", other, None]]))[-1]
    assert again.blobs == (first.blobs[0],)
    accepted = int((mine.student.scores(EXAMPLES) >= mine.student.threshold).sum())
    assert again.header["report"]["conflicts"] == [{"class": "other", "accepts": accepted, "of": 12}]


def test_rows_of_classes_that_were_taken_away_do_not_count(conversation, sqlite_store):
    changes = [{"renamed": {"0": "zero"}, "removed": []}, {"renamed": {}, "removed": ["zero"]}]
    added = conversation(order(sqlite_store, class_changes=changes))[-1]
    assert AdditionBase.from_bytes(added.blobs[1]).rows == 50
    assert added.header["report"]["false_positives"]["negatives"] == 50


def test_sparse_rows_and_data_sets_of_examples(conversation, sqlite_store, tmp_path):
    rng = np.random.default_rng(0)
    table = rng.poisson(0.2, (120, 40)).astype(float)
    table[:60, 0] += 2.0
    y = np.repeat([0, 1], 60)
    sparse = register(sqlite_store, tmp_path, "sparse", **_csr(table), y=y)
    new = np.zeros((9, 40))
    new[:, 7] = 5.0
    added = conversation(order(sqlite_store, new), dataset_id=sparse.id)[-1]
    assert added.type == "added", added.header
    student = PackedStudent.from_bytes(added.blobs[0])
    assert (student.scores(new) >= student.threshold).all()
    examples = register(sqlite_store, tmp_path, "examples", X=EXAMPLES, y=np.repeat([0, 1], 6))
    from_data = conversation(order(sqlite_store, examples_digest=None, dataset_id=examples.id))[-1]
    assert from_data.blobs == conversation(order(sqlite_store))[-1].blobs


def _csr(table: np.ndarray) -> dict[str, np.ndarray]:
    rows = sp.csr_array(table)
    return {
        "X_data": rows.data,
        "X_indices": rows.indices,
        "X_indptr": rows.indptr,
        "X_shape": np.array(rows.shape),
    }


@pytest.mark.parametrize(("width", "code"), [(3, "wrong_columns")])
def test_other_columns_are_refused(conversation, sqlite_store, width, code):
    answer = conversation(order(sqlite_store, np.ones((6, width))))[-1]
    assert (answer.type, answer.header["code"]) == ("failed", code)
