"""Bundles: what comes out of one database goes into another, and hostile files go nowhere."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa
from safetensors import safe_open
from safetensors.numpy import save

from app.domain import bundle
from app.domain.bundle import Manifest
from app.domain.entities import JobState, ModelVersion
from app.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    ServiceError,
    TooLarge,
    Unavailable,
    Unprocessable,
)
from app.services import bundle_import, models
from app.services.bundle_export import Part, open_bundle, students_of
from app.services.bundle_import import ImportedBundle, import_bundle
from app.services.curves import publish_thresholds
from app.services.head_import import import_head
from app.services.quotas import set_quotas
from app.services.retention import delete_job
from app.serving.loader import DatabaseSource
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_engine
from app.store.tables import audit_log, blob_chunks, blobs, job_students, jobs, model_versions
from app.store.unit_of_work import Store
from core.packed import LinearForm, PackedLabels, PackedStudent, TreesBasis
from core.packed.codec import decode, encode
from core.packed.head import head_header
from tests.app.api.conftest import CLASSES, publish_pets
from tests.reference.packed_students import CASES, some_rows
from tests.refusals import refused_as
from tests.system.published import linear_teacher, publish
from verification.isolation_probes import bundle_bytes

LIMITS = Settings()
ROWS = np.random.default_rng(3).normal(size=(1000, 3))


def exported(store: Store, version: ModelVersion, part: Part | None = None) -> bytes:
    with open_bundle(store, version, part) as file:
        data = b"".join(file.pieces(store))
        assert len(data) == file.size
        return data


@pytest.fixture
def into(tmp_path: Path) -> Callable[..., ImportedBundle]:
    """Imports bytes into a store."""

    def run(store: Store, data: bytes, **options: Any) -> ImportedBundle:
        path = tmp_path / "sent.tar"
        path.write_bytes(data)
        return import_bundle(store, path, **{"created_by": "tests", "limits": LIMITS} | options)

    return run


@pytest.fixture
def another_sqlite(_sqlite_template: Path, tmp_path: Path) -> Path:
    """A second fresh, migrated database."""
    path = tmp_path / "another.sqlite"
    path.write_bytes(_sqlite_template.read_bytes())
    return path


def scores(store: Store, version: ModelVersion) -> list[list[float]]:
    with store.read() as uow:
        rows = uow.students.of_job(str(version.job_id), method=version.method)
        packed = [PackedStudent.from_bytes(uow.blobs.read(str(row.digest))) for row in rows]
    return [student.scores(ROWS).tolist() for student in packed]


def stored_blobs(store: Store) -> set[str]:
    with store.read() as uow:
        return set(uow.connection.execute(sa.select(blobs.c.digest).where(blobs.c.complete)).scalars())


def test_a_version_goes_to_postgresql_and_back_with_the_same_bytes(
    sqlite_store: Store, postgres_address: str, tmp_path: Path, into: Any, another_sqlite: Path
):
    first = publish_pets(sqlite_store)
    data = exported(sqlite_store, first)
    assert exported(sqlite_store, first) == data
    other = Store(open_engine(postgres_address))
    back = Store(open_engine(f"sqlite:///{another_sqlite}"))
    try:
        second = into(other, data).version
        assert exported(other, second) == data
        third = into(back, exported(other, second)).version
        assert exported(back, third) == data
        assert scores(sqlite_store, first) == scores(other, second) == scores(back, third)
        assert stored_blobs(other) == stored_blobs(back) <= stored_blobs(sqlite_store)
    finally:
        other.dispose()
        back.dispose()


def test_members_of_many_pieces_and_many_batches_come_back_as_they_were(
    sqlite_store: Store, into: Any, another_sqlite: Path, monkeypatch: pytest.MonkeyPatch
):
    data = exported(sqlite_store, publish_pets(sqlite_store))
    monkeypatch.setattr(bundle_import, "LARGE_CHUNK_BYTES", 100)
    monkeypatch.setattr(bundle_import, "_BATCH", 2)
    other = Store(open_engine(f"sqlite:///{another_sqlite}"))
    try:
        assert exported(other, into(other, data).version) == data
    finally:
        other.dispose()


def test_a_part_has_nothing_of_other_classes_and_comes_back_as_it_was(
    sqlite_store: Store, another_sqlite: Path, into: Any, tmp_path: Path
):
    first = publish_pets(sqlite_store)
    other = Store(open_engine(f"sqlite:///{another_sqlite}"))
    files = BlobCache(tmp_path / "cache", 2**30)
    warning = {"warning": "worse_than_teacher", "message": "It is worse."}
    with sqlite_store.begin() as uow:
        for label in ("cat", "dog"):
            uow.connection.execute(
                sa.update(job_students)
                .where(job_students.c.job_id == first.job_id, job_students.c.label == label)
                .values(metrics={"f1": 0.5 if label == "dog" else 0.9, "guard": warning})
            )
        warned = [{"code": "worse_than_teacher", "label": "cat", "class_index": 0, "message": "It is worse."}]
        uow.connection.execute(
            sa.update(model_versions).values(metrics={"warnings": warned, "students_warned": 2})
        )
        uow.connection.execute(sa.update(jobs).values(provenance={"seed": 1, "warnings": warned}))
    first = models.get_version(sqlite_store, "pets", 1)
    try:
        students = students_of(sqlite_store, files, first, ["日本", "dog"])
        assert [(row.class_index, row.label) for row in students] == [(0, "dog"), (1, "日本")]
        data = exported(sqlite_store, first, Part(students, teacher=False))
        assert b"cat" not in data
        version = into(other, data).version
        assert (version.classes, version.teacher_digest) == (("dog", "日本"), None)
        assert (version.metrics["means"]["svm"]["f1"], version.metrics["students_warned"]) == (0.5, 1)
        assert exported(other, version) == data
        assert scores(other, version) == scores(sqlite_store, first)[1::2]
        with_teacher = into(other, exported(sqlite_store, first, Part(students))).version
        assert with_teacher.teacher_digest == first.teacher_digest
        without = into(other, exported(sqlite_store, first, Part(teacher=False))).version
        assert (without.classes, without.teacher_digest) == (first.classes, None)
        with refused_as(NotFound, "teacher_not_found"):
            DatabaseSource(other, files).teacher(without)
    finally:
        other.dispose()


def kernel_version(store: Store) -> ModelVersion:
    """A version whose first two students share a map; the third holds its own."""
    first = dataclasses.replace(CASES["rbf-linear-none"], label="a", shares_map=True)
    students = {"a": first, "b": dataclasses.replace(first, label="b", threshold=1.0)}
    students["c"] = dataclasses.replace(first, label="c", shares_map=False)
    return publish(store, "kernel", students, linear_teacher("abc", np.zeros((3, first.map.n_columns))))


def test_a_map_that_students_share_is_one_member_and_comes_back(store: Store, into: Any, tmp_path: Path):
    files = BlobCache(tmp_path / "cache", 2**30)
    version = kernel_version(store)
    shared = CASES["rbf-linear-none"].map
    data = exported(store, version)
    names = [name for name, _ in parts_of(data)]
    assert (len(names), names.count(bundle.blob_name(shared.digest))) == (2 + 2 + 3, 1)
    manifest = msgspec.json.decode(parts_of(data)[0][1], type=Manifest)
    assert (manifest.format, manifest.maps) == ("stms.bundle.2", [shared.digest])
    other = store.of_tenant("other")
    made = into(other, data).version
    assert exported(other, made).partition(b"students.jsonl")[2] == data.partition(b"students.jsonl")[2]
    source = DatabaseSource(store, files)
    rows = some_rows(CASES["rbf-linear-none"], 20)
    for label in "abc":
        old, new = (source.student(one, label)[0] for one in (version, made))
        np.testing.assert_array_equal(new.scores(rows), old.scores(rows))
    with other.read() as uow:
        job = uow.jobs.get(str(made.job_id))
        stored = {row.digest for row in uow.students.own(job.id)} | {shared.digest}
        assert job.student_bytes == sum(uow.blobs.sizes(stored).values()), "the map counts once"
    own = exported(store, version, Part(students_of(store, files, version, ["c"])))
    manifest = msgspec.json.decode(parts_of(own)[0][1], type=Manifest)
    assert (manifest.format, manifest.maps) == ("stms.bundle.1", []), "its student holds its map"


NAMING: dict[str, Callable[[Parts], Parts]] = {
    "no map in the manifest": lambda parts: with_manifest(parts, maps=[]),
    "a map in a bundle of the first format": lambda parts: with_manifest(parts, format=bundle.FORMAT),
    "a map twice": lambda parts: with_manifest(parts, maps=lambda found: found["maps"] * 2),
    "a map that is a teacher": lambda parts: with_manifest(parts, maps=lambda found: [found["teacher"]]),
    "a line without its map": lambda parts: with_lines(parts, lambda lines: lines[0].pop("map")),
    "a line with a map of a student that holds its own": lambda parts: with_lines(
        parts, lambda lines: lines[2].update(map=lines[0]["map"])
    ),
    "a map that nothing names": lambda parts: with_manifest(
        with_lines([*parts[:-3], parts[-1]], lambda lines: lines.__delitem__(slice(2)))
    ),
    "a changed map": lambda parts: [
        (
            name,
            content[:-1] + b"x" if name == bundle.blob_name(CASES["rbf-linear-none"].map.digest) else content,
        )
        for name, content in parts
    ],
}


@pytest.mark.parametrize("kind", NAMING)
def test_students_and_maps_that_do_not_fit_are_refused(sqlite_store: Store, into: Any, kind: str):
    parts = parts_of(exported(sqlite_store, kernel_version(sqlite_store)))
    sent = written(NAMING[kind](parts))
    before = stored_blobs(sqlite_store)
    with refused_as(InvalidRequest, "invalid_bundle"):
        into(sqlite_store.of_tenant("other"), sent)
    assert stored_blobs(sqlite_store) == before


def test_a_head_is_exported_as_a_whole(sqlite_store: Store, tmp_path: Path):
    path = tmp_path / "head.safetensors"
    path.write_bytes(save({"weights": np.eye(4, 3)}, {"labels": json.dumps(list(CLASSES))}))
    files = BlobCache(tmp_path / "cache", 2**30)
    head = import_head(sqlite_store, files, path, model="faces", limits=LIMITS).version
    with refused_as(Unprocessable, "head_is_whole", match="is one head"):
        students_of(sqlite_store, files, head, ["c0"])
    with pytest.raises(Unprocessable), open_bundle(sqlite_store, head, Part(teacher=False)):
        pass


def test_the_imported_version_is_complete(store: Store, into: Any):
    first = publish_pets(store)
    figures = {"objective": 3.5, "gap": 1e-4, "iterations": 7, "seconds": 0.5}
    with store.begin() as uow:
        uow.connection.execute(
            sa.update(job_students).where(job_students.c.job_id == first.job_id).values(figures)
        )
    imported = into(store, exported(store, first), model="animals", alias="live")
    version = imported.version
    assert (imported.is_new, imported.alias, version.version) == (True, "live", 1)
    assert models.get_version(store, "animals", "live") == version
    for name in ("method", "classes", "columns", "teacher_digest", "class_count", "dataset_digest"):
        assert getattr(version, name) == getattr(first, name)
    origin = version.metrics["imported"]
    assert (origin["model"], origin["version"]) == ("pets", 1)
    with store.read() as uow:
        job = uow.jobs.get(str(version.job_id))
        [student] = uow.students.of_job(job.id, limit=1)
        actions = uow.connection.execute(sa.select(audit_log.c.action, audit_log.c.object)).all()
    assert (job.state, job.version, job.provenance["imported"]) == (JobState.SUCCEEDED, 1, origin)
    assert job.progress_done == job.progress_total == len(first.classes)
    assert {name: getattr(student, name) for name in figures} == figures
    assert ("model.import", "animals@1") in [tuple(row) for row in actions]
    again = into(store, exported(store, first), model="animals")
    assert (again.version, again.is_new, again.alias) == (version, False, None)


def test_thresholds_are_changed_before_and_after_the_move(sqlite_store: Store, into: Any, tmp_path: Path):
    publish_pets(sqlite_store)
    files = BlobCache(tmp_path / "cache", 2**30)

    def changed(model: str, threshold: float) -> ModelVersion:
        thresholds = {"cat": threshold}
        return publish_thresholds(sqlite_store, files, LIMITS, model, "latest", thresholds, "tests")

    def of_cat(version: ModelVersion) -> float:
        with sqlite_store.read() as uow:
            row = uow.students.served(str(version.job_id), "cat", version.method)
            return PackedStudent.from_bytes(uow.blobs.read(str(row.digest))).threshold

    moved = into(sqlite_store, exported(sqlite_store, changed("pets", 0.5)), model="copy").version
    assert (of_cat(moved), moved.metrics["imported"]["version"]) == (0.5, 2)
    again = changed("copy", 0.75)
    assert (of_cat(again), again.version, "imported" in again.metrics) == (0.75, 2, False)
    models.delete_version(sqlite_store, "copy", again.version)


def test_gnu_tar_and_safetensors_read_it(sqlite_store: Store, tmp_path: Path):
    data = exported(sqlite_store, publish_pets(sqlite_store))
    (tmp_path / "pets.tar").write_bytes(data)
    folder = tmp_path / "pets"
    folder.mkdir()
    subprocess.run(["tar", "xf", "../pets.tar"], cwd=folder, check=True)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {bundle.MANIFEST, bundle.STUDENTS} < names
    for name in names - {bundle.MANIFEST, bundle.STUDENTS}:
        with safe_open(folder / name, "np") as opened:
            assert opened.metadata()["stms"]
    (folder / "letters.sig").write_text("not a part of it", "utf-8")
    assert b"".join(bundle.pack(folder)) == data


def test_the_rest_of_a_download_can_be_asked_for(sqlite_store: Store):
    version = publish_pets(sqlite_store)
    data = exported(sqlite_store, version)
    for start in (0, 1, 511, 512, 5000, len(data) - 1025, len(data) - 1024, len(data) - 1):
        with open_bundle(sqlite_store, version) as file:
            assert b"".join(file.pieces(sqlite_store, start)) == data[start:], start


@pytest.mark.parametrize("change", ["damaged", "deleted"])
def test_a_download_breaks_off_where_a_blob_is_not_what_it_was(sqlite_store: Store, change: str):
    version = publish_pets(sqlite_store)
    with sqlite_store.read() as uow:
        digest = str(uow.students.of_job(str(version.job_id))[-1].digest)
    of_student = blob_chunks.c.digest == digest
    with open_bundle(sqlite_store, version) as file:
        with sqlite_store.begin() as uow:
            if change == "damaged":
                uow.connection.execute(sa.update(blob_chunks).where(of_student).values(data=b"x"))
            else:
                uow.connection.execute(sa.delete(blob_chunks).where(of_student))
        sent: list[bytes] = []
        with refused_as(Unavailable, "blob_damaged"):
            sent.extend(file.pieces(sqlite_store))
        assert sum(map(len, sent)) < file.size


def test_a_head_is_a_bundle_without_students(store: Store, tmp_path: Path, into: Any):
    path = tmp_path / "head.safetensors"
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    path.write_bytes(save({"weights": weights}, {"labels": json.dumps(list(CLASSES))}))
    files = BlobCache(tmp_path / "cache", 2**30)
    first = import_head(store, files, path, model="faces", limits=LIMITS, rivals=1).version
    data = exported(store, first)
    second = into(store, data, model="copy").version
    assert (second.job_id, second.method, second.metrics["rivals"]) == (None, "head", 1)
    assert (second.teacher_digest, second.class_table) == (first.teacher_digest, first.class_table)
    with tarfile.open(fileobj=io.BytesIO(exported(store, second))) as tar:
        assert len(tar.getnames()) == 3
    changed = data.replace(weights.tobytes(), np.full(12, np.nan, np.float32).tobytes())
    with pytest.raises(InvalidRequest):
        into(store, changed)


@pytest.mark.parametrize("kind", ["header", "rival", "infinite", "kind", "table"])
def test_a_head_whose_rows_would_be_read_elsewhere_is_refused(sqlite_store: Store, into: Any, kind: str):
    """Rows are taken out of a head without another look, at places that follow from its header."""
    header, arrays = head_header("head"), {"weights": np.eye(2), "bias": np.zeros(2)}
    arrays["rivals"] = np.array([[1], [0]])
    labels = PackedLabels.of(["up", "down"]).to_bytes()
    if kind == "header":
        header["more"] = "x" * 64
    elif kind == "rival":
        arrays["rivals"][0] = 2
    elif kind == "infinite":
        arrays["weights"][1, 1] = np.inf
    elif kind == "kind":
        header["kind"] = "linear"
    else:
        header_of_labels, parts = decode(labels, PackedLabels.FORMAT)
        labels = encode(header_of_labels, parts | {"rows": parts["rows"][::-1].copy()})
    sent = head_bundle(encode(header, arrays), labels)
    with refused_as(InvalidRequest, "invalid_bundle"):
        into(sqlite_store, sent)
    assert stored_blobs(sqlite_store) == set()


def head_bundle(head: bytes, table: bytes) -> bytes:
    """The bundle of `bundle_bytes` with another head and class table."""
    parts = parts_of(bundle_bytes())
    document = json.loads(parts[0][1])
    changed = {bundle.digest_of(blob): blob for blob in (head, table)}
    teacher, class_table = changed
    files = {digest: len(blob) for digest, blob in changed.items()}
    document |= {"teacher": teacher, "class_table": class_table, "files": files, "classes": ["up", "down"]}
    members = [(bundle.blob_name(digest), changed[digest]) for digest in sorted(changed)]
    return written([(bundle.MANIFEST, bundle.canonical(document)), *members])


def test_the_bundle_of_the_measurements_is_a_good_one(sqlite_store: Store, into: Any):
    assert into(sqlite_store, bundle_bytes()).version.classes == ("acme-up", "acme-down")


def test_an_older_version_is_refused_unless_it_is_allowed(sqlite_store: Store, into: Any):
    old = exported(sqlite_store, publish_pets(sqlite_store))
    new = exported(sqlite_store, publish_pets(sqlite_store, sign=-1.0))
    into(sqlite_store, new, model="copy")
    with refused_as(Conflict, "older_version"):
        into(sqlite_store, old, model="copy")
    assert into(sqlite_store, old, model="copy", allow_older=True).version.version == 2
    assert into(sqlite_store, old, model="fresh").is_new


def test_quotas_count_what_is_imported(store: Store, into: Any):
    data = exported(store, publish_pets(store))
    other = store.of_tenant("other")
    set_quotas(store, LIMITS, "other", {"versions": 1})
    into(other, data)
    with other.read() as uow:
        stored = uow.connection.execute(sa.select(blobs.c.digest)).scalars().all()
    with refused_as(Conflict, "quota_versions"):
        into(other, data, model="second")
    with other.read() as uow:
        assert uow.connection.execute(sa.select(blobs.c.digest)).scalars().all() == stored
    set_quotas(store, LIMITS, "other", {"versions": None, "stored_bytes": 20_000})
    with other.read() as uow:
        before = uow.quotas.used("other").stored_bytes
    assert before > 1000
    set_quotas(store, LIMITS, "other", {"stored_bytes": before + 500})
    with pytest.raises(TooLarge):
        into(other, data, model="second")


def test_an_interrupted_import_leaves_nothing_that_is_served(
    store: Store, into: Any, monkeypatch: pytest.MonkeyPatch
):
    data = exported(store, publish_pets(store))
    other = store.of_tenant("other")

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("The database is gone.")

    with monkeypatch.context() as patched:
        patched.setattr("app.services.bundle_import._publish", fail)
        with pytest.raises(Unavailable):
            into(other, data)
    with store.read() as uow:
        counts = [
            uow.connection.execute(
                sa.select(sa.func.count()).select_from(table).where(table.c.tenant == "other")
            ).scalar_one()
            for table in (jobs, model_versions)
        ]
        assert counts == [0, 0]
    assert into(other, data).is_new


def test_a_file_that_changes_while_it_is_imported_is_refused(
    store: Store, into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = exported(store, publish_pets(store))
    put_blobs = bundle_import._Import.put_blobs

    def change_and_put(running: Any) -> None:
        path = tmp_path / "sent.tar"
        path.write_bytes(data[:2000] + bytes(len(data) - 2000))
        put_blobs(running)

    monkeypatch.setattr(bundle_import._Import, "put_blobs", change_and_put)
    with refused_as(Unavailable, "bundle_changed"):
        into(store.of_tenant("other"), data)


def test_what_a_killed_import_leaves_is_a_failed_job(
    store: Store, into: Any, monkeypatch: pytest.MonkeyPatch
):
    data = exported(store, publish_pets(store))
    other = store.of_tenant("other")
    monkeypatch.setattr("app.services.bundle_import._publish", lambda *_, **__: (_ for _ in ()).throw(Killed))
    monkeypatch.setattr("app.services.bundle_import.ServiceError", Exception)
    monkeypatch.setattr(
        "app.store.repositories.retention.Retention.delete_job",
        lambda *_: (_ for _ in ()).throw(RuntimeError("nothing runs any more")),
    )
    with pytest.raises(Killed):
        into(other, data)
    monkeypatch.undo()
    with other.read() as uow:
        [job], _ = uow.jobs.page(limit=10)
        students = uow.connection.execute(
            sa.select(sa.func.count()).where(job_students.c.job_id == job.id)
        ).scalar_one()
    assert (job.state, job.error_code, students) == (JobState.FAILED, "import_unfinished", len(CLASSES))
    delete_job(other, job.id)
    assert into(other, data).is_new


class Killed(BaseException):
    pass


# What follows changes a good bundle in one way each.

Parts = list[tuple[str, bytes]]


def parts_of(data: bytes) -> Parts:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]


def written(parts: Parts, headers: dict[str, Callable[[tarfile.TarInfo], None]] | None = None) -> bytes:
    output = io.BytesIO()
    for name, content in parts:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o644
        header = member.tobuf(tarfile.USTAR_FORMAT)
        change = (headers or {}).get(name)
        if change is not None:
            change(member)
            header = member.tobuf(tarfile.GNU_FORMAT)
        output.write(header + content + bytes(-len(content) % 512))
    return output.getvalue() + bytes(1024)


def of_type(kind: bytes, link: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, link

    return change


def named(name: str) -> Callable[[tarfile.TarInfo], None]:
    return lambda member: setattr(member, "name", name)


def sized(size: int) -> Callable[[tarfile.TarInfo], None]:
    return lambda member: setattr(member, "size", size)


def with_manifest(parts: Parts, **changes: Any) -> Parts:
    """The bundle with other fields in its manifest, written canonically."""
    document = json.loads(parts[0][1])
    for name, value in changes.items():
        document[name] = value(document) if callable(value) else value
    return [(bundle.MANIFEST, bundle.canonical(document)), *parts[1:]]


def with_lines(parts: Parts, change: Callable[[list[dict[str, Any]]], Any]) -> Parts:
    """The bundle with other lines of students, and a manifest that fits them."""
    lines = [json.loads(line) for line in parts[1][1].splitlines()]
    change(lines)
    text = b"".join(bundle.canonical(line) + b"\n" for line in lines)
    students = {"count": len(lines), "digest": bundle.digest_of(text), "size": len(text)}
    changed = [parts[0], (bundle.STUDENTS, text), *parts[2:]]
    return with_manifest(changed, students=students)


def other_student(parts: Parts, change: Callable[[PackedStudent], dict[str, Any]]) -> Parts:
    """The bundle with another first student, whose digest and line fit."""
    _, content = parts[-len(CLASSES)]
    student = PackedStudent.from_bytes(content)
    packed = dataclasses.replace(student, **change(student)).to_bytes()
    digest = bundle.digest_of(packed)
    parts = [*parts]
    parts[-len(CLASSES)] = (bundle.blob_name(digest), packed)
    fitting = {"digest": digest, "size": len(packed), "threshold": 0.0}
    return with_lines(parts, lambda lines: lines[0].update(fitting))


def of_many_trees(student: PackedStudent) -> dict[str, Any]:
    """What makes a student cost 4·10⁹ additions a row in 16 MB: trees of one leaf that add to all sums."""
    trees, sums = 2_000_000, 2000
    none, number = np.zeros(0, dtype=np.int32), np.zeros(trees, dtype=np.int32)
    packed = TreesBasis(
        columns=student.map.n_columns,
        sums=sums,
        feature=none,
        threshold=np.zeros(0),
        roots=number - 1,
        test=none,
        children=none.reshape(0, 2),
        share=np.zeros(0, dtype=np.float32),
        values=np.zeros((1, sums)),
        output=number,
        divisor=1.0,
    )
    return {"map": packed, "form": LinearForm(np.zeros(sums), 0.0, np.zeros(sums), 0.0), "threshold": 0.0}


STUDENT = -len(CLASSES)
HOSTILE: dict[str, Callable[[Parts], bytes]] = {
    "empty": lambda parts: b"",
    "no tar file": lambda parts: b"PK\x03\x04" + bytes(5000),
    "only the end": lambda parts: bytes(1024),
    "a gzip bomb": lambda parts: gzip.compress(bytes(10**6)),
    "a symbolic link": lambda parts: written(
        parts, {bundle.STUDENTS: of_type(tarfile.SYMTYPE, "/etc/passwd")}
    ),
    "a hard link": lambda parts: written(parts, {bundle.MANIFEST: of_type(tarfile.LNKTYPE, "../../x")}),
    "a device": lambda parts: written(parts, {bundle.STUDENTS: of_type(tarfile.CHRTYPE)}),
    "a pipe": lambda parts: written(parts, {bundle.STUDENTS: of_type(tarfile.FIFOTYPE)}),
    "a folder": lambda parts: written(parts, {bundle.STUDENTS: of_type(tarfile.DIRTYPE)}),
    "a pax header": lambda parts: written(parts, {bundle.MANIFEST: of_type(tarfile.XHDTYPE)}),
    "a global pax header": lambda parts: written(parts, {bundle.MANIFEST: of_type(tarfile.XGLTYPE)}),
    "a sparse file": lambda parts: written(parts, {bundle.STUDENTS: of_type(tarfile.GNUTYPE_SPARSE)}),
    "a long name": lambda parts: written(parts, {bundle.MANIFEST: of_type(tarfile.GNUTYPE_LONGNAME)}),
    "a path upwards": lambda parts: written(parts, {parts[2][0]: named("../../../etc/cron.d/x")}),
    "an absolute path": lambda parts: written(parts, {parts[2][0]: named("/etc/passwd")}),
    "a path with a dot": lambda parts: written(parts, {parts[2][0]: named(f"./{parts[2][0]}")}),
    "a size of 2^63": lambda parts: written(parts, {bundle.STUDENTS: sized(2**63 - 1)}),
    "a negative size": lambda parts: written(parts, {bundle.STUDENTS: sized(-1)}),
    "a larger size": lambda parts: written(parts, {parts[2][0]: sized(10**6)}),
    "a smaller size": lambda parts: written(parts, {parts[2][0]: sized(10)}),
    "executable": lambda parts: written(parts, {parts[2][0]: lambda member: setattr(member, "mode", 0o4755)}),
    "another time": lambda parts: written(parts, {parts[2][0]: lambda member: setattr(member, "mtime", 5)}),
    "a wrong checksum": lambda parts: written(parts)[:148] + b"0000000\0" + written(parts)[156:],
    "a member twice": lambda parts: written([*parts[:3], parts[2], *parts[3:]]),
    "the manifest twice": lambda parts: written([parts[0], *parts]),
    "a member more": lambda parts: written([*parts, ("blobs/" + "0" * 64, b"x")]),
    "a member less": lambda parts: written(parts[:-1]),
    "another order": lambda parts: written([*parts[:-2], parts[-1], parts[-2]]),
    "the manifest last": lambda parts: written([*parts[1:], parts[0]]),
    "no manifest": lambda parts: written(parts[1:]),
    "cut off in a header": lambda parts: written(parts)[:700],
    "cut off in a blob": lambda parts: written(parts)[:-3000],
    "without its end": lambda parts: written(parts)[:-1024],
    "bytes after its end": lambda parts: written(parts) + b"x",
    "zeros without end": lambda parts: written(parts) + bytes(10**6),
    "bytes in the padding": lambda parts: written(parts)[:-1025] + b"x" + written(parts)[-1024:],
    "a changed byte": lambda parts: written(
        [*parts[:-1], (parts[-1][0], parts[-1][1][:-1] + bytes([parts[-1][1][-1] ^ 1]))]
    ),
    "a changed teacher": lambda parts: written(
        [*parts[:2], (parts[2][0], parts[2][1][:-1] + b"x"), *parts[3:]]
    ),
    "no JSON": lambda parts: written([(bundle.MANIFEST, b"\x80\x04pickle."), *parts[1:]]),
    "deep JSON": lambda parts: written([(bundle.MANIFEST, b"[" * 10**6), *parts[1:]]),
    "blanks in JSON": lambda parts: written([(bundle.MANIFEST, parts[0][1] + b" "), *parts[1:]]),
    "a field twice": lambda parts: written(
        [(bundle.MANIFEST, parts[0][1].replace(b"{", b'{"version":9,', 1)), *parts[1:]]
    ),
    "an unknown field": lambda parts: written(with_manifest(parts, run="__import__('os')")),
    "another format": lambda parts: written(with_manifest(parts, format="triton.1")),
    "a huge version": lambda parts: written(with_manifest(parts, version=2**70)),
    "a model that is a path": lambda parts: written(with_manifest(parts, model="../../x")),
    "another method": lambda parts: written(with_manifest(parts, method="gsvm0")),
    "an unknown learner": lambda parts: written(
        with_manifest(parts, spec=lambda found: {**found["spec"], "student": {"method": "backdoor"}})
    ),
    "too many columns": lambda parts: written(with_manifest(parts, columns=7)),
    "other classes": lambda parts: written(with_manifest(parts, classes=["dog", "cat", "a", "b"])),
    "a class twice": lambda parts: written(with_manifest(parts, classes=["cat", "cat", "a", "b"])),
    "fewer classes": lambda parts: written(with_manifest(parts, class_count=3)),
    "a blob without a size": lambda parts: written(with_manifest(parts, files={})),
    "a blob more": lambda parts: written(
        with_manifest(parts, files=lambda found: {**found["files"], "0" * 64: 5})
    ),
    "an encoder that is a teacher": lambda parts: written(
        with_manifest(parts, encoder=lambda found: found["teacher"])
    ),
    "a student as teacher": lambda parts: written(
        [
            *with_manifest(
                parts,
                teacher=parts[-1][0][6:],
                files={parts[-1][0][6:]: len(parts[-1][1])},
            )[:2],
            parts[-1],
            *parts[3:],
        ]
    ),
    "metrics of other types": lambda parts: written(with_manifest(parts, metrics={"means": "high"})),
    "a NUL": lambda parts: written(with_manifest(parts, metrics={"note": "a\0b"})),
    "lines out of order": lambda parts: written(with_lines(parts, list.reverse)),
    "a line twice": lambda parts: written(with_lines(parts, lambda lines: lines.insert(0, lines[0]))),
    "a line of another class": lambda parts: written(
        with_lines(parts, lambda lines: lines[0].update(label="dog"))
    ),
    "a NUL in a line": lambda parts: written(with_lines(parts, lambda lines: lines[0].update(status="a\0b"))),
    "another threshold": lambda parts: written(
        with_lines(parts, lambda lines: lines[0].update(threshold=-1e9))
    ),
    "a class beyond the last": lambda parts: written(
        with_lines(parts, lambda lines: lines[-1].update(class_index=99))
    ),
    "a huge line": lambda parts: written(
        with_lines(parts, lambda lines: lines[0]["metrics"].update(note="x" * 300_000))
    ),
    "metrics of a student": lambda parts: written(
        with_lines(parts, lambda lines: lines[0]["metrics"].update(f1="<script>"))
    ),
    "a student of another class": lambda parts: written(
        other_student(parts, lambda student: {"label": "dog"})
    ),
    "a student with another threshold": lambda parts: written(
        other_student(parts, lambda student: {"threshold": 5.0})
    ),
    "a student of much work": lambda parts: written(other_student(parts, of_many_trees)),
}


@pytest.fixture(scope="module")
def good(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, bytes]]:
    path = tmp_path_factory.mktemp("good") / "good.sqlite"
    path.write_bytes(_sqlite_template.read_bytes())
    store = Store(open_engine(f"sqlite:///{path}"))
    yield store, exported(store, publish_pets(store))
    store.dispose()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_bundle_is_refused_and_stores_nothing(good: tuple[Store, bytes], into: Any, kind: str):
    store, data = good
    parts = parts_of(data)
    assert written(parts) == data, "the tests write what the program writes"
    sent = HOSTILE[kind](parts)
    assert sent != data
    before = stored_blobs(store)
    with pytest.raises(InvalidRequest) as refused:
        into(store, sent, alias=None)
    assert refused.value.reason == "invalid_bundle" or kind == "a model that is a path"
    assert refused.value.faults
    assert stored_blobs(store) == before
    with store.read() as uow:
        assert uow.connection.execute(sa.select(sa.func.count()).select_from(model_versions)).scalar() == 1
        assert uow.connection.execute(sa.select(sa.func.count()).select_from(jobs)).scalar() == 1


def test_a_newer_format_is_told_from_a_wrong_one(good: tuple[Store, bytes], into: Any):
    store, data = good
    newer = written(with_manifest(parts_of(data), format="stms.bundle.3", later="field"))
    with refused_as(Unprocessable, "newer_format"):
        into(store, newer)


def test_limits_hold(good: tuple[Store, bytes], into: Any):
    store, data = good
    for limits in (Settings(max_classes=3), Settings(max_columns=2)):
        with pytest.raises(TooLarge):
            into(store, data, limits=limits)
    padded = with_manifest(parts_of(data), metrics={"note": "x" * bundle.MAX_MANIFEST_BYTES})
    with refused_as(TooLarge, "bundle_too_large"):
        into(store, written(padded))


def test_random_changes_never_pass(good: tuple[Store, bytes], into: Any):
    """Every bit behind the manifest is covered by it: that of the manifest itself is what is signed."""
    store, data = good
    random = np.random.default_rng(0)
    behind = bundle.member_bytes(len(parts_of(data)[0][1]))
    for place in random.choice(range(behind, len(data)), 300, replace=False).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << int(random.integers(8))
        with pytest.raises(ServiceError):
            into(store, bytes(changed), model="changed", alias=None)


def test_a_manifest_names_neither_machines_nor_keys(good: tuple[Store, bytes]):
    _, data = good
    manifest = msgspec.json.decode(parts_of(data)[0][1], type=Manifest)
    assert set(manifest.provenance) <= {"seed", "versions", "features", "warnings"}
    assert "evaluation" not in (manifest.spec or {})
