"""What a reader of single rows has kept changes no answer: it reads as one that has seen nothing."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.serving.open_inference.one_row import OneRowReader

NUMBERS = st.lists(st.one_of(st.integers(-9, 9), st.floats(-1e3, 1e3)), min_size=1, max_size=3)


@st.composite
def bodies(draw):
    """Inferences of one row with keys in any order, names that look like keys, and repeated keys."""
    data = draw(NUMBERS)
    fields = {
        "name": draw(st.sampled_from(["x", "data", '"data": [1, 2]'])),
        "shape": draw(st.sampled_from([[1, len(data)], [len(data)], [2], [1, 2]])),
        "datatype": draw(st.sampled_from(["FP64", "FP32", "INT64"])),
        "data": data,
    }
    pairs = [(key, fields[key]) for key in draw(st.permutations(list(fields)))]
    if draw(st.booleans()):
        pairs.append(("data", draw(NUMBERS)))
    row = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)
    name = draw(st.sampled_from(["", '"id": "1", ', '"id": "data", ', '"data": [1, 2], ']))
    return f'{{{name}"inputs": [{{{row}}}]}}'.encode()


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.lists(bodies(), min_size=1, max_size=8))
def test_a_reader_that_has_kept_something_reads_the_same(requests):
    reader = OneRowReader(2)
    for body in [*requests, *requests]:
        assert reader.read(body, None) == OneRowReader(2).read(body, None)


@pytest.mark.parametrize(("datatype", "dtype"), [("FP64", np.float64), ("FP32", np.float32)])
def test_json_and_binary_have_the_same_row(datatype, dtype):
    reader, numbers = OneRowReader(2), np.array([0.1, -3], dtype)
    expected = struct.pack("2d", *numbers)
    tensor = {"name": "x", "shape": [1, 2], "datatype": datatype}
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": numbers.nbytes}}]}).encode()
    for _ in range(2):
        text = json.dumps({"inputs": [tensor | {"data": [0.1, -3]}]}).encode()
        assert reader.read(text, None).x == expected
        assert reader.read(head + numbers.tobytes(), len(head)).x == expected


@pytest.mark.parametrize("number", ["1e39", "1e100", "1e400", "NaN", "null"])
def test_numbers_that_need_a_closer_look_are_not_read(number):
    for datatype in ("FP32", "FP64"):
        text = f'{{"inputs": [{{"name": "x", "shape": [1], "datatype": "{datatype}", "data": [{number}]}}]}}'
        row = OneRowReader(1).read(text.encode(), None)
        assert (row is None) == (datatype == "FP32" or number != "1e39")


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e100])
def test_binary_numbers_that_need_a_closer_look_are_not_read(number):
    tensor = {"name": "x", "shape": [1], "datatype": "FP64", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [tensor]}).encode()
    assert OneRowReader(1).read(head + struct.pack("d", number), len(head)) is None
