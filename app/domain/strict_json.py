"""Models of what people write as JSON, which has types of its own."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, model_validator

_REFUSED: Final = object()
"""In place of a value of the wrong type: no field takes it, and the error names the field."""


class Written(BaseModel):
    """Base of such models: neither true nor "1" is a number, and 0 is not false."""

    @model_validator(mode="before")
    @classmethod
    def _as_it_is_written(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        return {
            name: _as_written(value, fields[name].annotation) if name in fields else value
            for name, value in given.items()
        }


def _as_written(value: Any, annotation: Any) -> Any:
    if isinstance(value, list):
        return [_as_written(item, annotation) for item in value]
    for kind in (bool, str):
        if isinstance(value, kind):
            return value if _takes(annotation, kind) else _REFUSED
    if isinstance(value, int | float) and _takes(annotation, bool) and not _takes(annotation, float):
        return _REFUSED
    return value


@cache
def _takes(annotation: Any, kind: type) -> bool:
    """Whether a value of ``kind`` may stand anywhere in a value of this type."""
    if annotation is Any:
        return True
    if get_origin(annotation) is Literal:
        return any(isinstance(value, kind) for value in get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, kind) or (kind is float and annotation is int)
    return any(_takes(part, kind) for part in get_args(annotation) if not _is_constraint(part))


def _is_constraint(part: Any) -> bool:
    """Whether an argument of Annotated, or an ellipsis, is no type."""
    return part is ... or not (isinstance(part, type) or get_origin(part) is not None or part is Any)
