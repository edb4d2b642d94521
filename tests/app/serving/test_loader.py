"""Loading of published models from the database, and errors for damaged ones."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from app.domain.entities import ModelVersion
from app.domain.errors import NotFound, Unavailable
from app.services.head_import import import_head
from app.serving import loader as source_module
from app.serving.loader import DatabaseSource
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.tables import job_students
from app.store.unit_of_work import Store
from core.encoding.profile import fit_profile
from core.errors import InvalidPackage
from core.packed import IsotonicCalibration, LinearForm, PackedHead, PackedStudent, PackedTeacher, RbfBasis
from tests.app.serving.written_records import encoder, numbers_encoder, people
from tests.system.published import linear_student, linear_teacher, publish


@pytest.fixture
def source(store: Store, files: BlobCache) -> DatabaseSource:
    return DatabaseSource(store, files)


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30)


def test_sqlite_tells_the_revision_of_the_registry_at_once(source: DatabaseSource, store: Store):
    assert source.is_at(0) is (store.engine.dialect.name == "sqlite")
    with store.begin() as uow:
        uow.registry.model_changed("default", "pets")
        # Neither does it wait for a writer, nor see what is not committed.
        assert not source.is_at(1)
    assert source.is_at(1) is (store.engine.dialect.name == "sqlite")
    assert not source.is_at(0)
    assert source.changes(1) is None
    changes = source.changes(0)
    assert changes is not None
    assert (changes.revision, changes.models) == (1, {"default/pets"})
    with store.begin() as uow:
        uow.connection.exec_driver_sql("DROP TABLE registry_clock")
    assert not source.is_at(1), "a database that cannot be read is left to those who say so"
    source.close()


def test_published_models_are_loaded(source: DatabaseSource, store: Store):
    student, teacher = linear_student("cat", [1.0, 2.0]), linear_teacher(["cat", "dog"], [[1, 2], [0, 1]])
    publish(store, "pets", {"cat": student}, teacher)
    version = source.resolve("pets")
    found, size = source.student(version, "cat")
    assert (found.digest, size > student.form.coef.nbytes) == (student.digest, True)
    assert source.teacher(version)[0].digest == teacher.digest
    assert source.resolve_all(["pets", "pets@latest", "pets@old"]) == {
        "pets": version,
        "pets@latest": version,
    }
    with pytest.raises(NotFound):
        source.student(version, "dog")


def test_an_invalid_package_is_unavailable(source: DatabaseSource, store: Store):
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


def test_a_student_is_not_accepted_as_a_teacher():
    with pytest.raises(ValueError, match="package"):
        PackedTeacher.from_bytes(linear_student("cat", [1.0]).to_bytes())
    with pytest.raises(ValueError, match="package"):
        PackedStudent.from_bytes(linear_teacher(["a", "b"], [[1], [0]]).to_bytes())


def kernel_student(label: str, landmarks: np.ndarray, calibrated: bool = False) -> PackedStudent:
    p, d = landmarks.shape
    rng = np.random.default_rng(len(label))
    return PackedStudent(
        map=RbfBasis(np.zeros(d), np.ones(d), landmarks),
        form=LinearForm(rng.standard_normal(p), 0.5, rng.standard_normal(p), 0.25),
        threshold=0.0,
        label=label,
        calibration=IsotonicCalibration(np.array([-1.0, 1.0]), np.array([0.1, 0.9])) if calibrated else None,
    )


def test_kernel_students_of_one_model_share_their_landmarks(source: DatabaseSource, store: Store):
    landmarks = np.random.default_rng(0).standard_normal((50, 3))
    students = {label: kernel_student(label, landmarks, label == "fox") for label in ("cat", "doggy", "fox")}
    students["other"] = kernel_student("other", landmarks * 2)
    version = publish(store, "pets", students, linear_teacher(list(students), np.eye(4)))
    found = {label: source.student(version, label)[0] for label in students}
    assert found["cat"].map is found["doggy"].map is found["fox"].map
    assert found["other"].map is not found["cat"].map
    for label, student in students.items():
        assert found[label].digest == student.digest
    sizes = {source.student(version, label)[1] for label in ("cat", "doggy")}
    assert max(sizes) < landmarks.nbytes + 2 * 50 * 8 + 2048, "the landmarks are not counted with each"


def test_students_name_their_map_which_is_stored_once(source: DatabaseSource, store: Store, files: BlobCache):
    landmarks = np.random.default_rng(0).standard_normal((500, 30))
    students = {
        label: dataclasses.replace(kernel_student(label, landmarks, label == "fox"), shares_map=True)
        for label in ("cat", "doggy", "fox")
    }
    version = publish(store, "pets", students, linear_teacher(list(students), np.eye(3)))
    with store.read() as uow:
        rows = [uow.students.served(str(version.job_id), label, "svm") for label in students]
        digests = {row.digest for row in rows} | {row.map_digest for row in rows}
        stored = sum(uow.blobs.sizes(digests).values())
    weights = sum(student.form.nbytes for student in students.values())
    assert len(digests) == 4
    assert stored <= 1.05 * (landmarks.nbytes + weights)
    found = {label: source.student(version, label)[0] for label in students}
    assert found["cat"].map is found["doggy"].map is found["fox"].map
    x = np.random.default_rng(1).standard_normal((20, 30))
    for label, student in students.items():
        np.testing.assert_array_equal(found[label].scores(x), student.scores(x))
        assert found[label].to_bytes() == student.to_bytes()
    # A damaged file of the map is fetched again, and the database has the only copy besides.
    del found
    gc.collect()
    assert len(source._maps) == 0
    path = files.path(students["cat"].map.digest)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    np.testing.assert_array_equal(source.student(version, "cat")[0].scores(x), students["cat"].scores(x))


def test_a_map_that_is_no_map_is_unavailable(source: DatabaseSource, store: Store):
    student = dataclasses.replace(kernel_student("cat", np.ones((5, 2))), shares_map=True)
    version = publish(store, "pets", {"cat": student}, linear_teacher(["cat", "dog"], np.eye(2)))
    with store.begin() as uow:
        row = uow.students.served(str(version.job_id), "cat", "svm")
        other, _ = uow.blobs.put([b"no map"])
        wrong = sa.update(job_students).where(job_students.c.job_id == version.job_id)
        uow.connection.execute(wrong.values(map_digest=other))
    with pytest.raises(Unavailable, match="the map of the students is damaged"):
        source.student(version, "cat")
    with store.begin() as uow:
        uow.connection.execute(wrong.values(map_digest=None))
    with pytest.raises(Unavailable, match="the student of class 'cat' is damaged"):
        source.student(version, "cat")
    assert row.map_digest == student.map.digest


def test_landmarks_are_freed_with_their_last_student(source: DatabaseSource, store: Store):
    student = kernel_student("cat", np.ones((5, 2)))
    version = publish(store, "pets", {"cat": student}, linear_teacher(["cat", "dog"], np.eye(2)))
    kept = source.student(version, "cat")[0]
    assert len(source._maps) == 1
    del kept
    gc.collect()
    assert len(source._maps) == 0


@pytest.mark.parametrize("harm", ["student", "teacher"])
def test_a_damaged_file_of_a_package_is_fetched_again(
    source: DatabaseSource, store: Store, files: BlobCache, harm: str
):
    wide = linear_student("cat", np.arange(200_000.0))
    teacher = linear_teacher(["cat", "dog"], np.ones((2, 200_000)))
    version = publish(store, "pets", {"cat": wide}, teacher)
    read = source.student if harm == "student" else lambda found, _label: source.teacher(found)
    first = read(version, "cat")[0]
    path = files.path(first.digest)
    with path.open("r+b") as file:
        file.seek(500_000)
        file.write(b"damage")
    assert read(version, "cat")[0].digest == (wide if harm == "student" else teacher).digest


@pytest.fixture
def faces(store: Store, files: BlobCache, tmp_path: Path) -> Callable[..., ModelVersion]:
    def imported(K: int = 30, d: int = 4, seed: int = 0, tenant: str = "default") -> ModelVersion:
        path = tmp_path / "head.npz"
        weights = np.random.default_rng(seed).standard_normal((K, d))
        np.savez(path, weights=weights, labels=np.array([f"c{k}" for k in range(K)]))
        owner = store.of_tenant(tenant)
        return import_head(owner, files, path, model=f"faces{seed}", limits=Settings())[0]

    return imported


def test_an_open_head_is_reused_without_waiting(source: DatabaseSource, faces: Callable[..., ModelVersion]):
    version = faces()
    assert source.get_if_local(version, "c3") is None
    student, size = source.student(version, "c3")
    near = source.get_if_local(version, "c3")
    assert near is not None
    assert near[0].digest == student.digest
    assert 2 * 4 * 8 < size == near[1]
    assert source.get_if_local(version, "bird") is None
    with pytest.raises(NotFound, match="no class 'bird'"):
        source.student(version, "bird")
    head, _ = source.teacher(version)
    assert isinstance(head, PackedHead)
    assert source.teacher(version)[0] is head


def test_the_least_recently_used_head_is_closed_first(
    store: Store, files: BlobCache, faces: Callable[..., ModelVersion], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_module, "_MAX_HEADS", 2)
    source = DatabaseSource(store, files)
    versions = [faces(seed=seed) for seed in range(3)]
    for version in versions[:2]:
        source.student(version, "c0")
    assert source.get_if_local(versions[0], "c0") is not None, "which is a use"
    source.student(versions[2], "c0")
    assert [source.get_if_local(version, "c0") is not None for version in versions] == [True, False, True]


def test_the_heads_of_one_tenant_close_none_of_another(
    store: Store, files: BlobCache, faces: Callable[..., ModelVersion], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_module, "_MAX_HEADS", 4)
    source = DatabaseSource(store, files)
    ours = [faces(seed=seed) for seed in range(2)]
    theirs = [faces(seed=seed, tenant="rival") for seed in range(6)]
    for version in (*ours, *theirs, *theirs):
        source.student(version, "c0")
    assert [source.get_if_local(version, "c0") is not None for version in ours] == [True, True]
    assert sum(source.get_if_local(version, "c0") is not None for version in theirs) == 2


def test_a_damaged_row_is_fetched_again(
    source: DatabaseSource, files: BlobCache, faces: Callable[..., ModelVersion]
):
    version = faces(K=3000, d=64)
    expected = source.student(version, "c1500")[0].digest
    with files.path(version.teacher_digest).open("r+b") as file:
        file.seek(0, 2)
        middle = file.tell() // 2
        file.seek(middle - 100_000)
        file.write(b"\1" * 200_000)
    again = DatabaseSource(source._store, files)
    assert again.student(version, "c0")[0].label == "c0", "a row that is well is served as it is"
    assert again.get_if_local(version, "c1500") is None
    assert again.student(version, "c1500")[0].digest == expected


def test_an_invalid_head_is_unavailable(
    source: DatabaseSource, store: Store, faces: Callable[..., ModelVersion], monkeypatch: pytest.MonkeyPatch
):
    version = faces()
    with store.begin() as uow:
        digest, _ = uow.blobs.put([linear_student("cat", [1.0]).to_bytes()])
    with pytest.raises(Unavailable, match="the head is damaged"):
        source.student(dataclasses.replace(version, teacher_digest=digest), "c0")

    def damaged(_head: PackedHead, _row: int) -> PackedStudent:
        raise InvalidPackage("damaged")

    monkeypatch.setattr(PackedHead, "student", damaged)
    with pytest.raises(Unavailable, match="the head is damaged"):
        source.student(version, "c0")


def test_an_encoder_is_loaded_once_for_its_versions(source: DatabaseSource, store: Store):
    known = numbers_encoder()
    rows = np.eye(2)
    students = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    versions = [publish(store, "m", students, linear_teacher("ab", rows), encoder=known) for _ in range(2)]
    first, second = map(source.encoder, versions)
    assert first is second
    assert first.to_bytes() == known.to_bytes()


def test_an_invalid_encoder_is_unavailable(source: DatabaseSource, store: Store):
    rows = np.eye(2)
    students = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    version = publish(store, "m", students, linear_teacher("ab", rows), encoder=numbers_encoder())
    with pytest.raises(Unavailable, match="the encoder is damaged"):
        source.encoder(dataclasses.replace(version, encoder_digest=version.teacher_digest))


def test_a_profile_that_cannot_be_read_keeps_no_query_waiting(
    source: DatabaseSource, store: Store, caplog: pytest.LogCaptureFixture
):
    rows = np.ones((2, encoder().layout.columns))
    students = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    profile = fit_profile(people(), encoder())
    version = publish(store, "m", students, linear_teacher("ab", rows), encoder=encoder(), profile=profile)
    assert source.profile(version, encoder()) == profile
    damaged = dataclasses.replace(version, profile_digest=version.encoder_digest)
    assert source.profile(damaged, encoder()) is None
    assert "without their bins" in caplog.text
