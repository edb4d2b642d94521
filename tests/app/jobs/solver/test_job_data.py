"""The rows of a job whose columns are records: kinds that are said, encoders that are fitted and taken up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.training_spec import TrainingSpec
from app.jobs.solver.job_data import JobData, load_job_data
from app.jobs.solver.session import TrainingSession
from app.services.datasets import register_dataset
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.data.repeated_rows import shared_rows
from core.errors import InvalidProblem
from core.packed.encoder import Encoder
from core.run import Run
from tests.refusals import at_fault


def stored(store: Store, files: BlobCache, content: bytes) -> str:
    with files.writing("upload.tmp") as file:
        file.write(content)
        dataset, _ = register_dataset(
            store, files, file, created_by="key_1", limits=Settings(), name="colours", filename="a.csv"
        )
    return dataset.id


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**30, b"k" * 32)


@pytest.fixture
def colours(sqlite_store: Store, files: BlobCache) -> str:
    """Rows whose class depends on a number that is a name."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{k % 5},{'yes' if k % 5 in (1, 3) else 'no'}" for k in range(200)]
    return stored(sqlite_store, files, "\n".join(["size,colour,label", *rows]).encode())


def spec(**inputs: object) -> TrainingSpec:
    return TrainingSpec.model_validate({"inputs": inputs, "evaluation": {"test_fraction": 0.2}})


def test_a_kind_that_is_said_makes_records_of_numbers(sqlite_store: Store, files: BlobCache, colours: str):
    said = spec(columns={"colour": {"kind": "category", "unseen": "refuse"}}, extra="ignore")
    rows = load_job_data(sqlite_store, files, colours, said)
    assert rows.encoder is not None
    size, colour = rows.encoder.columns
    assert (size.kind, colour.kind, colour.width) == ("number", "category", 5)
    assert rows.encoder.takes_others
    with pytest.raises(InvalidProblem):
        colour.checked("7")
    assert (rows.train.n, rows.train.d) == (160, 6)
    assert rows.test is not None
    assert rows.test.layout == rows.train.layout == rows.encoder.layout
    plain = load_job_data(sqlite_store, files, colours, spec())
    assert plain.encoder is None
    assert plain.train.layout is None


@pytest.mark.long
def test_the_encoder_that_a_job_has_stored_is_taken_up(sqlite_store: Store, files: BlobCache, colours: str):
    said = spec(columns={"colour": {"kind": "category"}})
    first = load_job_data(sqlite_store, files, colours, said)
    assert first.encoder is not None
    stored_one = Encoder.from_bytes(first.encoder.to_bytes())
    again = load_job_data(sqlite_store, files, colours, said, encoder=stored_one)
    assert again.encoder is stored_one
    np.testing.assert_array_equal(again.train.X, first.train.X)
    session = TrainingSession.prepared(first, said, Run(0))
    restored = TrainingSession.restored(session.preparation.to_bytes(), again, said, lambda _: None)
    assert restored.preparation.to_bytes() == session.preparation.to_bytes()
    key = (1, said.served_method)
    artifact = session.student(*key, session.context([key], 1, lambda _: None), lambda _: None)
    assert artifact.row["metrics"]["f1"] == 1.0


def test_a_cell_that_is_nothing_of_a_kept_kind_is_named_with_the_way_out(
    sqlite_store: Store, files: BlobCache
):
    lines = [f"{'n.a.' if k == 3 else 'none at all' if k == 7 else k / 4},{'ab'[k % 2]}" for k in range(20)]
    stored_one = stored(sqlite_store, files, "\n".join(["size,label", *lines]).encode() + b"\nx,a\ny,b\n")
    kept = {"columns": {"size": {"kind": "number", "nulls": ["none at all", "y"]}}}
    spec_of = {"inputs": kept, "like": "m@1", "automatic": False}
    match = r"Row 20 .*column 'size': 'x' is not a number. Columns are read as m@1 reads them: .*--like none"
    with at_fault(InvalidProblem, "not_numeric", match=match):
        load_job_data(sqlite_store, files, stored_one, TrainingSpec.model_validate(spec_of))
    kept["columns"]["size"]["nulls"] = ["none at all", "x", "y"]
    rows = load_job_data(sqlite_store, files, stored_one, TrainingSpec.model_validate(spec_of))
    assert rows.encoder is not None
    assert {*rows.encoder.columns[0].nulls} == {"n.a.", "none at all", "x", "y"}


def test_a_test_set_of_records_is_matched_by_name(sqlite_store: Store, files: BlobCache, colours: str):
    turned = stored(sqlite_store, files, b"colour,size,label\n1,0.5,yes\n2,0.1,no\n3,0.2,yes\n0,0,no\n")
    said = TrainingSpec.model_validate(
        {"inputs": {"columns": {"colour": {"kind": "category"}}}, "evaluation": {"dataset_id": turned}}
    )
    rows = load_job_data(sqlite_store, files, colours, said)
    assert rows.test is not None
    assert rows.test.classes == ("no", "yes")
    assert rows.test.X[:, 0].tolist() == [0.5, 0.1, 0.2, 0.0]
    assert rows.test.X[0].tolist() == [0.5, 0, 1, 0, 0, 0]


def test_rows_without_names_have_no_kinds(sqlite_store: Store, files: BlobCache):
    bare = stored(sqlite_store, files, b"1,2,a\n2,3,b\n3,5,a\n4,4,b\n")
    with at_fault(InvalidProblem, "no_names", match="have no names"):
        load_job_data(sqlite_store, files, bare, spec(columns={"x": {"kind": "category"}}))


def test_a_part_too_small_for_every_class_is_refused(sqlite_store: Store, files: BlobCache, colours: str):
    small = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.001}})
    with at_fault(InvalidProblem, "cannot_split", match="cannot be split"):
        load_job_data(sqlite_store, files, colours, small)


def test_a_test_part_is_held_out_where_none_is_given(sqlite_store: Store, files: BlobCache, colours: str):
    def parts(**evaluation: object) -> JobData:
        said = TrainingSpec.model_validate({"evaluation": evaluation})
        return load_job_data(sqlite_store, files, colours, said)

    held_out = parts()
    assert held_out.test is not None
    assert held_out.test_part is not None
    assert held_out.test_part[:3] == ("held_out", 40, 200)
    assert (held_out.train.n, held_out.test.class_counts.tolist()) == (160, [24, 16])
    again, other, given = parts(), parts(test_fraction=0.3), parts(test_fraction=None)
    assert again.test_part == held_out.test_part
    assert other.test_part is not None
    assert other.test_part.digest != held_out.test_part.digest
    assert (given.test, given.test_part, given.train.n) == (None, None, 200)
    small = stored(
        sqlite_store, files, b"size,label\n" + b"".join(b"%d,%d\n" % (k, k % 2) for k in range(99))
    )
    assert load_job_data(sqlite_store, files, small, TrainingSpec()).test is None


def test_equal_rows_are_held_out_together(sqlite_store: Store, files: BlobCache):
    rng = np.random.default_rng(0)
    for kind in ("number", "name"):
        first = [
            f"{rng.normal():.6f}" if kind == "number" else f"name {rng.normal():.6f}" for _ in range(100)
        ]
        rows = [f"{value},{'yes' if k % 3 else 'no'}" for k, value in enumerate(first)]
        twice = stored(sqlite_store, files, "\n".join(["value,label", *rows, *rows]).encode())
        said = {"inputs": {"columns": {"value": {"kind": "category"}}}} if kind == "name" else {}
        found = load_job_data(sqlite_store, files, twice, TrainingSpec.model_validate(said))
        assert found.test is not None
        assert found.test.n == 40
        assert not shared_rows(found.train.X, found.test.X).rows


def test_what_is_said_of_columns_is_checked():
    for wrong in (
        {"columns": {"a": {"kind": "colour"}}},
        {"columns": {"a": {"kind": "number:%d"}}},
        {"columns": {"a": {"terms": []}}},
        {"columns": {"a": {"width": 3}}},
        {"extra": "yes"},
    ):
        with pytest.raises(ValueError, match="validation error"):
            TrainingSpec.model_validate({"inputs": wrong})


def spec_of(dataset_id: str) -> TrainingSpec:
    return TrainingSpec.model_validate({"evaluation": {"dataset_id": dataset_id}})


def test_numbers_to_test_on_are_put_into_the_order_of_training(
    sqlite_store: Store, files: BlobCache, colours: str
):
    turned = stored(sqlite_store, files, b"label,colour,size\nyes,1,0.5\nno,2,0.25\nyes,3,2\nno,0,1.5\n")
    rows = load_job_data(sqlite_store, files, colours, spec_of(turned))
    assert rows.test is not None
    assert rows.test.X.tolist() == [[0.5, 1], [0.25, 2], [2, 3], [1.5, 0]]
    bare = stored(sqlite_store, files, b"0.5,1,yes\n0.25,2,no\n2,3,yes\n1.5,0,no\n")
    without_names = load_job_data(sqlite_store, files, colours, spec_of(bare))
    assert without_names.test is not None
    assert without_names.test.X.tolist() == rows.test.X.tolist()
    other = stored(sqlite_store, files, b"size,weight,label\n1,0.5,yes\n2,0.25,no\n3,2,yes\n0,1.5,no\n")
    with pytest.raises(InvalidProblem, match="no column 'colour'"):
        load_job_data(sqlite_store, files, colours, spec_of(other))


@pytest.mark.parametrize("inputs", [{}, {"columns": {"colour": {"kind": "category"}}}])
def test_rows_of_classes_that_training_does_not_have_are_refused_or_counted(
    sqlite_store: Store, files: BlobCache, colours: str, inputs: dict[str, object]
):
    content = b"size,colour,label\n0.5,1,yes\n0.1,2,no\n0.2,3,yes\n0,0,no\n1,1,maybe\n1,2,maybe\n"
    other = stored(sqlite_store, files, content)
    said: dict[str, Any] = {"inputs": inputs, "evaluation": {"dataset_id": other}}
    with pytest.raises(InvalidProblem, match="'maybe'"):
        load_job_data(sqlite_store, files, colours, TrainingSpec.model_validate(said))
    said["evaluation"]["unknown_classes"] = "drop"
    rows = load_job_data(sqlite_store, files, colours, TrainingSpec.model_validate(said))
    assert rows.test is not None
    assert (rows.test.n, rows.left_out, rows.test.classes) == (4, 2, ("no", "yes"))
    assert load_job_data(sqlite_store, files, colours, spec()).left_out == 0


@pytest.mark.parametrize("inputs", [{}, {"columns": {"colour": {"kind": "category"}}}])
def test_classes_that_the_test_data_writes_in_another_way_are_those_of_training(
    sqlite_store: Store, files: BlobCache, colours: str, inputs: dict[str, object]
):
    other = stored(
        sqlite_store,
        files,
        b"size,colour,label\n0.5,1,yes.\n0.1,2,no.\n0.2,3,yes.\n0,0,no\n1,1,no\n2,3,no.\n",
    )
    evaluation = {"dataset_id": other, "class_names": {"yes.": "yes", "no.": "no"}}
    said = TrainingSpec.model_validate({"inputs": inputs, "evaluation": evaluation})
    rows = load_job_data(sqlite_store, files, colours, said)
    assert rows.test is not None
    assert [rows.test.classes[code] for code in rows.test.y] == ["yes", "no", "yes", "no", "no", "no"]
    assert rows.left_out == 0


@pytest.mark.parametrize("named", [False, True])
def test_test_rows_that_training_has_are_counted_however_they_were_given(
    sqlite_store: Store, files: BlobCache, named: bool
):
    rng = np.random.default_rng(0)
    colour = ["red", "blue"] if named else [4, 9]
    rows = [f"{rng.normal():.6f},{colour[k % 2]},{'yes' if k % 3 else 'no'}" for k in range(90)]
    head = "size,colour,label"

    def shared(train: list[str], test: list[str] | None) -> int:
        first = stored(sqlite_store, files, "\n".join([head, *train]).encode())
        if test is None:
            return load_job_data(sqlite_store, files, first, spec()).test_rows_in_training
        second = stored(sqlite_store, files, "\n".join([head, *test]).encode())
        return load_job_data(sqlite_store, files, first, spec_of(second)).test_rows_in_training

    assert shared(rows[:60], rows[60:]) == 0
    assert shared(rows[:60], rows[56:]) == 4
    assert shared(rows, None) == 0
    assert shared([*rows, *rows], None) > 20, "of rows that are held out, most have a copy left"
