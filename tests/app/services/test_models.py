from __future__ import annotations

from typing import Any

import pytest

from app.domain.entities import ModelVersion, StudentRow, StudentState
from app.domain.errors import InvalidRequest, NotFound, PreconditionFailed, PreconditionRequired
from app.services import models
from app.store.unit_of_work import Store

Publish = Any


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


def test_a_reference_names_a_version_by_alias_number_or_not_at_all(store: Store, publish: Publish) -> None:
    first, second = publish(), publish(alias="next")
    with store.read() as uow:
        assert models.resolve(uow, "digits") == first
        assert models.resolve(uow, "digits@latest") == first
        assert models.resolve(uow, "digits@next") == second
        assert models.resolve(uow, "digits@2") == second
    assert models.get_version(store, "digits", 2) == models.get_version(store, "digits", "next") == second


def test_without_the_alias_latest_a_bare_name_is_the_newest_version(store: Store, publish: Publish) -> None:
    publish(alias=None)
    newest = publish(alias=None)
    with store.read() as uow:
        assert models.resolve(uow, "digits") == newest


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
def test_a_reference_to_nothing_is_not_found(
    store: Store, publish: Publish, reference: str, code: str
) -> None:
    publish()
    with store.read() as uow, pytest.raises(NotFound) as caught:
        models.resolve(uow, reference)
    assert caught.value.reason == code


def test_a_job_publishes_once_however_often_it_is_asked(store: Store, publish: Publish) -> None:
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
    assert models.get_model(store, "digits")[0] == [version]


def test_models_and_their_aliases_are_listed(store: Store, publish: Publish) -> None:
    publish("b")
    publish("a")
    listed, more = models.list_models(store, limit=1)
    assert ([item.model for item in listed], more) == (["a"], True)
    versions, aliases = models.get_model(store, "b")
    assert len(versions) == 1
    assert [(alias.alias, alias.version) for alias in aliases] == [("latest", 1)]
    with pytest.raises(NotFound):
        models.get_model(store, "none")


def test_an_alias_that_exists_moves_only_for_who_says_what_was_read(store: Store, publish: Publish) -> None:
    publish()
    publish(alias=None)
    made = models.point_alias(store, "digits", "live", 1)
    assert made.revision == 1
    with pytest.raises(PreconditionRequired):
        models.point_alias(store, "digits", "live", 2)
    with pytest.raises(PreconditionFailed):
        models.point_alias(store, "digits", "live", 2, 7)
    with pytest.raises(PreconditionFailed):
        models.point_alias(store, "digits", "live", 2, 0)
    moved = models.point_alias(store, "digits", "live", 2, made.revision)
    assert models.get_alias(store, "digits", "live") == moved
    assert (moved.version, moved.revision) == (2, 2)


def test_an_alias_needs_a_version_and_a_name_that_is_no_number(store: Store, publish: Publish) -> None:
    publish()
    with pytest.raises(NotFound):
        models.point_alias(store, "digits", "live", 9)
    for bad in ("3", "", "a b", "é", "x" * 101):
        with pytest.raises(InvalidRequest) as caught:
            models.point_alias(store, "digits", bad, 1)
        assert caught.value.faults[0].field == "alias"


def test_a_student_is_read_with_its_bytes(store: Store, publish: Publish) -> None:
    version = publish()
    row, packed = models.read_student(store, version, "Käse")
    assert row.label == "Käse"
    assert packed == b"student of " + version.job_id.encode()
    assert models.read_teacher(store, version) == b"teacher of " + version.job_id.encode()


def test_a_class_without_a_student_is_told_from_a_class_that_does_not_exist(
    store: Store, publish: Publish
) -> None:
    version = publish()
    for label, code in (("犬", "student_not_found"), ("cat", "class_not_found")):
        with pytest.raises(NotFound) as caught:
            models.read_student(store, version, label)
        assert caught.value.reason == code
