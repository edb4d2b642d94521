from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from app.domain.entities import ModelVersion, StudentRow, StudentState
from app.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    TooLarge,
    Unavailable,
)
from app.domain.event_text import describe_event
from app.services import models
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.repositories import models as repository
from app.store.unit_of_work import Store
from core.packed import PackedLabels
from tests.refusals import at_fault, refused_as

Publish = Any


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


@pytest.fixture
def publish(store: Store, add_job: Any) -> Publish:
    """``publish(model, alias=…)``: a version of two classes, of which only "Käse" has a trained student."""

    def make(model: str = "digits", *, alias: str | None = "latest") -> ModelVersion:
        with store.begin() as uow:
            job = add_job(uow, model=model)
            teacher, _ = uow.blobs.put([b"teacher of ", job.id.encode()])
            packed, _ = uow.blobs.put([b"student of ", job.id.encode()])
            row = StudentRow(job.id, 0, "Käse", "gsvm", StudentState.SUCCEEDED, digest=packed)
            uow.students.save(row)
            version = models.publish(
                uow,
                job,
                dataset_digest="0" * 64,
                method="gsvm",
                classes=("Käse", "犬"),
                columns=4,
                teacher_digest=teacher,
                metrics={"mean_f1": 0.9},
                alias=alias,
            )
            assert uow.jobs.get(job.id).version == version.version
        return version

    return make


def test_a_reference_names_a_version_by_alias_by_number_or_by_default(store: Store, publish: Publish) -> None:
    first, second = publish(), publish(alias="next")
    with store.read() as uow:
        assert models.resolve(uow.models, "digits") == first
        assert models.resolve(uow.models, "digits@latest") == first
        assert models.resolve(uow.models, "digits@next") == second
        assert models.resolve(uow.models, "digits@2") == second
    assert models.get_version(store, "digits", 2) == models.get_version(store, "digits", "next") == second


def test_without_the_alias_latest_a_bare_name_is_the_newest_version(store: Store, publish: Publish) -> None:
    publish(alias=None)
    newest = publish(alias=None)
    with store.read() as uow:
        assert models.resolve(uow.models, "digits") == newest


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("none", "model_not_found"),
        ("digits@none", "alias_not_found"),
        ("digits@9", "version_not_found"),
        ("digits@", "alias_not_found"),
        ("digits@99999999999999999999", "alias_not_found"),
        ("none@1", "version_not_found"),
        ("digits@²", "alias_not_found"),
    ],
)
def test_an_unknown_reference_is_not_found(store: Store, publish: Publish, reference: str, code: str) -> None:
    publish()
    with store.read() as uow, refused_as(NotFound, code):
        models.resolve(uow.models, reference)


def test_a_job_publishes_one_version(store: Store, publish: Publish) -> None:
    version = publish()
    with store.begin() as uow:
        job = uow.jobs.get(version.job_id)
        again = models.publish(
            uow,
            job,
            dataset_digest="1" * 64,
            method="svm",
            classes=(),
            columns=1,
            teacher_digest=version.teacher_digest,
            metrics={},
        )
    assert again == version
    assert models.get_model(store, "digits", limit=10).versions == [version]


def test_models_and_their_aliases_are_listed(store: Store, publish: Publish) -> None:
    publish("b")
    publish("a")
    listed, more = models.list_models(store, limit=1)
    assert ([item.name for item in listed], more) == (["a"], True)
    page = models.get_model(store, "b", limit=10)
    assert (len(page.versions), page.has_more) == (1, False)
    assert [(alias.alias, alias.version) for alias in page.aliases] == [("latest", 1)]
    with pytest.raises(NotFound):
        models.get_model(store, "none", limit=10)


def test_moving_an_existing_alias_requires_its_revision(store: Store, publish: Publish) -> None:
    publish()
    publish(alias=None)
    made = models.point_alias(store, Settings(), "digits", "live", 1)
    assert made.revision == 1
    with pytest.raises(PreconditionRequired):
        models.point_alias(store, Settings(), "digits", "live", 2)
    with pytest.raises(PreconditionFailed):
        models.point_alias(store, Settings(), "digits", "live", 2, 7)
    with pytest.raises(PreconditionFailed):
        models.point_alias(store, Settings(), "digits", "live", 2, 0)
    moved = models.point_alias(store, Settings(), "digits", "live", 2, made.revision)
    assert models.get_alias(store, "digits", "live") == moved
    assert (moved.version, moved.revision) == (2, 2)


def test_an_alias_requires_a_version_and_a_valid_name(store: Store, publish: Publish) -> None:
    publish()
    with pytest.raises(NotFound):
        models.point_alias(store, Settings(), "digits", "live", 9)
    for bad in ("3", "", "a b", "é", "x" * 101):
        with at_fault(InvalidRequest, field="alias"):
            models.point_alias(store, Settings(), "digits", bad, 1)


def test_students_and_teachers_are_read_through_the_disk_cache(
    store: Store, publish: Publish, files: BlobCache
) -> None:
    version = publish()
    digest = models.served_student(store, files, version, "Käse").digest
    for name, text in ((digest, b"student of "), (version.teacher_digest, b"teacher of ")):
        assert open_blob(store, files, name).whole() == text + version.job_id.encode()
        assert files.path(name).exists()


def test_a_class_without_a_student_differs_from_an_unknown_class(
    store: Store, publish: Publish, files: BlobCache
) -> None:
    version = publish()
    for label, code in (("犬", "student_not_found"), ("cat", "class_not_found")):
        with refused_as(NotFound, code):
            models.served_student(store, files, version, label)


def test_many_classes_are_listed_from_their_table(store: Store, add_job: Any, files: BlobCache) -> None:
    classes = [f"class {number}" for number in range(models.LISTED_CLASSES + 1)]
    with store.begin() as uow:
        teacher, _ = uow.blobs.put([b"teacher"])
        job = add_job(uow)
        published = models.publish(
            uow,
            job,
            dataset_digest="0" * 64,
            method="gsvm",
            classes=classes,
            columns=4,
            teacher_digest=teacher,
            metrics={},
        )
    version = models.get_version(store, "digits", published.version)
    assert (version.classes, version.class_count) == ((), len(classes))
    first, more = models.list_classes(store, files, version, limit=2)
    assert (first, more) == ([(0, "class 0"), (1, "class 1")], True)
    last, more = models.list_classes(store, files, version, limit=10, after=len(classes) - 2)
    assert (last, more) == ([(len(classes) - 1, classes[-1])], False)
    for label, code in (("class 1000", "student_not_found"), ("class 1001", "class_not_found")):
        with refused_as(NotFound, code):
            models.served_student(store, files, version, label)


def test_few_classes_are_listed_from_their_version(store: Store, publish: Publish, files: BlobCache) -> None:
    version = publish()
    assert models.list_classes(store, files, version, limit=1) == ([(0, "Käse")], True)
    assert models.list_classes(store, files, version, limit=5, after=0) == ([(1, "犬")], False)
    assert models.list_classes(store, files, version, limit=5, after=7) == ([], False)


def test_a_damaged_table_of_classes_is_fetched_again(
    store: Store, publish: Publish, files: BlobCache
) -> None:
    labels = PackedLabels.of([f"person {number}" for number in range(100_000)])
    data = labels.to_bytes()
    with store.begin() as uow:
        digest, _ = uow.blobs.put([data])
    version = dataclasses.replace(publish(), classes=(), class_count=len(labels), class_table=digest)
    assert models.labels_of(store, files, version)[99_999] == "person 99999"
    with files.path(digest).open("r+b") as file:
        file.seek(len(data) - 700_000)
        file.write(b"damage" * 1000)
    rows, _ = models.list_classes(store, files, version, limit=100_000)
    assert rows == [(number, f"person {number}") for number in range(100_000)]


def test_an_invalid_class_table_is_unavailable(store: Store, publish: Publish, files: BlobCache) -> None:
    with store.begin() as uow:
        digest, _ = uow.blobs.put([b"no table"])
    version = dataclasses.replace(publish(), classes=(), class_count=5, class_table=digest)
    with pytest.raises(Unavailable, match="is damaged in the database"):
        models.list_classes(store, files, version, limit=1)


def test_a_model_has_a_limited_number_of_aliases(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MAX_ALIASES", 2)
    publish()
    first = models.point_alias(store, Settings(), "digits", "one", 1)
    with refused_as(Conflict, "too_many_aliases"):
        models.point_alias(store, Settings(), "digits", "two", 1)
    assert models.point_alias(store, Settings(), "digits", "one", 1, first.revision).revision == 2
    published = publish(alias="three")
    with store.read() as uow:
        assert uow.models.find_alias("digits", "three") is None
        unmoved = uow.jobs.get(str(published.job_id)).provenance["alias_not_moved"]
    assert unmoved == {"alias": "three", "version": None, "reason": "too_many_aliases"}
    assert "full number" in describe_event("alias_not_moved", unmoved)


def test_a_full_quota_keeps_aliases_from_being_made_but_not_from_being_moved(
    store: Store, publish: Publish
) -> None:
    publish()
    made = models.point_alias(store, Settings(), "digits", "one", 1)
    full = Settings(quota_stored_bytes=1)
    with pytest.raises(TooLarge):
        models.point_alias(store, full, "digits", "two", 1)
    assert models.point_alias(store, full, "digits", "one", 1, made.revision).version == 1


def test_references_are_resolved_without_the_other_aliases_of_their_models(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish()
    publish()
    for number in range(20):
        models.point_alias(store, Settings(), "digits", f"a{number}", 1 + number % 2)
    names = [f"default/digits{suffix}" for suffix in ("", "@1", "@a1", "@none", "@7")]
    with store.of_all_tenants().read() as uow:
        asked: list[object] = []
        aliased = uow.models.aliased

        def noted(names: Collection[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
            asked.append(names)
            return aliased(names)

        monkeypatch.setattr(uow.models, "aliased", noted)
        found = models.resolve_all(uow.models, [*names, "default/gone"])
    assert {name: version.version for name, version in found.items()} == dict(
        zip(names[:3], (2, 1, 2), strict=True)
    )
    wanted = {("default", "digits", name) for name in ("latest", "a1", "none")}
    assert asked == [wanted | {("default", "gone", "latest")}]
