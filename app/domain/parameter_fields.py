"""Converts hyper-parameters declared in core to pydantic: parsing of JSON, validation and JSON schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict
from typing import Any, Literal, cast

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from app.domain.strict_json import StrictModel
from core.parameters import Parameter, Pattern, parameters_of

_KEYWORDS = {
    Gt: "gt",
    Ge: "ge",
    Lt: "lt",
    Le: "le",
    MinLen: "min_length",
    MaxLen: "max_length",
    Pattern: "pattern",
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
    paragraph = " ".join((spec_class.__doc__ or "").partition("\n\n")[0].split())
    text = re.sub(r"\s*Raises InvalidProblem[^.]*\.", "", paragraph)
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
        """The fields of a spec that was made in Python, as JSON would have them."""
        return self._write(value) if isinstance(value, self._spec_class) else value

    def _read(self, values: SpecModel) -> Any:
        return self._spec_class(**{name: getattr(values, name) for name in type(values).model_fields})


class OneOf:
    """Metadata of an annotated type: a spec of one class of a registry, named by the field ``method``.

    ``{"method": "svm", "C": 10}`` becomes ``SVM(C=10)``. Classes may be registered at any time: they are
    looked up when JSON is read or its schema is made. Classes with equal declarations share one JSON schema.

    classes: function that returns the classes by their names. default: the name if there is no ``method``.
    title: end of the names of the JSON schemas, e.g. ``"StudentParameters"``.
    fields: further fields of every class, by name: annotation and pydantic field.
    """

    def __init__(
        self,
        classes: Callable[[], Mapping[str, type]],
        default: str,
        title: str,
        fields: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> None:
        self._classes, self._default, self._title = classes, default, title
        self._fields = fields or {}
        self._made: dict[tuple[type, ...], type[SpecModel]] = {}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic's protocol for annotations: how to validate the type and to serialise it."""

        def read(value: object) -> Any:
            return self._read(self.write(value) if isinstance(value, source) else value)

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """pydantic's protocol for JSON schemas: one for each group of classes with equal declarations."""
        models: list[Any] = [model.__pydantic_core_schema__ for model in self._models().values()]
        return handler(core_schema.union_schema(models))

    def make(self, spec_class: type, values: dict[str, Any]) -> Any:
        """The value of the type from the fields of its JSON, without ``method``."""
        return spec_class(**values)

    def write(self, value: Any) -> dict[str, Any]:
        """The value as JSON."""
        spec_class: Any = type(value)
        parameters = parameters_of(spec_class)
        return {"method": value.name, **{one.name: getattr(value, one.name) for one in parameters}}

    def _read(self, value: object) -> Any:
        classes, models = self._classes(), self._models()
        method = value.get("method", self._default) if isinstance(value, dict) else self._default
        names = next((names for names in models if method in names), None)
        if names is None:
            raise _unknown_name(classes, method, ("method",))
        values = dict(models[names].model_validate(value))
        return self.make(classes[values.pop("method")], values)

    def _models(self) -> dict[tuple[str, ...], type[SpecModel]]:
        """A model for each group of classes with equal declarations, by their names.

        That of the default is the first.
        """
        classes = self._classes()
        groups: dict[tuple[Parameter, ...], list[str]] = {}
        for name in sorted(classes, key=lambda name: name != self._default):
            groups.setdefault(parameters_of(classes[name]), []).append(name)
        return {
            tuple(names): self._model([classes[name] for name in names], names) for names in groups.values()
        }

    def _model(self, classes: Sequence[type], names: Sequence[str]) -> type[SpecModel]:
        has_default = self._default in names
        title = self._title if has_default else classes[0].__name__ + self._title
        kinds = " ".join(f"{name}: {_first_line(one)}" for name, one in zip(names, classes, strict=True))
        method = Field(self._default if has_default else ..., description=kinds)
        fields = {"method": (Literal[tuple(names)], method), **self._fields}
        # Kept, because pydantic tells models apart by identity, and making one takes a millisecond.
        return self._made.setdefault(tuple(classes), model_of(classes[0], title, fields=fields))


class NameOf:
    """Metadata of a text: the name of one of the classes of a registry, looked up whenever it is needed."""

    def __init__(self, classes: Callable[[], Mapping[str, type]]) -> None:
        self._classes = classes

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic's protocol for annotations: how to validate the type."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """pydantic's protocol for JSON schemas."""
        return {"enum": list(self._classes()), "type": "string"}

    def _read(self, value: object) -> object:
        if not isinstance(value, str) or value not in self._classes():
            raise _unknown_name(self._classes(), value, ())
        return value


def _unknown_name(classes: Mapping[str, type], value: object, place: tuple[str, ...]) -> ValidationError:
    *others, last = (f"'{name}'" for name in classes)
    expected = f"{', '.join(others)} or {last}" if others else last
    details = InitErrorDetails(type="literal_error", loc=place, input=value, ctx={"expected": expected})
    return ValidationError.from_exception_data("method", [details])


def _first_line(spec_class: type) -> str:
    return (spec_class.__doc__ or "").strip().partition("\n")[0]


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
    default = ... if parameter.default is MISSING else parameter.default
    return Field(default, description=parameter.description, **bounds)
