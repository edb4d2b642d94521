"""Data frames, tables of Arrow, records and texts, as the client sends them."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from stms_client import Client, InvalidInput
from stms_client.arrays import question, row_values
from stms_client.tables import cell, column_names, columns_of, parquet_of, records_of

ONE = "/v1/models/people/classes/a:query"
PINNED = "/v1/models/people@4/classes/a:query"
VERSION = "/v1/models/people/versions/latest"
RECORDS = {"version": 4, "encoder_digest": "d1", "inputs": {"columns": None}}
ANSWER = {"match": True, "score": 1.0, "threshold": 0.0, "model": "people", "version": 4}
TABLE = pa.table(
    {
        "age": pa.array([39, None], pa.int64()),
        "job": ["clerk", None],
        "since": pa.array([date(2019, 5, 6), None]),
        "member": [True, False],
    }
)
COLUMNS = {
    "age": [39, None],
    "job": ["clerk", None],
    "since": ["2019-05-06", None],
    "member": [True, False],
}


class NAType:
    """The missing value of pandas, which is unequal to itself."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError

    __hash__ = None  # type: ignore[assignment]


class Period:
    """A period of pandas."""

    start_time = datetime(2001, 5, 1)


class NaTType(datetime):
    """The missing moment of pandas, which is a moment."""


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (None, None),
        (float("nan"), None),
        (np.float32("nan"), None),
        (NAType(), None),
        (NaTType(1970, 1, 1), None),
        (np.datetime64("NaT"), None),
        (np.float64(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (Decimal("1.5"), 1.5),
        (date(2019, 5, 6), "2019-05-06"),
        (datetime(2019, 5, 6, 7, 8, tzinfo=UTC), "2019-05-06T07:08:00+00:00"),
        (np.datetime64("2019-05-06T07:08:09"), "2019-05-06T07:08:09"),
        (np.datetime64("2019", "Y"), "2019-01-01"),
        (np.datetime64("2019-05", "M"), "2019-05-01"),
        (np.datetime64("2019-05-06", "D"), "2019-05-06"),
        (np.datetime64("2019-05-06T07", "h"), "2019-05-06T07:00"),
        (np.datetime64("2019-05-06T07:08", "m"), "2019-05-06T07:08"),
        (np.datetime64("2019-05-06T07:08:09.5", "ms"), "2019-05-06T07:08:09.500"),
        (np.datetime64("2019-05-06T07:08:09", "ns"), "2019-05-06T07:08:09.000000000"),
        (np.timedelta64("NaT", "s"), None),
        (Period(), "2001-05-01T00:00:00"),
        (np.ma.masked, None),
        (np.ma.masked_array([1.0, -999.0], [0, 1]), [1.0, None]),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        ((1, 2), [1, 2]),
        ("3", "3"),
        (True, True),
    ],
)
def test_a_value_is_sent_as_json_has_it(value: Any, sent: Any):
    found = cell(value)
    assert (found, type(found)) == (sent, type(sent))


def test_a_record_of_a_row_has_null_for_missing_values():
    record = {"age": float("nan"), "since": date(2019, 5, 6), "place": np.array([0.5, 1.0])}
    assert row_values(record) == {"age": None, "since": "2019-05-06", "place": [0.5, 1.0]}


@pytest.mark.parametrize("table", [TABLE, {name: list(values) for name, values in COLUMNS.items()}])
def test_a_table_is_sent_by_its_columns(table: Any):
    assert columns_of(table) == COLUMNS
    assert [*records_of(table)][1] == {"age": None, "job": None, "since": None, "member": False}


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"])
def test_dates_of_numpy_in_a_mapping_are_dates_in_every_unit(unit: str):
    moments = np.array(["2019-01-01", "NaT", "2020-01-01"], f"datetime64[{unit}]")
    days = moments.astype("datetime64[D]").tolist()
    for column in (moments, list(moments)):
        found = columns_of({"since": column})["since"]
        assert [day and datetime.fromisoformat(day).date() for day in found] == days
    masked = np.ma.masked_array(moments, [True, False, False])
    assert columns_of({"since": masked})["since"][0] is None


@pytest.mark.parametrize(
    "column",
    [
        np.array([5, 6], "timedelta64[ns]"),
        [timedelta(seconds=5), timedelta(seconds=6)],
        [np.timedelta64(5, "ns"), None],
    ],
)
def test_durations_are_refused_and_not_sent_as_their_numbers(column: Any):
    for way in (columns_of, lambda table: row_values({"took": table["took"][0]})):
        with pytest.raises(InvalidInput, match=r"Column 'took'.*is a duration.*seconds"):
            way({"took": column})
    with pytest.raises(InvalidInput, match=r"Column 'took'.*seconds"):
        parquet_of(pa.table({"took": pa.array(column, pa.duration("ns"))}))


def test_two_columns_of_one_name_are_refused():
    double = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert column_names(double) == ["a", "a"]
    with pytest.raises(InvalidInput, match="two columns named 'a'"):
        columns_of(double)


@pytest.mark.parametrize(("x", "text"), [(None, None), ([1.0], "a text")])
def test_a_query_is_about_a_row_or_a_text(x: Any, text: Any):
    with pytest.raises(InvalidInput, match="give one of them"):
        question(x, text)


def test_a_text_in_place_of_a_row_is_told_its_name():
    with Client("http://127.0.0.1:9", "key") as client:
        with pytest.raises(InvalidInput, match="send it as text="):
            client.is_class("people", "a", "a text")
        with pytest.raises(InvalidInput, match="texts="):
            client.query_rows("people", "a", ["a text"])
        with pytest.raises(InvalidInput, match="rows or about texts"):
            client.query_rows("people", "a")


def test_texts_are_sent_to_every_kind_of_query(written):
    written.on("POST", ONE, ANSWER)
    written.on("POST", "/v1/models/people:predict", {"label": "a"})
    written.on(
        "POST",
        "/v1/models/people:query",
        {"classes": [{"class": "a", **ANSWER}], "model": "people", "version": 4},
    )
    with Client(written.address, "key") as client:
        assert client.is_class("people", "a", text="lost")
        assert client.predict("people", text="lost") == "a"
        assert client.query_classes("people", ["a"], text="lost")["a"].match
        written.answers["POST", ONE].clear()
        written.on("POST", ONE, {"results": [ANSWER], "model": "people", "version": 4})
        assert client.query_rows("people", "a", texts=("lost",)).matches == [True]
    assert [request.json for request in written.requests] == [
        {"text": "lost"},
        {"text": "lost"},
        {"classes": ["a"], "text": "lost"},
        {"texts": ["lost"]},
    ]


def test_a_frame_for_a_model_of_records_is_sent_by_columns_and_answered_by_numbers(written):
    written.on("GET", VERSION, RECORDS)
    scores = {"X_Tensor_Shape": "2", "X_Tensor_Columns": "score", "X_Threshold": "0", "X_Model": "people"}
    written.on("POST", PINNED, np.array([1.0, -1.0]).tobytes(), X_Model_Version="4", **scores)
    with Client(written.address, "key") as client:
        found = client.query_rows("people", "a", TABLE)
    assert found.matches.tolist() == [True, False]
    assert written.requests[-1].json == {"columns": COLUMNS}
    assert written.requests[-1].headers["Accept"] == "application/octet-stream"


def test_an_explained_frame_says_what_is_odd_about_each_record(written):
    written.on("GET", VERSION, RECORDS)
    odd = {
        "outside": ["age"],
        "outside_count": 1,
        "unseen": ["job"],
        "cut": ["note"],
        "known_terms": {"note": 2},
    }
    usual = {"outside": [], "outside_count": 0, "unseen": [], "cut": [], "known_terms": {"note": 9}}
    written.on("POST", PINNED, {"results": [ANSWER | odd, ANSWER | usual], "model": "people", "version": 4})
    written.on("POST", ONE, ANSWER | odd)
    with Client(written.address, "key") as client:
        first, second = client.query_rows("people", "a", TABLE, explain=True)
        alone = client.query("people", "a", {"job": "judge"}, explain=True)
    assert (first.outside, first.unseen, first.cut, first.known_terms) == (
        ["age"],
        ["job"],
        ["note"],
        {"note": 2},
    )
    assert (second.unseen, second.known_terms) == ([], {"note": 9})
    assert (alone.unseen, alone.cut, alone.known_terms) == (["job"], ["note"], {"note": 2})
    assert written.requests[1].json == {"columns": COLUMNS, "explain": True}


@pytest.mark.parametrize("table", [pa.table({"b": [1, 3], "a": [2.0, 4.0]}), {"b": [1, 3], "a": [2.0, 4.0]}])
def test_a_table_for_a_model_of_numbers_is_put_into_order(written, table):
    written.on("GET", VERSION, {"version": 4, "encoder_digest": None, "inputs": {"columns": ["a", "b"]}})
    scores = {"X_Tensor_Shape": "2", "X_Tensor_Columns": "score", "X_Threshold": "0", "X_Model": "people"}
    written.on("POST", PINNED, np.array([1.0, -1.0]).tobytes(), X_Model_Version="4", **scores)
    with Client(written.address, "key") as client:
        client.query_rows("people", "a", table)
        assert np.frombuffer(written.requests[-1].body).tolist() == [2, 1, 4, 3]
        with pytest.raises(InvalidInput, match="of numbers is needed"):
            client.query_rows("people", "a", pa.table({"a": ["x"], "b": [1]}))


def test_a_table_is_uploaded_as_parquet_or_as_json_lines(written, monkeypatch):
    written.on("POST", "/v1/datasets", {"id": "ds_1"})
    with Client(written.address, "key") as client:
        client.upload_table(
            TABLE, label="member", name="people", columns={"age": "category"}, null_values=["-"]
        )
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        client.upload_table(TABLE, label="member", name="people")
        with pytest.raises(InvalidInput, match="no column 'kind'"):
            client.upload_table(TABLE, label="kind", name="people")
    monkeypatch.undo()
    first, second = written.requests
    assert parquet.read_table(io.BytesIO(first.body)).to_pydict() == TABLE.to_pydict()
    assert first.headers["Content-Type"] == "application/octet-stream"
    for part in ("label_column=member", "columns=age%3Acategory", "null_values=-", "format=parquet"):
        assert part in first.path
    assert second.headers["Content-Type"] == "application/octet-stream"
    assert [json.loads(line) for line in second.body.splitlines()] == [*records_of(TABLE)]


def test_a_column_of_several_types_is_no_parquet():
    assert parquet_of({"a": [1, "x"]}) is None

    class Frame:
        def to_arrow(self) -> Any:
            return pa.array([1, "x"])

    assert parquet_of(Frame()) is None
