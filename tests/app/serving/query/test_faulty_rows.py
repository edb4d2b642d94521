"""Rows that cannot be answered have an error each beside the answers of others, where that is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.domain.errors import InvalidRequest
from app.serving.columns.faulty_rows import MOST_FAULTY_ROWS
from app.serving.query.evaluate import answer_class, answer_classes
from app.serving.query.negotiation import DEFAULT_FORMAT, MediaType, RequestFormat
from app.serving.query.requests import parse_classes
from app.serving.servable import ServableStudent, make_servable
from app.serving.work import RequestLimits
from stms_client.results import Decisions
from tests.app.serving.query.test_rows import SERVED, VERSION
from tests.app.serving.written_records import RECORD, columns_of, encoder, served
from tests.refusals import refused_as
from tests.system.published import linear_student

LIMITS = RequestLimits(max_bytes=1 << 24, max_rows=5000)
RECORDS = served(encoder())
BAD = RECORD | {"age": "old"}
OTHER = RECORD | {"job": "cook", "place": [3.0, 1.0]}
NUMBERS = [[1, 2, 3], [4, 5], {"indices": [1], "values": [2.0]}, [7, 8, "9"], [0.5, 0, 1]]


def ask(student: ServableStudent, body: Mapping[str, Any], form: RequestFormat = DEFAULT_FORMAT) -> Any:
    return json.loads(answer_class(student, json.dumps(body).encode(), form, LIMITS)[0])


def of_alone(student: ServableStudent, form: str, row: Any) -> dict[str, Any]:
    answer = ask(student, {form: row})
    return {name: value for name, value in answer.items() if name not in {"model", "version"}}


def test_records_that_can_be_answered_are_answered_beside_others():
    records = [RECORD, BAD, OTHER, RECORD | {"since": "yesterday", "agee": 1}, RECORD]
    answer = ask(RECORDS, {"records": records, "faulty_rows": "report"})
    alone = [of_alone(RECORDS, "record", records[row]) for row in (0, 2, 4)]
    assert answer["results"] == [alone[0], None, alone[1], None, alone[2]]
    assert [(error["row"], error["code"]) for error in answer["errors"]] == [
        (1, "wrong_type"),
        (3, "unknown_column"),
    ]
    with pytest.raises(InvalidRequest) as caught:
        ask(RECORDS, {"records": records})
    # The words of an error are those of a query that is refused for it.
    assert answer["errors"][0]["message"] == caught.value.faults[0].message
    decisions = Decisions.of(answer)
    assert decisions.matches[1] is False
    assert [decision.match for decision in decisions] == [
        bool(one and one["match"]) for one in answer["results"]
    ]
    assert [error["row"] for error in decisions.errors] == [1, 3]


def test_columns_and_explained_records_are_answered_alike():
    records = [RECORD, BAD, OTHER]
    for body in ({"records": records, "explain": True}, {"columns": columns_of(*records)}):
        answer = ask(RECORDS, body | {"faulty_rows": "report"})
        assert [result is None for result in answer["results"]] == [False, True, False]
        plain = ask(RECORDS, {"records": [RECORD, OTHER]})["results"]
        assert [one["score"] for one in answer["results"] if one] == [one["score"] for one in plain]
        assert [error["row"] for error in answer["errors"]] == [1]


def test_rows_of_numbers_are_answered_beside_others():
    answer = ask(SERVED, {"rows": NUMBERS, "faulty_rows": "report"})
    alone = [of_alone(SERVED, "x", NUMBERS[row]) for row in (0, 2, 4)]
    assert answer["results"] == [alone[0], None, alone[1], None, alone[2]]
    with pytest.raises(InvalidRequest) as caught:
        ask(SERVED, {"rows": NUMBERS})
    refused = [(fault.row, fault.message) for fault in caught.value.faults]
    assert [(error["row"], error["message"]) for error in answer["errors"]] == refused
    assert [row for row, _ in refused] == [1, 3]


def test_several_classes_have_null_for_the_same_rows():
    students = [SERVED, make_servable(linear_student("b", [0.0, 1.0, 1.0], 0.5), VERSION)]
    body = json.dumps({"rows": NUMBERS, "faulty_rows": "report", "classes": ["a", "b"]}).encode()
    request = parse_classes(body, DEFAULT_FORMAT, LIMITS)
    answer = json.loads(answer_classes(students, request, DEFAULT_FORMAT, LIMITS)[0])
    for entry in answer["classes"]:
        assert [result is None for result in entry["results"]] == [False, True, False, True, False]
    assert [error["row"] for error in answer["errors"]] == [1, 3]
    unseen = RECORD | {"job": "pilot"}
    body = json.dumps({"records": [BAD, unseen], "faulty_rows": "report", "classes": ["a"]}).encode()
    of_records = parse_classes(body, DEFAULT_FORMAT, LIMITS)
    answer = json.loads(answer_classes([RECORDS], of_records, DEFAULT_FORMAT, LIMITS)[0])
    assert answer["rows"] == [{}, {"unseen": ["job"]}]
    assert [result is None for result in answer["classes"][0]["results"]] == [True, False]


def test_without_faults_nothing_differs():
    for student, body in ((RECORDS, {"records": [RECORD, OTHER]}), (SERVED, {"rows": [[1, 2, 3]]})):
        assert ask(student, body | {"faulty_rows": "report"}) == ask(student, body)


def test_what_is_wrong_with_all_rows_or_with_the_query_is_refused():
    report = {"faulty_rows": "report"}
    for student, body, code in (
        (RECORDS, {"records": [BAD, BAD]}, "wrong_type"),
        (RECORDS, {"record": BAD}, "wrong_type"),
        (SERVED, {"rows": [[1], [2]]}, "wrong_columns"),
        (RECORDS, {"records": [RECORD] + [BAD] * (MOST_FAULTY_ROWS + 1)}, "wrong_type"),
        (RECORDS, {"columns": {"agee": [1]}}, "unknown_column"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            ask(student, body | report)
        assert caught.value.reason == code
    tensor = RequestFormat(body=MediaType.JSON, answer=MediaType.TENSOR)
    with refused_as(InvalidRequest, "bad_parameter", match="faulty_rows.*JSON"):
        answer_class(SERVED, json.dumps({"rows": NUMBERS} | report).encode(), tensor, LIMITS)
