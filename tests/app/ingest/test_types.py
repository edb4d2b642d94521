"""Readers, estimators and clients do what the table of types and ways says: kinds, values and words."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.errors import InvalidRequest
from app.serving.columns.faults import RecordReader
from core.data.cell_values import category_key
from core.data.column_kinds import infer_schema
from core.data.frames import table_of_frame, without_tokens
from core.encoding.fit import fit_encoder
from core.encoding.labelled_table import LabelledTable
from core.errors import InvalidProblem
from core.estimators import StructuralSVMClassifier
from core.packed.record_rows import RecordRows
from stms_client import InvalidInput, calls
from stms_client.arrays import archive
from stms_client.tables import columns_of
from tests.system.environments import Offline, environment
from tests.types_table import FILES, LABEL_TYPES, LABEL_WAYS, NO, TYPES, LabelType, Type, numbers, page
from tests.types_ways import (
    BESIDE,
    LABELS,
    Outcome,
    asked_frame,
    file_of,
    frame_of,
    labelled_file,
    of_frame,
    taken,
)

ROOT = Path(__file__).parents[3]
FRAMES = ("pyarrow", "mapping", "numpy")
"""Libraries of data frames are in an environment of their own."""


def cases(ways: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(one, way, id=f"{one.name}-{way}") for one in TYPES for way in ways if one.cell(way) != NO
    ]


def of_file(ingest: Any, content: bytes, declared: str) -> Outcome:
    """What the service makes of the column "v" of a file."""
    try:
        train, _, summary = ingest(content, declared=declared, label_column="label")
    except InvalidRequest as error:
        fault = error.faults[0] if error.faults else None
        return Outcome(fault.code if fault else error.code, message=fault.message if fault else error.message)
    assert isinstance(train, LabelledTable)
    kinds = {column["name"]: column["kind"] for column in summary["schema"]}
    return taken(train.table.column("v"), kinds["v"])


def check(found: Outcome, one: Type, way: str) -> None:
    assert found.cell == one.cell(way), found.message
    if found.values is not None:
        assert found.values == one.expected()
    elif found.message:
        assert one.words in found.message


def check_refused(message: str, one: Type, way: str) -> None:
    """A refusal by the client, or one of the format in which it sends a frame."""
    assert not is_kind(one.cell(way)), message
    assert one.words in message


def check_upload(ingest: Any, content: bytes, declared: str, one: Type, way: str) -> None:
    found = of_file(ingest, content, declared)
    if is_kind(found.cell) or is_kind(one.cell(way)):
        check(found, one, way)
    else:
        check_refused(found.message, one, way)


def check_query(columns: Mapping[str, Any], frame: Any, one: Type, way: str) -> None:
    """The cells of a query are those of the table of a frame, or refused by a model of numbers."""
    is_usual = is_kind(one.cell(way))
    table = without_tokens(table_of_frame(frame if is_usual else {"v": numbers(), "t": BESIDE}))
    encoder = fit_encoder(table, infer_schema(table))
    rows = RecordRows(encoder)
    records = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    read = [RecordReader(rows).read_cells(record, "columns", k) for k, record in enumerate(records)]
    faults = [fault for _, found in read for fault in found]
    if one.asked:
        assert {fault.code for fault in faults} == {one.asked}
    elif is_usual:
        assert not faults
        np.testing.assert_array_equal(
            [rows.encode(values).dense for values, _ in read], encoder.encode(table).dense
        )
    else:
        assert faults


@pytest.mark.parametrize(("one", "way"), cases(FILES))
def test_a_file_is_read_as_the_table_says(ingest: Any, one: Type, way: str):
    check(of_file(ingest, file_of(one, way), way), one, way)


@pytest.mark.parametrize(("one", "way"), cases(FRAMES))
def test_an_estimator_takes_what_the_table_says(one: Type, way: str):
    frame = asked_frame(one, way)
    check(of_frame(frame), one, way)
    estimator = StructuralSVMClassifier(C=1.0)
    if is_kind(one.cell(way)):
        assert estimator.fit(frame, LABELS).predict(frame).shape == (len(LABELS),)
    else:
        with pytest.raises(InvalidProblem, match=one.words or None):
            estimator.fit(frame, LABELS)


@pytest.mark.parametrize(("one", "way"), cases(FRAMES))
def test_a_client_uploads_what_the_table_says(ingest: Any, one: Type, way: str):
    try:
        call = calls.upload_table(frame_of(one, way), "label", "types", {})
    except InvalidInput as error:
        refusal = str(error)
    else:
        assert call.content is not None
        return check_upload(ingest, call.content, str(call.params["format"]), one, way)
    return check_refused(refusal, one, way)


@pytest.mark.parametrize(("one", "way"), [case for case in cases(FRAMES) if case.values[0].kind != "ignore"])
def test_a_query_of_a_client_is_what_the_table_says(one: Type, way: str):
    frame = asked_frame(one, way)
    try:
        columns = columns_of(frame)
    except InvalidInput as error:
        refusal = str(error)
    else:
        return check_query(columns, frame, one, way)
    return check_refused(refusal, one, way)


@pytest.mark.long
def test_frames_of_pandas_and_polars_are_what_the_table_says(ingest: Any):
    """In an environment with these libraries."""
    try:
        home = environment(ROOT / "tests" / "clients" / "requirements" / "frames.txt")
    except Offline as error:
        pytest.skip(str(error))
    driver = ROOT / "tests" / "clients" / "drivers" / "types_of_frames.py"
    command = [home / "bin" / "python", "-I", driver, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    types = {one.name: one for one in TYPES}
    wrong = {}
    for found in json.loads(done.stdout):
        one, way = types[found["name"]], found["way"]
        for part, look in (
            ("estimator", lambda found, one, way: check(Outcome(*found["estimator"]), one, way)),
            ("upload", lambda found, one, way: _check_upload_of(ingest, found["upload"], one, way)),
            ("query", lambda found, one, way: _check_query_of(found["query"], one, way)),
        ):
            try:
                look(found, one, way)
            except AssertionError as error:
                wrong[one.name, way, part] = str(error)[:200]
    assert not wrong


def _check_upload_of(ingest: Any, upload: Mapping[str, str], one: Type, way: str) -> None:
    if "error" in upload:
        check_refused(upload["error"], one, way)
    else:
        check_upload(ingest, base64.b64decode(upload["content"]), upload["format"], one, way)


def _check_query_of(columns: Mapping[str, Any], one: Type, way: str) -> None:
    if "error" in columns:
        check_refused(columns["error"], one, way)
    elif one.kind != "ignore":
        # The environment has no encoder: the same values as a mapping stand for the frame.
        check_query(columns, columns, one, way)


def classes_of(ingest: Any, labels: list[Any], way: str) -> str:
    """The names of the classes of labels, or the code of the error."""
    X = np.arange(len(labels))[:, None] % 11.0
    try:
        if way == "estimator":
            classes = StructuralSVMClassifier(C=1.0).fit(X, labels).classes_.tolist()
            return ", ".join(category_key(one) for one in classes)
        file = archive(X, labels, None) if way == "rows" else labelled_file(labels, way)
        said = {"declared": "npz"} if way == "rows" else {"declared": way, "label_column": "label"}
        return ", ".join(ingest(file, **said)[0].classes)
    except (InvalidProblem, InvalidRequest) as error:
        return error.faults[0].code
    except ValueError as error:
        # The words of scikit-learn.
        return "continuous" if "continuous" in str(error) else str(error)


@pytest.mark.parametrize("way", LABEL_WAYS)
@pytest.mark.parametrize("one", LABEL_TYPES, ids=lambda one: one.name)
def test_labels_name_the_classes_that_the_table_says(ingest: Any, one: LabelType, way: str):
    assert classes_of(ingest, [*one.labels] * 20, way) == one.cell(way)


def test_the_documentation_shows_the_table():
    shown = (ROOT / "docs" / "types.md").read_text(encoding="utf-8")
    assert shown == page(), "python -m tests.types_table > docs/types.md"


ARRAYS = [one for one in TYPES if one.cell("array") != NO]


@pytest.mark.parametrize("one", ARRAYS, ids=lambda one: one.name)
def test_an_array_is_what_the_table_says(ingest: Any, one: Type):
    X = frame_of(one, "array")["v"][:, None]
    is_usual = is_kind(one.cell("array"))
    if is_usual:
        assert StructuralSVMClassifier(C=1.0).fit(X, LABELS).n_features_in_ == 1
        train, _, _ = ingest(archive(X, LABELS, None), declared="npz")
        assert train.X[:, 0].tolist() == one.expected()
        return
    with pytest.raises(InvalidProblem, match=one.words or None) as caught:
        StructuralSVMClassifier(C=1.0).fit(X, LABELS)
    assert caught.value.faults[0].code == one.cell("array")
    with pytest.raises((InvalidInput, InvalidRequest), match=one.words or None):
        ingest(archive(X, LABELS, None), declared="npz")
    if not isinstance(X, np.ma.MaskedArray):
        file = io.BytesIO()
        np.savez(file, X=X, y=np.array(LABELS))
        with pytest.raises(InvalidRequest):
            ingest(file.getvalue(), declared="npz")


def is_kind(cell: str) -> bool:
    """Whether a cell of the table is a kind, not the code of an error."""
    return cell in ("number", "boolean", "category", "date", "text", "vector", "ignore")
