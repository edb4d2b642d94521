"""Faults of the hyper-parameters of a job, reported by their dotted names."""

from __future__ import annotations

from pydantic import ValidationError

from app.domain.entities import Json
from app.domain.errors import InputFault
from app.domain.fault_fields import UNKNOWN_FIELD, sent_field
from app.domain.near_names import known_names
from app.domain.parameter_table import parameter_rows
from app.domain.training_spec import TrainingSpec


def parameter_faults(values: Json) -> list[InputFault]:
    """The faults of hyper-parameters, whose fields are dotted names; none if a job takes them."""
    try:
        TrainingSpec.model_validate(values)
    except ValidationError as error:
        named = [
            (".".join(map(str, sent_field(one["loc"], one["type"], values))), one) for one in error.errors()
        ]
        return [
            InputFault(
                name,
                one["type"],
                unknown_parameter(name) if one["type"] == UNKNOWN_FIELD else one["msg"],
            )
            for name, one in named
        ]
    return []


def unknown_parameter(name: str) -> str:
    """The message that no hyper-parameter has this dotted name, with known names and the nearest one."""
    group, dot, own = name.rpartition(".")
    names = [
        row.name.removeprefix(group + dot).partition(".")[0]
        for row in parameter_rows()
        if row.name.startswith(group + dot)
    ]
    known = known_names(own, list(dict.fromkeys(names)), "hyper-parameters")
    return f"{group or 'a job'} has no {own!r:.80}; {known}"
