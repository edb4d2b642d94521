"""Privileged columns, views, scores of a teacher and missing labels in every file format."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import save

from app.domain.errors import InvalidRequest, TooLarge
from app.ingest.dataset_format import decode, encode
from app.ingest.raw import DatasetLimits
from core.data.dataset import LabelledData
from core.data.extras import MAX_VIEWS, View

X = np.arange(18.0).reshape(6, 3)
LABELS = ["a", "b", "c", "a", "b", "c"]
PRIVILEGED = np.linspace(0.0, 1.0, 12).reshape(6, 2)
SCORES = np.cos(np.arange(18.0)).reshape(6, 3)
VIEWS = (View("image", 0, 2), View("sound", 2, 3))
COLUMNS = {
    "privileged:depth": PRIVILEGED[:, 0],
    "view:image:red": X[:, 0],
    "score:b": SCORES[:, 1],
    "view:image:green": X[:, 1],
    "view:sound:pitch": X[:, 2],
    "kind": LABELS,
    "privileged:age": PRIVILEGED[:, 1],
    "score:a": SCORES[:, 0],
    "score:c": SCORES[:, 2],
}
ARRAYS: dict[str, Any] = {
    "X": X,
    "y": np.arange(6) % 3,
    "privileged": PRIVILEGED,
    "views": np.array([[0, 2], [2, 3]]),
    "teacher_scores": SCORES[:, [2, 0, 1]],
}
NAMES = {
    "class_names": ["a", "b", "c"],
    "privileged_names": ["depth", "age"],
    "view_names": ["image", "sound"],
    "teacher_score_classes": ["c", "a", "b"],
}


def csv(columns: dict[str, Any]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]).encode()


def parquet_file(columns: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


def npz(arrays: dict[str, Any], names: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays, **names)
    return out.getvalue()


def safetensors(arrays: dict[str, Any], names: dict[str, Any]) -> bytes:
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(plain, {name: json.dumps(value) for name, value in names.items()})


def saved(kind: str) -> bytes:
    match kind:
        case "csv":
            return csv(COLUMNS)
        case "parquet":
            return parquet_file(COLUMNS)
        case "npz":
            return npz(ARRAYS, NAMES)
        case _:
            return safetensors(ARRAYS, NAMES)


def faults_of(ingest: Any, content: bytes, **options: Any) -> list[tuple[str, str, int | None, int | None]]:
    with pytest.raises(InvalidRequest) as caught:
        ingest(content, **options)
    return [(fault.field, fault.code, fault.row, fault.column) for fault in caught.value.faults]


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "safetensors"])
def test_every_format_carries_them_and_they_are_stored_and_shown(ingest: Any, kind: str) -> None:
    train, _, summary = ingest(saved(kind))
    again, _ = decode(bytearray(b"".join(encode(train, None))))
    for data in (train, again):
        np.testing.assert_array_equal(data.X, X)
        assert data.classes == ("a", "b", "c")
        np.testing.assert_allclose(data.privileged, PRIVILEGED, rtol=1e-15)
        assert data.extras.privileged_names == ("depth", "age")
        assert data.views == VIEWS
        np.testing.assert_allclose(data.teacher_scores, SCORES, rtol=1e-15)
    assert summary["privileged"] == {"columns": 2, "names": ["depth", "age"]}
    assert summary["views"] == [
        {"name": "image", "start": 0, "stop": 2},
        {"name": "sound", "start": 2, "stop": 3},
    ]
    expected = np.mean(SCORES.argmax(axis=1) == np.arange(6) % 3)
    assert summary["teacher_scores"] == {"accuracy": expected}


def test_the_label_is_the_last_column_that_is_no_extra(ingest: Any) -> None:
    train, _, summary = ingest(csv(COLUMNS))

    assert summary["label_column"] == "kind"
    assert train.feature_names == ("view:image:red", "view:image:green", "view:sound:pitch")


def test_extras_of_a_test_part(ingest: Any) -> None:
    arrays = {f"{name}_train": ARRAYS[name] for name in ("X", "y", "privileged", "teacher_scores")}
    arrays |= {"X_test": X[:2], "y_test": ARRAYS["y"][:2], "teacher_scores_test": SCORES[:2]}
    names = {name: NAMES[name] for name in ("class_names", "privileged_names")}
    train, test, _ = ingest(npz(arrays, names))
    again = decode(bytearray(b"".join(encode(train, test))))[1]

    np.testing.assert_array_equal(train.privileged, PRIVILEGED)
    for data in (test, again):
        assert data is not None
        assert data.privileged is None
        np.testing.assert_array_equal(data.teacher_scores, SCORES[:2])


@pytest.mark.parametrize("make", [npz, safetensors])
def test_other_names_of_the_same_arrays(ingest: Any, make: Any) -> None:
    arrays = {f"{name}_{part}": ARRAYS[name] for name in ("X", "y") for part in ("train", "test")}
    arrays |= {"Xpriv_train": PRIVILEGED, "Xpriv_test": PRIVILEGED, "view_offsets": np.array([0, 2, 3])}
    train, test, summary = ingest(
        make(arrays, {name: NAMES[name] for name in ("privileged_names", "view_names")})
    )

    for data in (train, test):
        np.testing.assert_array_equal(data.privileged, PRIVILEGED)
        assert data.extras.privileged_names == ("depth", "age")
        assert data.views == VIEWS
    assert "ignored_arrays" not in [warning["code"] for warning in summary["warnings"]]


def test_data_sets_without_extras_are_stored_without_a_word_of_them() -> None:
    data = LabelledData.from_arrays(X, LABELS)

    assert b"extras" not in b"".join(encode(data, None))


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "fault"),
        [
            ({"privileged:depth": [0.0, 1.0, "nan", 3.0, 4.0, 5.0]}, ("privileged", "missing_value", 2, 0)),
            ({"score:c": [0.0, 1.0, "inf", 3.0, 4.0, 5.0]}, ("teacher_scores", "not_a_number", 2, 2)),
            ({"privileged:age": [0.0, 1.0, 2.0, "old", 4.0, 5.0]}, ("privileged", "not_a_number", 3, 1)),
            ({"score:a": [0.0, "", 2.0, 3.0, 4.0, 5.0]}, ("teacher_scores", "missing_value", 1, 1)),
            ({"score:dog": [0.0] * 6}, ("teacher_scores", "unknown_class", None, 3)),
            ({"privileged: ": [0.0] * 6}, ("privileged_names", "bad_name", None, 2)),
            ({"view:image:blue": [0.0] * 6}, ("views", "not_adjacent", None, 3)),
            ({"view:alone": [0.0] * 6}, ("views", "bad_name", None, 3)),
        ],
    )
    def test_csv(self, ingest: Any, changes: dict[str, Any], fault: tuple[Any, ...]) -> None:
        assert faults_of(ingest, csv(COLUMNS | changes), label_column="kind") == [fault]

    @pytest.mark.parametrize(
        ("changes", "fault"),
        [
            ({"privileged:depth": [0.0, None, 2.0, 3.0, 4.0, 5.0]}, ("privileged", "missing_value", 1, 0)),
            ({"score:c": ["x"] * 6}, ("teacher_scores", "not_numeric", None, 2)),
            ({"score:b": [0.0, 1.0, 2.0, np.nan, 4.0, 5.0]}, ("teacher_scores", "not_finite", 3, 0)),
        ],
    )
    def test_parquet(self, ingest: Any, changes: dict[str, Any], fault: tuple[Any, ...]) -> None:
        assert faults_of(ingest, parquet_file(COLUMNS | changes)) == [fault]

    @pytest.mark.parametrize("make", [npz, safetensors])
    @pytest.mark.parametrize(
        ("arrays", "names", "field", "code"),
        [
            ({"privileged": PRIVILEGED[:5]}, {}, "privileged", "wrong_length"),
            ({"privileged": PRIVILEGED[:, :1]}, {}, "privileged_names", "wrong_length"),
            ({"privileged": np.full((6, 2), np.nan)}, {}, "privileged", "not_finite"),
            ({"teacher_scores": SCORES[:, :2]}, {}, "teacher_scores", "wrong_columns"),
            ({}, {"teacher_score_classes": ["a", "b", "x"]}, "teacher_scores", "unknown_class"),
            ({"views": np.array([[0, 2], [1, 3]])}, {}, "views", "overlapping"),
            ({"views": np.array([[0, 2], [2, 9]])}, {}, "views", "out_of_bounds"),
            ({"views": np.array([0, 2])}, {}, "views", "wrong_shape"),
            ({"views": np.array([[0.0, 2.0]])}, {}, "views", "wrong_shape"),
            ({"views": np.zeros((MAX_VIEWS + 1, 2), dtype=np.int64)}, {}, "views", "too_many"),
            ({}, {"view_names": ["image"]}, "view_names", "wrong_length"),
            ({"view_offsets": np.array([0, 2, 3])}, {}, "view_offsets", "ambiguous_array"),
            ({"Xpriv": PRIVILEGED}, {}, "Xpriv", "ambiguous_array"),
        ],
    )
    def test_named_arrays(
        self, ingest: Any, make: Any, arrays: dict[str, Any], names: dict[str, Any], field: str, code: str
    ) -> None:
        content = make(ARRAYS | arrays, NAMES | names)
        assert (field, code) in {fault[:2] for fault in faults_of(ingest, content)}

    @pytest.mark.parametrize("make", [npz, safetensors])
    @pytest.mark.parametrize(
        ("extra", "field", "code"),
        [
            ({"view_offsets": np.array([0, 2])}, "view_names", "wrong_length"),
            ({"view_offsets": np.array([2])}, "view_offsets", "wrong_shape"),
            ({"view_offsets": np.array([[0, 2], [2, 3]])}, "view_offsets", "wrong_shape"),
            ({"view_offsets": np.array([0.0, 2.0, 3.0])}, "view_offsets", "wrong_shape"),
            ({"view_offsets": np.array([0, 2, 9])}, "views", "out_of_bounds"),
            ({"view_offsets": np.array([-1, 2, 3])}, "views", "out_of_bounds"),
            ({"view_offsets": np.array([0, 3, 2])}, "views", "out_of_bounds"),
            ({"view_offsets": np.arange(MAX_VIEWS + 2)}, "view_offsets", "too_many"),
            ({"Xpriv": PRIVILEGED[:5]}, "Xpriv", "wrong_length"),
            ({"Xpriv": PRIVILEGED[:, 0]}, "Xpriv", "wrong_shape"),
            ({"Xpriv": np.full((6, 2), np.inf)}, "privileged", "not_finite"),
        ],
    )
    def test_other_names_of_arrays(
        self, ingest: Any, make: Any, extra: dict[str, Any], field: str, code: str
    ) -> None:
        content = make({"X": X, "y": ARRAYS["y"]} | extra, {"view_names": ["image", "sound"]})
        assert (field, code) in {fault[:2] for fault in faults_of(ingest, content)}

    def test_a_label_column_that_is_an_extra(self, ingest: Any) -> None:
        with pytest.raises(InvalidRequest, match="label column that is not one of"):
            ingest(csv(COLUMNS), label_column="score:a")

    def test_more_privileged_columns_than_are_allowed(self, ingest: Any) -> None:
        limits = DatasetLimits(max_rows=100, max_columns=5, max_bytes=10**6)
        with pytest.raises(TooLarge):
            ingest(npz({"X": X, "y": ARRAYS["y"], "privileged": np.zeros((6, 6))}, {}), limits=limits)

    def test_a_large_array_of_zeros_is_refused_before_it_is_unpacked(self, ingest: Any) -> None:
        limits = DatasetLimits(max_rows=100, max_columns=10**6, max_bytes=10**6)
        with pytest.raises(TooLarge):
            ingest(npz(ARRAYS | {"teacher_scores": np.zeros((6, 10**5))}, {}), limits=limits)

    @pytest.mark.parametrize("token", ["privileged:depth:1", "score:a:0.5", "view:image:1:2"])
    def test_svmlight_says_what_it_cannot_carry(self, ingest: Any, token: str) -> None:
        content = f"1 1:0.5\n2 {token} 1:0.5\n1 1:3\n2 1:4\n".encode()
        with pytest.raises(InvalidRequest, match="cannot carry privileged columns") as caught:
            ingest(content, declared="svmlight")
        assert [(fault.code, fault.row) for fault in caught.value.faults] == [("cannot_carry", 1)]

    def test_svmlight_has_no_rows_without_a_label(self, ingest: Any) -> None:
        content = b"1 1:0.5\n1:0.5 2:3\n2 1:3\n"
        options = {"declared": "svmlight", "unlabelled": True}
        assert faults_of(ingest, content, **options) == [("y", "missing_label", 1, None)]

    def test_metadata_that_are_no_list(self, ingest: Any) -> None:
        content = safetensors(ARRAYS, NAMES | {"class_names": {"a": 1}})
        assert faults_of(ingest, content) == [("class_names", "bad_json", None, None)]


class TestMissingLabels:
    CONTENT = (
        (csv({"x": range(6), "y": ["a", "b", "", "a", "b", ""]}), "csv"),
        (parquet_file({"x": np.arange(6.0), "y": ["a", "b", None, "a", "b", None]}), "parquet"),
        (parquet_file({"x": np.arange(6.0), "y": [7, 8, None, 7, 8, None]}), "parquet"),
        (npz({"X": X, "y": np.array(["a", "b", "", "a", "b", ""])}, {}), "npz"),
        (npz({"X": X, "y": np.array([7, 8, np.nan, 7, 8, np.nan])}, {}), "npz"),
        (npz({"X": X, "y": np.array([0, 1, -1, 0, 1, -1])}, {"class_names": ["a", "b"]}), "npz"),
        (safetensors({"X": X, "y": np.array([0, 1, -1, 0, 1, -1])}, {"class_names": ["a", "b"]}), None),
    )

    @pytest.mark.parametrize(("content", "kind"), CONTENT)
    def test_are_kept_where_that_is_asked_for(self, ingest: Any, content: bytes, kind: str | None) -> None:
        train, _, summary = ingest(content, declared=kind, unlabelled=True)
        again, _ = decode(bytearray(b"".join(encode(train, None))))

        assert train.y.tolist() == again.y.tolist() == [0, 1, -1, 0, 1, -1]
        assert train.labelled().y.tolist() == [0, 1, 0, 1]
        assert summary["unlabelled_rows"] == 2
        assert list(summary["class_counts"].values()) == [2, 2]
        assert "unlabelled_rows" in [warning["code"] for warning in summary["warnings"]]

    def test_minus_one_is_no_class_where_they_are_kept(self, ingest: Any) -> None:
        content = npz({"X": X, "y": np.array([0, 1, -1, 0, 1, -1])}, {"class_names": ["a", "b", "c"]})
        train, _, _ = ingest(content, unlabelled=True)

        assert train.y.tolist() == [0, 1, -1, 0, 1, -1]
        assert ingest(content)[0].y.tolist() == [1, 2, 0, 1, 2, 0]

    @pytest.mark.parametrize(("content", "kind"), CONTENT)
    def test_are_refused_otherwise(self, ingest: Any, content: bytes, kind: str | None) -> None:
        faults = faults_of(ingest, content, declared=kind)

        assert faults[0][0] == "y"
        assert faults[0][2] == 2
        assert faults[0][1] in {"missing_label", "empty_label", "unknown_class"}

    def test_a_refusal_says_how_to_keep_them(self, ingest: Any) -> None:
        with pytest.raises(InvalidRequest, match="unlabelled=accept"):
            ingest(self.CONTENT[0][0])

    def test_faults_of_labels_name_the_row_of_the_file(self, ingest: Any) -> None:
        content = csv({"x": range(6), "y": ["a", "", "b" * 300, "a", "b", ""]})
        assert faults_of(ingest, content, unlabelled=True)[0] == ("y", "label_too_long", 2, None)

    def test_other_faults_of_a_csv_file_leave_missing_labels_out(self, ingest: Any) -> None:
        content = csv({"x": [1, 2, 3, 4], "y": ["a", "", "b,c", "b"]})
        assert faults_of(ingest, content, unlabelled=True) == [("X", "ragged_row", 2, None)]

    def test_no_label_at_all_is_accepted_with_a_warning(self, ingest: Any) -> None:
        train, _, summary = ingest(csv({"x": range(3), "y": ["", "", ""]}), unlabelled=True)

        assert (train.y.tolist(), train.K) == ([-1, -1, -1], 0)
        assert "a job needs a labelling" in summary["warnings"][-1]["message"]

    def test_a_test_part_needs_all_labels(self, ingest: Any) -> None:
        arrays = {"X_train": X, "y_train": np.array(LABELS), "X_test": X[:2], "y_test": np.array(["a", ""])}
        assert faults_of(ingest, npz(arrays, {}), unlabelled=True) == [("y_test", "empty_label", 1, None)]
