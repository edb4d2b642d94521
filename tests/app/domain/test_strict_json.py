"""Strict validation of JSON types, and of names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, ValidationError

from app.domain.names import DISPLAY_NAME, is_display_name
from app.domain.strict_json import StrictModel
from app.domain.training_spec import TrainingSpec


class Sample(StrictModel):
    number: float = 1.0
    whole: int | None = None
    flag: bool = False
    text: str = ""
    many: tuple[float, ...] = ()
    anything: Any = None


@pytest.mark.parametrize(
    "given",
    [
        {"number": True},
        {"number": "1"},
        {"whole": False},
        {"whole": "7"},
        {"flag": 1},
        {"flag": 0.0},
        {"flag": "true"},
        {"text": True},
        {"text": 7},
        {"many": [1, True]},
        {"many": ["1"]},
    ],
)
def test_a_value_of_another_type_is_rejected_with_its_field(given: dict[str, Any]):
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(given)
    [error] = caught.value.errors()
    assert error["loc"][0] == next(iter(given))


def test_values_of_the_right_type_are_accepted():
    written = {"number": 2, "whole": 3.0, "flag": True, "text": "1", "many": [1, 2.5], "anything": True}
    found = Sample.model_validate(written)
    assert found.model_dump() == {**written, "number": 2.0, "whole": 3, "many": (1.0, 2.5)}
    assert Sample(number=0.5, flag=True).flag
    with pytest.raises(ValidationError):
        Sample.model_validate([1])


def test_hyperparameters_are_validated_strictly():
    assert TrainingSpec.model_validate({"student": {"C": 5, "max_epochs": 7.0}}).student.max_epochs == 7
    for wrong in ({"margin": False}, {"C": "5"}):
        with pytest.raises(ValidationError):
            TrainingSpec.model_validate({"student": wrong})
    spec = TrainingSpec.model_validate({"tuning": {"grid": {"C": [1, 10]}}})
    assert TrainingSpec.model_validate(json.loads(spec.model_dump_json())) == spec


@pytest.mark.parametrize("text", ["a", " a ", "größe", "日本", "a\U0001f600", "x" * 10])
def test_printable_names_are_accepted(text: str):
    assert is_display_name(text, 10)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "a\n",
        "a\0",
        "\x1b[31m",
        "\u202eab",
        "\u200b",
        "a\u2028",
        "\ufeffa",
        "\ud800",
        "x" * 11,
        "\U000e0041",
    ],
)
def test_unprintable_names_are_rejected(text: str):
    assert not is_display_name(text, 10)


@pytest.mark.long
@given(st.from_regex(DISPLAY_NAME, fullmatch=True))
def test_the_documented_pattern_is_the_one_in_use(text: str):
    assert is_display_name(text, len(text))


class Many(StrictModel):
    texts: list[str] = Field(default_factory=list, max_length=3)
    long: tuple[int, ...] = ()
    by_name: dict[str, float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"texts": ["a", "b\0"]}, ("texts", 1)),
        ({"texts": ["\ud800"]}, ("texts", 0)),
        ({"by_name": {"a\0": 1}}, ("by_name", "a\0")),
        ({"by_name": {"a": True}}, ("by_name", "a")),
        ({"by_name": {"a": "1"}}, ("by_name", "a")),
        ({"long": [1, "2"]}, ("long", 1)),
    ],
)
def test_a_fault_within_a_list_or_an_object_has_its_place(given: dict[str, Any], place: tuple[Any, ...]):
    with pytest.raises(ValidationError) as caught:
        Many.model_validate(given)
    assert caught.value.errors()[0]["loc"] == place


class Closed(Many):
    model_config = ConfigDict(extra="forbid")


@pytest.mark.parametrize(
    "faulty",
    [
        {"texts": [1] * 10_000},
        {"long": ["a"] * 10_000},
        {"by_name": {str(i): None for i in range(10_000)}},
        {str(i): 1 for i in range(10_000)},
    ],
    ids=["list", "tuple", "object", "unknown"],
)
def test_the_number_of_faults_is_bounded(faulty: dict[str, Any]):
    with pytest.raises(ValidationError) as caught:
        Closed.model_validate(faulty)
    assert caught.value.error_count() <= 100
