"""JSON Schemas of Python types, as components of the OpenAPI document."""

from __future__ import annotations

from typing import Any

import msgspec

from app.domain.entities import Json

_PREFIX = "#/components/schemas/"


def ref(name: str) -> Json:
    """A reference to the component ``name``."""
    return {"$ref": f"{_PREFIX}{name}"}


def one_of(*names: str) -> Json:
    """The schema of values that match exactly one of the named components."""
    return {"oneOf": [ref(name) for name in names]}


def schemas_of(*types: Any) -> Json:
    """Schemas by name of structs, dataclasses and typed dicts, and of the types that they contain."""
    return dict(msgspec.json.schema_components(types, ref_template=_PREFIX + "{name}")[1])


def schema_of(type_: Any) -> Json:
    """The schema of a type that contains no component."""
    return msgspec.json.schema(type_)
