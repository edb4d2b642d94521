"""Bundles that are evaluated without a service: the answers of the students that were exported."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from app.domain import bundle as documents
from app.domain.entities import ModelVersion
from app.services.bundle_export import open_bundle as export
from app.services.head_import import import_head
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.packed.record_rows import RecordRows
from stms_client.bundle import copy_bundle, open_bundle
from stms_client.errors import InvalidInput, StmsError
from tests.app.serving.written_records import RECORD, encoder
from tests.reference.packed_students import CASES, some_rows
from tests.system.published import linear_student, linear_teacher, publish

ROWS = np.random.default_rng(0).normal(size=(200, 3))
LABELS = ("cat", "dog", "größe/1:x")
WEIGHTS = np.random.default_rng(1).normal(size=(3, 3))


def write(store: Store, version: ModelVersion, folder: Path) -> Path:
    path = folder / "model.tar"
    with export(store, version) as file:
        path.write_bytes(b"".join(file.pieces(store)))
    return path


def pets(store: Store) -> ModelVersion:
    students = {label: linear_student(label, row) for label, row in zip(LABELS, WEIGHTS, strict=True)}
    inputs = {"columns": list("abc"), "index_base": 1}
    return publish(store, "pets", students, linear_teacher(LABELS, WEIGHTS), inputs=inputs)


@pytest.mark.parametrize("is_unpacked", [False, True])
def test_its_students_answer_as_those_that_were_exported(sqlite_store: Store, tmp_path: Path, is_unpacked):
    path = write(sqlite_store, pets(sqlite_store), tmp_path)
    if is_unpacked:
        with tarfile.open(path) as tar:
            tar.extractall(tmp_path / "folder", filter="data")
        path = tmp_path / "folder"
    opened = open_bundle(path)
    assert (opened.model, opened.version, opened.labels) == ("pets", 1, LABELS)
    assert (opened.columns, opened.width, opened.takes_records) == (["a", "b", "c"], 3, False)
    for label, weights in zip(LABELS, WEIGHTS, strict=True):
        student = linear_student(label, weights)
        np.testing.assert_array_equal(opened.query_rows(label, ROWS).scores, student.scores(ROWS))
        for row in ROWS[:20]:
            assert opened.query(label, row.tolist()).score == student.score(row)
            assert opened.is_class(label, row.tolist()) is (student.score(row) >= 0.0)
    sparse = {"indices": [1, 3], "values": [2.0, -1.0], "index_base": 1}
    assert opened.query("cat", sparse).score == linear_student("cat", WEIGHTS[0]).score([2.0, 0.0, -1.0])
    assert open_bundle(path, ["dog"]).labels == ("dog",)
    with pytest.raises(InvalidInput, match="no student of class 'bird'"):
        open_bundle(path, ["dog", "bird"])


@pytest.mark.parametrize("is_unpacked", [False, True])
def test_students_that_share_a_map_find_it(sqlite_store: Store, tmp_path: Path, is_unpacked):
    first = dataclasses.replace(CASES["rbf-linear-none"], label="a", shares_map=True)
    students = {"a": first, "b": dataclasses.replace(first, label="b", threshold=1.0)}
    teacher = linear_teacher("ab", np.zeros((2, first.map.n_columns)))
    path = write(sqlite_store, publish(sqlite_store, "kernel", students, teacher), tmp_path)
    if is_unpacked:
        copy_bundle(path, tmp_path / "folder")
        path = tmp_path / "folder"
    opened = open_bundle(path)
    for label, student in students.items():
        rows = some_rows(student, 50)
        np.testing.assert_array_equal(opened.query_rows(label, rows).scores, student.scores(rows))
    assert open_bundle(path, ["b"]).query("b", rows[0]).threshold == 1.0


def test_records_are_asked_about(sqlite_store: Store, tmp_path: Path):
    known = encoder()
    rows = np.random.default_rng(0).normal(size=(2, known.layout.columns))
    people = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    version = publish(sqlite_store, "people", people, linear_teacher("ab", rows), encoder=known)
    opened = open_bundle(write(sqlite_store, version, tmp_path))
    assert opened.takes_records
    assert RecordRows(known).columns
    first = opened.query("a", RECORD)
    assert first.score == opened.query_rows("a", [RECORD]).scores[0]
    assert first.score != opened.query("b", RECORD).score


def test_an_imported_head_has_all_its_classes(sqlite_store: Store, tmp_path: Path):
    path = tmp_path / "head.npz"
    np.savez(path, weights=WEIGHTS, bias=np.arange(3.0), labels=np.array(LABELS))
    files = BlobCache(tmp_path / "cache", 2**30)
    version = import_head(sqlite_store, files, path, model="faces", limits=Settings()).version
    opened = open_bundle(write(sqlite_store, version, tmp_path))
    assert opened.labels == LABELS
    for number, label in enumerate(LABELS):
        wanted = ROWS @ WEIGHTS[number] + number
        np.testing.assert_allclose(opened.query_rows(label, ROWS).scores, wanted, rtol=0, atol=1e-12)


def test_what_is_damaged_is_refused(sqlite_store: Store, tmp_path: Path):
    whole = write(sqlite_store, pets(sqlite_store), tmp_path)
    with tarfile.open(whole) as tar:
        tar.extractall(tmp_path / "folder", filter="data")
    for name in sorted(path.relative_to(tmp_path / "folder") for path in (tmp_path / "folder").rglob("*")):
        changed = tmp_path / "changed"
        shutil.copytree(tmp_path / "folder", changed)
        file = changed / name
        if file.is_dir():
            shutil.rmtree(changed)
            continue
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        is_read = "teacher" not in str(name) and file.stem not in _unread(tmp_path / "folder")
        if is_read and file.name != "manifest.json":
            with pytest.raises(StmsError, match="does not have its digest"):
                open_bundle(changed)
        file.unlink()
        if is_read:
            with pytest.raises((StmsError, OSError)):
                open_bundle(changed)
        shutil.rmtree(changed)
    cut = tmp_path / "cut.tar"
    for size in (0, 100, 512, 2000, whole.stat().st_size // 2):
        cut.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(StmsError):
            open_bundle(cut)
    later = tmp_path / "later"
    later.mkdir()
    (later / documents.MANIFEST).write_text(json.dumps({"format": "stms.bundle.3"}))
    with pytest.raises(StmsError, match="is not a bundle of the format"):
        open_bundle(later)


def _unread(folder: Path) -> set[str]:
    """Blobs that no question needs."""
    manifest = json.loads((folder / documents.MANIFEST).read_bytes())
    assert hashlib.sha256((folder / documents.BLOBS / manifest["teacher"]).read_bytes()).hexdigest()
    return {str(manifest[name]) for name in ("teacher", "profile", "class_table")}


@pytest.mark.parametrize("is_unpacked", [False, True])
def test_a_copy_has_what_the_bundle_names_and_nothing_else(sqlite_store: Store, tmp_path: Path, is_unpacked):
    path = write(sqlite_store, pets(sqlite_store), tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("of this machine")
    with tarfile.open(path) as tar:
        names = set(tar.getnames())
        tar.extractall(tmp_path / "folder", filter="data")
    if is_unpacked:
        path = tmp_path / "folder"
        (path / "more").symlink_to(secret)
    else:
        with tarfile.open(path, "a") as tar:
            tar.add(secret, "more")
    copy_bundle(path, tmp_path / "copy")
    copied = {str(one.relative_to(tmp_path / "copy")) for one in (tmp_path / "copy").rglob("*")} - {"blobs"}
    assert copied == names
    assert open_bundle(tmp_path / "copy").labels == LABELS
    with pytest.raises(FileExistsError):
        copy_bundle(path, tmp_path / "copy")
    assert open_bundle(tmp_path / "copy").labels == LABELS


def test_a_damaged_bundle_leaves_no_copy(sqlite_store: Store, tmp_path: Path):
    path = write(sqlite_store, pets(sqlite_store), tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StmsError):
        copy_bundle(path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_sparse_member_is_not_unpacked(sqlite_store: Store, tmp_path: Path):
    """A file of some kB whose list of students has a terabyte of zeros."""
    path = write(sqlite_store, pets(sqlite_store), tmp_path)
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as tar:
        sparse = tarfile.TarInfo("students.jsonl")
        sparse.size = 1
        sparse.pax_headers = {"GNU.sparse.size": str(2**40), "GNU.sparse.map": "0,1"}
        tar.addfile(sparse, io.BytesIO(b"x"))
    with pytest.raises(StmsError, match=r"not a whole bundle: 'students\.jsonl'"):
        open_bundle(path)


@pytest.mark.parametrize("is_digest", [False, True])
def test_a_blob_that_is_a_device_is_not_read(sqlite_store: Store, tmp_path: Path, is_digest: bool):
    folder = tmp_path / "folder"
    with tarfile.open(write(sqlite_store, pets(sqlite_store), tmp_path)) as tar:
        tar.extractall(folder, filter="data")
    lines = (folder / "students.jsonl").read_bytes()
    digest = json.loads(lines.splitlines()[0])["digest"]
    if is_digest:
        (folder / "blobs" / digest).unlink()
        (folder / "blobs" / digest).symlink_to("/dev/zero")
    else:
        lines = lines.replace(digest.encode(), b"../" * 20 + b"dev/zero")
        (folder / "students.jsonl").write_bytes(lines)
        manifest = json.loads((folder / "manifest.json").read_bytes())
        manifest["students"]["digest"] = hashlib.sha256(lines).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StmsError, match="is not a whole bundle" if is_digest else "not the digest of a blob"):
        open_bundle(folder)
