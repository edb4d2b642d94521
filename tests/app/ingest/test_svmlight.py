from __future__ import annotations

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from app.domain.errors import InvalidRequest, TooLarge
from app.ingest import svmlight
from app.ingest.raw import DatasetLimits
from tests.refusals import at_fault, refused_as


@pytest.mark.parametrize("zero_based", [True, False])
def test_what_scikit_learn_writes_is_read_as_scikit_learn_reads_it(ingest: Any, zero_based: bool) -> None:
    rng = np.random.default_rng(0)
    X = sp.random(5000, 30, density=0.2, random_state=rng, format="lil")
    X[0, 0] = 1.0
    X = X.tocsr()
    y = np.arange(5000) % 3 - 1
    out = io.BytesIO()
    dump_svmlight_file(X, y, out, zero_based=zero_based, comment="made by a test")
    train, _, _ = ingest(out.getvalue())
    expected, labels = load_svmlight_file(io.BytesIO(out.getvalue()), zero_based=zero_based)
    assert abs(train.X - expected).max() == 0
    assert train.classes == ("-1", "0", "1")
    assert [int(train.classes[code]) for code in train.y] == labels.tolist()


def test_labels_may_be_text_and_rows_without_entries_are_kept(ingest: Any) -> None:
    train, _, _ = ingest(b"cat 1:2 3:4 # first\ndog\ncat 2:1\ndog 3:5\n\n\n", declared="svmlight")
    assert train.classes == ("cat", "dog")
    np.testing.assert_array_equal(train.X.toarray(), [[2, 0, 4], [0, 0, 0], [0, 1, 0], [0, 0, 5]])


def test_signed_labels_are_numbers_and_entries_are_sorted(ingest: Any) -> None:
    train, _, _ = ingest(b"+1 2:2 1:1\n-1 1:3\n1.0 1:1\n-1 2:2")
    assert train.classes == ("-1", "1")
    assert train.X.toarray()[0].tolist() == [1, 2]


def test_faults_are_told_by_line_and_row(ingest: Any) -> None:
    content = b"# made by hand\n1 1:2\n1 1:2:3\n\n2 1:x 2:3\n2 x:1\n2 1:nan\n"
    with pytest.raises(InvalidRequest) as caught:
        ingest(content, declared="svmlight")
    assert [(fault.code, fault.row) for fault in caught.value.faults] == [
        ("unreadable_row", 1),
        ("empty_row", 2),
        ("unreadable_row", 4),
        ("not_a_number", 3),
    ]
    messages = [fault.message for fault in caught.value.faults]
    assert messages[0] == "Line 3 does not have the form 'label index:value …': '1 1:2:3'."
    assert messages[3] == "Line 5, index 1: 'x' is not a number."


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"1 1:nan\n1 1:2\n2 1:1\n2 1:1", "not_finite"),
        (b"1 1:2 1:3\n1 1:2\n2 1:1\n2 1:1", "duplicate_index"),
        (b"1 1:2\n1 1:2\n", "single_class"),
        (b"1\n1\n2\n2\n", "no_columns"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(ingest: Any, content: bytes, code: str) -> None:
    with at_fault(InvalidRequest, code):
        ingest(content, declared="svmlight")


def test_a_file_of_comments_has_no_rows(ingest: Any) -> None:
    with refused_as(InvalidRequest, "no_rows"):
        ingest(b"# nothing\n", declared="svmlight")


def test_many_bad_lines_end_the_reading_early(ingest: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ingest(b"1 a:b\n" * 9000, declared="svmlight")
    assert len(caught.value.faults) == 10


def test_huge_indices_entries_and_lines_are_too_large(ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"1 1:2\n2 99999999999:1\n"
    with pytest.raises(TooLarge):
        ingest(content)
    with pytest.raises(TooLarge):
        ingest(content, limits=DatasetLimits(10, 10**12, 16))
    monkeypatch.setattr("app.ingest.svmlight._LONGEST_LINE", 10)
    with pytest.raises(InvalidRequest, match="Line 2 is longer than 10 bytes"):
        ingest(content, limits=DatasetLimits(10, 10**12, 10**6))


def test_a_long_line_is_read_piece_by_piece(ingest: Any) -> None:
    # Some pieces long, cut between any two entries, by tabs too.
    columns = 300_000
    row = "\t".join(f"{column}:{column % 7 + 1}" for column in range(1, columns + 1))
    limits = DatasetLimits(max_rows=10, max_columns=columns, max_bytes=50_000_000)
    train, _, _ = ingest(f"1 {row}\n1 1:2\n2 {row}\n2 3:4\n".encode(), declared="svmlight", limits=limits)
    expected = np.arange(1, columns + 1) % 7 + 1
    for number in (0, 2):
        np.testing.assert_array_equal(train.X[[number]].toarray()[0], expected)
    assert train.X[[1, 3]].nnz == 2


def test_a_long_line_takes_little_more_memory_than_its_bytes(ingest: Any) -> None:
    limits = DatasetLimits(max_rows=10, max_columns=10, max_bytes=10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            ingest(b"1 " + b"1:1 " * 2_000_000, declared="svmlight", limits=limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000


def test_bad_values_of_a_long_line_are_found_with_few_casts(
    ingest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of 100 000 values that are not numbers took as many casts, each with an exception."""
    entries = [b"%d:1" % index for index in range(1, 100_001)]
    entries[70_000:] = [entry.replace(b":1", b":x") for entry in entries[70_000:]]
    casts: list[int] = []
    cast = svmlight._cast
    monkeypatch.setattr(svmlight, "_cast", lambda *of: casts.append(len(of[0])) or cast(*of))
    with pytest.raises(InvalidRequest) as caught:
        ingest(b"a 1:1\nb " + b" ".join(entries) + b"\n", declared="svmlight")
    assert [fault.message for fault in caught.value.faults] == [
        f"Line 2, index {index}: 'x' is not a number." for index in range(70_001, 70_011)
    ]
    assert len(casts) < 100
    assert sum(casts) < 20 * len(entries)
