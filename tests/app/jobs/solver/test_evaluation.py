"""Evaluations as the solver process computes them: stored versions on stored rows, no training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score

from app.domain.entities import Dataset, JobState, ModelVersion, new_id
from app.domain.evaluation import Evaluation
from app.jobs.solver.evaluation import evaluate
from app.services.datasets import load_dataset, register_dataset
from app.services.evaluations import reference_of
from app.services.head_import import import_head
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.data.row_identity import identity_bytes, matrix_identities, table_identities
from core.encoding.labelled_table import LabelledTable
from core.errors import InvalidProblem
from core.packed.record_rows import RecordRows, record_scorers
from tests.system.published import linear_student, linear_teacher, publish

CLASSES = ("a", "b", "c", "d")
NOTHING_SEEN = identity_bytes(np.empty(0, dtype=np.uint64))
RNG = np.random.default_rng(7)
CENTRES = 2.0 * np.eye(4)
Y = np.arange(1200) % 4
X = CENTRES[Y] + RNG.normal(size=(1200, 4))
"""Rows whose class is mostly that of the largest number."""
WEIGHTS = np.eye(4) - 0.25


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


def upload(store: Store, files: BlobCache, content: bytes, **said: Any) -> Dataset:
    with files.writing(f"{new_id('f')}.tmp") as file:
        file.write(content)
        return register_dataset(store, files, file, created_by="me", limits=Settings(), **said)[0]


def csv(X: NDArray[Any], labels: Sequence[str], names: Sequence[str] = ("p", "q", "r", "s")) -> bytes:
    lines = [",".join([*names, "label"])]
    lines += [",".join([*map(repr, row.tolist()), label]) for row, label in zip(X, labels, strict=True)]
    return "\n".join(lines).encode()


def svmlight(X: NDArray[Any], labels: Sequence[int]) -> bytes:
    lines = [
        " ".join([str(label), *(f"{column}:{value!r}" for column, value in enumerate(row.tolist(), 1))])
        for row, label in zip(X, labels, strict=True)
    ]
    return "\n".join(lines).encode()


def names_of(y: NDArray[Any]) -> list[str]:
    return [CLASSES[code] for code in y]


def version(
    store: Store,
    weights: NDArray[Any] = WEIGHTS,
    classes: Sequence[str] = CLASSES,
    *,
    seen: bytes | None = NOTHING_SEEN,
    intercept: float = -0.7,
    **options: Any,
) -> ModelVersion:
    students = {
        label: linear_student(label, row, intercept) for label, row in zip(classes, weights, strict=True)
    }
    return publish(store, "m", students, linear_teacher(classes, weights), seen=seen, **options)


@pytest.fixture
def dataset(sqlite_store: Store, files: BlobCache) -> Dataset:
    return upload(sqlite_store, files, csv(X, names_of(Y)), file_format="csv")


@pytest.fixture
def evaluated(sqlite_store: Store, files: BlobCache, dataset: Dataset) -> Callable[..., dict[str, Any]]:
    """The result of an evaluation."""

    def run(candidate: ModelVersion, baseline: ModelVersion | None = None, **changed: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "id": new_id("ev"),
            "version": reference_of(candidate),
            "baseline": None if baseline is None else reference_of(baseline),
            "dataset_id": dataset.id,
            "part": "all",
            "tolerance": 0.1,
            "alpha": 0.05,
            "unknown_classes": "drop",
            "state": JobState.RUNNING,
            "created_at": 0.0,
            "created_by": "me",
        }
        evaluation = Evaluation(**given | changed)
        with sqlite_store.begin() as uow:
            uow.evaluations.add(evaluation)
        result = evaluate(sqlite_store, files, evaluation.id, lambda _progress: None)
        # As it travels to the worker.
        return msgspec.json.decode(msgspec.json.encode(result))

    return run


def verdicts(result: dict[str, Any]) -> dict[str, str]:
    return {entry["class"]: entry["comparison"]["verdict"] for entry in result["classes"]}


def test_the_figures_are_those_of_scikit_learn_on_the_same_rows(sqlite_store, evaluated):
    result = evaluated(version(sqlite_store))
    assert (result["rows_used"], result["rows_left_out"]) == (1200, {})
    assert (result["verdict"], result["warnings"], result["not_compared"]) == (None, [], [])
    assert [entry["class"] for entry in result["classes"]] == list(CLASSES)
    scores = X @ WEIGHTS.T - 0.7
    for code, entry in enumerate(result["classes"]):
        truth, yes = code == Y, scores[:, code] >= 0.0
        assert entry["n"] == 300
        assert entry["f1"] == pytest.approx(f1_score(truth, yes), abs=1e-12)
        assert entry["auc"] == pytest.approx(roc_auc_score(truth, scores[:, code]), abs=1e-12)
        assert entry["precision"]["estimate"] == pytest.approx(precision_score(truth, yes), abs=1e-12)
        assert entry["recall"]["estimate"] == pytest.approx(recall_score(truth, yes), abs=1e-12)
        rate = float(yes[~truth].mean())
        assert entry["false_positive_rate"]["estimate"] == pytest.approx(rate, abs=1e-12)
        assert entry["recall"]["low"] < entry["recall"]["estimate"] < entry["recall"]["high"]
        assert "comparison" not in entry


def test_a_version_that_answers_alike_is_not_worse(sqlite_store, evaluated):
    first, second = version(sqlite_store), version(sqlite_store)
    result = evaluated(second, first)
    assert (result["verdict"], set(verdicts(result).values())) == ("not_worse", {"not_worse"})
    for entry in result["classes"]:
        assert entry["comparison"]["recall"]["only_baseline_right"] == 0
        assert entry["comparison"]["false_positives"]["only_candidate_right"] == 0
        assert entry["baseline"]["f1"] == entry["f1"]


def test_exchanged_students_are_found_and_no_others(sqlite_store, evaluated):
    first = version(sqlite_store)
    exchanged = version(sqlite_store, WEIGHTS[[1, 0, 2, 3]])
    result = evaluated(exchanged, first)
    assert verdicts(result) == {"a": "worse", "b": "worse", "c": "not_worse", "d": "not_worse"}
    assert result["verdict"] == "worse"
    side = result["classes"][0]["comparison"]["recall"]
    assert side["only_baseline_right"] > side["only_candidate_right"]
    assert side["p_adjusted"] >= side["p_worse"]


def test_exchanging_candidate_and_baseline_mirrors_the_counts(sqlite_store, evaluated):
    """The outside test of a gate: a comparison of a version with itself would fail it."""
    first = version(sqlite_store)
    second = version(sqlite_store, WEIGHTS + 0.2 * RNG.normal(size=(4, 4)), intercept=-0.5)
    one, other = evaluated(second, first), evaluated(first, second)
    different = 0
    for before, after in zip(one["classes"], other["classes"], strict=True):
        for side in ("recall", "false_positives"):
            old, new = before["comparison"][side], after["comparison"][side]
            assert old["only_baseline_right"] == new["only_candidate_right"]
            assert old["only_candidate_right"] == new["only_baseline_right"]
            assert old["difference"] == -new["difference"]
            different += old["only_baseline_right"] != old["only_candidate_right"]
        assert before["baseline"]["f1"] == after["f1"]
    assert different > 0


def test_rows_that_either_version_was_trained_on_do_not_count(sqlite_store, evaluated):
    first = version(sqlite_store, seen=identity_bytes(matrix_identities(X[:100])))
    second = version(sqlite_store, seen=identity_bytes(matrix_identities(X[50:400])))
    assert evaluated(first)["rows_left_out"] == {"trained_on": 100}
    result = evaluated(second, first)
    assert (result["rows_used"], result["rows_left_out"]) == (800, {"trained_on": 400})
    scores = X[400:] @ WEIGHTS.T - 0.7
    truth = Y[400:] == 0
    assert result["classes"][0]["f1"] == pytest.approx(f1_score(truth, scores[:, 0] >= 0.0), abs=1e-12)


def test_rows_are_known_again_in_files_of_other_formats(sqlite_store, files, evaluated):
    seen = version(sqlite_store, seen=identity_bytes(matrix_identities(X[:100])))
    sparse = upload(sqlite_store, files, svmlight(X, Y), file_format="svmlight")
    train, _ = load_dataset(sqlite_store, files, sparse.id)
    assert sp.issparse(train.X)
    with pytest.raises(InvalidProblem, match="0 rows"):
        evaluated(seen, dataset_id=sparse.id)
    kept = evaluated(seen, dataset_id=sparse.id, unknown_classes="keep")
    assert kept["rows_left_out"] == {"trained_on": 100}
    shuffled = csv(X[:, [2, 0, 3, 1]].astype(np.float32).astype(float), names_of(Y), ["r", "p", "s", "q"])
    other = upload(sqlite_store, files, shuffled, file_format="csv")
    named = version(
        sqlite_store,
        seen=identity_bytes(matrix_identities(X[:100])),
        inputs={"columns": ["p", "q", "r", "s"]},
    )
    assert evaluated(named, dataset_id=other.id)["rows_left_out"] == {"trained_on": 100}


def table(rows: range) -> bytes:
    lines = ["size,colour,note,label"]
    for i in rows:
        size = "" if i % 7 == 0 else f"{i % 90 / 4}"
        note = f"the {'small' if i % 3 else 'large'} one, number {i}"
        lines.append(f'{size},{("red", "green", "blue")[i % 3]},"{note}",{"ab"[i % 2]}')
    return "\n".join(lines).encode()


def test_rows_of_a_table_are_known_again_and_answered_as_queries_are(sqlite_store, files, evaluated):
    first = upload(sqlite_store, files, table(range(300)), file_format="csv")
    train, _ = load_dataset(sqlite_store, files, first.id)
    assert isinstance(train, LabelledTable)
    encoder = train.encoder()
    weights = np.random.default_rng(1).normal(size=(2, encoder.layout.columns))
    students = {label: linear_student(label, row) for label, row in zip("ab", weights, strict=True)}
    seen = identity_bytes(table_identities(train.table, encoder.names))
    teacher = linear_teacher("ab", weights)
    made = publish(sqlite_store, "m", students, teacher, encoder=encoder, seen=seen)
    other = upload(sqlite_store, files, table(range(200, 500)), file_format="csv")
    result = evaluated(made, dataset_id=other.id)
    assert (result["rows_used"], result["rows_left_out"]) == (200, {"trained_on": 100})

    unseen, _ = load_dataset(sqlite_store, files, other.id)
    rows = RecordRows(encoder)
    score = record_scorers(students["a"], rows).one
    yes = []
    for row in range(100, 300):
        values, faults = rows.read(unseen.table.record(row))
        assert not faults
        yes.append(score(values) >= 0.0)
    truth = np.array(unseen.classes)[unseen.y[100:]] == "a"
    assert result["classes"][0]["f1"] == pytest.approx(f1_score(truth, yes), abs=1e-12)


def test_rows_of_unknown_classes_are_dropped_kept_or_refused(sqlite_store, evaluated):
    few = version(sqlite_store, WEIGHTS[:3], CLASSES[:3])
    dropped = evaluated(few)
    assert dropped["rows_left_out"] == {"unknown_class": 300}
    kept = evaluated(few, unknown_classes="keep")
    assert (kept["rows_used"], kept["rows_left_out"]) == (1200, {})
    assert kept["classes"][0]["n"] == dropped["classes"][0]["n"] == 300
    with pytest.raises(InvalidProblem) as refused:
        evaluated(few, unknown_classes="refuse")
    assert refused.value.faults[0].code == "unknown_class"
    all_of_them = version(sqlite_store)
    result = evaluated(all_of_them, few)
    assert result["not_compared"] == ["d"]
    assert list(verdicts(result)) == ["a", "b", "c"]


def test_too_few_rows_other_columns_and_other_classes_are_refused(sqlite_store, files, evaluated):
    seen = version(sqlite_store, seen=identity_bytes(matrix_identities(X[:1151])))
    with pytest.raises(InvalidProblem) as few:
        evaluated(seen)
    assert few.value.faults[0].code == "no_common_rows"
    assert "49 rows" in str(few.value)
    wide = version(sqlite_store, np.ones((4, 5)))
    with pytest.raises(InvalidProblem) as columns:
        evaluated(wide)
    assert columns.value.faults[0].code == "wrong_columns"
    named = version(sqlite_store, inputs={"columns": ["p", "q", "r", "z"]})
    with pytest.raises(InvalidProblem) as missing:
        evaluated(named)
    assert missing.value.faults[0].code == "wrong_columns"
    strangers = version(sqlite_store, classes=("w", "x", "y", "z"))
    with pytest.raises(InvalidProblem) as classes:
        evaluated(version(sqlite_store), strangers)
    assert classes.value.faults[0].code == "no_common_classes"


def test_an_imported_head_is_evaluated_with_a_warning(sqlite_store, files, evaluated, tmp_path):
    path = tmp_path / "head.npz"
    np.savez(path, weights=WEIGHTS, bias=np.full(4, -0.7), labels=np.array(CLASSES))
    imported = import_head(sqlite_store, files, path, model="head", alias=None, limits=Settings()).version
    trained = version(sqlite_store)
    result = evaluated(imported, trained)
    assert [warning["code"] for warning in result["warnings"]] == ["seen_rows_unknown"]
    assert result["verdict"] == "not_worse"


def test_students_of_a_bundle_are_evaluated_with_a_warning(sqlite_store, evaluated):
    brought = version(sqlite_store, seen=None)
    with sqlite_store.begin() as uow:
        uow.jobs.change(str(brought.job_id), provenance={"imported": {"model": "elsewhere"}})
    result = evaluated(brought)
    assert [warning["code"] for warning in result["warnings"]] == ["seen_rows_unknown"]


def test_a_class_without_a_student_is_not_compared(sqlite_store, evaluated):
    made = version(sqlite_store)
    with sqlite_store.begin() as uow:
        row = uow.students.served(str(made.job_id), "b", "svm")
        uow.connection.exec_driver_sql(
            "UPDATE job_students SET state = 'failed', digest = NULL WHERE job_id = ? AND class_index = ?",
            (row.job_id, row.class_index),
        )
    result = evaluated(made)
    assert [entry["class"] for entry in result["classes"]] == ["a", "c", "d"]
    assert result["not_compared"] == ["b"]
