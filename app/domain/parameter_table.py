"""All hyper-parameters of a job as a table, by dotted names: for the command line, pages and documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from app.domain.entities import Json

Kind: TypeAlias = Literal["json", "text", "list", "texts", "flag"]
"""How a value is written: as JSON, as text as it is, as a list of either, or as true and false."""

_SIGNS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "maxLength": "length ≤",
    "maxItems": "length ≤",
}


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One hyper-parameter, or one of several of the same name that belong to different methods.

    default: as JSON, or ``required``. allowed: choices or bounds in words. methods: of its group that have
    it; none if all do. by_default: whether the default method has it.
    """

    name: str
    default: str
    allowed: str
    meaning: str
    choices: tuple[str, ...]
    kind: Kind
    methods: tuple[str, ...] = ()
    by_default: bool = True

    @property
    def full_meaning(self) -> str:
        """The meaning, with the methods that have it unless the default one has."""
        return self.meaning if self.by_default else f"With method {' | '.join(self.methods)}: {self.meaning}"


def parameter_rows() -> Iterator[ParameterRow]:
    """One row for each hyper-parameter, nested ones by their dotted names."""
    from app.domain.training_spec import TrainingSpec  # needs all learners, unlike the rest

    schema = TrainingSpec.model_json_schema()
    yield from _rows(schema, schema.get("$defs", {}), "")


def put(values: Json, name: str, value: object) -> None:
    """Set a value by its dotted name. Raises TypeError if a part of the name is a value."""
    *groups, last = name.split(".")
    inner = values
    for part in groups:
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise TypeError(f"{name}: {part} is a value, not a group")
    inner[last] = value


def value_of(text: str) -> object:
    """The text decoded as JSON if it is JSON (numbers, true, null, lists), otherwise the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def value_of_kind(text: str, kind: Kind) -> object:
    """A value as it is written in a form. A list is JSON, or has commas between its items."""
    if kind == "text":
        return None if text == "null" else text
    if kind in ("list", "texts") and not text.startswith("[") and text != "null":
        items = [item.strip() for item in text.split(",") if item.strip()]
        return items if kind == "texts" else [value_of(item) for item in items]
    return value_of(text)


def flat(values: Json, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Values by their dotted names; an empty group is a value, and so is one with a dot in a name."""
    for name, value in values.items():
        if isinstance(value, dict) and value and not any("." in part for part in value):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _rows(group: Json, definitions: Json, prefix: str) -> Iterator[ParameterRow]:
    required = set(group.get("required", ())) - {"method"}
    for name, field in group["properties"].items():
        alternatives = [
            _resolved(one, definitions) for one in field.get("anyOf", field.get("oneOf", [field]))
        ]
        groups = [one for one in alternatives if "properties" in one]
        values = [one for one in alternatives if "properties" not in one]
        if values:
            value = {**field, **values[0]}
            choices = _choices(value)
            yield ParameterRow(
                prefix + name,
                "required" if name in required else json.dumps(field.get("default")),
                " | ".join(choices) or _bounds(value),
                field.get("description", ""),
                choices,
                _kind(value),
            )
        yield from _group_rows(groups, definitions, f"{prefix}{name}.")


def _group_rows(groups: Sequence[Json], definitions: Json, prefix: str) -> Iterator[ParameterRow]:
    """Rows of a group that may have several methods, distinguished by ``method``; the default comes first."""
    methods = [_choices(group["properties"].get("method", {})) for group in groups]
    of_groups = [list(_rows(group, definitions, prefix)) for group in groups]
    named = [{row.name for row in rows} for rows in of_groups]
    for place, rows in enumerate(of_groups):
        for row in rows:
            is_common = row in of_groups[0] and all(row.name in names for names in named)
            if row.name == f"{prefix}method":
                if place == 0:
                    names = tuple(name for kind in methods for name in kind)
                    text = " ".join(one["properties"]["method"]["description"] for one in groups)
                    yield replace(row, allowed=" | ".join(names), choices=names, meaning=text)
            elif not is_common:
                yield replace(row, methods=methods[place], by_default=place == 0)
            elif place == 0:
                yield row


def _resolved(schema: Json, definitions: Json) -> Json:
    """The schema that a reference points to, or the schema itself."""
    reference = schema.get("$ref")
    resolved: Json = definitions[reference.rpartition("/")[2]] if reference else schema
    return resolved


def _choices(schema: Json) -> tuple[str, ...]:
    return tuple(schema.get("enum", [schema["const"]] if "const" in schema else []))


def _bounds(schema: Json) -> str:
    return " and ".join(f"{sign} {schema[name]:.10g}" for name, sign in _SIGNS.items() if name in schema)


def _kind(schema: Json) -> Kind:
    if schema.get("type") == "array":
        return "texts" if schema.get("items", {}).get("type") == "string" else "list"
    return {"string": "text", "boolean": "flag"}.get(schema.get("type", ""), "json")  # type: ignore[return-value]
