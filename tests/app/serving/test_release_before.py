"""A data set and a version that the release before stored: the same bytes, and the same answers.

``release_before.json`` was written by that release: a stored data set of numbers, a packed student of it,
what its version says of its columns, and the answers of the server to some queries.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.ingest import dataset_format
from app.serving.columns.of_version import columns_of as columns_of_version
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.servable import ServableStudent, make_servable
from app.serving.work import RequestLimits
from core.packed import PackedStudent
from tests.app.serving.written_records import VERSION

STORED: dict[str, Any] = json.loads((Path(__file__).with_name("release_before.json")).read_text())


@pytest.fixture(scope="module")
def student() -> ServableStudent:
    packed = PackedStudent.from_bytes(base64.b64decode(STORED["student"]))
    version = replace(VERSION, model="old", version=1, columns=2, metrics={"inputs": STORED["inputs"]})
    return make_servable(packed, version, columns_of_version(version))


def test_a_stored_data_set_is_read_and_written_with_the_same_bytes():
    stored = base64.b64decode(STORED["dataset"])
    train, test = dataset_format.decode(bytearray(stored))
    assert (train.n, train.d, train.classes, test) == (24, 2, ("a", "b", "c"), None)
    assert b"".join(map(bytes, dataset_format.encode(train, test))) == stored


def test_a_stored_student_is_read_and_written_with_the_same_bytes():
    stored = base64.b64decode(STORED["student"])
    assert PackedStudent.from_bytes(stored).to_bytes() == stored


@pytest.mark.parametrize(("body", "answer"), STORED["answers"])
def test_a_stored_version_answers_the_same_bytes(student: ServableStudent, body: str, answer: str):
    """But for the last bits of numbers, in which processors differ."""
    limits = RequestLimits(max_bytes=10**6, max_rows=1000)
    found = answer_class(student, body.encode(), DEFAULT_FORMAT, limits)[0].decode()
    texts, numbers = _taken_apart(found)
    stored_texts, stored_numbers = _taken_apart(answer)
    assert texts == stored_texts
    assert numbers == pytest.approx(stored_numbers, rel=1e-13, abs=0.0)


def _taken_apart(answer: str) -> tuple[list[str], list[float]]:
    """The text around the decimal numbers of an answer, and the numbers."""
    parts = re.split(r"(-?\d+\.\d+(?:e[-+]?\d+)?)", answer)
    return parts[::2], [float(number) for number in parts[1::2]]
