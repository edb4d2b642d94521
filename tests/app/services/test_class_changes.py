"""Classes with other names, and versions without some: nothing is trained, and everything else stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.curves import pack
from app.domain.entities import ModelVersion, StudentRow
from app.domain.errors import Conflict, InvalidRequest, NotFound, TooLarge
from app.services import class_changes
from app.services.bundle_export import open_bundle
from app.services.class_changes import change_classes
from app.services.curves import publish_thresholds, student_curve
from app.services.models import delete_version, get_version, point_alias, served_student
from app.services.retention import delete_job
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.packed import PackedStudent, PackedTeacher
from tests.app.api.conftest import CLASSES, publish_pets
from tests.app.students import change_student
from tests.refusals import refused_as

X = np.random.default_rng(0).normal(size=(20, 3))


def curve_of(number: int) -> dict[str, Any]:
    """A curve that tells its class by its first threshold."""
    return {"positives": 4, "negatives": 6, "thresholds": [5.0 + number, 0.0], "tp": [1, 3], "fp": [0, 1]}


@pytest.fixture
def version(store: Store) -> ModelVersion:
    """Version 1 of "pets", of four classes with curves and searches."""
    version = publish_pets(store)
    with store.begin() as uow:
        job = str(version.job_id)
        for number, _ in enumerate(CLASSES):
            uow.students.keep_curves([((number, "svm"), pack(curve_of(number)))], job)
            uow.students.keep_trace(job, number, "svm", b"%d" % number)
        answers = {"classes": [{"label": "dog", "yes": 2, "rows": 9}, {"label": "日本", "yes": 1, "rows": 9}]}
        change_student(uow, job, 0, "svm", metrics={"f1": 0.5, "yes_by_class": answers}, threshold=0.25)
    return version


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


@pytest.fixture
def files(settings: Settings) -> BlobCache:
    return BlobCache.of(settings)


@pytest.fixture
def change(store: Store, files: BlobCache, settings: Settings, version: ModelVersion) -> Any:
    def run(base: int | str = 1, **said: Any) -> ModelVersion:
        wanted: dict[str, Any] = {"rename": {}, "remove": ()} | said
        return change_classes(store, files, settings, "pets", base, created_by="me", **wanted)

    return run


def package(store: Store, files: BlobCache, digest: str | None) -> bytes:
    return bytes(open_blob(store, files, str(digest)).whole())


def student(store: Store, files: BlobCache, version: ModelVersion, label: str) -> tuple[StudentRow, bytes]:
    row = served_student(store, files, version, label)
    return row, package(store, files, row.digest)


def test_a_class_has_another_name_and_all_else_stays(
    store: Store, files: BlobCache, change: Any, version: ModelVersion
) -> None:
    renamed = change(rename={"cat": "Cat", "dog": "hound"})
    assert renamed.version == 2
    assert renamed.classes == ("Cat", "hound", *CLASSES[2:])
    with refused_as(NotFound, "class_not_found"):
        served_student(store, files, renamed, "cat")
    row, packed = student(store, files, renamed, "Cat")
    old, before = student(store, files, version, "cat")
    now, was = PackedStudent.from_bytes(packed), PackedStudent.from_bytes(before)
    assert (now.label, now.threshold) == ("Cat", was.threshold)
    assert (now.scores(X) == was.scores(X)).all()
    assert (row.threshold, row.metrics["f1"], row.class_index) == (old.threshold, 0.5, 0)
    assert [one["label"] for one in row.metrics["yes_by_class"]["classes"]] == ["hound", "日本"]
    assert student(store, files, renamed, "日本")[1] == student(store, files, version, "日本")[1]
    teacher = PackedTeacher.from_bytes(package(store, files, renamed.teacher_digest))
    assert teacher.classes == renamed.classes
    given = PackedTeacher.from_bytes(package(store, files, version.teacher_digest))
    assert (teacher.scores(X) == given.scores(X)).all()
    assert get_version(store, "pets", 1).classes == CLASSES
    swapped = change(rename={"cat": "dog", "dog": "cat"})
    assert swapped.classes == ("dog", "cat", *CLASSES[2:])


def test_a_class_is_taken_away_and_the_others_keep_curves_and_searches(
    store: Store, files: BlobCache, settings: Settings, change: Any, version: ModelVersion
) -> None:
    smaller = change(remove=["dog"], rename={"日本": "Japan"})
    assert smaller.classes == ("cat", CLASSES[2], "Japan")
    with refused_as(NotFound, "class_not_found"):
        served_student(store, files, smaller, "dog")
    for number, (label, before) in enumerate((("cat", 0), (CLASSES[2], 2), ("Japan", 3))):
        row, _ = student(store, files, smaller, label)
        assert row.class_index == number
        job = str(smaller.job_id)
        assert student_curve(store, job, number, "svm").thresholds[0] == 5.0 + before
        with store.read() as uow:
            assert uow.students.trace(job, number, "svm") == b"%d" % before
    teacher = PackedTeacher.from_bytes(package(store, files, smaller.teacher_digest))
    given = PackedTeacher.from_bytes(package(store, files, version.teacher_digest))
    assert teacher.classes == smaller.classes
    np.testing.assert_allclose(teacher.scores(X), given.scores(X)[:, [0, 2, 3]], rtol=1e-12, atol=1e-12)
    with open_bundle(store, smaller) as bundle:
        assert bundle.size > 0
    # It can be changed again, also after the version that it was made of is gone.
    point_alias(store, settings, "pets", "latest", 2, 1, allow_schema_change=True)
    with store.begin() as uow:
        uow.jobs.change(str(version.job_id), finished_at=1.0)
    delete_version(store, "pets", 1)
    delete_job(store, str(version.job_id))
    again = change(2, remove=["cat"])
    assert again.classes == (CLASSES[2], "Japan")
    other = publish_thresholds(store, files, settings, "pets", 3, {"Japan": 8.0}, "me")
    assert served_student(store, files, other, "Japan").threshold == 8.0
    assert student_curve(store, str(other.job_id), 1, "svm").thresholds[0] == 8.0


def test_other_thresholds_and_then_other_names_are_both_kept(
    store: Store, files: BlobCache, settings: Settings, change: Any
) -> None:
    publish_thresholds(store, files, settings, "pets", 1, {"cat": 5.0}, "me")
    renamed = change(2, rename={"cat": "Cat"}, remove=["dog"])
    assert served_student(store, files, renamed, "Cat").threshold == 5.0
    assert student_curve(store, str(renamed.job_id), 0, "svm").thresholds[0] == 5.0
    with store.read() as uow:
        job = uow.jobs.get(str(renamed.job_id))
    assert job.provenance["base"]["version"] == 2
    assert job.provenance["renamed"] == {"cat": "Cat"}
    assert job.provenance["removed"] == ["dog"]
    delete_version(store, "pets", renamed.version)
    with store.read() as uow, refused_as(NotFound, "job_not_found"):
        uow.jobs.get(job.id)


@pytest.mark.parametrize(
    ("said", "error", "code"),
    [
        ({"rename": {"cow": "Cow"}}, NotFound, "class_not_found"),
        ({"remove": ["cow"]}, NotFound, "class_not_found"),
        ({"rename": {"cat": "dog"}}, InvalidRequest, "class_exists"),
        ({"rename": {"cat": "pet", "dog": "pet"}}, InvalidRequest, "class_exists"),
        ({"rename": {"cat": "Cat"}, "remove": ["cat"]}, InvalidRequest, "given_twice"),
        ({"remove": list(CLASSES)}, Conflict, "last_classes"),
    ],
)
def test_impossible_changes_are_refused(
    change: Any, said: dict[str, Any], error: type[Exception], code: str
) -> None:
    with refused_as(error, code):
        change(**said)


def test_what_is_too_large_to_be_changed_is_refused(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_changes, "LISTED_CLASSES", 3)
    with refused_as(TooLarge, "too_many_classes"):
        change(remove=["dog"])
    monkeypatch.setattr(class_changes, "LISTED_CLASSES", 4)
    monkeypatch.setattr(class_changes, "_MAX_BYTES", 10)
    with refused_as(TooLarge, "package_too_large"):
        change(remove=["dog"])
