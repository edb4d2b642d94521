"""What the records of queries were like, asked over HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.main import create_app
from app.services.keys import create_key
from app.services.models import get_version, input_rows
from app.serving.columns.tally import SAMPLED
from app.serving.tally_writer import InputWriter
from app.store.unit_of_work import Store
from core.data.cell_values import microseconds_of
from core.data.table import Table, TextCells
from core.encoding.profile import fit_profile
from tests.app.serving.written_records import RECORD, columns_of, encoder, people, text_encoder
from tests.app.started import Client
from tests.system.published import linear_student, linear_teacher, publish

ONE = "/v1/models/people/classes/a:query"
INPUTS = "/v1/models/people/versions/latest/inputs"
DISTINCT = "zebra-8417-crossing"
NUMBER = 918273645.0


def publish_people(store: Store, *, profile: bool = True) -> None:
    rows = np.random.default_rng(5).normal(size=(2, encoder().layout.columns))
    students = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    found = fit_profile(people(), encoder()) if profile else None
    publish(store, "people", students, linear_teacher("ab", rows), encoder=encoder(), profile=found)


def write(client: Any) -> None:
    """As the background task does each minute."""
    context = client.control.state.context
    InputWriter(context.store, context.cache.tallies, context.metrics).write()


def counted(client: Any, **params: Any) -> dict[str, Any]:
    write(client)
    response = client.get(INPUTS, params=params)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def column(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in document["columns"] if one["name"] == name)


@pytest.mark.parametrize(("quota", "records"), [(10**9, 1), (1, 0)])
def test_a_tenant_that_has_used_up_its_bytes_stores_no_counts(
    make_settings: Any, queue: Any, store: Store, quota: int, records: int
):
    publish_people(store)
    client = Client(create_app(make_settings(quota_stored_bytes=quota), queue=queue))
    assert client.post(ONE, json={"record": RECORD}).status_code == 200
    client.close()  # which writes what was counted last
    version = get_version(store, "people", 1)
    assert sum(row.records for row in input_rows(store, version, 1)) == records


def test_nothing_was_asked_yet(client: Any, store: Store):
    publish_people(store)
    document = counted(client)
    assert {
        name: document[name] for name in ("model", "version", "hours", "records", "sampled", "left_out")
    } == {
        "model": "people",
        "version": 1,
        "hours": 24,
        "records": 0,
        "sampled": 0,
        "left_out": 0,
    }
    assert [one["name"] for one in document["columns"]] == [*encoder().names]
    age = column(document, "age")
    assert (age["psi"], age["drifted"], age["training_gaps"]) == (None, False, 20 / 240)


def test_records_of_all_protocols_are_counted(client: Any, store: Store):
    publish_people(store)
    gap = RECORD | {"age": None}
    client.post(ONE, json={"record": gap})
    client.post(ONE, json={"records": [gap, RECORD | {"job": "pilot"}]})
    client.post(ONE, json={"columns": {name: [value] * 2 for name, value in gap.items()}})
    client.post("/v1/models/people:query", json={"record": gap, "classes": ["a", "b"]})
    client.post("/v1/models/people:predict", json={"records": [gap, gap]})
    inputs = [
        {"name": "age", "datatype": "FP64", "shape": [2], "data": [None, 39.5]},
        {"name": "hours", "datatype": "INT64", "shape": [2], "data": [40, 4000]},
        {"name": "member", "datatype": "BOOL", "shape": [2], "data": [True, False]},
        {"name": "job", "datatype": "BYTES", "shape": [2], "data": ["clerk", "pilot"]},
        {"name": "grade", "datatype": "INT64", "shape": [2], "data": [3, 3]},
        {"name": "since", "datatype": "BYTES", "shape": [2, 1], "data": ["2021-05-06", "1921-05-06"]},
        {"name": "place", "datatype": "FP32", "shape": [2, 2], "data": [0.5, -1.0, 0.5, -1.0]},
        {"name": "class", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
    ]
    answer = client.post("/v2/models/people/infer", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    assert client.post(ONE, json={"record": RECORD | {"age": "x"}}).status_code == 400
    document = counted(client)
    assert document["records"] == 1 + 2 + 2 + 1 + 2 + 2
    found = {
        one["name"]: tuple(one[kind] for kind in ("gaps", "unseen", "outside", "cut"))
        for one in document["columns"]
    }
    assert found == {
        "age": (8, 0, 0, 0),
        "hours": (0, 0, 1, 0),
        "member": (0, 0, 0, 0),
        "job": (0, 2, 0, 0),
        "grade": (0, 0, 0, 0),
        "since": (0, 0, 1, 0),
        "place": (0, 0, 0, 0),
    }
    text = client.get("/metrics").text
    assert 'stms_input_unusual_total{model="people",kind="gap"} 8.0' in text
    assert 'stms_input_unusual_total{model="people",kind="cut"}' not in text


@pytest.mark.long
def test_another_distribution_is_marked_once_enough_was_sampled(client: Any, store: Store):
    publish_people(store)
    table = people()
    ages = [table.record(row)["age"] for row in range(240)]
    rng = np.random.default_rng(2)

    def send(n: int) -> None:
        for first in range(0, n, 8000):
            drawn = rng.integers(0, 240, min(8000, n - first)).tolist()
            rows = [RECORD | {"age": ages[k], "job": "nurse"} for k in drawn]
            assert client.post(ONE, json={"columns": columns_of(*rows)}).status_code == 200

    send(999 * SAMPLED)
    document = counted(client)
    assert document["sampled"] == 999
    job = column(document, "job")
    # Of training 79 of 240 are nurses, 79 cooks, 64 clerks, 2 judges, and 16 without a value.
    parts = [(79 / 240, 1.0), (79 / 240, 1e-4), (64 / 240, 1e-4), (2 / 240, 1e-4), (16 / 240, 1e-4)]
    assert job["psi"] == pytest.approx(sum((p - q) * np.log(p / q) for q, p in parts))
    assert not job["drifted"], "too few"
    named = {one["name"]: (one["training"], one["sampled"]) for one in job["bins"]}
    assert named["nurse"] == (79 / 240, 1.0)
    assert named["missing"] == (16 / 240, 0.0)
    send(SAMPLED)
    document = counted(client)
    assert column(document, "job")["drifted"]
    assert not column(document, "age")["drifted"]
    assert 0.0 < column(document, "age")["psi"] < 0.25
    assert sum(one["sampled"] for one in column(document, "age")["bins"]) == pytest.approx(1.0)
    assert column(document, "age")["bins"][0]["name"] == "below 25.1"


def test_a_version_without_a_profile_has_counts_alone(client: Any, store: Store):
    publish_people(store, profile=False)
    for _ in range(SAMPLED):
        client.post(ONE, json={"record": RECORD | {"job": "pilot"}})
    document = counted(client)
    assert (document["records"], document["sampled"]) == (SAMPLED, 0)
    assert column(document, "job") == {
        "name": "job",
        "kind": "category",
        "gaps": 0,
        "unseen": SAMPLED,
        "outside": 0,
        "cut": 0,
        "training_gaps": None,
        "psi": None,
        "drifted": False,
        "bins": [],
    }


def test_texts_are_compared_by_words_and_length(client: Any, store: Store):
    table = Table(("text",), (TextCells.of(["my card is lost again today"] * 240),))
    rows = np.ones((2, text_encoder().layout.columns))
    students = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    profile = fit_profile(table, text_encoder())
    publish(store, "people", students, linear_teacher("ab", rows), encoder=text_encoder(), profile=profile)
    for _ in range(SAMPLED):
        client.post(ONE, json={"text": "unheard words of other things"})
    document = counted(client)
    [text] = document["columns"]
    named = {one["name"]: one["sampled"] for one in text["bins"] if one["sampled"]}
    assert named == {"0 to 10 % of the words known": 1.0, "any value": 1.0}


def test_the_time_can_be_chosen(client: Any, store: Store, problem: Any):
    publish_people(store)
    client.post(ONE, json={"record": RECORD})
    assert counted(client, hours=1)["hours"] == 1
    assert counted(client, hours=2160)["records"] == 1
    for hours in ("0", "2161", "x"):
        assert client.get(INPUTS, params={"hours": hours}).status_code in (400, 422)
    problem(client.get(INPUTS, params={"days": "1"}), 400, "unknown_parameter")


def test_other_versions_and_callers_get_errors(make_client: Any, store: Store, pets: Any, problem: Any):
    publish_people(store)
    key = create_key(store, "tests", {"query"}, {"people", "pets"})[1]
    other = create_key(store, "tests", {"query"}, {"others"})[1]
    stranger = create_key(store.of_tenant("acme"), "tests", {"admin"})[1]
    client = make_client(require_keys=True)
    mine, others, strangers = ({"authorization": f"Bearer {one}"} for one in (key, other, stranger))
    assert client.get(INPUTS, headers=mine).status_code == 200
    problem(client.get(INPUTS.replace("people", "pets"), headers=mine), 404, "no_records")
    problem(client.get(INPUTS.replace("latest", "7"), headers=mine), 404, "version_not_found")
    problem(client.get(INPUTS, headers=others), 403, "model_not_allowed")
    problem(client.get(INPUTS, headers=strangers), 404, "alias_not_found")


def stored(store: Store) -> bytes:
    """Every cell of every table."""
    known = sa.MetaData()
    with store.engine.connect() as connection:
        known.reflect(connection)
        cells = [
            cell
            for table in known.sorted_tables
            for row in connection.execute(sa.select(table))
            for cell in row
        ]
    return b"\n".join(cell if isinstance(cell, bytes) else repr(cell).encode() for cell in cells)


def test_no_value_of_a_query_is_stored(client: Any, store: Store):
    publish_people(store)
    record = RECORD | {"job": DISTINCT, "age": NUMBER, "since": "1888-08-08"}
    body = {"columns": {name: [value] * SAMPLED for name, value in record.items()}}
    assert client.post(ONE, json=body).status_code == 200
    document = counted(client)
    assert (column(document, "job")["unseen"], document["sampled"]) == (SAMPLED, 1)
    moment = microseconds_of("1888-08-08", None)
    assert moment is not None
    values = [DISTINCT.encode(), b"918273645", b"1888-08-08", str(moment).encode()]
    values += [np.float64(NUMBER).tobytes(), np.float32(NUMBER).tobytes(), np.int64(moment).tobytes()]
    found = stored(store)
    assert b"nurse" in found, "a value of training"
    assert not [value for value in values if value in found]
