"""Each Arrow type is read, or refused with the way out, in the same words from Parquet and Arrow files."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from app.domain.errors import InvalidRequest
from app.ingest import arrow_columns
from core.data.table import NumberCells, TextCells, VectorCells
from core.encoding.labelled_table import LabelledTable

N = 60
LABELS = ["u", "v"] * (N // 2)
NUMBERS = [(k * 37) % 61 + 0.5 for k in range(N)]
WORDS = [("red", "green", "blue")[k % 3] for k in range(N)]
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=(k * 7) % 50) for k in range(N)]


def saved(table: pa.Table, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "parquet":
        parquet.write_table(table, out)
    elif kind == "arrow":
        with ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=25)
    elif kind == "stream":
        with ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
    else:
        options = ipc.IpcWriteOptions(compression=kind)
        with ipc.new_file(out, table.schema, options=options) as writer:
            writer.write_table(table)
    return out.getvalue()


def runs(values: pa.Array) -> pa.Array:
    """The values as runs of one each."""
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(values) + 1), pa.int32()), values)


def coded(values: list[str], kind: pa.DataType) -> pa.Array:
    distinct = sorted(set(values))
    return pa.DictionaryArray.from_arrays(
        pa.array([distinct.index(one) for one in values], pa.uint8()), pa.array(distinct, kind)
    )


TEXTS = {
    "string": pa.array(WORDS),
    "large_string": pa.array(WORDS, pa.large_string()),
    "string_view": pa.array(WORDS, pa.string_view()),
    "binary": pa.array([one.encode() for one in WORDS], pa.binary()),
    "binary_view": pa.array([one.encode() for one in WORDS], pa.binary_view()),
    "dictionary": pa.array(WORDS).dictionary_encode(),
    "categorical of polars": coded(WORDS, pa.string_view()),
    "runs": runs(pa.array(WORDS)),
    "runs of views": runs(pa.array(WORDS, pa.string_view())),
    "runs of categories": runs(coded(WORDS, pa.large_string())),
}
MEASURED = {
    "double": pa.array(NUMBERS),
    "half float": pa.array(NUMBERS, pa.float16()),
    "decimal32": pa.array([Decimal(str(one)) for one in NUMBERS], pa.decimal32(6, 1)),
    "decimal128": pa.array([Decimal(str(one)) for one in NUMBERS], pa.decimal128(20, 2)),
    "decimal256": pa.array([Decimal(str(one)) for one in NUMBERS], pa.decimal256(60, 2)),
    "runs": runs(pa.array(NUMBERS)),
    "dictionary": pa.array(NUMBERS).dictionary_encode(),
}
OF_ARROW_ONLY = frozenset({"runs", "runs of views", "runs of categories", "categorical of polars"})
KINDS = ("parquet", "arrow", "stream", "lz4", "zstd")


def cases(arrays: dict[str, pa.Array]) -> list[tuple[str, str]]:
    return [
        (name, kind)
        for name in arrays
        for kind in KINDS
        if not (kind == "parquet" and (name in OF_ARROW_ONLY or name == "decimal32"))
    ]


def table(train: Any) -> Any:
    assert isinstance(train, LabelledTable)
    return train.table


@pytest.mark.parametrize(("name", "kind"), cases(TEXTS))
def test_texts_of_every_type_are_the_same_feature_and_label(ingest: Any, name: str, kind: str) -> None:
    read, _, _ = ingest(saved(pa.table({"w": TEXTS[name], "label": LABELS}), kind))
    cells = table(read).column("w")
    assert isinstance(cells, TextCells)
    assert [cells.texts[code] for code in cells.codes] == WORDS
    as_label, _, _ = ingest(saved(pa.table({"n": NUMBERS, "label": TEXTS[name]}), kind))
    assert as_label.classes == ("blue", "green", "red")


@pytest.mark.parametrize(("name", "kind"), cases(MEASURED))
def test_numbers_of_every_type_are_the_same_feature(ingest: Any, name: str, kind: str) -> None:
    train, _, _ = ingest(saved(pa.table({"n": MEASURED[name], "label": TEXTS["string_view"]}), kind))
    assert np.array_equal(train.X[:, 0], NUMBERS)


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_and_slices_stay_where_they_are(ingest: Any, kind: str) -> None:
    words = [None if k % 7 == 3 else one for k, one in enumerate(["x", "y", *WORDS])]
    views = pa.array(words, pa.string_view()).slice(2)
    columns = {"w": views, "label": LABELS}
    if kind != "parquet":
        columns["r"] = runs(pa.array(words, pa.string_view())).slice(2)
    train, _, _ = ingest(saved(pa.table(columns), kind))
    for name in set(columns) - {"label"}:
        cells = table(train).column(name)
        assert [None if code < 0 else cells.texts[code] for code in cells.codes] == words[2:]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (pa.array([k % 2 == 0 for k in range(N)]), ("false", "true")),
        (pa.array([Decimal(k % 2) for k in range(N)], pa.decimal128(5, 0)), ("0", "1")),
        (pa.array([dt.date(2024, 1, 1 + k % 2) for k in range(N)]), ("2024-01-01", "2024-01-02")),
        (pa.array([dt.date(2024, 1, 1 + k % 2) for k in range(N)]).dictionary_encode(), None),
        (pa.array([dt.datetime(2024, 1, 1, k % 2) for k in range(N)], pa.timestamp("ms")), None),
        (pa.array([k % 3 for k in range(N)], pa.uint64()), ("0", "1", "2")),
        (pa.array([float(k % 3) for k in range(N)], pa.float16()), ("0", "1", "2")),
        (pa.array([k % 3 for k in range(N)]).dictionary_encode(), ("0", "1", "2")),
    ],
)
def test_labels_of_every_type_are_classes(
    ingest: Any, kind: str, labels: pa.Array, classes: tuple[str, ...] | None
) -> None:
    train, _, _ = ingest(saved(pa.table({"n": NUMBERS, "label": labels}), kind))
    assert train.classes == classes if classes is not None else train.K == 2


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_dates_lists_and_truths_are_read_in_every_encoding(ingest: Any, kind: str) -> None:
    columns = {
        "day": pa.array(DAYS).dictionary_encode(),
        "v": pa.array([[one, 1.0] for one in NUMBERS], pa.large_list(pa.float32())),
        "d": pa.array([[Decimal(1)]] * N, pa.list_(pa.decimal128(9, 2))),
        "t": pa.array([k % 2 == 0 for k in range(N)]),
        "big": pa.array([2**63 + k for k in range(N)], pa.uint64()),
        "label": LABELS,
    }
    train, _, _ = ingest(saved(pa.table(columns), kind))
    found = table(train)
    cells = found.column("day")
    assert [cells.texts[code] for code in cells.codes] == [day.isoformat() for day in DAYS]
    assert isinstance(found.column("v"), VectorCells)
    assert isinstance(found.column("d"), VectorCells)
    assert found.column("t").is_truth
    assert isinstance(found.column("big"), NumberCells)
    assert found.column("big").values[0] == 2.0**63


OTHERS = {
    "duration": (pa.array(range(N), pa.duration("ns")), r"send seconds as a number.*total_seconds\(\)"),
    "time of day": (pa.array([dt.time(k % 24) for k in range(N)], pa.time64("us")), "seconds since midnight"),
    "struct": (pa.array([{"a": 1}] * N), "a column of each of its fields"),
    "map": (pa.array([[("a", 1)]] * N, pa.map_(pa.string(), pa.int8())), "a column of each of its keys"),
    "list of texts": (pa.array([["a", "b"]] * N), "only lists of numbers"),
    "list of lists": (pa.array([[[1, 2]]] * N), "only lists of numbers"),
    "bytes of one width": (pa.array([b"abc"] * N, pa.binary(3)), "send texts or numbers"),
}
INTERVALS = pa.array([(1, 2, 3)] * N, pa.month_day_nano_interval())


@pytest.mark.parametrize("name", OTHERS)
def test_other_types_are_refused_with_the_way_out_by_both_formats(ingest: Any, name: str) -> None:
    values, words = OTHERS[name]
    messages = set()
    for kind in KINDS:
        for field, columns in {
            "v": {"v": values, "t": WORDS, "label": LABELS},
            "label": {"n": NUMBERS, "t": WORDS, "label": values},
        }.items():
            with pytest.raises(InvalidRequest, match=words) as raised:
                ingest(saved(pa.table(columns), kind))
            messages.add((field, raised.value.message))
    assert len(messages) == 2


def test_intervals_are_refused_with_the_way_out(ingest: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"an interval; send seconds"):
        ingest(saved(pa.table({"v": INTERVALS, "label": LABELS}), "arrow"))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_without_its_end_is_cut_off(ingest: Any, kind: str) -> None:
    content = saved(pa.table({"n": NUMBERS, "label": LABELS}), kind)
    with pytest.raises(InvalidRequest, match="is cut off: its end is missing") as raised:
        ingest(content[:-20])
    assert raised.value.reason == "truncated_upload"


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_an_error_of_arrow_is_no_sign_of_damage(
    ingest: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_values: pa.Array) -> pa.Array:
        raise pa.ArrowNotImplementedError("no kernel")

    monkeypatch.setattr(arrow_columns, "plain", refuse)
    with pytest.raises(InvalidRequest, match=r"cannot be read: no kernel") as raised:
        ingest(saved(pa.table({"n": WORDS, "label": LABELS}), kind))
    assert "damaged" not in raised.value.message
    assert raised.value.faults[0].code == "bad_type"
