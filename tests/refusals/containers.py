"""Archives, linear heads and forms that are malformed, too large, or built to break their parsers."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.refusals.archives import (
    array,
    good_npz,
    lying_member,
    many_members,
    npz,
    overlapping,
    safetensors,
    zip64,
)
from tests.refusals.refusal import DATASETS, Act, Refusal, a_file, post, refusals

_MIB = 1024**2
_INVALID = (400, "invalid_dataset")
_UNREADABLE = (400, "unreadable_file")
_WRONG_FORMAT = (415, "wrong_format")


def _packed_zeros() -> bytes:
    zeros = array(np.zeros(80 * _MIB // 8))
    return npz({"X.npy": zeros, "y.npy": array([0, 1])}, zipfile.ZIP_DEFLATED)


def _lying_zeros() -> bytes:
    return lying_member(array(np.zeros(80 * _MIB // 8)), 1024, name=b"y.npy")


def archives() -> list[Refusal]:
    """.npz archives."""

    def zipped(data: bytes | Callable[[], bytes]) -> Act:
        return a_file(data, "application/x-npz")

    def csr(indices: list[int], indptr: list[int], shape: tuple[int, int] = (4, 3)) -> Act:
        parts = {"X_data": np.ones(len(indices)), "X_indices": indices, "X_indptr": indptr, "X_shape": shape}
        return zipped(
            npz({f"{name}.npy": array(part) for name, part in {**parts, "y": [0, 0, 1, 1]}.items()})
        )

    return refusals(
        "npz",
        ("pickled objects", zipped(npz(good_npz(y=array([{}] * 6, dtype=object)))), 400, "pickled_objects"),
        ("80 MiB in 80 kB", zipped(_packed_zeros), 413, "table_too_large"),
        ("80 MiB that say 1 kB", zipped(_lying_zeros), 400, "truncated_upload"),
        ("1 kB that say 4 GB", zipped(lying_member(array(np.zeros(99)), 0xFFFFFFFF)), 413, "table_too_large"),
        ("400 000 members", zipped(lambda: many_members(400_000)), 413, "too_many_arrays"),
        ("999 members that are one", zipped(overlapping(999, _MIB)), *_INVALID),
        ("a directory beyond the file", zipped(zip64(2**62)), 400, "truncated_upload"),
        ("a directory of 2^32", zipped(zip64(2**32)), 400, "truncated_upload"),
        ("cut off", zipped(npz(good_npz())[:-30]), 400, "truncated_upload"),
        ("a password", zipped(lying_member(array([1.0]), 136, name=b"y.npy", flags=1)), *_UNREADABLE),
        ("LZMA", zipped(npz(good_npz(), zipfile.ZIP_LZMA)), *_UNREADABLE),
        ("bzip2", zipped(npz(good_npz(), zipfile.ZIP_BZIP2)), *_UNREADABLE),
        ("a member that is a path", zipped(npz({"../../../X.npy": array([1.0])})), 400, "missing_array"),
        ("an array twice", zipped(_twice()), 400, "ambiguous_array"),
        ("no labels", zipped(npz({"X.npy": array(np.zeros((4, 2)))})), 400, "missing_array"),
        ("labels of another number of rows", zipped(npz(good_npz(y=array([0, 1])))), *_INVALID),
        (
            "complex numbers",
            zipped(npz(good_npz(X=array(np.zeros((6, 2), complex))))),
            400,
            "unreadable_array",
        ),
        ("text for numbers", zipped(npz(good_npz(X=array(np.full((6, 2), "1"))))), *_INVALID),
        ("NaN", zipped(npz(good_npz(X=array(np.full((6, 2), np.nan))))), *_INVALID),
        ("no axes", zipped(npz(good_npz(X=array(np.zeros(()))))), *_INVALID),
        ("labels of halves", zipped(npz(good_npz(y=array([0.5, 1.5] * 3)))), *_INVALID),
        (
            "names of 100 000 letters",
            zipped(npz(good_npz(class_names=array(["a" * 100_000, "b"])))),
            *_INVALID,
        ),
        ("names that are numbers", zipped(npz(good_npz(class_names=array([1, 2])))), 400, "bad_names"),
        ("a sparse column beyond the table", csr([10**9, 0, 1, 2], [0, 1, 2, 3, 4]), 400, "invalid_dataset"),
        ("a sparse column below nothing", csr([-5, 0, 1, 2], [0, 1, 2, 3, 4]), 400, "invalid_dataset"),
        ("sparse rows beyond the data", csr([0, 1, 2, 0], [0, 1, 2, 3, 10**9]), 400, "bad_sparse"),
        ("sparse rows that go back", csr([0, 1, 2, 0], [0, 3, 1, 3, 4]), 400, "invalid_dataset"),
        ("sparse rows that begin below nothing", csr([0, 1, 2, 0], [-4, 1, 2, 3, 4]), 400, "bad_sparse"),
        ("a sparse table of 10^12 rows", csr([0], [0, 1], (10**12, 3)), 413, "too_many_rows"),
        ("a sparse table below nothing", csr([0], [0, 1], (-1, 3)), 400, "bad_sparse"),
    )


def _head(data: bytes | Callable[[], bytes], model: str = "evil") -> Act:
    return post(f"/v1/teachers?model={model}", data, key="train")


def _weights(begin: int, end: int, shape: list[int], **more: Any) -> bytes:
    """A head whose weights have these declared offsets."""
    described = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    size = max([end, 0, *(item["data_offsets"][1] for item in more.values())])
    header = {"__metadata__": {"labels": '["a", "b"]'}, "weights": described, **more}
    return safetensors(header, bytes(min(size, 1000)))


def _labelled(labels: Any) -> bytes:
    described = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    return safetensors({"__metadata__": {"labels": labels}, "weights": described}, bytes(16))


def heads() -> list[Refusal]:
    """Malformed linear heads as safetensors and .npz files."""
    over = {"bias": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}

    def many() -> bytes:
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        return safetensors({f"a{i}": empty for i in range(100_000)})

    return refusals(
        "heads from outside",
        ("a header longer than the file", _head(safetensors({}, b"", 10**6)), *_UNREADABLE),
        ("a header of 2^63", _head(safetensors(b"{", b"", 2**63)), *_WRONG_FORMAT),
        (
            "a header of 20 MB of lists",
            _head(lambda: safetensors(b'{"weights": ' + b"[" * 20_000_000)),
            *_UNREADABLE,
        ),
        (
            "a header of a million keys",
            _head(lambda: safetensors(b"{" + b",".join(b'"k%d":1' % i for i in range(1_000_000)) + b"}")),
            400,
            "unknown_array",
        ),
        ("100 000 arrays", _head(many), 400, "unknown_array"),
        ("a header that is a list", _head(safetensors([])), *_WRONG_FORMAT),
        ("a negative place", _head(_weights(-16, 0, [2, 2])), *_UNREADABLE),
        ("a place that ends before it begins", _head(_weights(16, 0, [2, 2])), *_UNREADABLE),
        ("a place beyond the file", _head(_weights(10**6, 10**6 + 16, [2, 2])), 400, "truncated_upload"),
        ("arrays in each other", _head(_weights(0, 16, [2, 2], **over)), *_UNREADABLE),
        ("a gap between arrays", _head(_weights(8, 24, [2, 2])), *_UNREADABLE),
        ("a shape beyond 64 bits", _head(_weights(0, 16, [2**40, 2**40])), *_UNREADABLE),
        ("a shape of 2^39 × 2^39", _head(_weights(0, 16, [2**39, 2**39])), *_UNREADABLE),
        ("a negative shape", _head(_weights(0, 16, [-2, -2])), *_UNREADABLE),
        ("no columns", _head(_weights(0, 0, [2, 0])), 400, "wrong_shape"),
        (
            "a type that is none",
            _head(safetensors({"weights": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, bytes(8))),
            400,
            "unreadable_array",
        ),
    )


def labels() -> list[Refusal]:
    """Linear heads with invalid labels or in malformed archives."""
    return refusals(
        "heads from outside",
        ("labels that are a list", _head(_labelled(["a", "b"])), 400, "bad_json"),
        ("labels that are no JSON", _head(_labelled("a, b")), 400, "bad_json"),
        ("labels of lists", _head(_labelled("[[], []]")), 400, "bad_json"),
        (
            "five million labels of nothing",
            _head(lambda: _labelled("[" + "[]," * 5_000_000 + "[]]")),
            400,
            "bad_json",
        ),
        ("labels that are the same", _head(_labelled('["a", "a"]')), 400, "invalid_head"),
        ("a label with NUL", _head(_labelled('["a\\u0000", "b"]')), 400, "invalid_head"),
        ("a label that is half a pair", _head(_labelled('["\\ud800", "b"]')), 400, "bad_json"),
        ("more labels than rows", _head(_labelled('["a", "b", "c"]')), 400, "wrong_length"),
        (
            "100 001 classes",
            _head(lambda: _weights(0, 400_004, [100_001, 1]) + bytes(399_004)),
            413,
            "too_many_classes",
        ),
        ("NaN", _head(_nan_head()), 400, "invalid_head"),
        ("pickled weights", _head(npz({"weights.npy": array([{}], dtype=object)})), 400, "pickled_objects"),
        (
            "80 MiB in 80 kB",
            _head(
                lambda: npz(
                    {"weights.npy": array(np.zeros((2, 5 * _MIB))), "labels.npy": array(["a", "b"])},
                    zipfile.ZIP_DEFLATED,
                )
            ),
            413,
            "too_many_columns",
        ),
        ("400 000 members", _head(lambda: many_members(400_000)), 413, "too_many_arrays"),
        ("neither of both", _head(b"\x80\x04pickle"), *_WRONG_FORMAT),
        ("a model that is a path", _head(b"{}", "..%2f..%2fetc"), 400, "invalid_parameter"),
        ("a model that is missing", post("/v1/teachers", b"{}", key="train"), 400, "invalid_parameter"),
    )


def forms() -> list[Refusal]:
    """multipart/form-data."""

    def form(body: bytes | Callable[[], bytes], boundary: str = "edge") -> Act:
        kind = f"multipart/form-data; boundary={boundary}" if boundary else "multipart/form-data"
        return post(DATASETS, body, (b"Content-Type", kind.encode()), key="train")

    def part(name: str, data: bytes = b"1,2,x\n", filename: str | None = None) -> bytes:
        said = f'Content-Disposition: form-data; name="{name}"' + (
            f'; filename="{filename}"' if filename else ""
        )
        return b"--edge\r\n" + said.encode() + b"\r\n\r\n" + data + b"\r\n"

    end = b"--edge--\r\n"
    bad = (400, "malformed_form")
    chunk = b"X-A: " + b"a" * 1000 + b"\r\n"
    return refusals(
        "forms",
        ("no boundary", form(part("file"), ""), *bad),
        ("a boundary of 300 letters", form(part("file"), "e" * 300), *bad),
        ("no end", form(part("file", filename="a.csv")), 400, "truncated_upload"),
        ("no file", form(part("name", b"a") + end), 400, "no_file"),
        ("two files", form(part("file", filename="a.csv") * 2 + end), *bad),
        ("100 000 parts", form(lambda: part("name", b"") * 100_000 + end), *bad),
        ("an unknown field", form(part("a", b"") + end), 400, "unknown_field"),
        ("a field of 5 kB", form(part("name", b"a" * 5000) + end), *bad),
        ("a header of 20 MB", form(lambda: b"--edge\r\nX-A: " + b"a" * 20_000_000), *bad),
        ("20 000 headers", form(lambda: b"--edge\r\n" + chunk * 20_000), *bad),
        ("a part without a name", form(b"--edge\r\n\r\n1,2\r\n" + end), *bad),
        ("a part with a broken header", form(b"--edge\r\nno colon\r\n\r\n1\r\n" + end), *bad),
        ("a file that is a path", form(part("file", b"1,2\n", "../../etc/passwd") + end), *_INVALID),
        ("a file with a name of noise", form(part("file", b"1,2\n", "\x7f\x1b.csv") + end), *_INVALID),
        (
            "a name that runs backwards",
            form(part("name", "\u202ea".encode()) + part("file", filename="a") + end),
            400,
            "invalid_request",
        ),
        (
            "a form in a form",
            form(
                b"--edge\r\nContent-Disposition: form-data; name=file; filename=a.csv\r\n"
                b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n" + end
            ),
            400,
            "one_column",
        ),
        (
            "a file of 25 MiB",
            form(lambda: part("file", b"1,2\n" * (25 * _MIB // 4), "a.csv") + end),
            413,
            "body_too_large",
        ),
        ("no form at all", form(bytes(range(256)) * 100), *bad),
    )


def _twice() -> bytes:
    """Two members of the same name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in [*good_npz().items(), ("X.npy", array(np.ones((6, 2))))]:
            archive.writestr(name, data)
    return file.getvalue()


def _nan_head() -> bytes:
    described = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = {"__metadata__": {"labels": '["a", "b"]'}, "weights": described}
    return safetensors(header, struct.pack("<4f", 0, float("nan"), 1, 2))
