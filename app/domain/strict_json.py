"""Base of pydantic models that validate JSON strictly, without conversions between its types."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, model_validator

_REJECTED: Final = object()
"""Replaces a value of the wrong JSON type: no field accepts it, so pydantic's error names the field."""


class StrictModel(BaseModel):
    """Base of request models: neither true nor "1" is accepted as a number, nor 0 as false."""

    @model_validator(mode="before")
    @classmethod
    def _check_json_types(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        return {
            name: _checked(value, fields[name].annotation) if name in fields else value
            for name, value in values.items()
        }


def _checked(value: Any, annotation: Any) -> Any:
    if isinstance(value, list):
        return [_checked(item, annotation) for item in value]
    for kind in (bool, str):
        if isinstance(value, kind):
            return value if _accepts(annotation, kind) else _REJECTED
    if isinstance(value, int | float) and _accepts(annotation, bool) and not _accepts(annotation, float):
        return _REJECTED
    return value


@cache
def _accepts(annotation: Any, kind: type) -> bool:
    """Whether the annotated type accepts a value of ``kind`` anywhere in it."""
    if annotation is Any:
        return True
    if get_origin(annotation) is Literal:
        return any(isinstance(value, kind) for value in get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, kind) or (kind is float and annotation is int)
    return any(_accepts(part, kind) for part in get_args(annotation) if not _is_constraint(part))


def _is_constraint(part: Any) -> bool:
    """Whether an argument of a type is not a type itself: metadata of Annotated, or an ellipsis."""
    return part is ... or not (isinstance(part, type) or get_origin(part) is not None or part is Any)
