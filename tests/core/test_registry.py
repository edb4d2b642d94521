"""The registries of teachers and students."""

from __future__ import annotations

from typing import ClassVar

import pytest

from core.errors import InvalidProblem
from core.learners import STUDENTS, TEACHERS
from core.parameters import parameters_of
from core.registry import Registry


class One:
    name: ClassVar[str] = "one"


@pytest.mark.parametrize("name", ["", "One", "a b", "ä", "x" * 17, "-a", "a/b"])
def test_a_name_that_cannot_stand_in_an_address_or_a_table_is_refused(name: str):
    with pytest.raises(InvalidProblem, match="small letters"):
        Registry("student", type("Named", (), {"name": name}))


@pytest.mark.parametrize("name", ["a", "gpc+", "nearest-mean", "x" * 16, "svm_2"])
def test_names_of_the_field_are_accepted(name: str):
    assert list(Registry("student", type("Named", (), {"name": name}))) == [name]


def test_two_of_one_name_are_refused():
    with pytest.raises(InvalidProblem, match="'one' already"):
        Registry("student", One, One)


def test_a_class_is_registered_for_a_block_only():
    registry: Registry[One] = Registry("student")
    with registry.registered(One):
        assert registry["one"] is One
    assert "one" not in registry


@pytest.mark.parametrize("spec", [*TEACHERS.values(), *STUDENTS.values()])
def test_every_hyper_parameter_of_a_learner_is_described_and_has_a_default(spec: type):
    for parameter in parameters_of(spec):
        assert parameter.description.endswith(".")
        assert not list(parameter.faults(parameter.default, ""))
