"""Gaps of queries in columns that training had without any are filled, and named by the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.domain.errors import InvalidRequest
from app.serving.columns.of_version import columns_of as columns_of_version
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.servable import ServableStudent, make_servable
from app.serving.work import RequestLimits
from core.packed import PackedStudent, SigmoidCalibration
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows
from tests.app.serving.query.test_records import infer, inputs_of
from tests.app.serving.written_records import RECORD, VERSION, columns_of, encoder, records_of, served

LIMITS = RequestLimits(max_bytes=1 << 24, max_rows=1000)
GAPS = (-0.25, 0.5)
WAYS = {
    "linear": ("linear", 1),
    "linear polytope": ("linear", 3),
    "rbf": ("rbf", 1),
    "rbf polytope": ("rbf", 3),
}


def student_of(kind: str, faces: int, *, with_note: bool = False) -> ServableStudent:
    known = encoder(with_note=with_note, answers_gaps=True)
    plain = served(known, kind, faces=faces, calibration=SigmoidCalibration(2.0, 0.5)).student
    # The package keeps what gaps change.
    packed = PackedStudent.from_bytes(replace(plain, gaps=GAPS).to_bytes())
    assert packed.gaps == GAPS
    version = replace(VERSION, columns=known.layout.columns, encoder_digest="0" * 64)
    return make_servable(
        packed, version, columns_of_version(version, encoder=Encoder.from_bytes(known.to_bytes()))
    )


def ask(student: ServableStudent, body: Mapping[str, Any]) -> Any:
    return json.loads(answer_class(student, json.dumps(body).encode(), DEFAULT_FORMAT, LIMITS)[0])


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in RECORD.items() if name not in names}


def expected(student: ServableStudent, record: Mapping[str, Any], *gaps: str) -> float:
    """The score by the formula, from the row that has the values of the record."""
    records = records_of(student)
    known, rows = records.encoder, records.rows
    assert known.gaps is not None
    given = {**RECORD, **record}
    row = np.array(
        rows.encode(
            [str(given[one.name]) if one.name == "grade" else given[one.name] for one in rows.columns]
        ).dense
    )
    missing = [
        place
        for column, start in zip(known.columns, known.starts, strict=True)
        if column.name in gaps
        for place in range(start, start + column.width)
    ]
    z = (row - known.gaps.means) / known.gaps.scales
    others = np.setdiff1d(np.arange(len(row)), missing)
    covariance = np.linalg.inv(known.gaps.precision)
    regression = covariance[np.ix_(missing, others)] @ np.linalg.inv(covariance[np.ix_(others, others)])
    row[missing] = known.gaps.means[missing] + known.gaps.scales[missing] * (regression @ z[others])
    score = student.student.score(row)
    return score + len(gaps) / known.filling * (GAPS[0] * score + GAPS[1])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_gap_has_the_score_of_the_formula_by_every_way_of_asking(way: tuple[str, int]):
    student = student_of(*way)
    for gaps in (
        ("hours",),
        ("grade",),
        ("since",),
        ("place",),
        ("since", "member"),
        ("place", "hours", "grade"),
    ):
        record = without(*gaps)
        answer = ask(student, {"record": record})
        score = answer["score"]
        assert score == pytest.approx(expected(student, record, *gaps), rel=1e-9)
        assert answer["missing"] == [name for name in RECORD if name in gaps]
        nulls = RECORD | dict.fromkeys(gaps)
        many = ask(student, {"records": [RECORD, record, nulls]})["results"]
        assert [one["score"] for one in many[1:]] == [score, score]
        assert [one.get("missing") for one in many] == [None, answer["missing"], answer["missing"]]
        assert ask(student, {"columns": columns_of(nulls, RECORD)})["results"][0]["score"] == score
        explained = ask(student, {"record": record, "explain": "columns"})
        assert explained["score"] == score
        assert explained["gate"] - explained["rejection"] == pytest.approx(score)
        if explained["exact"]:
            total = explained["base"] + sum(one["effect"] for one in explained["columns"])
            assert total == pytest.approx(score)
        # That protocol has no gap for a whole vector.
        others = [name for name in gaps if name != "place"]
        of_others = ask(student, {"record": without(*others)})["score"]
        assert infer(student, inputs_of(RECORD | dict.fromkeys(others), RECORD))[0] == of_others


def test_gaps_of_columns_with_learned_gaps_are_not_named_and_change_nothing_else():
    student = student_of("linear", 1)
    assert "missing" not in ask(student, {"record": without("age")})
    both = ask(student, {"record": without("age", "hours")})
    assert both["missing"] == ["hours"]


def test_words_for_gaps_in_a_category_are_gaps():
    student = student_of("rbf", 1)
    score = ask(student, {"record": without("grade")})["score"]
    for text in ("", " NA ", "null"):
        answer = ask(student, {"record": RECORD | {"grade": text}})
        assert (answer["score"], answer["missing"]) == (score, ["grade"])


def test_a_record_without_any_value_is_refused():
    student = student_of("linear", 1)
    for body in ({"record": {}}, {"record": dict.fromkeys(RECORD)}, {"records": [RECORD, {}]}):
        with pytest.raises(InvalidRequest, match="has no value in any column") as caught:
            ask(student, body)
        assert caught.value.reason == "missing_value"


def test_unusual_values_are_named_without_a_request():
    student = student_of("linear", 1)
    answer = ask(student, {"record": RECORD | {"job": "pilot", "age": 4000}})
    assert (answer["unseen"], answer["outside"], answer["outside_count"]) == (["job"], ["age"], 1)
    assert not {"missing", "known_terms"} & set(answer)
    assert not {"unseen", "outside", "missing"} & set(ask(student, {"record": RECORD}))
    many = ask(student, {"records": [RECORD, RECORD | {"job": "pilot"}]})["results"]
    assert [one.get("unseen") for one in many] == [None, ["job"]]


def test_texts_are_gaps_of_their_own():
    student = student_of("linear", 1, with_note=True)
    records = records_of(student)
    # Every thirteenth note was missing in training, which taught what that means.
    assert not next(column for column in records.encoder.columns if column.name == "note").fills


def test_many_gaps_at_once_keep_usual_values():
    known = encoder(answers_gaps=True)
    assert known.gaps is not None
    row = [0.0] * known.layout.dense
    known.gaps.fill(row, [])
    assert row == [0.0] * known.layout.dense
    assert RecordRows(known).encode([None] * (len(known.columns) - 1) + [[0.0, 0.0]]).filled > 0.5
