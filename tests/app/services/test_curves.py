"""Curves of students, and versions with other thresholds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from app.domain.curves import Curve, pack
from app.domain.entities import JobState, ModelVersion, StudentRow, StudentState
from app.domain.errors import Conflict, InvalidRequest, NotFound, TooLarge
from app.domain.threshold_rules import ThresholdRule, chosen
from app.services.comparison import changed_classes, compare_classes
from app.services.curves import choose_thresholds, publish_thresholds, student_curve, version_thresholds
from app.services.models import (
    delete_version,
    get_alias,
    get_version,
    open_student,
    served_student,
)
from app.services.retention import delete_job
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.tables import (
    alias_moves,
    job_events,
    job_students,
    jobs,
    model_versions,
    student_curves,
)
from app.store.unit_of_work import Store
from core.errors import InvalidProblem
from core.packed import PackedStudent
from tests.app.api.conftest import publish_pets
from tests.app.students import change_student
from tests.reference.packed_students import CASES, some_rows
from tests.refusals import at_fault, refused_as
from tests.system.published import linear_teacher, publish

CURVE = {"positives": 10, "negatives": 90, "thresholds": [2.0, 1.0, -1.0], "tp": [4, 8, 10], "fp": [0, 3, 50]}


@pytest.fixture
def version(store: Store) -> ModelVersion:
    """Version 1 of "pets", whose class "cat" has a curve and metrics."""
    version = publish_pets(store)
    metrics = {"f1": 0.75, "auc": 0.9, "accuracy": 0.9, "tp": 10, "fp": 50, "tn": 40, "fn": 0, "reason": None}
    metrics |= {"guard": {"warning": "worse", "message": "It is worse."}, "beside_teacher": {}}
    with store.begin() as uow:
        for index in range(2):
            change_student(uow, str(version.job_id), index, "svm", metrics=metrics, threshold=-1.0)
        uow.students.keep_curves([((0, "svm"), pack(CURVE))], str(version.job_id))
    return version


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


@pytest.fixture
def files(settings: Settings) -> BlobCache:
    return BlobCache.of(settings)


def test_a_curve_gives_the_counts_of_the_next_stricter_point():
    curve = Curve.unpack(pack(CURVE))
    points = {threshold: curve.point_at(threshold) for threshold in (3.0, 2.0, 1.5, 1.0, 0.0, -1.0, -9.0)}
    assert points == {3.0: 0, 2.0: 0, 1.5: 0, 1.0: 1, 0.0: 1, -1.0: 2, -9.0: 2}
    at = curve.confusion(1)
    assert (at.tp, at.fp, at.tn, at.fn) == (8, 3, 87, 2)
    assert (at.precision, at.recall, at.f1) == (8 / 11, 0.8, 16 / 21)
    assert (at.accuracy, at.false_positive_rate, at.cost(5.0)) == (0.95, 3 / 90, 13.0)
    assert curve.confusion(0).precision == 1.0


def test_a_curve_is_that_of_one_student(store: Store, version: ModelVersion):
    assert student_curve(store, str(version.job_id), 0, "svm") == Curve.unpack(pack(CURVE))
    with refused_as(NotFound, "curve_not_found"):
        student_curve(store, str(version.job_id), 1, "svm")
    with pytest.raises(NotFound):
        student_curve(store.of_tenant("rival"), str(version.job_id), 0, "svm")


def test_a_student_with_another_threshold_names_the_same_map(
    store: Store, files: BlobCache, settings: Settings
):
    first = dataclasses.replace(CASES["rbf-linear-none"], label="cat", shares_map=True)
    publish(store, "kernel", {"cat": first}, linear_teacher(["cat"], np.zeros((1, first.map.n_columns))))
    made = publish_thresholds(store, files, settings, "kernel", "latest", {"cat": 1.0}, "key_1")
    row = served_student(store, files, made, "cat")
    changed = open_student(store, files, row)
    assert (row.map_digest, changed.threshold, changed.shares_map) == (first.map.digest, 1.0, True)
    rows = some_rows(first, 20)
    np.testing.assert_array_equal(changed.scores(rows), first.scores(rows))
    with store.read() as uow:
        assert uow.jobs.get(row.job_id).student_bytes == uow.blobs.size(str(row.digest))


def test_a_version_with_another_threshold_has_the_same_students_otherwise(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    made = publish_thresholds(store, files, settings, "pets", "latest", {"cat": 1.0}, "key_1")
    assert made.version == 2
    assert made.classes == version.classes
    assert get_alias(store, "pets", "latest").version == 1, "no alias is moved"
    cat = PackedStudent.from_bytes(
        bytes(open_blob(store, files, str(served_student(store, files, made, "cat").digest)).whole())
    )
    old = PackedStudent.from_bytes(
        bytes(open_blob(store, files, str(served_student(store, files, version, "cat").digest)).whole())
    )
    assert (old.threshold, cat.threshold) == (0.0, 1.0)
    assert cat.scores([[1.0, 2.0, 3.0]]).tolist() == old.scores([[1.0, 2.0, 3.0]]).tolist()
    assert (
        served_student(store, files, made, "dog").digest
        == served_student(store, files, version, "dog").digest
    )
    with store.read() as uow:
        job = uow.jobs.get(str(made.job_id))
        row, other = (uow.students.served(job.id, label, "svm") for label in ("cat", "dog"))
        derived = uow.audit.page(limit=5, action="model.publish")[0][0]
        event = uow.events.last(job.id, limit=1)[0] if uow.events.last(job.id, limit=1) else None
        assert uow.students.curve(job.id, 0, "svm") is not None, "curves are those of the base"
        assert [row.label for row in uow.students.own(job.id)] == ["cat"], "the others are not copied"
    assert row is not None
    assert other is not None
    assert (row.threshold, row.metrics["tp"], row.metrics["fp"]) == (1.0, 8, 3)
    assert row.metrics["f1"] == pytest.approx(16 / 21)
    assert row.metrics["auc"] == 0.9, "it does not depend on the threshold"
    assert not {"guard", "beside_teacher"} & set(row.metrics), "they were found at the other threshold"
    assert other.metrics["guard"]
    assert made.metrics["means"]["svm"]["f1"] == pytest.approx((16 / 21 + 0.75) / 2)
    assert (job.state, job.version, job.created_by) == (JobState.SUCCEEDED, 2, "key_1")
    assert job.provenance["base"] == {"model": "pets", "version": 1, "job_id": version.job_id}
    assert job.provenance["thresholds"] == {"cat": 1.0}
    assert derived.details["thresholds"] == {"cat": 1.0}
    assert event is not None


def test_a_threshold_follows_from_the_false_positive_rate_that_it_keeps(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    def published(base: int, thresholds: dict[str, float], **rates: float) -> ModelVersion:
        return publish_thresholds(
            store,
            files,
            settings,
            "pets",
            base,
            thresholds,
            "key_1",
            choose={label: ThresholdRule(max_false_positive_rate=rate) for label, rate in rates.items()},
        )

    made = published(1, {"dog": 0.5}, cat=0.05)
    with store.read() as uow:
        row = uow.students.served(str(made.job_id), "cat", "svm")
        assert uow.jobs.get(str(made.job_id)).provenance["thresholds"] == {"dog": 0.5, "cat": 1.0}
    assert row is not None
    assert (row.threshold, row.metrics["fp"], row.metrics["threshold_rule"]) == (
        1.0,
        3,
        "max_false_positive_rate",
    )
    with refused_as(NotFound, "curve_not_found"):
        published(1, {}, dog=0.04)
    with at_fault(NotFound, "student_not_found", field="bird"):
        published(1, {}, bird=0.04)
    with at_fault(InvalidRequest, "given_twice", field="cat"):
        published(1, {"cat": 0.5}, cat=0.04)
    with store.begin() as uow:
        strict = CURVE | {"fp": [1, 3, 50]}
        uow.students.keep_curves([((0, "svm"), pack(strict))], str(version.job_id))
    with at_fault(InvalidRequest, "rule_not_obeyed", field="cat", match="cannot be promised with 90 rows"):
        published(1, {}, cat=0.01)


RULES: list[tuple[dict[str, Any], float | None]] = [
    ({"max_false_positive_rate": 0.04}, 2.0),
    ({"max_false_positive_rate": 0.05}, 1.0),
    # The upper limits of 0 and 3 of 90: 0.0327 and 0.0841.
    ({"max_false_positive_rate": 0.05, "confidence": 0.95}, 2.0),
    ({"max_false_positive_rate": 0.085, "confidence": 0.95}, 1.0),
    ({"max_false_positive_rate": 0.03, "confidence": 0.95}, None),
    ({"recall": 0.7}, 1.0),
    ({"recall": 0.95}, None),
    # The lower limits of 8 and 10 of 10: 0.4931 and 0.7411.
    ({"recall": 0.49, "confidence": 0.95}, 1.0),
    ({"recall": 0.7, "confidence": 0.95}, -1.0),
    ({"cost": {"false_yes": 1, "missed_yes": 1}}, 1.0),
    ({"cost": {"false_yes": 1, "missed_yes": 100}}, -1.0),
    ({"cost": {"false_yes": 1, "missed_yes": 100}, "share": 1e-4}, 2.0),
    ({"capacity": {"yes_per_day": 100, "queries_per_day": 1000}}, 2.0),
]


@pytest.mark.parametrize(("rule", "threshold"), RULES)
def test_a_rule_chooses_a_point_of_the_curve(rule: dict[str, Any], threshold: float | None):
    curve = Curve.unpack(pack(CURVE))
    if threshold is None:
        with pytest.raises(InvalidProblem):
            chosen("cat", 0.0, curve, ThresholdRule(**rule))
    else:
        assert chosen("cat", 0.0, curve, ThresholdRule(**rule)).threshold == threshold


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"recall": 0.9, "max_false_positive_rate": 0.1},
        {"confidence": 0.95},
        {"cost": {"false_yes": 1, "missed_yes": 1}, "confidence": 0.95},
        {"cost": {"false_yes": 0, "missed_yes": 1}},
        {"recall": 1.0},
        {"recall": 0.9, "share": 1.0},
    ],
)
def test_a_rule_says_one_thing(rule: dict[str, Any]):
    with pytest.raises(ValidationError):
        ThresholdRule(**rule)


def test_what_a_rule_chooses_is_shown_before_it_is_published(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    rule = ThresholdRule(cost={"false_yes": 1, "missed_yes": 5}, share=0.01)
    with store.begin() as uow:
        curves = [((index, "svm"), pack(CURVE)) for index in range(1, 4)]
        uow.students.keep_curves(curves, str(version.job_id))
    found = choose_thresholds(store, files, "pets", "latest", {"*": rule})
    assert (found.base, [one.label for one in found.classes]) == (1, list(version.classes))
    cat = found.classes[0]
    assert (cat.threshold, cat.was) == (2.0, -1.0)
    assert (cat.recall.estimate, cat.false_positive_rate.estimate) == (0.4, 0.0)
    assert (cat.precision, cat.yes_rate) == (1.0, pytest.approx(0.004))
    assert cat.cost_per_1000 is not None
    assert cat.cost_per_1000.estimate == pytest.approx(1000 * 5 * 0.6 * 0.01)
    assert cat.cost_per_1000.low < cat.cost_per_1000.estimate < cat.cost_per_1000.high
    made = publish_thresholds(store, files, settings, "pets", 1, {"dog": 0.5}, "key_1", choose={"*": rule})
    with store.read() as uow:
        assert uow.jobs.get(str(made.job_id)).provenance["thresholds"] == {
            label: 0.5 if label == "dog" else 2.0 for label in version.classes
        }
    page, last = version_thresholds(store, files, "pets", "cat", limit=10)
    rows = [(one.version, one.threshold, one.rule, one.aliases, one.created_by) for one in page]
    assert rows == [(2, 2.0, "cost", [], "key_1"), (1, -1.0, None, ["latest"], "benchmark")]
    assert last is None
    page, last = version_thresholds(store, files, "pets", "cat", limit=1)
    assert ([one.version for one in page], last) == ([2], 2)
    page, last = version_thresholds(store, files, "pets", "cat", limit=1, before=2)
    assert ([one.version for one in page], last) == ([1], None)
    with refused_as(NotFound, "class_not_found"):
        version_thresholds(store, files, "pets", "cow", limit=1)
    with pytest.raises(NotFound):
        choose_thresholds(store.of_tenant("rival"), files, "pets", "latest", {"*": rule})


def test_between_the_points_of_a_curve_metrics_are_unknown(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    made = publish_thresholds(store, files, settings, "pets", 1, {"cat": 0.5, "dog": 0.5}, "key_1")
    with store.read() as uow:
        for label in ("cat", "dog"):
            row = uow.students.served(str(made.job_id), label, "svm")
            assert row is not None
            assert (row.threshold, row.metrics["f1"], row.metrics["tp"]) == (0.5, None, None)
            assert "not measured" in row.metrics["reason"]


def test_what_cannot_be_published_is_named(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    with pytest.raises(NotFound) as missing:
        publish_thresholds(store, files, settings, "pets", 1, {"cow": 0.0, "cat": 1.0, "ox": 1.0}, "key_1")
    assert [fault.field for fault in missing.value.faults] == ["cow", "ox"]
    with pytest.raises(InvalidRequest, match="'cat' is not finite"):
        publish_thresholds(store, files, settings, "pets", 1, {"cat": float("nan")}, "key_1")
    with at_fault(InvalidRequest, "wrong_number", match="1 to 1000"):
        publish_thresholds(store, files, settings, "pets", 1, {}, "key_1")
    with pytest.raises(NotFound):
        publish_thresholds(store.of_tenant("rival"), files, settings, "pets", 1, {"cat": 0.0}, "key_1")
    few = settings.model_copy(update={"quota_versions": 1})
    with refused_as(Conflict, "quota_versions"):
        publish_thresholds(store, files, few, "pets", 1, {"cat": 0.0}, "key_1")
    assert get_version(store, "pets", 1)
    with store.read() as uow:
        assert uow.models.newest("pets") == 1, "nothing was published"


def test_a_curve_of_a_student_that_is_trained_again_is_replaced(store: Store, version: ModelVersion):
    job_id = str(version.job_id)
    with store.begin() as uow:
        uow.students.save(StudentRow(job_id, 9, "new", "svm", StudentState.SUCCEEDED))
        uow.students.keep_curves([((9, "svm"), pack(CURVE))], job_id)
        uow.students.keep_curves([((9, "svm"), pack(CURVE | {"positives": 11}))], job_id)
    assert student_curve(store, job_id, 9, "svm").positives == 11


def stored(store: Store) -> dict[str, int]:
    """Number of rows of jobs, and bytes in the quota."""
    with store.read() as uow:
        tables = (jobs, job_students, student_curves, job_events, model_versions)
        counts = {
            table.name: uow.connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in tables
        }
        return counts | {"bytes": uow.quotas.used(store.tenant).stored_bytes}


def test_a_version_with_other_thresholds_is_deleted_with_its_record(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    before = stored(store)
    for number in range(3):
        made = publish_thresholds(store, files, settings, "pets", 1, {"cat": 0.1 * number}, "key_1")
        assert stored(store)["bytes"] > before["bytes"] + 500
        delete_version(store, "pets", made.version)
        assert stored(store) == before
    made = publish_thresholds(store, files, settings, "pets", 1, {"cat": 1.0}, "key_1")
    with store.begin() as uow:
        uow.models.delete_alias("pets", "latest", expected_revision=1)
        uow.jobs.change(str(version.job_id), finished_at=1.0)
    delete_version(store, "pets", 1)
    with refused_as(Conflict, "job_has_version") as needed:
        delete_job(store, str(version.job_id))
    assert "has the students of" in needed.value.message
    delete_version(store, "pets", made.version)
    delete_job(store, str(version.job_id))
    assert set(stored(store).values()) == {0}
    with store.read() as uow:
        assert not uow.connection.execute(sa.select(alias_moves)).all()


def test_the_students_of_a_changed_version_are_seen_as_one_table(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    first = publish_thresholds(store, files, settings, "pets", 1, {"cat": 1.0}, "key_1")
    second = publish_thresholds(store, files, settings, "pets", 2, {"dog": 0.5}, "key_1")
    job_id = str(second.job_id)
    with store.read() as uow:
        assert uow.jobs.get(job_id).base_job_id == version.job_id
        rows, more = uow.students.page(job_id, limit=2)
        assert ([(row.label, row.threshold) for row in rows], more) == ([("cat", 1.0), ("dog", 0.5)], True)
        rows, total = uow.students.sorted_page(
            str(first.job_id), "svm", limit=10, offset=0, order="threshold", descending=True, search="DO"
        )
        assert ([(row.label, row.threshold) for row in rows], total) == ([("dog", -1.0)], 1)
        assert uow.students.methods(job_id) == ["svm"]
        assert uow.students.state_counts(job_id, "svm") == {StudentState.SUCCEEDED: 4}
        assert sum(uow.students.histogram(str(first.job_id), "svm", "f1", 4)) == 2
        served = uow.students.served(job_id, "cat", "svm")
        assert served is not None
        assert served.threshold == 1.0
    found = compare_classes(store, version, first, "f1", listed=5, sampled=5)
    assert [(pair.label, pair.before) for pair in found.winners] == [("cat", 0.75)]
    assert found.counts.equal == 1
    assert changed_classes(store, version, first, "f1", better=True) == (found.winners, False)
    assert changed_classes(store, version, first, "f1", better=False) == ([], False)
    delete_version(store, "pets", 2)
    with store.read() as uow:
        rows, _ = uow.students.page(job_id, limit=2)
    assert [(row.label, row.threshold) for row in rows] == [("cat", 1.0), ("dog", 0.5)]


def test_a_publication_beyond_the_bytes_of_the_quota_leaves_nothing(
    store: Store, version: ModelVersion, files: BlobCache, settings: Settings
):
    before = stored(store)
    full = settings.model_copy(update={"quota_stored_bytes": before["bytes"] + 200})
    with pytest.raises(TooLarge):
        publish_thresholds(store, files, full, "pets", 1, {"cat": 0.0}, "key_1")
    assert stored(store) == before
