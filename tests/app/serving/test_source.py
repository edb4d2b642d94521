"""Reading published models from the database, and saying so when what is there cannot be used."""

from __future__ import annotations

import dataclasses

import pytest

from app.domain.errors import NotFound, Unavailable
from app.serving.source import DatabaseSource
from app.store.unit_of_work import Store
from benchmarks.published import linear_student, linear_teacher, publish
from core.packed import PackedStudent, PackedTeacher


@pytest.fixture
def source(store: Store) -> DatabaseSource:
    return DatabaseSource(store)


def test_what_was_published_is_read(source: DatabaseSource, store: Store):
    before = source.clock()
    student, teacher = linear_student("cat", [1.0, 2.0]), linear_teacher(["cat", "dog"], [[1, 2], [0, 1]])
    publish(store, "pets", {"cat": student}, teacher)
    assert source.clock() > before
    version = source.resolve("pets")
    found, size = source.student(version, "cat")
    assert (found.digest, size) == (student.digest, len(student.to_bytes()))
    assert source.teacher(version)[0].digest == teacher.digest
    assert source.resolve_all(["pets", "pets@latest", "pets@old"]) == {
        "pets": version,
        "pets@latest": version,
    }
    with pytest.raises(NotFound):
        source.student(version, "dog")


def test_a_package_that_is_none_is_unavailable(source: DatabaseSource, store: Store):
    student, teacher = linear_student("cat", [1.0]), linear_teacher(["cat", "dog"], [[1], [0]])
    version = publish(store, "pets", {"cat": student}, teacher)
    with store.begin() as uow:
        digest, _ = uow.blobs.put([b"no package"])
        row = uow.students.served(version.job_id, "cat", "svm")
        assert row is not None
        changed = dataclasses.replace(row, class_index=7, label="fox", digest=digest)
        uow.students.save(changed)
    with pytest.raises(Unavailable, match="class 'fox' is damaged"):
        source.student(version, "fox")
    with pytest.raises(Unavailable, match="the teacher is damaged"):
        source.teacher(dataclasses.replace(version, teacher_digest=digest))


def test_a_student_is_never_read_as_a_teacher():
    with pytest.raises(ValueError, match="package"):
        PackedTeacher.from_bytes(linear_student("cat", [1.0]).to_bytes())
    with pytest.raises(ValueError, match="package"):
        PackedStudent.from_bytes(linear_teacher(["a", "b"], [[1], [0]]).to_bytes())
