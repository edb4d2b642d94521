"""Tensors with false declarations: raw, as .npy files, compressed, and in the v2 protocol."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.refusals.refusal import CLASSES, INFER, QUERY, Act, Refusal, post, refusals

_STREAM = (b"Content-Type", b"application/octet-stream")
_NPY = (b"Content-Type", b"application/x-npy")
_GZIP = (b"Content-Encoding", b"gzip")
_JSON = (b"Content-Type", b"application/json")
_GOOD = b'{"x": [1, 2, 3]}'
_MIB = 1024**2


def _raw(shape: bytes, data: bytes = b"", dtype: bytes = b"float64") -> Act:
    return post(QUERY, data, _STREAM, (b"X-Tensor-Shape", shape), (b"X-Tensor-Dtype", dtype))


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An .npy file with any header."""
    text = header.encode("latin-1")
    length = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + text + data


def _npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> Act:
    return post(QUERY, npy(header, data, version), _NPY)


def _described(descr: str, shape: str, order: bool = False) -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"


def raw_tensors() -> list[Refusal]:
    """Raw tensors whose bytes contradict their headers."""
    row = np.zeros(3).tobytes()
    return refusals(
        "tensors",
        ("more rows than bytes", _raw(b"1000000,3", row), 400, "wrong_length"),
        ("a shape beyond 64 bits", _raw(b"999999999999,999999999999", row), 400, "wrong_length"),
        ("a shape that wraps to the right size", _raw(b"536870912,137438953472", b""), 400, "wrong_length"),
        ("a negative shape", _raw(b"-1,3", row), 400, "bad_header"),
        ("three axes", _raw(b"1,1,3", row), 400, "bad_header"),
        ("a shape of Arabic digits", _raw("٣".encode(), row), 400, "bad_header"),
        ("no rows", _raw(b"0,3"), 400, "empty"),
        ("no columns", _raw(b"3,0"), 400, "wrong_columns"),
        ("Python objects", _raw(b"3", row, b"object"), 400, "bad_header"),
        ("no type", post(QUERY, row, _STREAM, (b"X-Tensor-Shape", b"3")), 400, "bad_header"),
        ("NaN", _raw(b"3", np.array([0.0, np.nan, 1.0]).tobytes()), 400, "not_finite"),
        ("a signalling NaN", _raw(b"3", b"\x01\0\0\0\0\0\xf0\x7f" * 3), 400, "not_finite"),
        ("100 001 rows", _raw(b"100001,3", bytes(1_200_012), b"float32"), 413, "too_many_rows"),
    )


def npy_headers() -> list[Refusal]:
    """Malformed headers of .npy files."""
    unreadable = (400, "unreadable_file")
    objects = io.BytesIO()
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return refusals(
        "npy",
        ("pickled objects", post(QUERY, objects.getvalue(), _NPY), 400, "pickled_objects"),
        ("objects in a structure", _npy(_described("[('a', '|O')]", "(1,)")), 400, "pickled_objects"),
        ("a call in the header", _npy("{'descr': __import__('os').system('id'), 'shape': ()}"), *unreadable),
        ("a shape that is computed", _npy(_described("'<f8'", "(10**9,)")), *unreadable),
        ("10 000 parentheses", _npy("(" * 9_900), *unreadable),
        ("10 000 signs", _npy("{'descr': " + "-" * 9_000 + "1}"), *unreadable),
        ("a header of 60 kB", _npy(" " * 60_000), *unreadable),
        (
            "a header of 4 GB",
            post(QUERY, b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100, _NPY),
            *unreadable,
        ),
        ("a shape of 2^60", _npy(_described("'<f8'", f"({2**60},)")), *unreadable),
        ("a shape of 2^39 × 2^39", _npy(_described("'<f8'", f"({2**39}, {2**39})")), 400, "wrong_length"),
        ("a negative shape", _npy(_described("'<f8'", "(-1, 3)"), bytes(24)), *unreadable),
        ("a shape of truth", _npy(_described("'<f8'", "(True, 3)"), bytes(24)), *unreadable),
        ("a shape of halves", _npy(_described("'<f8'", "(0.5, 6)"), bytes(24)), *unreadable),
        ("64 axes", _npy(_described("'<f8'", str((1,) * 64)), bytes(8)), 400, "wrong_shape"),
        ("text of 4 GB a cell", _npy(_described("'<U1073741823'", "(1,)")), *unreadable),
        ("text", _npy(_described("'<U1'", "(3,)"), bytes(12)), 400, "not_numeric"),
        ("a void of a gigabyte", _npy(_described("'|V1000000000'", "(1,)")), 400, "unreadable_array"),
        ("dates", _npy(_described("'<M8[ns]'", "(3,)"), bytes(24)), 400, "unreadable_array"),
        ("complex numbers", _npy(_described("'<c16'", "(3,)"), bytes(48)), 400, "unreadable_array"),
        ("a type with a Unicode name", _npy(_described("'\xb5f8'", "(3,)"), bytes(24)), *unreadable),
        (
            "a type that is a nest",
            _npy(_described("[('a', " * 200 + "'<f8'" + ")]" * 200, "(1,)")),
            *unreadable,
        ),
        (
            "by columns, and cut off",
            _npy(_described("'<f8'", "(2, 3)", order=True), bytes(40)),
            400,
            "wrong_length",
        ),
        ("a byte too few", _npy(_described("'<f8'", "(3,)"), bytes(23)), 400, "wrong_length"),
        ("a byte too many", _npy(_described("'<f8'", "(3,)"), bytes(25)), 400, "wrong_length"),
        ("no axes", _npy(_described("'<f8'", "()"), bytes(8)), 400, "wrong_shape"),
        ("three axes", _npy(_described("'<f8'", "(1, 2, 3)"), bytes(48)), 400, "wrong_shape"),
        ("nothing", post(QUERY, b"", _NPY), *unreadable),
        ("no rows", _npy(_described("'<f8'", "(0, 3)")), 400, "empty"),
        ("no columns", _npy(_described("'<f8'", "(0,)")), 400, "wrong_columns"),
        ("version 9", _npy(_described("'<f8'", "(3,)"), bytes(24), b"\x09\x00"), *unreadable),
        ("no header at all", post(QUERY, b"\x93NUMPY", _NPY), *unreadable),
    )


def bombs() -> list[Refusal]:
    """Decompression bombs and malformed compressed bodies."""

    def packed(data: bytes | Callable[[], bytes], *more: tuple[bytes, bytes], target: str = QUERY) -> Act:
        return post(target, data, _JSON, *(more or (_GZIP,)))

    def bomb() -> bytes:
        return gzip.compress(bytes(64 * _MIB), 9)

    inside = gzip.compress(gzip.compress(b" " * _MIB + _GOOD))
    members = gzip.compress(b"") * 100_000
    return refusals(
        "bombs",
        ("gzip, a thousandfold", packed(bomb), 413, "body_unpacks_too_far"),
        (
            "zlib, a thousandfold",
            packed(lambda: zlib.compress(bytes(64 * _MIB), 9), (b"Content-Encoding", b"deflate")),
            413,
            "body_unpacks_too_far",
        ),
        ("gzip in gzip", packed(inside), 400, "malformed_json"),
        ("gzip in gzip, as told", packed(inside, (b"Content-Encoding", b"gzip, gzip")), 415, "bad_encoding"),
        ("gzip, told twice", packed(inside, _GZIP, _GZIP), 400, "malformed_json"),
        ("100 000 empty members", packed(members), 413, "too_many_members"),
        ("gzip, cut off", packed(gzip.compress(_GOOD)[:-9]), 400, "bad_encoding"),
        ("gzip with a wrong sum", packed(gzip.compress(_GOOD)[:-8] + bytes(8)), 400, "bad_encoding"),
        ("no gzip", packed(_GOOD), 400, "bad_encoding"),
        ("brotli", packed(b"\x0b\x02\x80", (b"Content-Encoding", b"br")), 415, "bad_encoding"),
        ("a bomb for the classes", packed(bomb, target=CLASSES), 413, "body_unpacks_too_far"),
        ("a bomb for v2", packed(bomb, target=INFER), 413, None),
        (
            "50 MB of numbers in 50 kB",
            packed(lambda: gzip.compress(b'{"x": [' + b"0," * (25 * _MIB) + b"0]}", 9)),
            413,
            "body_unpacks_too_far",
        ),
    )


def _infer(given: Any = None, target: str = INFER, **more: Any) -> Act:
    rows = {"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]} | (given or {})
    return post(target, json.dumps({"inputs": [rows], **more}).encode(), _JSON)


def _binary(given: Any, data: bytes, length: bytes | None = None) -> Act:
    rows = {"name": "x", "shape": [1, 3], "datatype": "FP64", "parameters": given}
    text = json.dumps({"inputs": [rows]}).encode()
    header = (b"Inference-Header-Content-Length", b"%d" % len(text) if length is None else length)
    return post(INFER, text + data, _STREAM, header)


def _plain(text: str) -> Act:
    return post(INFER, text.encode(), _JSON)


def v2() -> list[Refusal]:
    """Invalid tensors of the v2 protocol."""
    row = bytes(24)
    lie = {"name": "class", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 8}}
    table = [
        ("a shape beyond 64 bits", _infer({"shape": [2**31, 2**31]}), 413),
        ("a shape of 2^40", _infer({"shape": [2**40, 3]}), 400),
        ("a negative shape", _infer({"shape": [-1, 3]}), 400),
        ("no shape", _infer({"shape": []}), 400),
        ("64 axes", _infer({"shape": [1] * 64}), 400),
        ("a million axes", _infer({"shape": [1] * 1_000_000}), 400),
        ("too little data", _infer({"shape": [2, 3]}), 400),
        ("too much data", _infer({"data": [1] * 100_000}), 400),
        ("ragged rows", _infer({"shape": [2, 3], "data": [[1, 2, 3], [1, 2]]}), 400),
        (
            "data 100 000 deep",
            _plain(
                '{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": '
                + "[" * _DEEP
                + "]" * _DEEP
                + "}]}"
            ),
            400,
        ),
        ("data that are text", _infer({"data": ["1", "2", "3"]}), 400),
        (
            "NaN",
            _plain('{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [NaN, 1, 2]}]}'),
            400,
        ),
        ("an unknown datatype", _infer({"datatype": "FP128"}), 400),
        ("text for numbers", _infer({"datatype": "BYTES"}), 400),
        ("300 in a byte", _infer({"datatype": "UINT8", "data": [300, 1, 2]}), 400),
        ("2 as a truth", _infer({"datatype": "BOOL", "data": [2, 0, 1]}), 400),
        ("1e300 in half precision", _infer({"datatype": "FP16", "data": [1e300, 0, 1]}), 400),
        ("data and binary data", _infer({"parameters": {"binary_data_size": 24}}), 400),
        ("a negative size", _binary({"binary_data_size": -8}, row), 400),
        ("a size of 2^70", _binary({"binary_data_size": 2**70}, row), 400),
        ("a size of true", _binary({"binary_data_size": True}, row), 400),
        ("a size beyond the body", _binary({"binary_data_size": 4096}, row), 400),
        ("bytes that belong to nobody", _binary({"binary_data_size": 24}, row * 2), 400),
        ("a header longer than the body", _binary({"binary_data_size": 24}, row, b"99999"), 400),
        ("a header of letters", _binary({"binary_data_size": 24}, row, b"ten"), 400),
        ("a header beyond 64 bits", _binary({"binary_data_size": 24}, row, b"9" * 40), 400),
        ("a text of 4 GB", _lying_text(lie), 400),
    ]
    return refusals("v2", *((name, act, status, None) for name, act, status in table))


def v2_requests() -> list[Refusal]:
    """Invalid requests of the v2 protocol."""
    bare = "/v2/models/pets/infer"
    classes = {"name": "class", "shape": [300], "datatype": "BYTES", "data": [f"c{i}" for i in range(300)]}
    many = {"name": "x", "shape": [300, 3], "datatype": "FP64", "data": [0] * 900}
    table = [
        ("100 000 inputs", _infer(inputs=[{"name": "x"}] * 100_000), 413),
        ("two tables", _infer(inputs=[many, many]), 400),
        ("300 classes", _infer(inputs=[many, classes], target=bare), 413),
        ("no class", _infer(target=bare), 400),
        ("a class twice", _infer(parameters={"class": "cat"}), 400),
        ("a class that is a list", _infer(parameters={"class": ["cat"]}, target=bare), 400),
        ("shared memory", _infer({"parameters": {"shared_memory_region": "/dev/mem"}}), 400),
        ("parameters of 20 kB", _infer(parameters={"a": "b" * 20_000}), 400),
        ("an output that is none", _infer(outputs=[{"name": "__dict__"}]), 400),
        ("an output twice", _infer(outputs=[{"name": "score"}] * 2), 400),
        ("an id that is a number", _infer(id=7), 400),
        ("no JSON", _plain("<x/>"), 400),
        (
            "options for loading",
            post("/v2/repository/models/pets/load", b'{"parameters": {"config": "{}"}}', key="train"),
            400,
        ),
        ("an index of a list", post("/v2/repository/index", b"[]"), 400),
        ("unloading without leave", post("/v2/repository/models/pets/unload"), 403),
        ("a model that is a path", _infer(target="/v2/models/..%2f..%2fetc%2fpasswd/infer"), 404),
        ("a model one may not ask", post("/v2/models/private:cat/infer", _GOOD, key="limited"), 403),
        ("a wrong method", post(INFER, method="DELETE"), 405),
    ]
    return refusals("v2", *((name, act, status, None) for name, act, status in table))


_DEEP = 100_000


def _lying_text(lie: Any) -> Act:
    rows = {"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}
    text = json.dumps({"inputs": [rows, lie]}).encode()
    header = (b"Inference-Header-Content-Length", b"%d" % len(text))
    return post("/v2/models/pets/infer", text + b"\xff\xff\xff\xffcat.", _STREAM, header)
