"""The hyper-parameters as fields of a form, in groups, and what a person has filled in as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from app.domain.entities import Json
from app.domain.errors import InputFault
from app.domain.parameter_table import ParameterRow, parameter_rows, put, value_of, value_of_kind
from app.web.forms import Form
from core.learners import STUDENTS, TEACHERS

PREFIX: Final = "p."
"""Before the names of hyper-parameters among the fields of the form."""
GROUPS: Final = {
    "": "Job",
    "evaluation": "Test part and baselines",
    "inputs": "Columns of records",
    "labelling": "Rows without a label",
    "automatic": "Automatic choice",
    "features": "Features",
    "teacher": "Teacher",
    "student": "Students",
    "compact": "Compact students",
    "tuning": "Search of hyper-parameters",
    "threshold": "Threshold",
    "calibration": "Probabilities",
    "guard": "Comparison with the teacher",
    "suspects": "Wrong labels",
}
"""Titles of the groups, in the order of the form."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form. rows: the hyper-parameters of this name, of different methods.

    methods: those to which the field applies; none if it applies to all.
    """

    name: str
    rows: Sequence[ParameterRow]
    methods: Sequence[str]

    @property
    def choices(self) -> Sequence[str]:
        """Texts to choose from; none if the field is written by hand."""
        if self.rows[0].kind == "flag":
            return ("true", "false")
        return self.rows[0].choices if self.rows[0].kind == "text" else ()

    @property
    def default(self) -> str:
        """The default of the first of the rows without the quotes of JSON, or ``required``."""
        return shown(value_of(self.rows[0].default))


@dataclass(frozen=True, slots=True)
class Group:
    """Fields with a common first part of their names."""

    name: str
    title: str
    fields: Sequence[Field]


def groups() -> Sequence[Group]:
    """All fields. Learners of other packages have theirs as well."""
    return _groups(tuple(STUDENTS), tuple(TEACHERS))


@lru_cache(maxsize=2)
def _groups(*_learners: tuple[str, ...]) -> Sequence[Group]:
    by_name: dict[str, list[ParameterRow]] = {}
    for row in parameter_rows():
        by_name.setdefault(row.name, []).append(row)
    fields: dict[str, list[Field]] = {}
    for name, rows in by_name.items():
        methods = () if any(not row.methods for row in rows) else [one for row in rows for one in row.methods]
        first, dot, _ = name.partition(".")
        fields.setdefault(first if dot or first in GROUPS else "", []).append(
            Field(name, rows, tuple(methods))
        )
    titles = GROUPS | {name: name for name in fields if name not in GROUPS}
    return tuple(Group(name, title, tuple(fields[name])) for name, title in titles.items() if name in fields)


def shown(value: object) -> str:
    """A value as it is written in a field."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def texts_of(values: Json) -> dict[str, str]:
    """The texts of the fields that show these hyper-parameters."""
    names = {field.name for group in groups() for field in group.fields}
    texts: dict[str, str] = {}
    waiting = [*values.items()]
    while waiting:
        name, value = waiting.pop(0)
        if isinstance(value, dict) and value and any(one.startswith(f"{name}.") for one in names):
            waiting += [(f"{name}.{part}", inner) for part, inner in value.items()]
        else:
            texts[name] = shown(value)
    return texts


def read_fields(form: Form) -> tuple[dict[str, str], Json]:
    """The texts that are filled in, by name, and the hyper-parameters that they mean.

    A group with a value and fields of its own, such as ``compact``, is read before its fields.
    """
    texts: dict[str, str] = {}
    values: Json = {}
    for field in sorted((one for group in groups() for one in group.fields), key=lambda one: one.name):
        if text := form.text(PREFIX + field.name):
            texts[field.name] = text
            value = value_of_kind(text, field.rows[0].kind)
            try:
                put(values, field.name, value)
            except TypeError:
                # Its group is off or has a name, so the fields of the group say what it is.
                outer = field.name.rpartition(".")[0]
                put(values, outer, {})
                put(values, field.name, value)
    return texts, values


def by_field(faults: Sequence[InputFault]) -> tuple[Mapping[str, str], Sequence[str]]:
    """Messages by the field that they are shown beside, and those that belong to none."""
    names = {field.name for group in groups() for field in group.fields} | {"model"}
    beside: dict[str, str] = {}
    others = []
    for fault in faults:
        name = fault.field.removeprefix("hyperparameters.")
        while name and name not in names:
            name = name.rpartition(".")[0]
        if name:
            beside[name] = f"{beside[name]} {fault.message}" if name in beside else fault.message
        else:
            others.append(fault.message)
    return beside, others
