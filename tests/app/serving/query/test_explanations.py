"""Answers with what each column adds to a score."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.domain.errors import InvalidRequest, TooLarge, Unprocessable
from app.serving.columns import explanations
from app.serving.columns.of_version import columns_of as columns_of_version
from app.serving.query.evaluate import answer_class, answer_classes
from app.serving.query.negotiation import DEFAULT_FORMAT, OF_ONE_CLASS, negotiate
from app.serving.query.requests import parse_classes
from app.serving.servable import ServableStudent, make_servable
from app.serving.work import RequestLimits
from core.packed import LinearBasis, LinearForm, PackedStudent
from tests.app.serving.written_records import (
    RECORD,
    VERSION,
    encoder,
    numbers_encoder,
    records_of,
    served,
    text_encoder,
)
from tests.refusals import refused_as

LIMITS = RequestLimits(max_bytes=1 << 24, max_rows=1000)
NOTE = RECORD | {"note": "My card is lost again"}


def ask(student: ServableStudent, limits: RequestLimits = LIMITS, query: bytes = b"", **body: Any) -> Any:
    format_ = negotiate({}, query, OF_ONE_CLASS) if query else DEFAULT_FORMAT
    return json.loads(answer_class(student, json.dumps(body).encode(), format_, limits)[0])


def numbers(**known: Any) -> ServableStudent:
    """A student of two columns of numbers, without an encoder."""
    student = PackedStudent(
        LinearBasis(2), LinearForm(np.array([2.0, -1.0]), 0.5, np.zeros(2), 0.0), 0.0, "a"
    )
    version = replace(VERSION, columns=2, metrics={"inputs": known})
    return make_servable(student, version, columns_of_version(version))


def test_columns_are_listed_by_their_effects_and_add_up():
    student = served(encoder(with_note=True))
    answer = ask(student, record=NOTE, explain="columns")
    plain = ask(student, record=NOTE, explain=True)
    assert {name: answer[name] for name in plain} == plain
    assert answer["exact"] is True
    assert {one["name"] for one in answer["columns"]} == set(NOTE)
    effects = [one["effect"] for one in answer["columns"]]
    assert effects == sorted(effects, key=abs, reverse=True)
    assert answer["base"] + sum(effects) == pytest.approx(answer["score"])
    assert "rest" not in answer
    by_name = {one["name"]: one for one in answer["columns"]}
    assert by_name["job"]["value"] == "clerk"
    assert by_name["hours"]["value"] == 40
    assert "value" not in by_name["place"]
    words = by_name["note"].pop("words")
    assert {one["word"] for one in words} == {"my", "card", "is", "lost", "again"}
    assert sum(one["effect"] for one in words) == pytest.approx(by_name["note"]["effect"])


def test_values_that_training_did_not_have_are_not_known():
    student = served(encoder(with_note=True))
    odd = NOTE | {"age": 400.0, "job": "pilot", "since": "1950-01-01", "note": "qqq"}
    by_name = {one["name"]: one["known"] for one in ask(student, record=odd, explain="columns")["columns"]}
    assert {name for name, known in by_name.items() if not known} == {"age", "job", "since", "note"}
    gaps = NOTE | {"age": None, "job": None}
    by_name = {one["name"]: one for one in ask(student, record=gaps, explain="columns")["columns"]}
    assert by_name["age"] == {"name": "age", "value": None, "known": True, "effect": by_name["age"]["effect"]}


@pytest.mark.parametrize("n", [1, 3])
def test_explained_records_are_counted_once(n: int):
    student = served(encoder())
    records = records_of(student)
    form = {"record": RECORD} if n == 1 else {"records": [RECORD] * n}
    ask(student, explain="columns", **form)
    assert records.tally.take().records == n


def test_the_query_string_asks_as_the_body_does():
    student = served(encoder())
    assert ask(student, query=b"explain=columns", record=RECORD) == ask(
        student, record=RECORD, explain="columns"
    )


def test_effects_in_a_kernel_do_not_add_up_and_say_so():
    answer = ask(served(encoder(), "rbf"), record=RECORD, explain="columns")
    assert answer["exact"] is False


def test_many_records_have_their_own_effects():
    student = served(encoder())
    records = [RECORD, RECORD | {"age": 20.0}]
    results = ask(student, records=records, explain="columns")["results"]
    for record, result in zip(records, results, strict=True):
        alone = ask(student, record=record, explain="columns")
        assert {name: alone[name] for name in result} == result


def test_each_of_several_classes_has_its_own_effects():
    students = [served(encoder(), label="a"), served(encoder(), label="b", seed=5)]
    for form in ({"record": RECORD}, {"records": [RECORD, RECORD | {"age": 20.0}]}):
        body = json.dumps({"classes": ["a", "b"], "explain": "columns", **form}).encode()
        request = parse_classes(body, DEFAULT_FORMAT, LIMITS)
        answer = json.loads(answer_classes(students, request, DEFAULT_FORMAT, LIMITS)[0])
        for student, of_class in zip(students, answer["classes"], strict=True):
            alone = ask(student, explain="columns", **form)
            for given, expected in zip(
                of_class.get("results", [of_class]), alone.get("results", [alone]), strict=True
            ):
                for name in ("score", "base", "exact", "columns"):
                    assert given[name] == expected[name]


def test_a_long_text_is_cut():
    text = "card " * 100
    [column] = ask(served(text_encoder()), text=text, explain="columns")["columns"]
    assert column["value"] == text[:199] + "…"


def test_rows_of_numbers_are_compared_with_the_means_of_the_data_set():
    student = numbers(columns=["p", "q"], label_column="y", ranges=[[0.0, 4.0], [0.0, 4.0]], means=[1.0, 3.0])
    answer = ask(student, x=[2.0, 7.0], explain="columns")
    assert answer["base"] == 0.5 + 2.0 - 3.0
    assert answer["columns"] == [
        {"name": "q", "value": 7.0, "effect": -4.0, "known": False},
        {"name": "p", "value": 2.0, "effect": 2.0, "known": True},
    ]
    assert ask(student, x={"q": 7, "p": 2}, explain="columns")["columns"] == answer["columns"]
    rows = ask(student, rows=[[2.0, 7.0], [1.0, 3.0]], explain="columns")["results"]
    assert rows[0]["columns"] == answer["columns"]
    assert [one["effect"] for one in rows[1]["columns"]] == [0.0, 0.0]


def test_columns_without_names_are_their_numbers():
    answer = ask(numbers(ranges=[[0.0, 4.0], [0.0, 4.0]], means=[1.0, 3.0]), x=[2.0, 7.0], explain="columns")
    assert [one["name"] for one in answer["columns"]] == [1, 0]


def test_numbers_of_a_version_with_an_encoder_are_explained_as_its_records():
    student = served(numbers_encoder())
    by_record = ask(student, record={"p": 1.0, "q": 2.0}, explain="columns")
    assert ask(student, x=[1.0, 2.0], explain="columns")["columns"] == by_record["columns"]


def test_versions_without_means_say_that_they_have_none():
    with refused_as(Unprocessable, "no_means"):
        ask(numbers(columns=["p", "q"]), x=[2.0, 7.0], explain="columns")


def test_more_columns_than_are_listed_are_summed(monkeypatch):
    monkeypatch.setattr(explanations, "MOST_COLUMNS", 2)
    student = served(encoder())
    answer = ask(student, record=RECORD, explain="columns")
    assert len(answer["columns"]) == 2
    total = answer["base"] + answer["rest"] + sum(one["effect"] for one in answer["columns"])
    assert total == pytest.approx(answer["score"])


def test_many_rows_and_costly_comparisons_are_refused():
    student = served(encoder(), "rbf")
    with refused_as(TooLarge, "too_many_rows"):
        ask(student, records=[RECORD] * 101, explain="columns")
    with refused_as(TooLarge, "too_much_work"):
        ask(student, replace(LIMITS, max_work=200), record=RECORD, explain="columns")
    with pytest.raises(TooLarge):
        ask(numbers(means=[1.0, 3.0]), rows=[[1.0, 2.0]] * 101, explain="columns")


def test_tensors_have_no_columns():
    format_ = negotiate({b"accept": b"application/x-npy"}, b"explain=columns", OF_ONE_CLASS)
    with refused_as(InvalidRequest, "bad_parameter"):
        answer_class(served(encoder()), json.dumps({"record": RECORD}).encode(), format_, LIMITS)


@pytest.mark.parametrize("explain", ["all", 1, None, ["columns"]])
def test_other_explanations_are_refused(explain):
    with pytest.raises(InvalidRequest):
        ask(served(encoder()), record=RECORD, explain=explain)
    with pytest.raises(InvalidRequest):
        ask(numbers(means=[1.0, 3.0]), x=[1.0, 2.0], explain=explain)
