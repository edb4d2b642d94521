"""Decoding of query bodies, compared with the json module and NumPy."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.entities import ModelVersion
from app.domain.errors import InvalidRequest, ServiceError, TooLarge
from app.serving.columns.base import Columns, Rows
from app.serving.columns.of_version import columns_of as columns_of_version
from app.serving.query.bodies import QueryBody, decode
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.servable import ServableStudent, make_servable
from app.serving.work import RequestLimits
from tests.refusals import refused_as
from tests.system.published import linear_student

VERSION = ModelVersion("pets", 3, "job", "", "svm", ("a",), 3, "", {}, 0.0)
DECODER = msgspec.json.Decoder(QueryBody)
SERVED = make_servable(linear_student("a", [1.0, -2.0, 0.5], 0.25, threshold=0.1), VERSION)
THREE = columns_of_version(VERSION)
WIDE = replace(VERSION, columns=1 << 20)
LIMITS = RequestLimits(max_bytes=1 << 20, max_rows=10)
NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6))


def rows_of(body: dict[str, object], columns: Columns = THREE) -> Rows:
    return decode(DECODER, json.dumps(body).encode(), 100)[0].of(columns, 100)


def answer(served: ServableStudent, data: bytes) -> tuple[bytes, int]:
    return answer_class(served, data, DEFAULT_FORMAT, LIMITS)[:2]


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_rows_are_decoded_as_by_the_json_module(rows: list[list[float]]):
    tables = [table for _, table in rows_of({"rows": rows}).blocks()]
    np.testing.assert_array_equal(np.vstack(tables), np.array(rows, dtype=float))


def test_rows_are_decoded_in_blocks_of_bounded_size():
    rows = [{"indices": [i], "values": [i + 1]} for i in range(5)]
    wide, sizes = rows_of({"rows": rows}, columns_of_version(WIDE)), []
    for numbers, table in wide.blocks():
        sizes.append(len(table))
        for i, row in zip(numbers, table, strict=True):
            assert (row[i], row.sum()) == (i + 1, i + 1)
    assert sizes == [2, 2, 1]
    assert [len(table) for _, table in wide.blocks(1 << 22)] == [1] * 5


def test_rows_of_several_blocks_are_answered_as_one():
    columns = 1 << 20
    coef = np.zeros(columns)
    coef[:5] = [1.0, -2.0, 3.0, -4.0, 5.0]
    rows = [{"indices": [i, columns - 1], "values": [2, 1]} for i in range(5)]
    wide = make_servable(linear_student("a", coef), WIDE)
    for explain in (False, True):
        body, n = answer(wide, json.dumps({"rows": rows, "explain": explain}).encode())
        found = json.loads(body)["results"]
        assert n == 5
        assert [result["score"] for result in found] == [2.0, -4.0, 6.0, -8.0, 10.0]
        assert [result.get("gate") for result in found] == [0.0 if explain else None] * 5
    del rows[3]["values"][0]
    with pytest.raises(InvalidRequest) as caught:
        answer(wide, json.dumps({"rows": rows}).encode())
    assert caught.value.faults[0].row == 3


def test_the_row_of_a_fault_is_counted_over_all_blocks():
    rows = [{"indices": [0], "values": [1]}] * 4 + [{"indices": [-1], "values": [1]}]
    with pytest.raises(InvalidRequest) as caught:
        list(rows_of({"rows": rows}, columns_of_version(WIDE)).blocks())
    assert caught.value.faults[0].row == 4


def test_entries_of_the_same_column_are_summed():
    sparse = {"indices": [0, 2, 0], "values": [1, 4, 2]}
    one = json.loads(answer(SERVED, json.dumps({"x": sparse}).encode())[0])
    many = json.loads(answer(SERVED, json.dumps({"rows": [sparse]}).encode())[0])
    [(_, table)] = rows_of({"x": sparse}).blocks()
    np.testing.assert_array_equal(table, [[3, 0, 4]])
    assert one["score"] == many["results"][0]["score"] == 3 + 2 + 0.25


@given(st.lists(NUMBERS, min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_an_answer_is_json_that_reads_back_as_the_same_number(x: list[float]):
    body, rows = answer(SERVED, json.dumps({"x": x}).encode())
    found = json.loads(body)
    assert rows == 1
    assert found["score"] == SERVED.student.score(x)
    assert found["match"] == (found["score"] >= 0.1)
    assert (found["threshold"], found["model"], found["version"]) == (0.1, "pets", 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["x", "rows", "indices", "values", "z"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
@settings(max_examples=400, deadline=None)
def test_any_body_is_answered_or_refused(data: bytes):
    try:
        body, _ = answer(SERVED, data)
    except ServiceError as error:
        refused = error
    else:
        found = json.loads(body)
        assert all(math.isfinite(result["score"]) for result in found.get("results", [found]))
        return
    assert refused.message


@given(
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1e400", "true", "null", '"a"', "[1]", "{}"]), st.data()
)
@settings(max_examples=100, deadline=None)
def test_an_error_names_row_and_column_of_a_bad_value(bad: str, data: st.DataObject):
    n = data.draw(st.integers(1, 8))
    row, column = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, 2))
    cells = [["0.5"] * 3 for _ in range(n)]
    cells[row][column] = bad
    text = ",".join(f"[{','.join(line)}]" for line in cells)
    with pytest.raises(InvalidRequest) as caught:
        answer(SERVED, f'{{"rows":[{text}]}}'.encode())
    [fault] = caught.value.faults
    assert (fault.row, fault.column) == (row, column)


def test_scores_beyond_float64_are_refused_with_their_row():
    huge = make_servable(linear_student("a", [1e300, 1e300]), replace(VERSION, columns=2))
    with pytest.raises(InvalidRequest) as caught:
        answer(huge, b'{"rows": [[1, 1], [1e90, 1e90]]}')
    assert (caught.value.reason, caught.value.faults[0].row) == ("out_of_range", 1)
    with refused_as(InvalidRequest, "out_of_range"):
        answer(huge, b'{"x": [1e90, 1e90]}')


def test_column_indices_may_be_integral_floats():
    [(_, table)] = rows_of({"x": {"indices": [0, 2.0], "values": [1, 4]}}).blocks()
    np.testing.assert_array_equal(table, [[1, 0, 4]])


@pytest.mark.parametrize("text", ['{"x": %s}', '{"rows": [%s]}'])
def test_fractional_column_indices_are_refused(text: str):
    with pytest.raises(InvalidRequest) as caught:
        answer(SERVED, (text % '{"indices": [0, 1.5], "values": [1, 4]}').encode())
    [fault] = caught.value.faults
    assert (fault.field.partition(".")[2], fault.code, fault.row, fault.column) == (
        "indices",
        "wrong_type",
        0,
        1,
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"rows": [' + b"[]," * 400_000 + b"[]]}",
        b'{"rows": [' + b"1," * 1_100_000 + b"1]}",
        b'{"rows": [[1],' + b"1," * 1_100_000 + b"1]}",
        b'{"x": [' + b"1," * 1_100_000 + b"1]}",
    ],
)
def test_a_body_with_far_too_many_parts_is_refused_undecoded(body: bytes):
    with refused_as(TooLarge, "too_many_parts"):
        decode(DECODER, body, 1000)


@pytest.mark.parametrize(
    "row", [b"[1,2,3]", b'{"indices":[0,1,2],"values":[1,2,3]}', b"[" + b"1," * 99_999 + b"1]"]
)
def test_bodies_within_the_limit_of_rows_are_decoded(row: bytes):
    count = min(100_000, 15_000_000 // len(row))
    given, _ = decode(DECODER, b'{"rows":[' + b",".join([row] * count) + b"]}", 100_000)
    assert len(given.of(columns_of_version(VERSION), 100_000)) == count


@pytest.mark.parametrize("column", ["1" + "0" * 400, "-1" + "0" * 400])
def test_an_index_beyond_every_float_is_the_callers_mistake(column: str):
    """It was an OverflowError, and so an error 500 with a traceback in the log for each request."""
    body = f'{{"x": {{"indices": [1.0, {column}], "values": [1, 2]}}}}'.encode()
    with pytest.raises(InvalidRequest):
        answer_class(SERVED, body, DEFAULT_FORMAT, LIMITS)
