"""Text and Parquet data sets that are malformed, too large, or built to break their parsers."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet

from tests.refusals.archives import array, npz
from tests.refusals.refusal import Act, Refusal, a_file, refusals
from tests.refusals.tensors import npy

_MIB = 1024**2
_INVALID = (400, "invalid_dataset")
_UNREADABLE = (400, "unreadable_file")
_WRONG_FORMAT = (415, "wrong_format")
_TRUNCATED = (400, "truncated_upload")


def _csv(data: bytes | str | Callable[[], bytes], query: str = "") -> Act:
    return a_file(data, "text/csv", query)


def _cell(cell: str | bytes) -> Act:
    """A file that is valid except for one cell of a column of numbers."""
    given = cell.encode() if isinstance(cell, str) else cell
    return _csv(b"a,b,label\n1,2,x\n3," + given + b",x\n" + b"5,6,y\n7,8,y\n" * 20)


def _label(label: str | bytes) -> Act:
    """A file that is valid except for the label of two rows."""
    given = label.encode() if isinstance(label, str) else label
    return _csv(b"a,b,label\n1,2," + given + b"\n3,4," + given + b"\n5,6,y\n7,8,y\n")


def csv() -> list[Refusal]:
    """Malformed CSV files."""
    return refusals(
        "csv",
        ("nothing", _csv(b""), 400, "empty_file"),
        ("empty lines", _csv("\n" * 100_000), 400, "empty_file"),
        ("a header and nothing else", _csv("a,b,label\n"), 400, "no_rows"),
        ("one column", _csv("a\n1\n2\n"), 400, "one_column"),
        ("a formula", _cell("=cmd|' /C calc'!A0"), *_INVALID),
        ("a formula that sums", _cell("@SUM(1+1)*cmd|' /C calc'!A0"), *_INVALID),
        ("a formula with a tab", _cell("\t=1+1"), *_INVALID),
        ("a link", _cell('"=HYPERLINK(""http://evil.example"",""a"")"'), *_INVALID),
        ("a zero-width space before a letter", _cell("1\u200bO"), *_INVALID),
        ("a number that runs backwards into letters", _cell("\u202e12px"), *_INVALID),
        ("a number with underscores", _cell("1_000"), *_INVALID),
        ("hexadecimal", _cell("0x1F"), *_INVALID),
    )


def tables() -> list[Refusal]:
    """CSV files with wrong shapes and sizes."""
    return refusals(
        "csv",
        ("1e999", _cell("1e999"), *_INVALID),
        ("minus infinity", _cell("-inf"), *_INVALID),
        ("overlong UTF-8", _cell(b"\xc0\xb1"), *_INVALID),
        ("half a surrogate pair", _cell(b"\xed\xa0\x80"), *_INVALID),
        ("a number of 100 000 digits", _cell("9" * 100_000), *_INVALID),
        ("a cell of 20 MB", _cell(b"x" * 20_000_000), 400, "line_too_long"),
        ("quotes that never close", _cell('"1'), *_INVALID),
        ("line ends in quotes", _cell('"1\n2"'), *_INVALID),
        ("a ragged row", _csv("a,b,label\n1,2,x\n3,x\n5,6,y\n7,8,y\n"), *_INVALID),
        (
            "a million columns in one row",
            _csv("a,b,label\n1,2,x\n" + "1," * 1_000_000 + "x\n5,6,y\n7,8,y\n"),
            *_INVALID,
        ),
        ("a million columns", _csv("1," * 1_000_000 + "x\n"), 413, "too_many_columns"),
        ("100 001 rows", _csv("1,2,x\n" * 100_001), 413, "too_many_rows"),
        ("more numbers than fit", _csv(("1," * 999 + "x\n") * 5000), 413, "table_too_large"),
        ("a label with NUL", _label("a\0b"), *_WRONG_FORMAT),
        ("a label that is a line end", _label('"a\rb"'), *_INVALID),
        ("a label that is no UTF-8", _label(b"\xff"), *_INVALID),
        ("a label of 100 000 letters", _label("a" * 100_000), *_INVALID),
        ("a label of blanks", _label("   "), *_INVALID),
        ("a label with an escape", _label("\x1b[31m"), *_INVALID),
        ("labels that look alike", _csv("1,2,\u00e9\n3,4,e\u0301\n5,6,\u00e9\n7,8,e\u0301\n"), *_INVALID),
        ("Cyrillic letters for Latin ones", _csv("1,2,a\n3,4,a\n5,6,а\n"), *_INVALID),
        (
            "a class for each row",
            _csv("".join(f"{i},2,c{i}\n" for i in range(50_000))),
            400,
            "ambiguous_label_column",
        ),
        ("two kinds of line ends", _csv("1,2,x\r3,4,x\n5,6,y\r7,8,y\n"), *_UNREADABLE),
        ("a label column that is none", _csv("a,b\n1,x\n2,x\n", "label_column=../x"), 400, "no_label_column"),
        (
            "a label column of SQL",
            _csv("a,b\n1,x\n2,x\n", "label_column='%20OR%201=1--"),
            400,
            "no_label_column",
        ),
        ("a name with line ends", _csv("1,x\n2,x\n3,y\n4,y\n", "name=a%0d%0ab"), 400, "invalid_request"),
        (
            "a name that runs backwards",
            _csv("1,x\n2,x\n3,y\n4,y\n", "name=%E2%80%AEvsc"),
            400,
            "invalid_request",
        ),
        (
            "a name of 500 letters",
            _csv("1,x\n2,x\n3,y\n4,y\n", "name=" + "a" * 500),
            400,
            "invalid_parameter",
        ),
        ("a format that is none", _csv("1,x\n2,x\n3,y\n4,y\n", "format=exe"), 415, "unsupported_format"),
        ("25 MiB", _csv(lambda: b"1,2\n" * (25 * _MIB // 4)), 413, "body_too_large"),
    )


def kinds() -> list[Refusal]:
    """Files of formats that the service does not read, with right and wrong declared types."""

    def said(data: bytes, query: str = "") -> Act:
        return a_file(data, query=query)

    return refusals(
        "kinds",
        ("a pickle", said(b"\x80\x04\x95\x1d\x00cos\nsystem\n(S'id'\ntR."), *_WRONG_FORMAT),
        ("a pickle said to be CSV", _csv(b"\x80\x04\x95cos\nsystem\n(S'id'\ntR."), *_WRONG_FORMAT),
        ("gzip", said(b"\x1f\x8b\x08" + bytes(99)), *_WRONG_FORMAT),
        ("xz", said(b"\xfd7zXZ\0" + bytes(99)), *_WRONG_FORMAT),
        ("HDF5", said(b"\x89HDF\r\n\x1a\n" + bytes(99)), *_WRONG_FORMAT),
        ("a program", said(b"\x7fELF" + bytes(99)), *_WRONG_FORMAT),
        ("half of UTF-16", said("1,2,x\n".encode("utf-16")[:-1]), 400, "bad_encoding"),
        ("CSV said to be Parquet", said(b"1,2,x\n", "format=parquet"), *_WRONG_FORMAT),
        ("CSV with the name of an archive", said(b"1,2,x\n", "filename=../../a.npz"), *_WRONG_FORMAT),
        ("an archive of other things", said(npz({"evil.exe": b"MZ"})), *_WRONG_FORMAT),
        ("a table of one axis", said(array([1.0, 2.0])), 400, "no_labels"),
        (
            "a table of 2^39 rows",
            said(npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**39}, 2)}}")),
            413,
            "too_many_rows",
        ),
        ("a table cut off", said(array(np.zeros((1000, 3)))[:-8]), 400, "truncated_upload"),
        ("a table of objects", said(array([[{}, 1]], dtype=object)), 400, "pickled_objects"),
    )


def records() -> list[Refusal]:
    """Malformed JSON lines, ARFF and Arrow files, and what is said of columns."""

    def lines(text: str | bytes) -> Act:
        return a_file(text, "application/x-ndjson")

    def arff(text: str) -> Act:
        return a_file("@relation r\n@attribute a real\n@attribute y {u,v}\n" + text, "text/x-arff")

    def arrow(data: bytes) -> Act:
        return a_file(data, "application/vnd.apache.arrow.file")

    good = '{"a": 1, "y": "u"}\n{"a": 2, "y": "v"}\n' * 2
    file, noise = _arrow(), bytes(range(256)) * 4
    table = "a,y\n1,u\n2,v\n1,u\n2,v\n"
    return refusals(
        "records",
        ("nested values", lines(good + '{"a": {"b": 1}, "y": "u"}'), *_INVALID),
        ("a hundred thousand brackets", lines(good + "[" * 100_000), *_INVALID),
        ("half an object", lines(good + '{"a": '), *_INVALID),
        ("no object", lines(good + "17"), *_INVALID),
        ("a number beyond all", lines(good + '{"a": 1e999, "y": "u"}'), *_INVALID),
        ("a number of 10 000 digits", lines(good + '{"a": ' + "9" * 10_000 + ', "y": "u"}'), *_INVALID),
        ("half a surrogate pair", lines(good + '{"a": "\\ud800", "y": "u"}'), *_INVALID),
        ("a line of 2 MB", lines(good + '{"a": "' + "x" * 2_000_000 + '", "y": "u"}'), *_INVALID),
        ("lists that differ", lines(good + '{"a": [1, 2], "y": "u"}'), *_INVALID),
        (
            "a column for each row",
            lines("".join(f'{{"c{i}": 1, "y": "{i % 2}"}}\n' for i in range(20_000))),
            413,
            "table_too_large",
        ),
        ("an ARFF file without rows", arff("@data\n"), 400, "no_rows"),
        ("an ARFF file without data", arff(""), 400, "bad_header"),
        ("a sparse ARFF file", arff("@data\n{0 1, 1 u}\n"), *_INVALID),
        ("a value that is none of the attribute", arff("@data\n1,u\n2,w\n1,u\n2,v\n"), *_INVALID),
        ("text for a number in ARFF", arff("@data\n1,u\nx,v\n1,u\n2,v\n"), *_INVALID),
        ("a magic word of Arrow and nothing else", arrow(b"ARROW1\0\0"), *_TRUNCATED),
        ("a footer of Arrow of noise", arrow(file[:-200] + noise), *_TRUNCATED),
        ("an Arrow file cut off", arrow(file[: len(file) // 2]), *_TRUNCATED),
        ("a stream of noise", a_file(b"\xff\xff\xff\xff" + noise), *_UNREADABLE),
        ("a kind that is none", _csv(table, "columns=a:os.system"), 400, "invalid_request"),
        ("a pattern of dates of noise", _csv(table, "columns=a:date:%25%25%25"), 400, "invalid_request"),
        ("a column that is none", _csv(table, "columns=b:text"), 400, "unknown_column"),
        ("more lines than there are", _csv(table, "skip_lines=999"), 400, "empty_file"),
        ("lines to skip by the million", _csv(table, "skip_lines=1000000"), 400, "invalid_request"),
        ("an encoding that is code", _csv(table, "encoding=rot13"), 400, "invalid_request"),
    )


def svmlight() -> list[Refusal]:
    """Malformed svmlight files."""

    def lines(text: str | bytes) -> Act:
        return a_file(text, "application/x-svmlight")

    good = "1 1:2\n1 1:3\n2 1:4\n2 1:5\n"
    return refusals(
        "svmlight",
        ("a column of 10^15", lines(good + "1 999999999999999:1\n"), 413, "too_many_columns"),
        ("a column beyond 64 bits", lines(good + "1 99999999999999999999:1\n"), *_INVALID),
        ("a negative column", lines(good + "1 -1:1\n"), *_INVALID),
        ("half a column", lines(good + "1 0.5:1\n"), *_INVALID),
        ("a column twice", lines(good + "1 1:1 1:2\n"), *_INVALID),
        ("qid", lines(good + "1 qid:1 1:1\n"), *_INVALID),
        ("NaN", lines(good + "1 1:nan\n"), *_INVALID),
        ("1e999", lines(good + "1 1:1e999\n"), *_INVALID),
        ("text", lines(good + "1 1:=cmd\n"), *_INVALID),
        ("no colon", lines(good + "1 1 1\n"), *_INVALID),
        ("NUL", lines(good + "1 1:\x001\n"), *_WRONG_FORMAT),
        ("a label that is no UTF-8", lines(b"\xff 1:1\n\xff 1:2\n1 1:1\n1 1:2\n"), *_INVALID),
        ("comments and nothing else", lines("# a\n" * 100_000), 400, "no_rows"),
        ("100 001 rows", lines("1 1:1\n" * 100_001), 413, "too_many_rows"),
        ("a line of 20 MB", lines(lambda: b"1 " + b"1:1 " * 5_000_000), 413, "table_too_large"),  # type: ignore[arg-type]
    )


def columns() -> list[Refusal]:
    """Malformed Parquet files."""

    def stored(table: dict[str, Any], **options: Any) -> Act:
        return a_file(lambda: _parquet(table, **options), "application/vnd.apache.parquet")

    good = _parquet({"a": [1.0, 2.0], "y": ["u", "v"]})
    huge = (1 << 31).to_bytes(4, "little")
    damaged = (400, "truncated_upload")
    text = "x" * 20_000
    return refusals(
        "parquet",
        ("a magic word and nothing else", a_file(b"PAR1" * 3), *damaged),
        ("a footer of 2 GB", a_file(good[:-8] + huge + b"PAR1"), *damaged),
        (
            "a footer of noise",
            a_file(b"PAR1" + bytes(range(256)) + (200).to_bytes(4, "little") + b"PAR1"),
            *damaged,
        ),
        ("cut off", a_file(good[:-20]), *damaged),
        ("pages of noise", a_file(b"PAR1" + b"\xff" * 60 + good[64:]), *_UNREADABLE),
        (
            "ten million rows of nothing",
            stored({"a": np.zeros(10_000_000), "y": np.zeros(10_000_000, int)}),
            413,
            "too_many_rows",
        ),
        (
            "more numbers than fit",
            stored({**{f"c{i}": np.zeros(50_000) for i in range(100)}, "y": np.zeros(50_000, int)}),
            413,
            "table_too_large",
        ),
        (
            "a dictionary of long labels",
            stored({"a": np.zeros(2000), "y": [text, "v"] * 1000}),
            400,
            "label_too_long",
        ),
        ("columns of lists", stored({"a": [[1.0], [2.0, 3.0]] * 2, "y": ["u", "v"] * 2}), *_INVALID),
        ("lists of lists", stored({"a": [[[1.0]], [[2.0]]] * 2, "y": ["u", "v"] * 2}), *_INVALID),
        ("texts that are no UTF-8", stored({"a": [b"\xff", b"a"] * 2, "y": ["u", "v"] * 2}), *_INVALID),
        ("columns of records", stored({"a": [{"b": {"c": 1}}] * 4, "y": ["u", "v"] * 2}), *_INVALID),
        ("infinity", stored({"a": [1.0, float("inf")] * 2, "y": ["u", "v"] * 2}), *_INVALID),
        ("infinity and gaps", stored({"a": [1.0, float("inf"), None, 2.0], "y": ["u", "v"] * 2}), *_INVALID),
        ("labels twice", a_file(_twice_in_parquet()), 400, "ambiguous_label_column"),
        ("one column", stored({"a": [1.0, 2.0]}), 400, "one_column"),
        (
            "no rows",
            stored({"a": pa.array([], pa.float64()), "y": pa.array([], pa.string())}),
            400,
            "no_rows",
        ),
    )


def a_parquet() -> bytes:
    """A small valid file."""
    return _parquet({"a": [1.0, 2.0] * 2, "b": [3.0, 4.0] * 2, "y": ["u", "u", "v", "v"]})


def _arrow() -> bytes:
    file = io.BytesIO()
    table = pa.table({"a": ["x", None] * 2, "y": ["u", "v"] * 2})
    with ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def _parquet(table: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(table), file, **options)
    return file.getvalue()


def _twice_in_parquet() -> bytes:
    file = io.BytesIO()
    labels = pa.array(["u", "v"] * 2)
    parquet.write_table(
        pa.Table.from_arrays([pa.array([1.0, 2.0] * 2), labels, labels], ["a", "y", "label"]), file
    )
    return file.getvalue()
