"""From hyper-parameters as core declares them to pydantic: JSON, its checks and its schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal, cast

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from app.domain.strict_json import StrictModel
from core.parameters import Parameter, parameters_of

_KEYWORDS = {
    Gt: "gt",
    Ge: "ge",
    Lt: "lt",
    Le: "le",
    MinLen: "min_length",
    MaxLen: "max_length",
}


class SpecModel(StrictModel):
    """Base of the groups of hyper-parameters: unknown fields are errors, instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def declared(spec_class: type, name: str) -> Any:
    """The pydantic field of one hyper-parameter of ``spec_class``: default, bounds and description."""
    parameter = next(parameter for parameter in parameters_of(spec_class) if parameter.name == name)
    return _field(parameter)


def model_of(
    spec_class: type,
    name: str,
    *,
    config: ConfigDict | None = None,
    fields: Mapping[str, tuple[Any, Any]] | None = None,
) -> type[SpecModel]:
    """A pydantic model with every hyper-parameter that ``spec_class`` declares.

    name: of the model, and of its JSON schema. config: of the model, e.g. for rules that bind several fields.
    fields: further ones that come first, by name: annotation and pydantic field.
    """
    own = {one.name: (_type_of(one), _field(one)) for one in parameters_of(spec_class)}
    base = type(name, (SpecModel,), {"model_config": config or ConfigDict(), "__module__": __name__})
    text = re.sub(r"\s*Raises InvalidProblem[^.]*\.", "", spec_class.__doc__ or "")
    definitions: dict[str, Any] = {**(fields or {}), **own}
    model: Any = create_model(name, __base__=base, __doc__=text, __module__=__name__, **definitions)
    return cast(type[SpecModel], model)


class AsJson:
    """Metadata of an annotated type: a spec of core that is read from JSON and written to it.

    ``Annotated[FeatureSpec, AsJson(FeatureSpec, model)]`` is validated as ``model``, whose fields become the
    arguments of the spec. Rules that only the spec knows raise InvalidProblem, a ValueError, which pydantic
    reports for the field as a whole.
    write: the fields of a spec as JSON; by default those of the dataclass.
    """

    def __init__(
        self,
        spec_class: type,
        model: type[SpecModel],
        write: Callable[[Any], dict[str, Any]] = asdict,
    ) -> None:
        self._spec_class = spec_class
        self._model = model
        self._write = write

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic's protocol for annotations: how to validate the type and to serialise it."""
        model = handler.generate_schema(self._model)
        unpacked = core_schema.no_info_before_validator_function(self._unpack, model)
        return core_schema.no_info_after_validator_function(
            self._read, unpacked, serialization=core_schema.plain_serializer_function_ser_schema(self._write)
        )

    def _unpack(self, value: object) -> object:
        """A spec that was made in Python, as the fields that JSON would have."""
        return self._write(value) if isinstance(value, self._spec_class) else value

    def _read(self, values: SpecModel) -> Any:
        return self._spec_class(**{name: getattr(values, name) for name in type(values).model_fields})


def _type_of(parameter: Parameter) -> Any:
    """The type of a field in JSON; its outermost annotations come from ``_field``."""
    if not parameter.choices:
        return parameter.annotation.__origin__
    kind: Any = Literal[parameter.choices]
    kind = tuple[kind, ...] if parameter.is_tuple else kind
    return kind | None if parameter.is_optional else kind


def _field(parameter: Parameter) -> Any:
    bounds = {
        _KEYWORDS[type(one)]: getattr(one, _KEYWORDS[type(one)])
        for one in getattr(parameter.annotation, "__metadata__", ())
        if type(one) in _KEYWORDS
    }
    return Field(parameter.default, description=parameter.description, **bounds)
