"""The solver process from within: real data, real training, its answers read back."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris

import app
from app.domain.entities import Dataset
from app.domain.errors import NotFound
from app.domain.training_spec import TrainingSpec
from app.jobs.solver import main, session, transfer
from app.jobs.solver.job_data import load_job_data
from app.jobs.solver.main import Answers, failure, serve
from app.jobs.solver.messages import Message, read_message, write_message
from app.jobs.solver.session import BatchContext, TrainingSession
from app.processes import os_process
from app.services.datasets import register_dataset
from app.services.head_import import import_head
from app.services.training_plan import config_of
from app.settings import Settings
from app.store.blob_cache import BlobCache, CacheFull
from app.store.tables import datasets
from app.store.unit_of_work import Store
from core.data.row_identity import identities_from, matrix_identities
from core.errors import Fault, InvalidProblem
from core.model_selection.tuning_spec import TuningSpec
from core.monitoring.suspects import Suspects
from core.packed import PackedStudent, PackedTeacher
from core.packed.encoder import Encoder
from core.packed.input_profile import InputProfile
from core.packed.map_packages import map_from_bytes
from core.run import Run
from core.solvers.kernel import system, tile_file
from core.training.pipeline import train
from core.types import Progress
from tests.app.jobs.conftest import is_alive, wait_for
from tests.refusals import at_fault


def register(store: Store, folder: Path, name: str, unlabelled: str | None = None, **arrays: Any) -> Dataset:
    file = folder / f"{name}.npz"
    np.savez(file, **arrays)
    files = BlobCache(folder / "cache", 2**30)
    with files.writing(f"{name}.tmp") as upload:
        upload.write(file.read_bytes())
        options = {"created_by": "me", "limits": Settings(), "unlabelled": unlabelled}
        return register_dataset(store, files, upload, **options)[0]


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


IRIS_CLASSES = ("0", "1", "2")


@pytest.fixture
def iris(sqlite_store: Store, tmp_path: Path) -> Dataset:
    X, y = load_iris(return_X_y=True)
    return register(
        sqlite_store,
        tmp_path,
        "iris",
        X_train=X[::2],
        y_train=y[::2],
        X_test=X[1::2],
        y_test=y[1::2],
        feature_names=np.array(["f0", "f1", "f2", "f3"]),
    )


@pytest.fixture
def conversation(sqlite_store: Store, sqlite_address: str, iris: Dataset, tmp_path: Path):
    """Sends commands to a solver and returns its answers, with progress only on request."""

    def talk(
        *commands: dict[str, Any],
        spec: dict[str, Any] | None = None,
        progress: bool = False,
        encoder_digest: str = "",
        dataset_id: str = iris.id,
    ) -> list[Message]:
        said, answered = io.BytesIO(), io.BytesIO()
        order = {
            "type": "open",
            "database_url": sqlite_address,
            "dataset_id": dataset_id,
            "spec": spec or {"automatic": False},
            "threads": 2,
            "log_level": "INFO",
            "cache_dir": str(tmp_path / "cache"),
            "cache_disk_bytes": 2**30,
            "encoder_digest": encoder_digest,
        }
        for command in (order, *commands):
            write_message(said, command)
        said.seek(0)
        serve(said, Answers(answered))
        answered.seek(0)
        return [message for message in messages(answered) if progress or message.type != "progress"]

    return talk


def messages(stream: io.BytesIO) -> Iterator[Message]:
    while (message := read_message(stream)) is not None:
        yield message


def student(answers: list[Message]) -> dict[tuple[int, str], Message]:
    return {
        (message.header["class_index"], message.header["method"]): message
        for message in answers
        if message.type == "student"
    }


SPEC = {
    "features": {"kind": "nystroem", "n_components": 30},
    "student": {"C": 1e3},
    "evaluation": {"test_fraction": None, "baselines": ["svm"]},
    "guard": {"kind": "off"},
    "seed": 3,
}
PREPARE = {"type": "prepare", "targets": [0, 2]}
TRAIN = {"type": "train", "students": [[0, "gsvm"], [2, "gsvm"], [2, "svm"]]}


def test_students_of_a_session_equal_those_of_the_training_pipeline(conversation, sqlite_store, iris, files):
    spec = TrainingSpec.model_validate(SPEC)
    data, test, *_ = load_job_data(sqlite_store, files, iris.id, spec)
    whole = train(data, config_of(spec), test=test, run=Run(n_threads=1))

    opened, prepared, *answers = conversation(PREPARE, TRAIN, spec=SPEC)
    assert "test_rows_in_training" not in prepared.header
    assert opened.header["threads"] == 2
    assert PackedTeacher.from_bytes(prepared.blobs[1]).digest == whole.teacher.digest
    students = student(answers)
    assert set(students) == {(0, "gsvm"), (2, "gsvm"), (2, "svm")}
    by_pair = {(one.target, one.method): one for one in whole.trained}
    for pair, message in students.items():
        assert message.blobs[0] == by_pair[pair].packed.to_bytes()
        assert message.header["objective"] == by_pair[pair].summary.objective
        assert message.header["status"] == "converged"
    measured = {(one.label, one.method): one.metrics for one in whole.evaluation.results}
    assert students[2, "svm"].header["metrics"]["f1"] == measured["2", "svm"].f1
    assert {row["label"]: row["metrics"]["f1"] for row in prepared.header["metrics"]} == {
        label: measured[label, "teacher"].f1 for label in ("0", "2")
    }
    assert [message.type for message in answers].count("started") == 3
    assert answers[-1].type == "trained"


def test_test_rows_that_stand_in_the_training_part_are_reported(conversation, sqlite_store, tmp_path):
    X, y = load_iris(return_X_y=True)
    parts = {"X_train": X[::2], "y_train": y[::2], "X_test": X[::5], "y_test": y[::5]}
    both = register(sqlite_store, tmp_path, "both", **parts)
    assert "rows_in_both_parts" in [one["code"] for one in both.summary["warnings"]]
    _, prepared = conversation(PREPARE, spec=SPEC, dataset_id=both.id)
    assert prepared.header["test_rows_in_training"] == 15


def test_students_of_a_kernel_name_the_map_that_is_sent_with_them(conversation, monkeypatch):
    _, _, *holding = conversation(PREPARE, TRAIN, spec=SPEC)
    monkeypatch.setattr("app.jobs.solver.session.MIN_SHARED_BYTES", 1)
    _, _, *sharing = conversation(PREPARE, TRAIN, spec=SPEC)
    compact = {**SPEC, "compact": {"n_landmarks": 3}}
    _, _, *own = conversation(PREPARE, {"type": "train", "students": [[0, "compact"]]}, spec=compact)
    maps = {message.blobs[1] for message in student(sharing).values()}
    assert len(maps) == 1
    shared = map_from_bytes(maps.pop())
    for pair, message in student(sharing).items():
        one = PackedStudent.from_bytes(message.blobs[0], maps={shared.digest: shared})
        held = PackedStudent.from_bytes(student(holding)[pair].blobs[0])
        assert replace(one, shares_map=False).to_bytes() == held.to_bytes()
    assert student(own)[0, "compact"].blobs[1] == b"", "its landmarks are of no other student"


TUNED = {
    **SPEC,
    "tuning": {"grid": {"C": [1, 100], "margins": [0.3, 1.0]}, "folds": 3},
    "calibration": {"kind": "isotonic"},
}


def test_tuned_students_are_those_of_core_and_carry_their_trace(conversation, sqlite_store, iris, files):
    spec = TrainingSpec.model_validate(TUNED)
    data, test, *_ = load_job_data(sqlite_store, files, iris.id, spec)
    whole = train(data, config_of(spec), test=test, run=Run(n_threads=1))
    _, prepared, *answers = conversation(PREPARE, TRAIN, spec=TUNED)
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([prepared.blobs[0]])
    later = conversation({"type": "restore", "preparation_digest": digest}, TRAIN, spec=TUNED)
    by_pair = {(one.target, one.method): one for one in whole.trained}
    measured = {(one.label, one.method): one for one in whole.evaluation.results}
    for pair, message in student(answers).items():
        one = by_pair[pair]
        packed, shared_map, trace = message.blobs
        assert shared_map == b"", "it is too small for a package of its own"
        assert packed == one.packed.to_bytes() == student(later)[pair].blobs[0]
        assert PackedStudent.from_bytes(packed).calibration.kind == "isotonic"
        reported = json.loads(zlib.decompress(trace))
        assert (
            len(reported["points"]) == message.header["chosen"]["points"] == (4 if pair[1] == "gsvm" else 2)
        )
        assert reported["chosen"] == message.header["chosen"]
        assert message.header["chosen"]["score"] == one.search.score
        trust = measured[one.label, one.method].reliability
        metrics = message.header["metrics"]
        assert (metrics["brier"], metrics["base_brier"]) == (trust.brier, trust.base_brier)
        assert sum(each["count"] for each in metrics["reliability"]) == test.n
        assert metrics["calibration"] == "isotonic"


def test_what_a_job_chose_is_told_and_taken_up_by_the_next_solver(conversation, sqlite_store):
    eight = {"method": "polytope", "pieces": 8}
    choices = {"automatic": True, "student": eight, "evaluation": {"test_fraction": 0.3}}
    spec = TrainingSpec.model_validate(choices).model_dump(mode="json")
    train_one = {"type": "train", "students": [[1, "polytope"]]}
    _, prepared, *answers = conversation(PREPARE, train_one, spec=spec)
    chosen = prepared.header["features"]
    assert (chosen["kind"], chosen["C_per_row"] > 0.0) == ("kernel", True)
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([prepared.blobs[0]])
    later = conversation({"type": "restore", "preparation_digest": digest}, train_one, spec=spec)
    one, other = (student(messages)[1, "polytope"] for messages in (answers, later))
    assert one.blobs == other.blobs
    assert one.header["metrics"]["guard"]["teacher_f1"] > 0.8
    assert PackedStudent.from_bytes(one.blobs[0]).calibration.kind == "sigmoid"


@pytest.mark.long
def test_what_a_search_for_everything_found_is_told_and_taken_up_by_the_next_solver(
    conversation, sqlite_store
):
    given = {"tuning": {"scope": "job"}, "student": {"method": "gsvm"}, "evaluation": {"test_fraction": 0.3}}
    spec = TrainingSpec.model_validate(given).model_dump(mode="json")
    train_one = {"type": "train", "students": [[1, "gsvm"]]}
    _, prepared, *answers = conversation(PREPARE, train_one, spec=spec)
    search, features = prepared.header["search"], prepared.header["features"]
    assert search["contest"]["taken"] == "automatic"
    assert "This is kept after a search" in features["reason"]
    assert set(search["tried"]) == {"maps", "teachers", "gsvm", "thresholds"}
    assert search["score"] in [one["f1"] for one in search["tried"]["teachers"]]
    assert search["gain"] >= 0.0
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([prepared.blobs[0]])
    later = conversation({"type": "restore", "preparation_digest": digest}, train_one, spec=spec)
    one, other = (student(messages)[1, "gsvm"] for messages in (answers, later))
    assert one.blobs == other.blobs
    kept = {**given, "automatic": True, "tuning": None}
    plain = TrainingSpec.model_validate(kept).model_dump(mode="json")
    _, _, *without = conversation(PREPARE, train_one, spec=plain)
    assert student(without)[1, "gsvm"].blobs[0] == one.blobs[0]


def test_the_grids_are_those_of_core():
    for name in ("paper", "open"):
        spec = TrainingSpec.model_validate({"tuning": {"grid": name, "metric": "auc", "folds": 7}})
        assert config_of(spec).tuning == TuningSpec(name, metric="auc", folds=7)
    assert config_of(TrainingSpec.model_validate({"tuning": {}})).tuning == TuningSpec()


@pytest.mark.parametrize("scaling", ["zscore", "minmax", "idf", "none"])
@pytest.mark.parametrize("kind", ["linear", "nystroem", "fourier"])
def test_every_scaling_goes_with_every_kind_of_features(conversation, scaling, kind):
    features = {"kind": kind, "n_components": 10, "scaling": scaling}
    answers = conversation(PREPARE, TRAIN, spec=SPEC | {"features": features})
    assert len(student(answers)) == 3


COMPACT = {**SPEC, "compact": {"max_f1_loss": 5}, "threshold": {"rule": "f1", "folds": 3}}


@pytest.mark.long
def test_compact_students_are_packed_with_their_calibration(conversation):
    pairs = [[0, "compact"], [0, "svm"]]
    answers = conversation(PREPARE, {"type": "train", "students": pairs}, spec=COMPACT)
    message = student(answers)[0, "compact"]
    packed, _, trace = message.blobs
    chosen = message.header["chosen"]
    assert PackedStudent.from_bytes(packed).map.n_basis == chosen["n_landmarks"]
    assert PackedStudent.from_bytes(packed).calibration.kind == "sigmoid"
    points = json.loads(zlib.decompress(trace))["points"]
    assert [point["n_landmarks"] for point in points] == [12, 25, 50][: chosen["points"]]
    assert chosen["score"] == points[-1]["f1"] >= chosen["full_score"] - 0.05
    assert message.header["metrics"]["brier"] < 0.05
    assert message.header["gap"] is None
    assert 0 < message.header["iterations"] < 3000


def test_the_batch_context_does_not_change_students(sqlite_store, iris, files):
    budget = {"compact": {"n_landmarks": 4}, "tuning": {"grid": {"C": [1, 10]}, "folds": 3}}
    budget |= {"guard": {"kind": "off"}}
    spec = TrainingSpec.model_validate(SPEC | budget)
    reported = []
    run = Run(n_threads=1, progress=reported.append)
    session = TrainingSession.prepared(load_job_data(sqlite_store, files, iris.id, spec), spec, run)
    pairs = [(1, "compact"), (1, "svm")]
    assert session.batches(pairs) == [pairs]
    context = session.context(pairs, 8, reported.append)
    assert (context.n_threads, context.folds.targets) == (4, (1,))
    assert session.context(pairs[:1], 1, reported.append).folds is None
    alone = BatchContext(None, 1)
    for pair in pairs:
        made, again = (session.student(*pair, each, reported.append) for each in (context, alone))
        assert made.packed == again.packed
    assert again.row["chosen"]["points"] == 2
    compact = session.student(1, "compact", context, reported.append)
    assert (compact.trace, compact.row["chosen"]["n_landmarks"]) == (None, 4)
    assert compact.row["metrics"].get("brier") is None  # auto: no held-out scores, no calibration


def test_compact_students_of_sparse_rows_are_refused(conversation, sqlite_store, tmp_path):
    X, y = load_iris(return_X_y=True)
    rows = sp.csr_array(X)
    sparse = register(
        sqlite_store,
        tmp_path,
        "sparse",
        X_train_data=rows.data,
        X_train_indices=rows.indices,
        X_train_indptr=rows.indptr,
        X_train_shape=np.array(rows.shape),
        y_train=y,
    )
    spec = COMPACT | {"features": {"kind": "linear"}}
    order = {"type": "open", **_order(sqlite_store, sparse), "spec": spec}
    failed = conversation(order, PREPARE)[-1]
    assert (failed.type, failed.header["code"]) == ("failed", "sparse")
    assert "dense rows" in failed.header["message"]


def test_a_class_too_small_to_tune_is_named(conversation, sqlite_store, tmp_path):
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    names[:2] = "rare"
    small = register(sqlite_store, tmp_path, "small", X=X, y=names)
    spec = TUNED | {"evaluation": {"test_fraction": 0.5}}
    failed = conversation({"type": "open", **_order(sqlite_store, small), "spec": spec}, PREPARE)[-1]
    assert (failed.type, failed.header["code"]) == ("failed", "class_too_small")
    assert failed.header["message"].startswith("class 'rare' has one training row only")


def test_another_process_trains_the_same_students_from_a_stored_preparation(conversation, sqlite_store):
    first = conversation(PREPARE, TRAIN, spec=SPEC)
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([first[1].blobs[0]])
    restore = {"type": "restore", "preparation_digest": digest}
    second = conversation(restore, TRAIN, spec=SPEC)
    assert second[1].type == "restored"
    before, after = student(first), student(second)
    assert {pair: message.blobs for pair, message in before.items()} == {
        pair: message.blobs for pair, message in after.items()
    }
    assert PackedStudent.from_bytes(after[2, "gsvm"].blobs[0]).label == "2"
    # A preparation is valid for its own hyper-parameters only.
    other = conversation(restore, spec=SPEC | {"seed": 4})
    assert (other[1].type, other[1].header["code"]) == ("failed", "other_config")


def test_the_encoder_of_records_travels_with_the_preparation_and_is_taken_up(conversation, sqlite_store):
    spec = SPEC | {"inputs": {"columns": {"f0": {"kind": "category"}}}}
    prepared = conversation(PREPARE, TRAIN, spec=spec)
    preparation, _, identities, packed, profile = prepared[1].blobs
    encoder = Encoder.from_bytes(packed)
    assert encoder.columns[0].kind == "category"
    assert len(identities_from(identities)) == 75
    rows = {sum(one.counts) for one in InputProfile.from_bytes(profile, encoder).columns}
    assert rows == {75}, "those of training"
    with sqlite_store.begin() as uow:
        digests = [uow.blobs.put([blob])[0] for blob in (preparation, packed)]
    restore = {"type": "restore", "preparation_digest": digests[0]}
    again = conversation(restore, TRAIN, spec=spec, encoder_digest=digests[1])
    assert again[1].type == "restored"
    # Students arrive in the order in which they are ready, which differs from run to run.
    first, second = ({key: one.blobs for key, one in student(run).items()} for run in (prepared, again))
    assert first == second


def suspects_of(message: Message) -> Suspects | None:
    """The suspect rows that come with a preparation."""
    blobs = dict(zip(message.header["transfers"], message.blobs, strict=True))
    return Suspects.from_bytes(blobs["suspects"]) if "suspects" in blobs else None


FOREST = {"teacher": {"method": "forest", "trees": 40}, "seed": 1}


@pytest.fixture
def flipped(sqlite_store: Store, tmp_path: Path) -> tuple[Dataset, list[int]]:
    """Iris flowers, some of which have the label of a far kind, and the rows of these."""
    X, y = load_iris(return_X_y=True)
    rows = [3, 20, 44, 60, 64, 110, 140]
    y[rows] = np.where(y[rows] == 0, 2, 0)
    return register(sqlite_store, tmp_path, "flipped", X=X, y=y), rows


def test_suspect_rows_have_the_numbers_of_the_data_set(conversation, sqlite_store, files, flipped):
    dataset, rows = flipped
    prepared = conversation(PREPARE, spec=FOREST, dataset_id=dataset.id)[-1]
    found = suspects_of(prepared)
    assert set(rows) <= set(found.rows[:10].tolist())
    assert prepared.header["suspects"] == {"rows": len(found), "of": 150}
    measured = load_job_data(sqlite_store, files, dataset.id, TrainingSpec.model_validate(FOREST)).held_out
    assert 0 < found.in_test.sum() < len(found)
    assert found.in_test.tolist() == np.isin(found.rows, measured).tolist()
    # Numbers as those without rows that are held out, and without rows that have no label.
    whole = FOREST | {"evaluation": {"test_fraction": None}}
    only = suspects_of(conversation(PREPARE, spec=whole, dataset_id=dataset.id)[-1])
    assert set(rows) <= set(only.rows[:10].tolist())
    assert not only.in_test.any()


def test_rows_without_a_label_are_no_suspects_and_shift_no_numbers(
    conversation, sqlite_store, tmp_path, flipped
):
    X, y = load_iris(return_X_y=True)
    y = y.astype(float)
    y[44], y[64] = 2.0, 0.0
    y[:40:3] = np.nan
    partly = register(sqlite_store, tmp_path, "gaps", "accept", X=X, y=y)
    found = suspects_of(conversation(PREPARE, spec=FOREST, dataset_id=partly.id)[-1])
    assert {44, 64} <= set(found.rows[:5].tolist())
    assert not set(found.rows.tolist()) & set(range(0, 40, 3))


def test_the_folds_of_a_threshold_find_suspects_too_and_change_no_student(conversation, flipped):
    dataset, rows = flipped
    spec = SPEC | {"threshold": {"rule": "f1", "folds": 3}, "evaluation": {"test_fraction": None}}
    train_all = TRAIN | {"students": [[0, "gsvm"], [2, "gsvm"]]}
    looked = conversation(PREPARE, train_all, spec=spec, dataset_id=dataset.id)
    silent = conversation(PREPARE, train_all, spec=spec | {"suspects": {"limit": 0}}, dataset_id=dataset.id)
    found = suspects_of(looked[1])
    assert len(set(found.rows.tolist()) & set(rows)) >= 4
    assert suspects_of(silent[1]) is None
    assert "suspects" not in silent[1].header
    assert silent[1].blobs == looked[1].blobs[:3]
    first, second = ({key: one.blobs for key, one in student(run).items()} for run in (looked, silent))
    assert first == second


def test_confirmed_rows_are_named_no_more_and_the_limit_is_kept(conversation, sqlite_store, files, flipped):
    dataset, rows = flipped
    with sqlite_store.begin() as uow:
        values = {"summary": dataset.summary | {"confirmed_rows": rows[:2]}}
        uow.connection.execute(datasets.update().where(datasets.c.id == dataset.id).values(**values))
    spec = FOREST | {"suspects": {"limit": 5}}
    found = suspects_of(conversation(PREPARE, spec=spec, dataset_id=dataset.id)[-1])
    assert len(found) == 5
    assert not set(rows[:2]) & set(found.rows.tolist())
    assert len(set(rows[2:]) & set(found.rows.tolist())) >= 4


@pytest.mark.parametrize(
    "spec", [SPEC, SPEC | {"teacher": {"method": "scores"}, "threshold": {"rule": "f1"}}]
)
def test_without_scores_of_a_teacher_that_has_not_seen_the_rows_there_are_no_suspects(
    conversation, sqlite_store, tmp_path, spec
):
    X, y = load_iris(return_X_y=True)
    scored = register(sqlite_store, tmp_path, "scored", X=X, y=y, teacher_scores=np.eye(3)[y])
    prepared = conversation(PREPARE, spec=spec, dataset_id=scored.id)[-1]
    assert prepared.type == "prepared"
    assert suspects_of(prepared) is None


def test_scores_that_take_too_much_memory_find_no_suspects(conversation, flipped, monkeypatch):
    monkeypatch.setattr(session, "MOST_COPIED_BYTES", 4 * 8 * 3 * 149)
    assert suspects_of(conversation(PREPARE, spec=FOREST, dataset_id=flipped[0].id)[-1]) is None
    monkeypatch.setattr(session, "MOST_COPIED_BYTES", 4 * 8 * 3 * 150)
    assert suspects_of(conversation(PREPARE, spec=FOREST, dataset_id=flipped[0].id)[-1]) is not None


def test_large_packages_are_transferred_as_cached_files(conversation, sqlite_store, files, monkeypatch):
    small = conversation(PREPARE, spec=SPEC)[-1]
    monkeypatch.setattr(transfer, "LARGE_BYTES", 10)
    prepared = conversation(PREPARE, TRAIN, spec=SPEC)[1]
    assert prepared.blobs == (b"", b"", b"")
    sent = [
        transfer.Transfer.from_header(*each)
        for each in zip(prepared.header["transfers"].values(), prepared.blobs, strict=True)
    ]
    stored = []
    for each in sent:
        each.store_chunks(sqlite_store, files)
        with sqlite_store.begin() as uow:
            stored.append(uow.blobs.read(each.finish(uow)))
    assert tuple(stored) == small.blobs


def test_metrics_of_many_classes_are_sent_in_several_messages(conversation, monkeypatch):
    """The header of one message is limited; that of all metrics of two million classes is above the limit."""
    (whole,) = conversation(PREPARE, spec=SPEC)[1:]
    monkeypatch.setattr(main, "METRICS_PER_MESSAGE", 2)
    *measured, prepared = conversation(PREPARE, spec=SPEC)[1:]
    assert [message.type for message in measured] == ["measured"] * ((len(whole.header["metrics"]) - 1) // 2)
    parts = [prepared, *measured]
    assert [row for part in parts for row in part.header["metrics"]] == whole.header["metrics"]


def test_after_a_full_disk_only_the_writing_is_repeated(conversation, monkeypatch):
    prepared, failures = [], [CacheFull(), CacheFull()]
    prepare, write = TrainingSession.prepared, transfer.Transfer.of

    def count(*arguments):
        prepared.append(1)
        return prepare(*arguments)

    def fail_twice(*arguments):
        if failures:
            raise failures.pop()
        return write(*arguments)

    monkeypatch.setattr(TrainingSession, "prepared", count)
    monkeypatch.setattr(transfer.Transfer, "of", fail_twice)
    answers = conversation(PREPARE, PREPARE, PREPARE, spec=SPEC)[1:]
    assert [answer.type for answer in answers] == ["failed", "failed", "prepared"]
    assert answers[0].header["code"] == "cache_full"
    assert answers[0].header["retryable"]
    assert len(prepared) == 1


def test_the_tiles_of_an_interrupted_preparation_are_taken_up_from_the_cache_folder(
    conversation, files, monkeypatch
):
    spec = SPEC | {"teacher": {"method": "interpolation", "gamma": 1.0, "scaling": "zscore"}}
    monkeypatch.setattr(system, "_KEPT_ROWS", 10)
    taken_up, read, left = [], tile_file.TileFile.read, []

    def count(self, column, tiles):
        taken_up.append(read(self, column, tiles))
        left.append(self.path.parent)
        return taken_up[-1]

    def interrupted(*arguments):
        raise MemoryError

    monkeypatch.setattr(tile_file.TileFile, "read", count)
    with monkeypatch.context() as patched:
        patched.setattr(system, "_conjugate_gradients", interrupted)
        assert conversation(PREPARE, spec=spec)[-1].header["code"] == "out_of_memory"
    assert conversation(PREPARE, spec=spec)[-1].type == "prepared"
    assert taken_up == [False, True]
    assert set(left) == {files.path("0" * 64).parent.parent}
    assert not list(left[0].glob("*.tiles"))


def test_stages_are_reported(conversation):
    answers = conversation(PREPARE, spec=SPEC, progress=True)
    stages = [message.header["stage"] for message in answers if message.type == "progress"]
    assert list(dict.fromkeys(stages)) == ["data", "features", "teacher", "scores"]
    answers = conversation(PREPARE, TRAIN, spec=TUNED, progress=True)
    reported = [message.header for message in answers if message.type == "progress"]
    stages = list(dict.fromkeys(step["stage"] for step in reported))
    assert [stage for stage in stages if stage.startswith("tuning")] == ["tuning_teacher", "tuning"]
    assert {step["label"] for step in reported if step["stage"] == "tuning"} <= {"0", "2"}


def test_without_a_test_part_a_fifth_of_the_rows_is_measured(conversation, sqlite_store, tmp_path):
    X, y = load_iris(return_X_y=True)
    plain = register(sqlite_store, tmp_path, "plain", X=X, y=y)
    spec = SPEC | {"evaluation": {"test_fraction": "auto", "baselines": ["svm"]}}
    _, prepared, *answers = conversation(PREPARE, TRAIN, spec=spec, dataset_id=plain.id)
    part = prepared.header["test_part"]
    assert (part["source"], part["rows"], part["of"]) == ("held_out", 30, 150)
    metrics = student(answers)[2, "gsvm"].header["metrics"]
    assert (metrics["tp"] + metrics["fn"], metrics["fp"] + metrics["tn"]) == (10, 20)
    listed = metrics["yes_by_class"]["classes"]
    assert sum(one["yes"] for one in listed) == metrics["fp"]
    assert {one["rows"] for one in listed} <= {10}
    assert metrics["threshold_rule"] == "zero"


def test_the_rows_that_were_trained_on_are_known_again(conversation, sqlite_store, tmp_path, files):
    X = np.random.default_rng(5).normal(size=(150, 4))
    plain = register(sqlite_store, tmp_path, "plain", X=X, y=np.arange(150) % 3)
    spec = SPEC | {"evaluation": {"test_fraction": 0.2, "baselines": []}}
    _, prepared = conversation(PREPARE, spec=spec, dataset_id=plain.id)
    seen = identities_from(prepared.blobs[2])
    is_seen = np.isin(matrix_identities(X), seen)
    assert (len(seen), is_seen.sum()) == (120, 120), "rows that are held out are not among them"
    trained = load_job_data(sqlite_store, files, plain.id, TrainingSpec.model_validate(spec)).train
    np.testing.assert_array_equal(np.sort(X[is_seen], axis=0), np.sort(trained.X, axis=0))


def test_where_no_rows_may_be_held_out_nothing_is_measured(conversation, sqlite_store, tmp_path):
    X, y = load_iris(return_X_y=True)
    plain = register(sqlite_store, tmp_path, "plain", X=X, y=y)
    _, prepared, *answers = conversation(PREPARE, TRAIN, spec=SPEC, dataset_id=plain.id)
    assert prepared.header["metrics"] == []
    assert "test_part" not in prepared.header
    assert student(answers)[0, "gsvm"].header["metrics"] == {"threshold_rule": "zero"}


def test_a_weak_class_has_a_warning_on_the_test_part_or_on_held_out_rows(
    conversation, sqlite_store, tmp_path
):
    random = np.random.default_rng(0)
    noise = register(sqlite_store, tmp_path, "noise", X=random.normal(size=(1000, 2)), y=np.arange(1000) % 5)
    kinds = {"threshold": {"rule": "expected_f1", "folds": 3}}
    for fraction, rows in (("auto", "On 200 test rows, 40 "), (None, "On 1000 held-out rows, 200 ")):
        spec = SPEC | kinds | {"evaluation": {"test_fraction": fraction}}
        command = {"type": "train", "students": [[0, "gsvm"]]}
        _, _, *answers = conversation(PREPARE, command, spec=spec, dataset_id=noise.id)
        weak = student(answers)[0, "gsvm"].header["metrics"]["weak"]
        assert weak["warning"] == "weak_class"
        assert weak["message"].startswith(rows)
    budget = SPEC | {"threshold": {"rule": "fpr", "max_false_positive_rate": 0.1, "folds": 3}}
    _, _, *answers = conversation(PREPARE, command, spec=budget, dataset_id=noise.id)
    assert "weak" not in student(answers)[0, "gsvm"].header["metrics"], "the budget decides what is found"


def _order(store: Store, dataset: Dataset) -> dict[str, Any]:
    return {
        "database_url": store.engine.url.render_as_string(hide_password=False),
        "dataset_id": dataset.id,
        "spec": SPEC,
        "threads": 1,
        "log_level": "INFO",
        "cache_dir": str(Path(str(store.engine.url.database)).with_name("cache")),
        "cache_disk_bytes": 2**30,
    }


def test_a_class_that_cannot_be_trained_is_reported_and_the_others_go_on(conversation):
    answers = conversation(PREPARE, {"type": "train", "students": [[7, "gsvm"], [1, "gsvm"]]}, spec=SPEC)
    assert [message.type for message in answers if message.type == "failed"] == ["failed"]
    answers = conversation(PREPARE, {"type": "train", "students": [[0, "nosuch"], [1, "gsvm"]]}, spec=SPEC)
    failed = [message.header for message in answers if message.type == "student_failed"]
    assert [(row["class_index"], row["code"]) for row in failed] == [(0, "unknown_choice")]
    assert set(student(answers)) == {(1, "gsvm")}


def test_commands_out_of_order_are_answered(conversation, sqlite_address):
    answers = conversation(TRAIN)
    assert answers[-1].type == "failed"
    said, answered = io.BytesIO(), io.BytesIO()
    write_message(said, PREPARE)
    said.seek(0)
    serve(said, Answers(answered))
    answered.seek(0)
    assert [message.type for message in messages(answered)] == ["failed"]


def test_missing_data_are_reported(conversation, sqlite_store, iris):
    order = {"type": "open", **_order(sqlite_store, iris), "dataset_id": "ds_0"}
    failed = conversation(order, PREPARE)[-1]
    assert (failed.type, failed.header["code"]) == ("failed", "dataset_not_found")


def test_errors_are_described_for_users(caplog):
    invalid = InvalidProblem(Fault("X", "not_finite", "Row 3 is not finite."), Fault("y", "b", "And y."))
    assert failure(invalid) == {"code": "not_finite", "message": "Row 3 is not finite.; And y."}
    assert failure(NotFound("Gone.", code="gone")) == {"code": "gone", "message": "Gone."}
    assert failure(MemoryError())["code"] == "out_of_memory"
    unexpected = failure(ZeroDivisionError("secret"))
    assert unexpected["code"] == "internal_error"
    assert "ZeroDivisionError" in unexpected["message"]
    assert "secret" not in unexpected["message"]
    assert "secret" in caplog.text


def test_progress_is_limited_in_rate_and_its_gap_relative():
    stream = io.BytesIO()
    answers = Answers(stream)
    for done in range(100):
        answers.progress(Progress("teacher", done, 100, objective=50.0, gap=5.0))
    answers.progress(Progress("scores", 1, 1))
    stream.seek(0)
    reported = [message.header for message in messages(stream)]
    assert len(reported) < 10
    assert reported[0]["gap"] == pytest.approx(0.1)
    assert (reported[-1]["stage"], reported[-1]["gap"]) == ("scores", None)


def test_a_solver_that_starves_says_so_in_the_stage_of_its_job():
    stream = io.BytesIO()
    answers = Answers(stream)
    answers.processor(True)
    assert not stream.getvalue(), "a spare solver's first message is that it is ready"
    answers.progress(Progress("teacher", 1, 2))
    answers.processor(False)
    stream.seek(0)
    reported = [message.header for message in messages(stream)]
    assert [(header["type"], header["stage"], header.get("starves")) for header in reported] == [
        ("progress", "teacher", True),
        ("progress", "teacher", None),
        ("progress", "teacher", False),
    ]


def test_a_share_of_the_rows_is_held_out_and_stays_the_same(sqlite_store, iris, files):
    spec = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.2}, "seed": 1})
    train_part, test_part, *_ = load_job_data(sqlite_store, files, iris.id, spec)
    again, *_ = load_job_data(sqlite_store, files, iris.id, spec)
    assert (train_part.n, test_part.n) == (60, 15)
    assert test_part.class_counts.tolist() == [5, 5, 5]
    assert np.array_equal(train_part.X, again.X)
    together = np.concatenate([train_part.X, test_part.X])
    whole, *_ = load_job_data(sqlite_store, files, iris.id, TrainingSpec())
    assert np.array_equal(np.sort(together, axis=0), np.sort(whole.X, axis=0))


def test_rows_without_a_label_are_not_measured(sqlite_store, iris, tmp_path, files):
    X, y = load_iris(return_X_y=True)
    labels = np.where(np.arange(150) % 3 == 1, np.nan, y)
    partly = register(sqlite_store, tmp_path, "partly", "accept", X=X, y=labels)
    spec = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.2}})
    train_part, test_part, *_ = load_job_data(sqlite_store, files, partly.id, spec)
    assert (train_part.n, train_part.unlabelled, test_part.n, test_part.unlabelled) == (130, 50, 20, 0)
    spec = TrainingSpec.model_validate({"evaluation": {"dataset_id": partly.id}})
    _, test_part, *_ = load_job_data(sqlite_store, files, iris.id, spec)
    assert test_part.n == 100
    assert np.array_equal(test_part.y, y[np.arange(150) % 3 != 1])


def test_rows_that_cannot_be_split_are_refused(sqlite_store, iris, files):
    spec = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.01}})
    with at_fault(InvalidProblem, field="evaluation.test_fraction"):
        load_job_data(sqlite_store, files, iris.id, spec)


def test_another_data_set_is_coded_with_the_classes_of_training(sqlite_store, iris, tmp_path, files):
    X, y = load_iris(return_X_y=True)
    other = register(sqlite_store, tmp_path, "other", X=X[y > 0], y=y[y > 0])
    spec = TrainingSpec.model_validate({"evaluation": {"dataset_id": other.id}})
    _, test, *_ = load_job_data(sqlite_store, files, iris.id, spec)
    assert test.classes == ("0", "1", "2")
    assert test.class_counts.tolist() == [0, 50, 50]


def test_the_process_keeps_its_pipe_clean_and_ends_with_it():
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "app.jobs.solver", str(os.getpid()), "10", "now"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # It changes the weight of its session.
    )
    out, _ = process.communicate(b"", timeout=300)
    assert (process.returncode, out) == (0, b"")


def test_a_process_of_another_parent_exits():
    process = subprocess.run(
        [sys.executable, "-P", "-m", "app.jobs.solver", "1", "10", "now"],
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux ends a stopped process with its parent.")
def test_a_process_that_is_stopped_while_it_loads_ends_with_its_parent(tmp_path: Path):
    """It was left behind when a worker was killed whose solver hung before it had loaded its libraries."""
    (tmp_path / "app").symlink_to(Path(app.__file__).parent)
    (tmp_path / "msgspec.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    code = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'app.jobs.solver', str(os.getpid()), '10', 'now']\n"
        "solver = subprocess.Popen(command)\n"
        "os.waitid(os.P_PID, solver.pid, os.WSTOPPED)\n"
        "print(solver.pid, flush=True)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    wait_for(lambda: not is_alive(int(parent.stdout)))


@pytest.mark.parametrize(("asked", "expected", "policy"), [(7, 7, "SCHED_BATCH"), (20, 19, "SCHED_IDLE")])
def test_a_solver_lowers_its_priority(asked: int, expected: int, policy: str):
    code = (
        "import os, sys\n"
        "from app.processes.os_process import deprioritise, set_niceness\n"
        f"deprioritise({asked})\n"
        "set_niceness(3)\n"
        f"print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.{policy})\n"
    )
    # In a session of its own, since it changes the weight of its session.
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, start_new_session=True
    ).stdout
    niceness, same = reported.split()
    assert int(niceness) == max(expected, os.getpriority(os.PRIO_PROCESS, 0))
    assert same == str(sys.platform == "linux")


def test_a_process_polls_its_parent(monkeypatch):
    ended = []
    looks = iter([os.getppid(), os.getppid(), -1])

    class Ended(Exception):
        pass

    def leave(status: int) -> None:
        ended.append(status)
        raise Ended

    monkeypatch.setattr(os_process.os, "_exit", leave)
    monkeypatch.setattr(os_process.sys, "platform", "darwin")
    monkeypatch.setattr(os_process.os, "getppid", lambda: next(looks))
    monkeypatch.setattr(os_process.time, "sleep", lambda _seconds: None)
    parent = os.getppid()
    with pytest.raises(Ended):
        os_process._end_with(parent)
    assert ended == [1]


def test_an_imported_head_is_the_teacher_of_its_classes(conversation, sqlite_store, iris, tmp_path):
    weights = np.random.default_rng(0).standard_normal((50, 4))
    bias = np.arange(50.0)
    names = [*(f"other {number}" for number in range(47)), *reversed(IRIS_CLASSES)]
    np.savez(tmp_path / "head.npz", weights=weights, bias=bias, labels=np.array(names))
    files = BlobCache(tmp_path / "cache", 2**30)
    import_head(sqlite_store, files, tmp_path / "head.npz", model="net", limits=Settings())
    spec = {"features": {"kind": "linear"}, "student": {"C": 1e3}, "teacher": {"model": "net@1"}}
    _, prepared, *answers = conversation(PREPARE, {"type": "train", "students": [[0, "gsvm"]]}, spec=spec)
    assert prepared.header["summary"] == {}
    X = np.random.default_rng(1).standard_normal((20, 4))
    expected = (X @ weights.T + bias)[:, [names.index(label) for label in IRIS_CLASSES]]
    teacher = PackedTeacher.from_bytes(prepared.blobs[1])
    np.testing.assert_allclose(teacher.scores(X), expected, rtol=1e-9)
    trained = PackedStudent.from_bytes(student(answers)[0, "gsvm"].blobs[0])
    np.testing.assert_allclose(trained.gate(X), expected[:, 0], rtol=1e-9)
    assert np.abs(trained.rejection(X)).max() > 0.1


def test_a_restored_job_with_an_imported_teacher_trains_the_same_student(
    conversation, sqlite_store, iris, tmp_path
):
    np.savez(tmp_path / "head.npz", weights=np.eye(3, 4), labels=np.array(IRIS_CLASSES))
    files = BlobCache(tmp_path / "cache", 2**30)
    import_head(sqlite_store, files, tmp_path / "head.npz", model="net", limits=Settings())
    spec = {
        "features": {"kind": "linear"},
        "student": {"C": 1e3},
        "teacher": {"model": "net@1"},
        "tuning": {"folds": 2, "grid": {"C": [1.0, 100.0]}},
    }
    train_one = {"type": "train", "students": [[0, "gsvm"]]}
    _, prepared, *first = conversation(PREPARE, train_one, spec=spec)
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([prepared.blobs[0]])
    _, _, *second = conversation({"type": "restore", "preparation_digest": digest}, train_one, spec=spec)
    assert student(first)[0, "gsvm"].blobs[0] == student(second)[0, "gsvm"].blobs[0]
