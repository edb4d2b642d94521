"""Hyper-parameters that are declared as annotated fields: what is read from them, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest

from core.errors import Fault, InvalidProblem
from core.features.spec import FeatureSpec
from core.learners import STUDENTS, TEACHERS
from core.model_selection.tuning_spec import TuningSpec
from core.parameters import Doc, Ge, Gt, Le, Lt, MaxLen, MinLen, Pattern, check_parameters, parameters_of
from core.students.grid import Grid
from core.training.config import TrainingConfig


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Toy:
    rate: Annotated[float, Gt(0), Lt(1), Doc("A rate.")] = 0.5
    size: Annotated[int | None, Ge(1), Le(10), Doc("A size.")] = None
    mode: Annotated[Literal["fast", "slow"], Doc("A mode.")] = "fast"
    colour: Annotated[Colour, Doc("A colour.")] = Colour.RED
    weights: Annotated[
        tuple[Annotated[float, Ge(0), Le(9)], ...], MinLen(1), MaxLen(3), Doc("Some weights.")
    ] = (1.0,)
    quick: Annotated[bool, Doc("Whether it is quick.")] = False
    title: Annotated[str, Doc("A title.")] = ""
    note: str = "no hyper-parameter: it has no Doc"

    def __post_init__(self) -> None:
        check_parameters(self, "toy")


def faults_of(**values: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidProblem) as caught:
        Toy(**values)
    return [(fault.field, fault.code) for fault in caught.value.faults]


def test_a_declaration_is_read_in_full():
    by_name = {parameter.name: parameter for parameter in parameters_of(Toy)}
    assert list(by_name) == ["rate", "size", "mode", "colour", "weights", "quick", "title"]
    assert (by_name["rate"].kind, by_name["rate"].default, by_name["rate"].description) == (
        float,
        0.5,
        "A rate.",
    )
    assert by_name["rate"].interval() == "(0, 1)"
    assert by_name["size"].is_optional
    assert by_name["size"].interval() == "[1, 10]"
    assert by_name["mode"].choices == ("fast", "slow")
    assert by_name["colour"].choices == ("red", "blue")
    assert by_name["weights"].is_tuple
    assert by_name["weights"].lengths == (MinLen(1), MaxLen(3))
    assert by_name["quick"].interval() == ""


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"rate": 0.0}, "out_of_bounds"),
        ({"rate": 1}, "out_of_bounds"),
        ({"rate": float("nan")}, "out_of_bounds"),
        ({"rate": 10**400}, "out_of_bounds"),
        ({"rate": True}, "out_of_bounds"),
        ({"rate": "0.5"}, "out_of_bounds"),
        ({"rate": None}, "out_of_bounds"),
        ({"size": 0}, "out_of_bounds"),
        ({"size": 2.0}, "out_of_bounds"),
        ({"mode": "middling"}, "unknown_choice"),
        ({"mode": ["fast"]}, "unknown_choice"),
        ({"colour": "green"}, "unknown_choice"),
        ({"weights": ()}, "out_of_bounds"),
        ({"weights": (1.0,) * 4}, "out_of_bounds"),
        ({"weights": (1.0, -1.0)}, "out_of_bounds"),
        ({"weights": 1.0}, "wrong_type"),
        ({"quick": 1}, "wrong_type"),
        ({"title": 1}, "wrong_type"),
    ],
)
def test_a_wrong_value_is_named(value: dict[str, Any], code: str):
    assert faults_of(**value) == [(f"toy.{next(iter(value))}", code)]


def test_every_wrong_field_is_named():
    assert [field for field, _ in faults_of(rate=-1, size=99, mode="?")] == [
        "toy.rate",
        "toy.size",
        "toy.mode",
    ]


def test_values_at_their_bounds_and_choices_given_as_text_are_accepted():
    Toy(rate=1e-300, size=10, mode="slow", colour="blue", weights=[0, 9], quick=True, title="x")  # type: ignore[arg-type]


def test_a_rule_that_binds_several_fields_is_reported_with_the_others():
    with pytest.raises(InvalidProblem) as caught:
        check_parameters(Toy(), "toy", None, Fault("toy", "contradiction", "both are set"))
    assert [fault.code for fault in caught.value.faults] == ["contradiction"]


@pytest.mark.parametrize("kind", [dict[str, int], float | str, tuple[int, int], Literal[1, 2]])
def test_a_declaration_that_cannot_be_read_is_a_mistake_of_the_programmer(kind: Any):
    @dataclass
    class Wrong:
        value: Any = None

    Wrong.__annotations__["value"] = Annotated[kind, Doc("Unreadable.")]
    with pytest.raises(TypeError, match="value"):
        parameters_of(Wrong)


@pytest.mark.parametrize(
    "spec", [FeatureSpec, TuningSpec, Grid, TrainingConfig, *STUDENTS.values(), *TEACHERS.values()]
)
def test_every_hyper_parameter_is_described_and_its_default_is_allowed(spec: type):
    for parameter in parameters_of(spec):
        assert parameter.description.endswith("."), parameter.name
        assert not list(parameter.faults(parameter.default, ""))


@pytest.mark.parametrize("spec", [FeatureSpec, Grid, *STUDENTS.values(), *TEACHERS.values()])
def test_every_field_of_a_spec_is_a_declared_hyper_parameter(spec: type):
    learnt = ("reference", "column_factors", "layout", "of_scores")
    declared = [field.name for field in fields(spec) if field.name not in learnt]
    assert [parameter.name for parameter in parameters_of(spec)] == declared


def test_the_declarations_are_read_without_the_libraries_of_training():
    code = (
        "import sys, core.learners, core.parameters, core.training.config\n"
        "print({'numba', 'scipy', 'sklearn', 'joblib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "set()"


@dataclass(frozen=True)
class Named:
    name: Annotated[str | None, Pattern("^[a-z]+$"), Doc("A name.")] = None


def test_a_text_matches_its_pattern_as_a_whole():
    [parameter] = parameters_of(Named)
    assert (parameter.kind, parameter.pattern, parameter.is_optional) == (str, "^[a-z]+$", True)
    for fine in (None, "abc"):
        check_parameters(Named(fine), "n")
    for wrong in ("", "Abc", "abc\n", "a b"):
        with pytest.raises(InvalidProblem) as refused:
            check_parameters(Named(wrong), "n")
        assert [(fault.field, fault.code) for fault in refused.value.faults] == [("n.name", "bad_text")]
