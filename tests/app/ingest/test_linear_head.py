"""Heads on their way in: both containers, every form of labels, and what is wrong told by row and column."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from app.domain.errors import InvalidRequest, ServiceError, TooLarge, UnsupportedFormat
from app.ingest import linear_head as module
from app.ingest.linear_head import HeadFile, HeadLimits, head_file
from tests.refusals import refused_as

LIMITS = HeadLimits(max_classes=100, max_columns=50, max_bytes=10_000)
NAMES = ["cat", "größe/1:x", "日本"]
WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)

Save = Callable[[dict[str, Any]], Path]


def table(names: list[str], width: int = 20) -> np.ndarray:
    rows = [name.encode().ljust(width, b"\0") for name in names]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(names), width)


@pytest.fixture
def npz(tmp_path: Path) -> Save:
    def write(arrays: dict[str, Any]) -> Path:
        path = tmp_path / "head.npz"
        np.savez(path, **arrays)
        return path

    return write


@pytest.fixture
def safetensors(tmp_path: Path) -> Callable[..., Path]:
    def write(arrays: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
        path = tmp_path / "head.safetensors"
        path.write_bytes(save({name: np.asarray(array) for name, array in arrays.items()}, metadata))
        return path

    return write


def read(path: Path, limits: HeadLimits = LIMITS) -> tuple[HeadFile, np.ndarray]:
    with head_file(path, limits) as head:
        return head, np.concatenate(list(head.blocks()))


def error_of(path: Path, error: type[ServiceError] = InvalidRequest) -> ServiceError:
    with pytest.raises(error) as caught:
        read(path)
    return caught.value


@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f4", ">f8"])
def test_an_archive_is_read_whatever_its_byte_order(npz: Save, dtype: str):
    weights = WEIGHTS.astype(dtype)
    head, found = read(npz({"weights": weights, "bias": np.ones(3, ">f4"), "labels": np.array(NAMES)}))
    assert list(head.labels) == NAMES
    assert (head.columns, head.dtype, found.dtype) == (4, np.dtype(dtype).newbyteorder("<"), head.dtype)
    np.testing.assert_array_equal(found, WEIGHTS)
    np.testing.assert_array_equal(head.bias, [1, 1, 1])
    assert head.bias.dtype == np.float64
    assert head.threshold is None


def test_a_compressed_archive_is_read_by_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 40)
    path = tmp_path / "head.npz"
    np.savez_compressed(path, weight=WEIGHTS, labels=np.array([7, 8, 9]), thresholds=np.array([0.5, 1, 2]))
    with head_file(path, LIMITS) as head:
        blocks = list(head.blocks())
    assert [block.shape for block in blocks] == [(2, 4), (1, 4)]
    np.testing.assert_array_equal(np.concatenate(blocks), WEIGHTS)
    assert list(head.labels) == ["7", "8", "9"]
    assert head.threshold is not None
    assert head.threshold.tolist() == [0.5, 1, 2]
    assert not head.bias.any()


@pytest.mark.parametrize(
    "labels",
    [np.array(NAMES), np.array([name.encode() for name in NAMES]), table(NAMES), table(NAMES, 300)],
    ids=["text", "bytes", "table", "wide table"],
)
def test_labels_in_an_archive_may_be_text_or_bytes(npz: Save, labels: np.ndarray):
    assert list(read(npz({"weights": WEIGHTS, "labels": labels}))[0].labels) == NAMES


def test_safetensors_have_labels_in_their_metadata_or_as_a_table(safetensors: Callable[..., Path]):
    listed = {"labels": json.dumps(NAMES)}
    for path in (
        safetensors({"weights": WEIGHTS}, listed),
        safetensors({"weights": WEIGHTS, "labels": table(NAMES)}),
    ):
        head, found = read(path)
        assert list(head.labels) == NAMES
        np.testing.assert_array_equal(found, WEIGHTS)
    numbers = safetensors({"weights": WEIGHTS.astype(float), "labels": np.array([3, 1, 2])})
    assert list(read(numbers)[0].labels) == ["3", "1", "2"]


def test_labels_are_read_by_blocks_too(npz: Save, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 30)
    assert list(read(npz({"weights": WEIGHTS, "labels": np.array(NAMES)}))[0].labels) == NAMES
    wrong = table(NAMES).copy()
    wrong[2, 0] = 0xFF
    error = error_of(npz({"weights": WEIGHTS, "labels": wrong}))
    assert [(fault.code, fault.row) for fault in error.faults] == [("bad_encoding", 2)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_told_by_row_and_column(
    npz: Save, monkeypatch: pytest.MonkeyPatch, value: float
):
    monkeypatch.setattr(module, "BLOCK_BYTES", 16)
    weights = WEIGHTS.copy()
    weights[2, 3] = value
    error = error_of(npz({"weights": weights, "labels": np.array(NAMES)}))
    assert [(f.field, f.code, f.row, f.column) for f in error.faults] == [("weights", "not_finite", 2, 3)]
    assert "row 2, column 3" in error.message
    for field in ("bias", "threshold"):
        arrays = {"weights": WEIGHTS, "labels": np.array(NAMES), field: np.array([0.0, value, 1.0])}
        fault = error_of(npz(arrays)).faults[0]
        assert (fault.field, fault.code, fault.row) == (field, "not_finite", 1)


GOOD = {"weights": WEIGHTS, "labels": np.array(NAMES)}


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"weights": WEIGHTS.T}, "weights", "stored_by_columns"),
        ({"weights": np.ascontiguousarray(WEIGHTS.T)}, "labels", "wrong_length"),
        ({"weights": WEIGHTS[0]}, "weights", "wrong_shape"),
        ({"weights": np.float32(3)}, "weights", "wrong_shape"),
        ({"weights": WEIGHTS[:, :0]}, "weights", "wrong_shape"),
        ({"weights": WEIGHTS.astype(int)}, "weights", "wrong_type"),
        ({"weights": WEIGHTS.astype(np.float16)}, "weights", "wrong_type"),
        ({"weight": WEIGHTS}, "weights", "ambiguous_array"),
        ({"fc": WEIGHTS}, "fc", "unknown_array"),
        ({"labels": np.array([1.0, 2, 3])}, "labels", "wrong_type"),
        ({"labels": np.array([NAMES])}, "labels", "wrong_type"),
        ({"labels": np.array(["a" * 2000, "b", "c"])}, "labels", "wrong_shape"),
        ({"labels": np.asfortranarray(table(NAMES))}, "labels", "wrong_shape"),
        ({"labels": np.array(["a", "", "c"])}, "labels", "empty_label"),
        ({"labels": np.array(["a", "b", "c" * 300])}, "labels", "label_too_long"),
        ({"labels": np.array(["a", "b\x07", "c"])}, "labels", "bad_label"),
        ({"bias": np.ones(2)}, "bias", "wrong_shape"),
        ({"bias": np.ones(3, int)}, "bias", "wrong_shape"),
        ({"threshold": np.ones((3, 1))}, "threshold", "wrong_shape"),
        ({"bias": np.array(1.0)}, "bias", "wrong_shape"),
    ],
)
def test_what_cannot_be_used_is_named(npz: Save, change: dict[str, Any], field: str, code: str):
    error = error_of(npz(GOOD | change))
    assert (error.faults[0].field, error.faults[0].code) == (field, code)


def test_labels_at_fault_are_named_by_row(npz: Save):
    error = error_of(npz(GOOD | {"labels": np.array(["a", "", " "])}))
    assert [(fault.code, fault.row) for fault in error.faults] == [("empty_label", 1), ("empty_label", 2)]


def test_weights_and_labels_are_needed(npz: Save, safetensors: Callable[..., Path]):
    assert error_of(npz({"labels": np.array(NAMES)})).faults[0].field == "weights"
    assert error_of(npz({"weights": WEIGHTS})).faults[0].field == "labels"
    assert error_of(safetensors({"weights": WEIGHTS})).faults[0].field == "labels"


@pytest.mark.parametrize("labels", ["no JSON", "{}", "[1, 2, 3]", '["a", "b"]', "[" * 100_000])
def test_a_list_of_labels_that_is_none_is_refused(safetensors: Callable[..., Path], labels: str):
    error = error_of(safetensors({"weights": WEIGHTS}, {"labels": labels}))
    assert error.faults[0].field == "labels"


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (HeadLimits(2, 50, 10_000), "too_many_classes"),
        (HeadLimits(100, 3, 10_000), "too_many_columns"),
        (HeadLimits(100, 50, 47), "head_too_large"),
    ],
)
def test_a_head_over_a_limit_is_refused_by_its_header(npz: Save, limits: HeadLimits, code: str):
    with refused_as(TooLarge, code):
        read(npz(GOOD), limits)


@pytest.mark.parametrize(
    ("labels", "code", "most"),
    [
        (np.full(2_000_000, b"a"), "wrong_length", 2_000_000),
        # Blocks are a few MiB, and a name that is too long ends the reading within its block.
        (np.full(30_000, b"a" * 4096), "label_too_long", 20_000_000),
    ],
    ids=["many", "long"],
)
def test_labels_that_cannot_be_used_are_not_read_to_the_end(
    tmp_path: Path, labels: Any, code: str, most: int
):
    path = tmp_path / "head.npz"
    K = 2 if code == "wrong_length" else len(labels)
    np.savez_compressed(path, weights=np.ones((K, 1), np.float32), labels=labels)
    del labels
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as caught, head_file(path, HeadLimits(2 * 10**6, 10, 10**7)):
            raise AssertionError("the head was accepted")
        assert caught.value.faults[0].code == code
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


def test_labels_that_are_not_unicode_are_refused(npz: Save):
    """NumPy raises SystemError where they become text. Found by fuzzing."""
    labels = np.array([97, 98, 0x110000], dtype=np.uint32).view("<U1")
    assert error_of(npz(GOOD | {"labels": labels})).faults[0].code == "bad_encoding"


def test_pickles_are_never_read(tmp_path: Path, npz: Save):
    error = error_of(npz(GOOD | {"labels": np.array(NAMES, dtype=object)}))
    assert error.faults[0].code == "pickled_objects"
    archive = tmp_path / "model.pt"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("model/data.pkl", b"\x80\x02.")
    assert isinstance(error_of(archive, UnsupportedFormat), UnsupportedFormat)
    pickle = tmp_path / "model.pkl"
    pickle.write_bytes(b"\x80\x04\x95" + b"x" * 100)
    assert "pickle" in error_of(pickle, UnsupportedFormat).message


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\x93NUMPY" + b"\0" * 50, b"PAR1" + b"\0" * 50])
def test_other_files_are_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert error_of(path, UnsupportedFormat).reason == "wrong_format"


def raw(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


ENTRY = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (raw(b'{"weights": '), "unreadable_file"),
        (raw({"weights": ENTRY}, b"")[:30], "unreadable_file"),
        (raw({"weights": ENTRY}, b"\0" * 47), "truncated_upload"),
        (raw({"weights": ENTRY | {"shape": [3, 5]}}, b"\0" * 48), "unreadable_file"),
        (raw({"weights": ENTRY | {"shape": [-3, -4]}}, b"\0" * 48), "unreadable_file"),
        (raw({"weights": ENTRY | {"shape": ["3", 4]}}, b"\0" * 48), "unreadable_file"),
        (raw({"weights": ENTRY | {"data_offsets": [0]}}, b"\0" * 48), "unreadable_file"),
        (raw({"weights": ENTRY | {"dtype": "BF16"}}, b"\0" * 48), "unreadable_array"),
        (raw({"weights": 7}, b"\0" * 48), "unreadable_file"),
        (raw({"__metadata__": [], "weights": ENTRY}, b"\0" * 48), "unreadable_file"),
        (raw({"__metadata__": {"labels": 3}, "weights": ENTRY}, b"\0" * 48), "bad_json"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, content: bytes, code: str):
    path = tmp_path / "head.safetensors"
    path.write_bytes(content)
    assert error_of(path).reason == code


def test_a_cut_off_archive_is_refused(tmp_path: Path):
    buffer = io.BytesIO()
    np.savez(buffer, **GOOD)
    path = tmp_path / "head.npz"
    for end in (200, len(buffer.getvalue()) - 10):
        path.write_bytes(buffer.getvalue()[:end])
        assert error_of(path).reason == "truncated_upload"


def test_an_array_that_is_shorter_than_the_archive_says_is_refused(tmp_path: Path):
    buffer = io.BytesIO()
    np.save(buffer, WEIGHTS)
    path = tmp_path / "head.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.npy", buffer.getvalue()[:-4])
    assert error_of(path).reason == "unreadable_file"


@pytest.mark.parametrize("place", [8, 56])
def test_arrays_follow_each_other_without_gap_or_overlap(tmp_path: Path, place: int):
    other = {"dtype": "F64", "shape": [3], "data_offsets": [place, place + 24]}
    labels = {"labels": json.dumps(NAMES)}
    path = tmp_path / "head.safetensors"
    path.write_bytes(raw({"__metadata__": labels, "weights": ENTRY, "bias": other}, b"\0" * 80))
    assert "does not begin where" in error_of(path).message


def test_bytes_that_belong_to_no_array_are_refused(tmp_path: Path):
    path = tmp_path / "head.safetensors"
    path.write_bytes(raw({"__metadata__": {"labels": json.dumps(NAMES)}, "weights": ENTRY}, b"\0" * 50))
    assert "2 bytes after the last array" in error_of(path).message


def test_a_header_shorter_than_it_says_is_refused(tmp_path: Path):
    path = tmp_path / "head.safetensors"
    path.write_bytes((100).to_bytes(8, "little") + b'{"weights": {}}')
    assert "cut off" in error_of(path).message


def test_a_header_of_other_arrays_stays_text(tmp_path: Path):
    path = tmp_path / "head.safetensors"
    path.write_bytes(raw({f"array {number}": [[[]]] for number in range(1000)}))
    error = error_of(path)
    assert (error.reason, error.faults[0].field) == ("unknown_array", "array 0")
