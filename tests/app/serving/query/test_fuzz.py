"""Random bodies in every format get finite numbers or an error, and memory stays constant."""

from __future__ import annotations

import gc
import gzip
import io
import json
import math
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.entities import ModelVersion
from app.domain.errors import ServiceError
from app.http.problem import problem_of
from app.serving.query.evaluate import answer_class, answer_classes
from app.serving.query.negotiation import negotiate
from app.serving.query.requests import parse_classes
from app.serving.servable import ServableStudent, make_servable
from app.serving.work import RequestLimits
from core.packed import LinearBasis, LinearForm, PackedMap, PackedStudent, RbfBasis, SigmoidCalibration

VERSION = ModelVersion("pets", 3, "job", "", "svm", ("a", "b"), 3, "", {}, 0.0)
LIMITS = RequestLimits(max_bytes=1 << 16, max_rows=50)


def served(label: str, packed: PackedMap) -> ServableStudent:
    p = packed.n_basis
    coef = np.linspace(-1.0, 2.0, p)
    calibration = SigmoidCalibration(2.0, 0.5)
    student = PackedStudent(
        packed, LinearForm(coef, 0.25, coef[::-1], 0.5), 0.1, label, calibration=calibration
    )
    return make_servable(student, VERSION)


STUDENTS = [
    served("a", LinearBasis(3)),
    served("b", RbfBasis(np.zeros(3), np.ones(3), np.eye(3))),
]

HEADERS = st.fixed_dictionaries(
    {
        b"content-type": st.sampled_from(
            [b"application/json", b"application/octet-stream", b"application/x-npy", b"text/plain; x=1", b""]
        ),
        b"accept": st.sampled_from(
            [b"*/*", b"application/octet-stream", b"application/x-npy", b"text/html;q=0.1,*/*;q=", b"\xff"]
        ),
    },
    optional={
        b"x-tensor-shape": st.sampled_from(
            [b"3", b"2,3", b"0,3", b"3,3", b"7", b"x", b"", b"1,1,1", b"60,3"]
        ),
        b"x-tensor-dtype": st.sampled_from([b"float32", b"float64", b" Float64 ", b"int8", b""]),
        b"content-encoding": st.sampled_from([b"gzip", b"deflate", b"identity", b"br"]),
    },
)
QUERIES = st.sampled_from(
    [b"", b"explain=true", b"explain=false&class=a&class=b", b"explain=1", b"class=%ff", b"&&="]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["x", "rows", "indices", "values", "explain", "classes", "z"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)
ROW = st.lists(st.floats() | st.integers(), min_size=3, max_size=3)


def npy_file(values: list[float], dtype: str) -> bytes:
    stream = io.BytesIO()
    with np.errstate(all="ignore"):
        np.save(stream, np.array(values).astype(dtype).reshape(-1, 3), allow_pickle=False)
    return stream.getvalue()


NUMBERS = st.lists(st.floats(width=32), min_size=3, max_size=3) | st.lists(
    st.floats(), min_size=6, max_size=6
)


def with_byte(data: bytes, at: int, byte: bytes) -> bytes:
    return data[:at] + byte + data[at + 1 :]


def one_row(row: list[float], more: dict[str, Any]) -> bytes:
    return json.dumps({"x": row, **more}).encode()


FILES = st.builds(npy_file, NUMBERS, st.sampled_from(["<f8", ">f4", "<f2"]))
BODIES = st.one_of(
    st.binary(max_size=80),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.builds(one_row, ROW, st.sampled_from([{}, {"explain": True}])),
    st.lists(ROW, max_size=5).map(lambda rows: json.dumps({"rows": rows, "classes": ["a", "b"]}).encode()),
    NUMBERS.map(lambda numbers: np.array(numbers, "<f8").tobytes()),
    FILES,
    st.builds(with_byte, FILES, st.integers(0, 140), st.binary(min_size=1, max_size=1)),
)
PACKED = BODIES | BODIES.map(gzip.compress)


def ask(body: bytes, headers: dict[bytes, bytes], query: bytes) -> None:
    """Both routes; raises for anything but an answer of finite numbers or a ServiceError with a reason."""
    for several in (False, True):
        try:
            format_ = negotiate(headers, query)
            if several:
                request = parse_classes(body, format_, LIMITS)
                found, rows, described = answer_classes(STUDENTS, request, format_, LIMITS)
            else:
                found, rows, described = answer_class(STUDENTS[0], body, format_, LIMITS)
        except ServiceError as error:
            problem_of(error).body("id", "/")
            continue
        assert 1 <= rows <= LIMITS.max_rows
        check(found, dict(described))


def check(body: bytes, headers: dict[bytes, bytes]) -> None:
    kind = headers[b"content-type"]
    if kind == b"application/json":
        assert all(map(math.isfinite, numbers_in(json.loads(body))))
        return
    table = np.load(io.BytesIO(body)) if kind == b"application/x-npy" else np.frombuffer(body, "<f8")
    assert np.isfinite(table).all()
    assert table.size == math.prod(map(int, headers[b"x-tensor-shape"].split(b",")))


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers_in(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers_in(item)]
    return [value] if isinstance(value, float | int) else []


@given(PACKED, HEADERS, QUERIES)
@settings(max_examples=6 * settings().max_examples)
def test_any_body_in_any_format_is_answered_or_refused(
    body: bytes, headers: dict[bytes, bytes], query: bytes
):
    ask(body, headers, query)


@pytest.mark.long
def test_memory_stays_constant_over_many_bodies():
    generator = random.Random(3)
    good = [
        (json.dumps({"rows": [[1, 2, 3]] * 40}).encode(), {}),
        (bytes(np.ones((40, 3), "<f4")), {b"content-type": b"application/octet-stream",
                                          b"x-tensor-shape": b"40,3", b"x-tensor-dtype": b"float32"}),
        (npy_file([1.0] * 120, "<f8"), {b"content-type": b"application/x-npy"}),
        (gzip.compress(bytes(1 << 22)), {b"content-encoding": b"gzip"}),
    ]  # fmt: skip

    def some(n: int) -> None:
        for _ in range(n):
            body, headers = generator.choice(good)
            damaged = bytearray(body)
            if generator.random() < 0.5:
                damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
            ask(bytes(damaged), headers, b"class=a&class=b")

    some(200)
    gc.collect()
    tracemalloc.start()
    try:
        some(400)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 200_000
