"""Base of pydantic models that validate JSON strictly, without conversions between its types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from annotated_types import MaxLen
from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from app.domain.names import find_unusable

_REJECTED: Final = object()
"""Replaces a value of the wrong JSON type: no field accepts it, so pydantic's error names the field."""

_MAX_UNKNOWN: Final = 100
"""Largest number of unknown fields of one object that are reported."""

_MANY: Final = 1000
"""Of a list or an object that may have more items than this, only the first faulty item is reported."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a field accepts.

    kinds: Python types of the JSON values that need no further look, which are objects unless they have any
    names: the fields of a model are checked by the model. most: items, None if there is no bound.
    models: whether it is an object with any names and models as their values.
    """

    kinds: frozenset[type]
    most: int | None
    models: bool = False


_COLLECTIONS: Final = frozenset({"list", "tuple", "dict"})
_PARTS: Final = frozenset(
    {"schema", "fields", "items_schema", "keys_schema", "values_schema", "choices", "definitions"}
)
_LEAVES: Final = frozenset({bool, int, float, str, NoneType})
_NAMES: Final = _Expected(frozenset({str}), None)


@cache
def _expected_of(model: type[BaseModel]) -> dict[str, _Expected]:
    """What each field of a model accepts, by its name in JSON."""
    return {field.alias or name: _expected(field) for name, field in model.model_fields.items()}


def _expected(field: FieldInfo) -> _Expected:
    annotation = field.annotation
    accepts_bool = _accepts(annotation, bool)
    kinds: set[type] = {NoneType}
    if accepts_bool:
        kinds.add(bool)
    if _accepts(annotation, str):
        kinds.add(str)
    if not accepts_bool or _accepts(annotation, float):
        kinds |= {int, float}
    if annotation is not Any and not _has_dict(annotation):
        kinds.add(dict)
    most = next((one.max_length for one in field.metadata if isinstance(one, MaxLen)), None)
    return _Expected(frozenset(kinds), most, _has_models(annotation))


def _fail_fast(schema: Any) -> None:
    """Let the validation of each list and object that may be long end with its first faulty item."""
    if isinstance(schema, list):
        for part in schema:
            _fail_fast(part)
    elif isinstance(schema, dict):
        if schema.get("type") in _COLLECTIONS and (schema.get("max_length") or _MANY + 1) > _MANY:
            schema["fail_fast"] = True
        for name, part in schema.items():
            if name in _PARTS:
                _fail_fast(list(part.values()) if name == "fields" and isinstance(part, dict) else part)


def _checked_items(value: Any, field: _Expected, place: tuple[int | str, ...]) -> Any:
    """A list or an object whose values of wrong types are replaced; anything else is returned as it is."""
    if not isinstance(value, list | dict):
        return value
    if field.most is not None and len(value) > field.most:
        # One item more than there may be is enough to be refused.
        first = islice(value.items() if isinstance(value, dict) else value, field.most + 1)
        value = type(value)(first)
    if isinstance(value, list):
        return _checked_list(value, field, place, range(len(value)))
    names = list(value)
    _checked_list(names, _NAMES, place, names)
    if field.models:
        return value
    return dict(zip(names, _checked_list(list(value.values()), field, place, names), strict=True))


def _checked_list(values: list[Any], field: _Expected, place: tuple[int | str, ...], names: Any) -> list[Any]:
    """The values of a list or an object. names: their numbers or names."""
    kinds = set(map(type, values))
    if str in kinds and find_unusable("".join(one for one in values if type(one) is str)):
        for name, value in zip(names, values, strict=True):
            if type(value) is str:
                _check_text(value, (*place, name))
    if kinds <= field.kinds:
        return values
    wrong = _LEAVES - field.kinds
    if kinds <= _LEAVES:
        return [_REJECTED if type(value) in wrong else value for value in values]
    return [
        _REJECTED
        if type(value) in wrong
        else value
        if type(value) in field.kinds
        else _checked_items(value, field, (*place, name))
        for name, value in zip(names, values, strict=True)
    ]


def _check_text(text: str, place: tuple[int | str, ...]) -> None:
    """Raise ValidationError for text that cannot be stored."""
    if (found := find_unusable(text)) is not None:
        kind = PydanticCustomError("bad_text", "Text cannot hold {character}", {"character": found})
        raise ValidationError.from_exception_data(
            "text", [InitErrorDetails(type=kind, loc=place, input=text)]
        )


def _has_dict(annotation: Any) -> bool:
    """Whether the annotated type is, or may be, an object with any names."""
    return get_origin(annotation) is dict or any(
        _has_dict(part) for part in get_args(annotation) if not _is_constraint(part)
    )


def _has_models(annotation: Any) -> bool:
    """Whether the annotated type is an object with any names and a model for each."""
    parts = get_args(annotation)
    return get_origin(annotation) is dict and isinstance(parts[1], type) and issubclass(parts[1], BaseModel)


def _accepts(annotation: Any, kind: type) -> bool:
    """Whether the annotated type accepts a value of ``kind`` anywhere in it, names of objects aside."""
    if annotation is Any:
        return True
    if get_origin(annotation) is Literal:
        return any(isinstance(value, kind) for value in get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, kind) or (kind is float and annotation is int)
    parts = get_args(annotation)[1:] if get_origin(annotation) is dict else get_args(annotation)
    return any(_accepts(part, kind) for part in parts if not _is_constraint(part))


def _is_constraint(part: Any) -> bool:
    """Whether an argument of a type is not a type itself: metadata of Annotated, or an ellipsis."""
    return part is ... or not (isinstance(part, type) or get_origin(part) is not None or part is Any)


class StrictModel(BaseModel):
    """Base of request models: neither true nor "1" is accepted as a number, nor 0 as false.

    No text may hold a character that a database or UTF-8 cannot store. The time of the checks grows with the
    number of values, and their faults are bounded.
    """

    @model_validator(mode="before")
    @classmethod
    def _check_json_types(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        expected = _expected_of(cls)
        checked = {}
        unknown = 0
        for name, value in values.items():
            field = expected.get(name)
            if field is None:
                unknown += 1
                if unknown > _MAX_UNKNOWN:
                    continue
            elif type(value) not in field.kinds:
                value = _REJECTED if type(value) in _LEAVES else _checked_items(value, field, (name,))
            elif type(value) is str:
                _check_text(value, (name,))
            checked[name] = value
        return checked

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic's protocol for types: the schema, with a bound on the faults of long lists and objects."""
        schema = handler(source)
        _fail_fast(schema)
        return schema
