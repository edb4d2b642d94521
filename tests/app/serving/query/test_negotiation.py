"""Content negotiation from headers and query string."""

from __future__ import annotations

import numpy as np
import pytest

from app.domain.errors import InvalidRequest, UnsupportedFormat
from app.serving.query.negotiation import DEFAULT_FORMAT, OF_CLASSES, MediaType, negotiate
from tests.refusals import refused_as


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"content-type": b"application/json"},
        {b"content-type": b"application/x-www-form-urlencoded", b"accept": b"*/*"},
    ],
)
def test_usual_headers_give_the_default_format(headers: dict[bytes, bytes]):
    assert negotiate(headers, b"") is DEFAULT_FORMAT


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (b"application/octet-stream", MediaType.TENSOR),
        (b"Application/Octet-Stream; charset=binary", MediaType.TENSOR),
        (b"application/x-npy", MediaType.NPY),
        (b"text/plain", MediaType.JSON),
        (b"", MediaType.JSON),
    ],
)
def test_the_content_type_selects_the_format_of_rows(kind: bytes, form: MediaType):
    assert negotiate({b"content-type": kind}, b"").body is form


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (b"application/octet-stream", MediaType.TENSOR),
        (b"application/x-npy, */*;q=0.1", MediaType.NPY),
        (b"application/octet-stream;q=0.5, application/json", MediaType.JSON),
        (b"application/json;q=0.5, application/octet-stream;level=1; q=0.6", MediaType.TENSOR),
        (b"application/x-npy;q=0, application/*;q=0.2", MediaType.JSON),
        (b"application/x-npy;q=none", MediaType.JSON),
        (b"text/html", MediaType.JSON),
        (b"application/x-npy,application/octet-stream", MediaType.NPY),
        (b",;,", MediaType.JSON),
    ],
)
def test_accept_selects_the_format_with_the_largest_weight(accept: bytes, form: MediaType):
    assert negotiate({b"accept": accept}, b"").answer is form


def test_the_query_string_sets_explain_and_classes():
    format_ = negotiate({}, b"class=a&explain=true&class=%C3%A9+b", OF_CLASSES)
    assert (format_.explain, format_.classes) == (True, ("a", "é b"))
    assert not negotiate({}, b"explain=true&explain=false").explain


@pytest.mark.parametrize(
    "query", [b"explain=1", b"explain=true&x=1", b"class=a", b"class=%ff", b"a&" * 1001, b"class=\xff"]
)
def test_an_invalid_query_string_is_refused(query: bytes):
    with pytest.raises(InvalidRequest):
        negotiate({}, query)


def test_unknown_content_encodings_are_refused():
    assert negotiate({b"content-encoding": b" GZIP "}, b"").encoding == b"gzip"
    assert negotiate({b"content-encoding": b"identity"}, b"").encoding is None
    with pytest.raises(UnsupportedFormat):
        negotiate({b"content-encoding": b"gzip, deflate"}, b"")


def test_shape_and_type_of_a_tensor_are_read():
    format_ = negotiate({b"x-tensor-shape": b" 40 , 3", b"x-tensor-dtype": b" Float32 "}, b"")
    assert (format_.shape, format_.dtype) == ((40, 3), np.float32)
    assert negotiate({b"x-tensor-shape": b"7"}, b"").shape == (7,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((b"x-tensor-shape", value) for value in (b"", b"-1", b"1,2,3", b"1.0", b"9" * 13, "٣".encode())),
        *((b"x-tensor-dtype", value) for value in (b"", b"int8", b">f8")),
    ],
)
def test_tensor_headers_are_checked_for_json_bodies_too(name: bytes, value: bytes):
    with refused_as(InvalidRequest, "bad_header"):
        negotiate({name: value}, b"")
