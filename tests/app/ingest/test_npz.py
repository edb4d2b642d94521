from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from app.domain.errors import InvalidRequest, TooLarge, UnsupportedFormat
from app.ingest.raw import DatasetLimits
from tests.refusals import refused_as
from tests.refusals.archives import many_members

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
DATA = Path(os.environ.get("STMS_DATA", Path(__file__).parents[4] / "shared" / "data"))


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def csr(prefix: str, matrix: sp.csr_array) -> dict[str, Any]:
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
    return {f"{prefix}_{name}": part for name, part in parts.items()}


def code_of(ingest: Any, content: bytes, **options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        ingest(content, **options)
    return caught.value.faults[0].code if caught.value.faults else caught.value.reason


def test_x_and_y_are_all_that_is_needed(ingest: Any) -> None:
    train, test, summary = ingest(npz(X=X.astype(np.float32), y=Y))
    assert train.X.dtype == np.float32
    np.testing.assert_array_equal(train.X, X)
    assert (train.classes, test, summary["warnings"]) == (("0", "1", "2"), None, [])


def test_a_test_part_and_names_are_read_and_other_arrays_are_listed(ingest: Any) -> None:
    content = npz(
        X_train=X,
        y_train=Y,
        X_test=X[:2],
        y_test=Y[:2],
        class_names=["zwei", "eins", "犬"],
        feature_names=np.array(["größe".encode(), b"b"]),
        vocabulary=["a"],
        objects=np.arange(3),
    )
    train, test, summary = ingest(content)
    # The names stand for the sorted labels, and keep that order.
    assert train.classes == ("zwei", "eins", "犬")
    assert train.y.tolist() == Y.tolist()
    assert train.feature_names == ("größe", "b")
    assert test is not None
    assert test.classes == train.classes
    assert test.y.tolist() == [0, 1]
    assert [warning["code"] for warning in summary["warnings"]] == [
        "ignored_arrays",
        "rows_in_both_parts",
        "classes_without_test",
    ]
    assert "objects, vocabulary" in summary["warnings"][0]["message"]
    assert summary["test"] == {"rows": 2, "classes": 2}


@pytest.mark.parametrize(
    ("labels", "names", "classes", "rows"),
    [
        ([1, 2, 3, 1, 2, 3], ["b", "c", "a"], ("b", "c", "a"), "bcabca"),
        ([0, 0, 2, 2, 0, 2], ["z", "unused", "a"], ("z", "a"), "zzaaza"),
        (["x", "y", "x", "y", "x", "y"], ["y", "x", "w"], ("y", "x"), "xyxyxy"),
    ],
)
def test_class_names_stand_for_sorted_labels_codes_or_an_order(
    ingest: Any, labels: list[Any], names: list[str], classes: tuple[str, ...], rows: str
) -> None:
    train, _, _ = ingest(npz(X=X, y=labels, class_names=names))
    assert train.classes == classes
    assert "".join(train.classes[code] for code in train.y) == rows


@pytest.mark.parametrize(
    ("labels", "names"),
    [([0, 1, 7, 0, 1, 7], ["a", "b"]), (["x", "y", "q"] * 2, ["x", "y"]), ([0, 1, 2] * 2, ["a"])],
)
def test_labels_without_a_name_are_told(ingest: Any, labels: list[Any], names: list[str]) -> None:
    assert code_of(ingest, npz(X=X, y=labels, class_names=names)) == "unknown_class"


def test_sparse_tables_stay_sparse(ingest: Any) -> None:
    matrix = sp.csr_array(X)
    train, test, _ = ingest(npz(**csr("X_train", matrix), y_train=Y, **csr("X_test", matrix), y_test=Y))
    assert sp.issparse(train.X)
    assert test is not None
    np.testing.assert_array_equal(test.X.toarray(), X)


@pytest.mark.parametrize(
    "change",
    [
        {"X_indices": np.full(11, 99)},
        {"X_indptr": np.array([0, 5, 2, 11, 11, 11, 11])},
        {"X_shape": np.array([6])},
        {"X_shape": np.array([-6, 2])},
        {"X_indices": np.zeros((2, 2), int)},
        {"X_data": np.zeros(3)},
    ],
)
def test_a_sparse_table_that_does_not_hold_together_is_refused(ingest: Any, change: dict[str, Any]) -> None:
    assert code_of(ingest, npz(**(csr("X", sp.csr_array(X)) | {"y": Y} | change))) == "bad_sparse"


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"X": X}, "missing_array"),
        ({"y": Y}, "missing_array"),
        ({"X": X, "y": Y, "X_test": X}, "missing_array"),
        ({"X": X, "y": Y, "y_test": Y}, "missing_array"),
        ({"X": X, "y": [0, 0, 1, 1]}, "wrong_length"),
        ({"X": X[0], "y": Y}, "wrong_shape"),
        ({"X": np.where(X == 5, np.nan, X), "y": Y}, "not_finite"),
        ({"X": X, "y": np.zeros(6)}, "single_class"),
        ({"X": X, "y": [0, 1, 1, 1, 1, 1]}, "class_too_small"),
        ({"X": X, "y": Y, "X_test": X[:, :1], "y_test": Y}, "wrong_columns"),
        ({"X": X, "y": Y, "X_test": X, "y_test": Y + 1}, "unknown_class"),
        ({"X": X, "y": np.array([b"a", b"b", b"\xff"] * 2)}, "bad_encoding"),
        ({"X": X, "y": Y, "class_names": [1, 2, 3]}, "bad_names"),
        ({"X": X.astype(complex), "y": Y}, "unreadable_array"),
        ({"X": X, "y": np.array(["2020-01-01"] * 6, dtype="M8[D]")}, "unreadable_array"),
    ],
)
def test_arrays_that_cannot_be_used_are_told_by_code(ingest: Any, arrays: dict[str, Any], code: str) -> None:
    assert code_of(ingest, npz(**arrays)) == code


def test_faults_of_the_test_part_say_so(ingest: Any) -> None:
    bad = np.where(X == 5, np.inf, X)
    with pytest.raises(InvalidRequest, match=r"^Test part: ") as caught:
        ingest(npz(X=X, y=Y, X_test=bad, y_test=Y))
    (fault,) = caught.value.faults
    assert (fault.field, fault.code, fault.row, fault.column) == ("X_test", "not_finite", 2, 1)


def test_text_in_bytes_is_read_as_utf_8(ingest: Any) -> None:
    train, _, _ = ingest(npz(X=X, y=np.array(["犬".encode(), b"b"] * 3)))
    assert train.classes == ("b", "犬")


def test_pickled_objects_are_refused_unread(ingest: Any) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("an upload was unpickled",))

    content = npz(X=X, y=np.array([Bomb()] * 6, dtype=object))
    assert code_of(ingest, content) == "pickled_objects"
    assert code_of(ingest, npy(np.array([Bomb()], dtype=object))) == "pickled_objects"


def test_an_archive_that_would_inflate_beyond_the_limit_is_refused_before_it_does(ingest: Any) -> None:
    content = npz(X=np.zeros((1000, 1000)), y=np.arange(1000) % 2)
    assert len(content) < 50_000
    with pytest.raises(TooLarge):
        ingest(content, limits=DatasetLimits(10**6, 10**6, 10**6))


def long_list(descr: str, length: int) -> bytes:
    """An .npy array of ``length`` texts "a", a zip of which is a thousand times smaller."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": (length,)})
    return out.getvalue() + b"a".ljust(np.dtype(descr).itemsize, b"\0") * length


@pytest.mark.parametrize(
    ("name", "descr", "length", "code"),
    [
        ("y", "|S1", 2_000_000, "wrong_length"),
        ("y", "|i1", 2_000_000, "wrong_length"),
        ("y", "|S4000000", 4, "label_too_long"),
        ("y", "<U1000000", 4, "label_too_long"),
        ("y_test", "|S1", 2_000_000, "wrong_length"),
        ("class_names", "|S1", 2_000_000, "wrong_length"),
        ("feature_names", "|S1", 2_000_000, "wrong_length"),
        ("X_shape", "|i1", 2_000_000, "bad_sparse"),
    ],
)
def test_lists_that_fit_no_table_are_refused_before_they_are_decompressed(
    ingest: Any, name: str, descr: str, length: int, code: str
) -> None:
    arrays = {"X": npy(np.zeros((4, 2))), "y": npy([0, 0, 1, 1])}
    if name == "y_test":
        arrays["X_test"] = arrays["X"]
    if name == "X_shape":
        arrays = {f"X_{part}": arrays["y"] for part in ("data", "indices", "indptr")} | {"y": arrays["y"]}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for entry, content in (arrays | {name: long_list(descr, length)}).items():
            archive.writestr(f"{entry}.npy", content)
    assert len(out.getvalue()) < 50_000
    tracemalloc.start()
    try:
        assert code_of(ingest, out.getvalue()) == code
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800])
@pytest.mark.parametrize("name", ["y", "class_names", "feature_names"])
def test_text_that_is_not_unicode_is_refused(ingest: Any, name: str, code: int) -> None:
    """NumPy reads such an array, and raises SystemError or UnicodeEncodeError later. Found by fuzzing."""
    text = np.array([97, code, 97, code][: 2 if name == "feature_names" else 4], dtype=np.uint32).view("<U1")
    content = npz(**({"X": np.zeros((4, 2)), "y": [0, 1, 0, 1]} | {name: text}))
    assert code_of(ingest, content) == "bad_encoding"


def test_a_name_of_an_entry_that_is_not_utf_8_is_refused(ingest: Any) -> None:
    """zipfile raises UnicodeDecodeError. Found by fuzzing."""
    content = npz(X=X, y=Y, größe=Y).replace("größe".encode(), b"gr\xff\xffe" + b"x" * 2)
    assert code_of(ingest, content) == "unreadable_file"


def test_the_memory_of_texts_is_checked_before_they_are_decompressed(ingest: Any) -> None:
    content = npz(X=np.zeros((9000, 1)), y=np.full(9000, b"a".ljust(9000)))
    with refused_as(TooLarge, "table_too_large"):
        ingest(content, limits=DatasetLimits(10**4, 10, 90_000_000))


def test_a_header_that_lies_about_its_size_is_refused(ingest: Any) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        honest = npy(np.zeros(8, dtype=np.uint8))
        archive.writestr("X.npy", honest.replace(b"(8,)", b"(8000000,)", 1).replace(b"      \n", b"\n"))
        archive.writestr("y.npy", npy(Y))
    assert code_of(ingest, out.getvalue()) == "unreadable_file"


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_archive_is_told(ingest: Any, kept: float) -> None:
    content = npz(X=np.random.default_rng(0).normal(size=(50, 20)), y=np.arange(50) % 2)
    assert code_of(ingest, content[: int(kept * len(content))]) == "truncated_upload"


def test_damaged_bytes_in_the_middle_are_told(ingest: Any) -> None:
    content = bytearray(npz(X=np.random.default_rng(0).normal(size=(50, 20)), y=np.arange(50) % 2))
    content[1000:1100] = bytes(100)
    assert code_of(ingest, bytes(content)) in {"truncated_upload", "unreadable_file"}


def test_other_archives_are_of_the_wrong_kind(ingest: Any) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("xl/workbook.xml", "<x/>")
    with pytest.raises(UnsupportedFormat):
        ingest(out.getvalue())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(1001):
            archive.writestr(f"{number}.npy", b"")
    with pytest.raises(TooLarge):
        ingest(out.getvalue())


def test_offsets_that_lead_nowhere_are_told(ingest: Any) -> None:
    content = bytearray(npz(X=X, y=Y))
    directory = content.index(b"PK\x01\x02")
    content[directory + 42 : directory + 46] = b"\xff\xff\xff\x7f"
    assert code_of(ingest, bytes(content)) in {"truncated_upload", "unreadable_file"}


def test_columns_in_fortran_order_are_read(ingest: Any) -> None:
    train, _, _ = ingest(npz(X=np.asfortranarray(X), y=Y))
    np.testing.assert_array_equal(train.X, X)
    assert train.X.flags.c_contiguous


def test_an_entry_that_is_no_array_is_told(ingest: Any) -> None:
    negative = npy(np.zeros((2, 3))).replace(b"(2, 3)", b"(-2,-3)", 1).replace(b" \n", b"\n", 1)
    for content in (b"", b"not an array", b"\x93NUMPY\x09\x00", negative):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("X.npy", content)
            archive.writestr("y.npy", npy(Y))
        assert code_of(ingest, out.getvalue()) == "unreadable_file"


def test_an_npy_table_holds_its_labels_in_a_column(ingest: Any) -> None:
    table = np.column_stack([X, Y])
    train, _, summary = ingest(npy(table))
    np.testing.assert_array_equal(train.X, X)
    assert (train.classes, summary["label_column"]) == (("0", "1", "2"), "2")
    train, _, _ = ingest(npy(table[:, ::-1]), label_column="0")
    np.testing.assert_array_equal(train.X, X[:, ::-1])


def test_an_npy_file_without_labels_or_cut_off_is_refused(ingest: Any) -> None:
    assert code_of(ingest, npy(np.arange(6))) == "no_labels"
    assert code_of(ingest, npy(np.array([["a", "b"]]))) == "no_labels"
    assert code_of(ingest, npy(np.column_stack([X, Y]))[:-8]) == "truncated_upload"


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "classes", "offers"),
    [
        ("letter", (15000, 5000, 16), 26, set()),
        ("dna", (2000, 1186, 180), 3, set()),
        ("yeast", (1185, 299, 8), 10, set()),
        ("mfeat", (1400, 600, 649), 10, {"views"}),
        ("cwru_lupi", (1568, 666, 15), 4, {"privileged"}),
        ("reuters_r8", (5485, 2189, 10684), 8, set()),
    ],
)
def test_the_benchmark_sets_are_read(
    ingest: Any, name: str, shape: tuple[int, int, int], classes: int, offers: set[str]
) -> None:
    path = DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is not there; set STMS_DATA")
    train, test, _ = ingest(path.read_bytes(), limits=DatasetLimits(10**6, 10**6, 10**9))
    assert ((train.n, test.n, train.d), train.K, train.extras.offers) == (shape, classes, offers)
    with np.load(path) as stored:
        codes = np.unique(stored["y_train"], return_inverse=True)[1]
        np.testing.assert_array_equal(train.y, codes)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_are_compressed_as_numpy_does_or_refused(ingest: Any, method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("X.npy", npy(X))
        archive.writestr("y.npy", npy(Y))
    assert code_of(ingest, out.getvalue()) == "unreadable_file"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_the_same_name_are_refused(ingest: Any) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in (("X.npy", X), ("y.npy", Y), ("X.npy", X + 1)):
            archive.writestr(name, npy(array))
    assert code_of(ingest, out.getvalue()) == "ambiguous_array"


def test_a_long_list_of_entries_is_refused_before_it_is_read(ingest: Any) -> None:
    with refused_as(TooLarge, "too_many_arrays", match="list of entries"):
        ingest(many_members(20_000))


def test_what_python_says_of_a_header_is_not_repeated(ingest: Any) -> None:
    header = b"{'descr': __import__('os'), 'fortran_order': False, 'shape': ()}"
    file = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(InvalidRequest) as caught:
        ingest(file)
    assert "0x" not in caught.value.message
    assert "not of the form that NumPy writes" in caught.value.message


def archive(*unnamed: Any, **named: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, *unnamed, **named)
    return out.getvalue()


ROWS = np.random.default_rng(0).normal(size=(20, 24))
CODES = np.arange(20) % 2


@pytest.mark.parametrize(
    ("content", "has_test"),
    [
        (archive(x_train=ROWS, y_train=CODES, x_test=ROWS, y_test=CODES), True),
        (archive(x_train=ROWS, y_train=CODES[:, None], x_test=ROWS, y_test=CODES[:, None]), True),
        (archive(train_images=ROWS, train_labels=CODES, test_images=ROWS, test_labels=CODES), True),
        (archive(train_data=ROWS, train_labels=CODES), False),
        (archive(trainX=ROWS, trainY=CODES, testX=ROWS, testY=CODES), True),
        (archive(data=ROWS, target=CODES), False),
        (archive(features=ROWS, labels=CODES), False),
        (archive(images=ROWS, label=CODES), False),
        (archive(x=ROWS, y=CODES), False),
        (archive(X=ROWS, Y=CODES), False),
        (archive(ROWS, CODES), False),
        (archive(ROWS, CODES, ROWS, CODES), True),
        (archive(ROWS, ROWS, CODES, CODES), True),
    ],
)
def test_rows_and_labels_are_found_by_their_usual_names(ingest: Any, content: bytes, has_test: bool) -> None:
    train, test, _ = ingest(content)
    assert np.array_equal(train.X, ROWS)
    assert [train.classes[code] for code in train.y] == [str(code) for code in CODES]
    assert (test is not None) == has_test
    if has_test:
        assert np.array_equal(test.X, ROWS)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 4)])
def test_images_are_flattened_and_it_is_said(ingest: Any, shape: tuple[int, ...], order: Any) -> None:
    images = np.array(ROWS.reshape(20, *shape), order=order)
    train, _, summary = ingest(archive(x_train=images, y_train=CODES))
    assert np.array_equal(train.X, ROWS)
    [warning] = [one for one in summary["warnings"] if one["code"] == "rows_flattened"]
    assert warning["message"].endswith("its 24 numbers are the columns, in order.")


def test_labels_of_one_1_in_each_row_are_its_columns(ingest: Any) -> None:
    train, _, summary = ingest(archive(X=ROWS, y=np.eye(2)[CODES]))
    assert [train.classes[code] for code in train.y] == [str(code) for code in CODES]
    assert "labels_from_columns" in [one["code"] for one in summary["warnings"]]
    with pytest.raises(InvalidRequest, match=r"send y\.argmax\(axis=1\)"):
        ingest(archive(X=ROWS, y=np.eye(2)[CODES] * 0.7))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (archive(X=ROWS, labels=CODES, target=CODES), "labels and target, which may all be y"),
        (archive(a=ROWS, b=CODES), r"has a, b\..*np\.savez\(FILE, X=X, y=y\)"),
        (archive(ROWS), "no array 'y'"),
        (archive(ROWS, CODES[:5]), "no array 'y'"),
        (archive(X=ROWS, y=np.zeros((20, 2, 2))), "it has 3 axes"),
    ],
)
def test_other_arrays_are_refused_with_the_way_out(ingest: Any, content: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ingest(content)
