"""Tables whose cells are separated by blanks."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest
from app.ingest.csv import blanks
from app.ingest.csv.blanks import copy_with_single_blanks, with_single_blanks

LINES = [(0.49, -3.5, "cyt"), (1, 22.25, "nuc"), (-7, 8, "cyt"), (3, 4.5, "nuc")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", ["{} {} {}", "{:>8}  {:<9}{}", "  {}   {}\t {}  ", "{}\t{} {}"])
def test_runs_of_blanks_separate_the_cells(ingest: Any, form: str, end: str) -> None:
    text = end.join([form.format("width", "height", "site"), *(form.format(*line) for line in LINES), ""])
    train, _, summary = ingest(text.encode())
    np.testing.assert_array_equal(train.X, [[0.49, -3.5], [1, 22.25], [-7, 8], [3, 4.5]])
    assert (train.feature_names, train.classes) == (("width", "height"), ("cyt", "nuc"))
    [found] = [one for one in summary["reading"] if one["name"] == "separator"]
    assert found["value"] == "space"
    assert found["reason"].startswith("it splits each of the first ")


def test_quoted_blanks_belong_to_their_cell(ingest: Any) -> None:
    rows = ['  18.0   8   307.0\t"chevrolet  chevelle "', '15.0 8 350.0    "buick   skylark" ']
    train, _, _ = ingest("\n".join(rows * 3).encode())
    assert train.classes == ("buick   skylark", "chevrolet  chevelle")
    np.testing.assert_array_equal(train.X[:2], [[18, 8, 307], [15, 8, 350]])


def test_faults_are_told_by_the_lines_of_the_file(ingest: Any) -> None:
    with pytest.raises(InvalidRequest, match="Line 4 has 2 cells; 3 are expected"):
        ingest(b"a   b  kind\n1  2  cat\n3   4 dog\n 5    cat\n7 8   dog\n", separator="space")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a, b, kind\n1, 2, x\n3, 4, y\n5, 6, x\n7, 8, y\n", "comma"),
        ("a;b;kind\n1 ;2;x\n3 ;4;y\n5 ;6;x\n7 ;8;y\n", "semicolon"),
    ],
)
def test_blanks_beside_another_separator_are_no_separators(ingest: Any, text: str, word: str) -> None:
    _, _, summary = ingest(text.encode())
    [found] = [one for one in summary["reading"] if one["name"] == "separator"]
    assert found["value"] == word


def test_blanks_between_words_are_no_separators(ingest: Any) -> None:
    text = b"text,kind\nold times here,a\nnew words here,b\nold times there,a\nnew words there,b\n"
    train, _, _ = ingest(text)
    assert train.table.names == ("text",)
    assert train.table.record(0) == {"text": "old times here"}


cells = st.text(
    st.characters(codec="utf-8", exclude_characters='"\r\n\x85\u2028\u2029'), min_size=1, max_size=8
)
gaps = st.text(" \t", min_size=1, max_size=4)


@given(st.lists(st.tuples(cells, cells, gaps, gaps), min_size=1, max_size=8))
def test_cells_are_the_same_in_the_copy(rows: list[tuple[str, ...]]) -> None:
    text = "".join(f'{gap}"{a}"{between}"{b}"{gap}\n' for a, b, gap, between in rows)
    single = with_single_blanks(text.encode()).decode()
    assert list(csv.reader(io.StringIO(single, newline=""), delimiter=" ")) == [[a, b] for a, b, *_ in rows]


def test_blocks_end_between_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows"
    text = b'1  2  "a  b"\n 3\t4  "c \n  d"  \n5 6 e\n'
    path.write_bytes(text)
    for size in range(1, len(text) + 1):
        monkeypatch.setattr(blanks, "_BLOCK_BYTES", size)
        with copy_with_single_blanks(path, tmp_path) as copy:
            assert copy.read_bytes() == b'1 2 "a  b"\n3 4 "c \n  d"\n5 6 e\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("said", [{}, {"separator": "space"}])
@pytest.mark.parametrize(
    ("names", "row"),
    [
        ("a b label", "{0}.5  {1}  {2}"),
        ("a  b  label", "{0}.5 {1} {2}"),
        ("  a b label", "   {0}.5    {1} {2}  "),
        ("a b label", "{0}.5\t{1}\t {2}"),
        ("a\tb\tlabel", "{0}.5  {1}  {2}"),
    ],
)
def test_names_and_rows_may_have_other_runs_of_blanks(
    ingest: Any, said: dict[str, str], names: str, row: str
) -> None:
    lines = [names, *(row.format(k, k % 7, "xy"[k % 2]) for k in range(20))]
    train, _, _ = ingest(("\n".join(lines) + "\n").encode(), **said)
    assert train.feature_names == ("a", "b")
    assert train.X[3].tolist() == [3.5, 3]
