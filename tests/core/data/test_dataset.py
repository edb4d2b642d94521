import itertools
import json
import time
import unicodedata
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from core.data.dataset import LabelledData, validate_rows
from core.data.description import describe
from core.data.labels import alike, missing_labels
from core.errors import InvalidProblem

X4 = np.arange(8.0).reshape(4, 2)


def faults_of(call, *args, **kwargs):
    with pytest.raises(InvalidProblem) as caught:
        call(*args, **kwargs)
    return caught.value.faults


def codes_of(call, *args, **kwargs):
    return [fault.code for fault in faults_of(call, *args, **kwargs)]


class TestLabels:
    @pytest.mark.parametrize(
        ("labels", "classes", "codes"),
        [
            ([10, 9, 10, 9], ("9", "10"), [1, 0, 1, 0]),
            (["10", "9", "10", "9"], ("9", "10"), [1, 0, 1, 0]),
            (["x10", "x9", "x10", "x9"], ("x10", "x9"), [0, 1, 0, 1]),
            ([2.0, -1.0, 2.0, -1.0], ("-1", "2"), [1, 0, 1, 0]),
            ([2, -1.0, 2, -1.0], ("-1", "2"), [1, 0, 1, 0]),
            ([True, False, True, False], ("false", "true"), [1, 0, 1, 0]),
            (["b", "ä", "b", "ä"], ("b", "ä"), [0, 1, 0, 1]),
            (["猫", "犬", "猫", "犬"], ("犬", "猫"), [1, 0, 1, 0]),
            ([" a", "b ", "a", "b"], ("a", "b"), [0, 1, 0, 1]),
            (["1.5", "1", "1.5", "1"], ("1", "1.5"), [1, 0, 1, 0]),
        ],
    )
    def test_labels_of_every_usual_type_become_ordered_names(self, labels, classes, codes):
        for given_labels in (labels, tuple(labels), np.array(labels, dtype=object)):
            data = LabelledData.from_arrays(X4, given_labels)

            assert data.classes == classes
            assert data.y.dtype == np.int32
            np.testing.assert_array_equal(data.y, codes)

    @pytest.mark.parametrize(
        "labels",
        [
            np.array([3, 1, 3, 1], dtype=np.uint8),
            np.array([3, 1, 3, 1], dtype=np.float32),
            np.array(["3", "1", "3", "1"]),
            np.array(["3", "1", "3", "1"], dtype=np.dtypes.StringDType()),
            [np.int64(3), np.int16(1), 3, 1.0],
            [Decimal("3.0"), Decimal(1), Decimal(3), Decimal("1")],
            [b"3", b"1", b"3", b"1"],
            np.array([b"3", b"1", b"3", b"1"]),
        ],
    )
    def test_numpy_types_name_the_same_classes(self, labels):
        data = LabelledData.from_arrays(X4, labels)

        assert data.classes == ("1", "3")
        np.testing.assert_array_equal(data.class_counts, [2, 2])

    @pytest.mark.parametrize(
        ("labels", "first"),
        [
            ([date(2024, 5, 6), date(2024, 5, 7)], "2024-05-06"),
            ([datetime(2024, 5, 6, 7), datetime(2024, 5, 6, 8, 0, 0, 250_000)], "2024-05-06 07:00:00"),
            ([datetime(2024, 5, 6, 7, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)], "2024-05-06 07:00:00Z"),
            (np.array(["2024-05-06", "2024-05-07"], "M8[D]"), "2024-05-06"),
            (np.array(["2024-05-06", "2024-05-07"], "M8[ns]"), "2024-05-06 00:00:00"),
        ],
    )
    def test_days_and_moments_are_classes_by_their_text(self, labels, first):
        y = np.tile(labels, 2) if isinstance(labels, np.ndarray) else [*labels, *labels]
        assert LabelledData.from_arrays(X4, y).classes[0] == first

    @pytest.mark.parametrize(
        ("labels", "code", "row"),
        [
            ([1.0, np.nan, 1.0, 2.0], "missing_label", 1),
            (np.array([1.0, 1.0, np.nan, 2.0]), "missing_label", 2),
            (["a", None, "a", "b"], "missing_label", 1),
            (["a", "a", float("nan"), "b"], "missing_label", 2),
            ([1, 2, 1.5, 2], "label_not_whole", 2),
            ([1, 2, np.inf, 2], "label_not_whole", 2),
            ([1.0, 2.0**60, 1.0, 2.0], "label_not_whole", 1),
            (["a", 1, "a", "b"], "mixed_labels", 1),
            ([True, True, 1, 0], "mixed_labels", 2),
            (["a", "", "a", "b"], "empty_label", 1),
            (["a", "b", " \t", "b"], "empty_label", 2),
            (["a", "b", "a\x00b", "b"], "bad_label", 2),
            (["a", "b", "\ud800", "b"], "bad_label", 2),
            (["a", "b", "c" * 257, "b"], "label_too_long", 2),
            (["é", "b", "e\u0301", "b"], "ambiguous_label", 2),
            ([[1], [2], [1], [2]], "bad_label_type", 0),
            ([b"a", b"\xff", b"a", b"b"], "bad_label_type", 1),
            ([timedelta(1)] * 4, "bad_label_type", 0),
            (np.array([1, 2, 1, 2], "m8[s]").astype(object), "bad_label_type", 0),
            ([1 + 2j, 1, 1, 2], "bad_label_type", 0),
        ],
    )
    def test_unusable_labels_are_refused_with_their_row(self, labels, code, row):
        (fault, *_) = faults_of(LabelledData.from_arrays, X4, labels)

        assert (fault.field, fault.code, fault.row) == ("y", code, row)

    @pytest.mark.parametrize(
        ("labels", "code"),
        [
            (np.zeros((4, 1)), "wrong_shape"),
            (np.array([1, 2, 1, 2], dtype=complex), "bad_label_type"),
            ([1, 2, 1, 2, 1], "wrong_length"),
            ([], "empty"),
            ([1, 1, 1, 1], "single_class"),
            ([2**70, 1, 1, 2], "label_not_whole"),
        ],
    )
    def test_unusable_label_arrays_are_refused(self, labels, code):
        assert codes_of(LabelledData.from_arrays, X4, labels) == [code]

    def test_ten_faulty_labels_are_reported_at_most(self):
        faults = faults_of(LabelledData.from_arrays, np.ones((30, 1)), np.full(30, 0.5))

        assert [fault.row for fault in faults] == list(range(10))

    def test_ten_faulty_names_are_reported_at_most(self):
        labels = [f"{k}\tx" for k in range(30)]

        assert len(faults_of(LabelledData.from_arrays, np.ones((30, 1)), labels, min_per_class=1)) == 10

    def test_unicode_names_that_need_no_repair_keep_their_exact_code_points(self):
        decomposed = "e\u0301"

        data = LabelledData.from_arrays(X4, [decomposed, "b", decomposed, "b"])

        assert decomposed in data.classes

    @pytest.mark.parametrize(
        ("labels", "classes"),
        [
            (["0.0", "1.0"], ("0", "1")),
            (["+1", "-1"], ("-1", "1")),
            (["1.50", "2."], ("1.5", "2")),
            (["-0.0", "1"], ("0", "1")),
            (["01", "1"], ("01", "1")),
            (["1e0", "1"], ("1", "1e0")),
            (["True", "FALSE"], ("false", "true")),
            (["true", "maybe"], ("maybe", "true")),
            (["1.0", "a"], ("1.0", "a")),
            (["nan", "a"], ("a", "nan")),
            ([" x", "y "], ("x", "y")),
        ],
    )
    def test_texts_get_the_names_that_numbers_and_booleans_have(self, labels, classes):
        for given_labels in (labels * 2, np.array(labels * 2), np.array(labels * 2, dtype=object)):
            assert LabelledData.from_arrays(X4, given_labels).classes == classes

    def test_spellings_of_one_number_are_one_class(self):
        data = LabelledData.from_arrays(X4, ["1", "2", "1.0", "+2"])
        np.testing.assert_array_equal(data.y, [0, 1, 0, 1])

    def test_nan_among_numbers_is_a_missing_label(self):
        (fault,) = faults_of(LabelledData.from_arrays, X4, ["1", "NaN", "1", "2"])
        assert (fault.code, fault.row) == ("missing_label", 1)
        assert missing_labels(["1", "NaN", "", None, float("nan")]).tolist() == [
            False,
            True,
            True,
            True,
            True,
        ]
        assert missing_labels(["a", "NaN"]).tolist() == [False, False]

    def test_a_test_part_names_its_labels_as_training_did(self):
        train = LabelledData.from_arrays(X4, ["01", "1", "01", "1"])
        assert LabelledData.with_codes(X4, ["1", "1", "1", "1"], train.classes).y.tolist() == [1] * 4
        train = LabelledData.from_arrays(X4, ["1.0", "2.0"] * 2)
        assert LabelledData.with_codes(X4, ["2.0", "1.0", "1", "2"], train.classes).y.tolist() == [1, 0, 0, 1]

    @pytest.mark.parametrize(
        "names",
        [
            ("1", "1.0", "01", "+1", "1e0"),
            ("A", "a"),
            ("a b", "a  b"),
            ("x", "x\u200b"),
            ("a", "\u0430"),
            ("fi", "\ufb01"),
            ("x", "\u202ex"),
            ("A", "\uff21"),
            ("x", "x\ufe0f"),
            ("a ", "a"),
        ],
    )
    def test_names_that_people_take_for_one_are_found(self, names):
        assert alike(["other", *names, "another"]) == [names]

    def test_names_that_differ_are_not_alike(self):
        assert alike(["1", "2", "1.5", "a", "b", "犬", "猫", "é", "e", ""]) == []

    def test_a_class_with_too_few_examples_is_named(self):
        (fault,) = faults_of(LabelledData.from_arrays, X4, ["a", "a", "b", "a"])

        assert fault.code == "class_too_small"
        assert "'b' has 1 example;" in fault.message

    def test_the_least_number_of_examples_can_be_lowered(self):
        assert LabelledData.from_arrays(X4, ["a", "a", "b", "a"], min_per_class=1).K == 2

    def test_given_classes_keep_their_order(self):
        data = LabelledData.from_arrays(X4, ["a", "b", "a", "b"], classes=["b", "a"])

        assert data.classes == ("b", "a")
        np.testing.assert_array_equal(data.y, [1, 0, 1, 0])

    def test_a_class_that_was_promised_but_does_not_occur_is_too_small(self):
        assert codes_of(LabelledData.from_arrays, X4, [1, 2, 1, 2], classes=["1", "2", "3"]) == [
            "class_too_small"
        ]

    @pytest.mark.parametrize(
        ("classes", "code"), [(["a", "a"], "duplicate"), (["a", ""], "empty_label"), (["a", 1], "not_text")]
    )
    def test_unusable_given_classes_are_refused(self, classes, code):
        (fault,) = faults_of(LabelledData.from_arrays, X4, ["a", "a", "a", "a"], classes=classes)

        assert (fault.field, fault.code) == ("classes", code)

    def test_a_test_part_is_coded_by_the_classes_of_training(self):
        data = LabelledData.with_codes(X4, [7.0, 9.0, 7.0, 7.0], ("3", "7", "9"), n_columns=2)

        assert data.K == 3
        np.testing.assert_array_equal(data.y, [1, 2, 1, 1])

    def test_an_unknown_label_in_a_test_part_is_named_with_its_first_row(self):
        (fault,) = faults_of(LabelledData.with_codes, X4, ["a", "b", "c", "c"], ("a", "b"))

        assert (fault.code, fault.row) == ("unknown_class", 2)
        assert "'c'" in fault.message

    def test_a_test_part_with_other_columns_is_refused(self):
        assert codes_of(LabelledData.with_codes, X4, [1, 2, 1, 2], ("1", "2"), n_columns=3) == [
            "wrong_columns"
        ]

    @given(
        st.lists(
            st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=4),
            min_size=2,
            max_size=8,
            unique_by=lambda name: unicodedata.normalize("NFC", name),
        ),
        st.randoms(),
    )
    def test_codes_and_names_give_the_labels_back(self, names, random):
        labels = [name for name in names for _ in range(2)]
        random.shuffle(labels)

        data = LabelledData.from_arrays(np.zeros((len(labels), 1)), labels)

        assert [data.classes[code] for code in data.y] == labels

    @pytest.mark.long
    def test_a_million_classes_are_coded_in_seconds(self):
        labels = [f"person {i}" for i in range(1_000_000)]
        started = time.perf_counter()

        data = LabelledData.from_arrays(np.zeros((1_000_000, 1), np.float32), labels, min_per_class=1)

        assert data.K == 1_000_000
        assert data.classes[data.y[123_456]] == "person 123456"
        assert time.perf_counter() - started < 120


class TestRows:
    @pytest.mark.parametrize(
        ("X", "code"),
        [
            ([[1.0, 2.0], [3.0]], "ragged"),
            ([[1.0], 3.0], "ragged"),
            ([1.0, 2.0], "wrong_shape"),
            (np.zeros((2, 2, 2)), "wrong_shape"),
            (np.zeros((0, 3)), "empty"),
            (np.zeros((3, 0)), "no_columns"),
            ([["a", "b"]], "not_numeric"),
            (np.array([["a", 1.0]], dtype=object), "not_numeric"),
            (np.zeros((2, 2), dtype=complex), "not_numeric"),
            (np.zeros((2, 2), dtype="datetime64[s]"), "not_numeric"),
            (sp.csr_array(np.eye(2, dtype=complex)), "not_numeric"),
            (sp.csr_array((0, 3)), "empty"),
        ],
    )
    def test_what_is_not_a_table_of_numbers_is_refused(self, X, code):
        assert codes_of(validate_rows, X) == [code]

    def test_the_first_ragged_row_is_named(self):
        (fault,) = faults_of(validate_rows, [[1, 2], [3, 4], [5]])

        assert fault.row == 2

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("convert", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_value_that_is_not_finite_is_named_with_row_and_column(self, value, convert, dtype):
        X = np.ones((5, 4), dtype)
        X[3, 2] = value

        (fault,) = faults_of(validate_rows, convert(X), field="X_train", feature_names=["a", "b", "c", "d"])

        assert (fault.field, fault.code, fault.row, fault.column) == ("X_train", "not_finite", 3, 2)
        assert "row 3, column 2 ('c')" in fault.message

    @pytest.mark.parametrize("convert", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
    def test_a_value_too_large_to_be_squared_is_refused(self, convert):
        X = np.ones((2, 2))
        X[1, 0] = -1e200

        (fault,) = faults_of(validate_rows, convert(X))

        assert (fault.code, fault.row, fault.column) == ("too_large", 1, 0)

    @pytest.mark.parametrize("convert", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
    def test_the_first_ten_faults_are_reported_over_all_blocks(self, convert):
        X = np.zeros((300_000, 8), np.float32)
        rows = np.arange(0, 300_000, 20_000)
        X[rows, 5] = np.nan

        faults = faults_of(validate_rows, convert(X))

        assert [fault.row for fault in faults] == rows[:10].tolist()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_good_rows_are_not_copied(self, dtype):
        X = np.ones((3, 2), dtype)

        assert np.shares_memory(validate_rows(X), X)

    @pytest.mark.parametrize(
        ("convert", "dtype"),
        [
            (np.asarray, dtype)
            for dtype in (np.int8, np.uint64, np.bool_, np.float16, ">f8", ">f4", np.longdouble)
        ]
        + [(sp.csr_array, dtype) for dtype in (np.int8, np.uint64, np.bool_, np.longdouble)],
    )
    def test_other_number_types_become_double_precision(self, convert, dtype):
        rows = validate_rows(convert(np.eye(3).astype(dtype)))

        assert rows.dtype == np.float64
        assert rows.dtype.isnative
        np.testing.assert_array_equal(rows.toarray() if sp.issparse(rows) else rows, np.eye(3))

    def test_object_arrays_of_numbers_are_accepted(self):
        np.testing.assert_array_equal(validate_rows(np.array([[1, 2.5]], dtype=object)), [[1, 2.5]])

    def test_sparse_rows_come_back_canonical_and_the_original_is_untouched(self):
        X = sp.csr_array((np.array([1.0, 2.0, 4.0]), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 3))

        rows = validate_rows(X)

        assert rows.has_canonical_format
        np.testing.assert_array_equal(rows.toarray(), [[2.0, 0.0, 5.0]])
        assert X.nnz == 3

    @pytest.mark.parametrize("kind", ["csc", "coo", "lil"])
    def test_other_sparse_formats_become_csr(self, kind):
        rows = validate_rows(sp.eye_array(4, format=kind))

        assert isinstance(rows, sp.csr_array)
        np.testing.assert_array_equal(rows.toarray(), np.eye(4))

    @pytest.mark.parametrize("index", [7, -1])
    def test_sparse_rows_that_point_outside_the_table_are_refused(self, index):
        X = sp.csr_array(np.eye(3))
        X.indices = np.array([0, 1, index], dtype=np.int32)

        assert codes_of(validate_rows, X) == ["bad_sparse"]

    def test_sparse_rows_that_end_before_they_begin_are_refused(self):
        """SciPy accepts them in a table without stored values, and then reads memory that is not its own."""
        X = sp.csr_array((4, 2))
        X.indptr = np.array([0, 1, 2, 2**30, 0], dtype=np.int32)

        assert codes_of(validate_rows, X) == ["bad_sparse"]

    @pytest.mark.parametrize(
        ("names", "code"),
        [
            (["a"], "wrong_length"),
            (["a", "a"], "duplicate"),
            (["a", " "], "bad_name"),
            (["a", 3], "bad_name"),
        ],
    )
    def test_unusable_feature_names_are_refused(self, names, code):
        (fault,) = faults_of(LabelledData.from_arrays, X4, [1, 2, 1, 2], feature_names=names)

        assert (fault.field, fault.code) == ("feature_names", code)

    def test_faults_of_rows_labels_and_names_are_told_together(self):
        X = X4.copy()
        X[1, 1] = np.nan

        faults = faults_of(LabelledData.from_arrays, X, ["a", "", "a", "b"], feature_names=["u", "u"])

        assert {fault.field for fault in faults} == {"X", "y", "feature_names"}

    def test_a_million_rows_are_checked_in_seconds(self):
        X = np.ones((1_000_000, 64), np.float32)
        labels = np.arange(1_000_000) % 10
        started = time.perf_counter()

        data = LabelledData.from_arrays(X, labels)

        assert (data.n, data.d, data.K) == (1_000_000, 64, 10)
        assert time.perf_counter() - started < 100


class TestDescription:
    def test_it_counts_constant_and_duplicate_columns_and_is_ready_for_json(self):
        X = np.array([[1.0, 0.0, 1.0, 5.0, 1.0], [2.0, -0.0, 2.0, 5.0, 3.0]])
        data = LabelledData.from_arrays(X, ["a", "b"], feature_names=list("vwxyz"), min_per_class=1)

        description = describe(data)

        assert json.loads(json.dumps(description)) == description
        assert description["rows"] == 2
        assert description["class_counts"] == {"a": 1, "b": 1}
        column = {"name": "v", "min": 1.0, "max": 2.0, "mean": 1.5, "counts": [1, *[0] * 18, 1]} | {
            "examples": ["1", "2"]
        }
        assert description["features"][0] == column
        assert description["features"][3]["counts"] == [2, *[0] * 19], "a constant column"
        assert description["first_constant_columns"] == [1, 3]
        assert description["duplicate_columns"] == 1
        assert description["more_features_than_rows"] is True
        assert description["sparse"] is False

    def test_dense_and_sparse_tables_are_described_alike(self):
        X = np.random.default_rng(0).integers(0, 2, (6, 40)).astype(float)
        labels = [0, 1] * 3

        dense = describe(LabelledData.from_arrays(X, labels))
        sparse = describe(LabelledData.from_arrays(sp.csr_array(X), labels))

        assert dense["duplicate_columns"] == 40 - len(np.unique(X, axis=1).T)
        differing = {name for name in dense if dense[name] != sparse[name]}
        assert differing == {"sparse", "stored_values"}

    def test_columns_that_vary_by_rounding_or_less_than_a_scale_can_hold_are_counted(self):
        X = np.column_stack([[0.3, 0.1 * 3], [5e-321, 0.0], [1.0, 1.0], [1.0, 2.0]])

        description = describe(LabelledData.from_arrays(X, ["a", "b"], min_per_class=1))

        assert description["nearly_constant_columns"] == 2
        assert description["first_nearly_constant_columns"] == [0, 1]
        assert description["first_constant_columns"] == [2]

    @pytest.mark.parametrize("convert", [np.asarray, np.float32, sp.csr_array])
    def test_equal_rows_of_different_classes_are_counted(self, convert):
        X = np.array([[1.0, 0.0], [2.0, 5.0], [1.0, -0.0], [1.0, 0.0], [2.0, 5.0], [0.0, 1.0], [2.0, 5.0]])
        labels = ["a", "b", "a", "b", "b", None, "b"]

        description = describe(LabelledData.from_arrays(convert(X), labels, min_per_class=1, unlabelled=True))

        assert description["contradictory_rows"] == 3
        assert description["first_contradiction"] == [0, 3]

    def test_different_rows_of_small_numbers_are_no_contradictions(self):
        X = np.array(list(itertools.product([0.0, 1.0, 2.0, 4.0], repeat=6)))

        description = describe(LabelledData.from_arrays(X, np.arange(len(X)) % 2))

        assert "contradictory_rows" not in description

    @pytest.mark.parametrize("kind", ["dense", "sparse", "wide range"])
    def test_histograms_are_those_of_numpy(self, kind, monkeypatch):
        monkeypatch.setattr("core.data.validation._BLOCK_ENTRIES", 100)
        rng = np.random.default_rng(1)
        X = rng.normal(size=(300, 7)) * (rng.random((300, 7)) < 0.4 if kind == "sparse" else 1.0)
        X *= 1e99 if kind == "wide range" else 1.0
        data = LabelledData.from_arrays(sp.csr_array(X) if kind == "sparse" else X, np.arange(300) % 3)

        columns = describe(data)["features"]

        for column, values in zip(columns, X.T, strict=True):
            assert column["counts"] == np.histogram(values, 20)[0].tolist()

    def test_lists_of_long_names_are_cut_but_counted(self):
        names = [f"{number:03d}" + "n" * 252 for number in range(900)]
        labels = np.repeat(names, 2)
        data = LabelledData.from_arrays(np.zeros((1800, 900), np.float32), labels, feature_names=names)

        description = describe(data)

        assert (description["classes"], description["columns"]) == (900, 900)
        assert list(description["class_counts"]) == names[:392], "as many as have 100 000 characters"
        assert [column["name"] for column in description["features"]] == names[:392]

    def test_a_long_name_of_a_column_is_refused(self):
        with pytest.raises(InvalidProblem) as caught:
            LabelledData.from_arrays(np.eye(4), [0, 1, 0, 1], feature_names=["a", "b", "c" * 401, "d"])
        assert [(fault.code, fault.column) for fault in caught.value.faults] == [("name_too_long", 2)]

    def test_long_lists_are_cut_but_counted(self):
        labels = np.repeat(np.arange(1500), 2)
        data = LabelledData.from_arrays(np.zeros((3000, 1200), np.float32), labels)

        description = describe(data)

        assert description["classes"] == 1500
        assert len(description["class_counts"]) == 1000
        assert len(description["features"]) == 1000
        assert sum("counts" in column for column in description["features"]) == 100
        assert description["constant_columns"] == 1200
        assert description["duplicate_columns"] == 1199
