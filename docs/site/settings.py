"""The page of the settings, written from the pydantic model."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices

from app.settings import Settings
from docs.site.markdown import cell, table

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    """Every environment variable with default, bounds and meaning."""
    schema = Settings.model_json_schema(by_alias=False)["properties"]
    rows = [
        (f"`STMS_{name.upper()}`", _default(field.default), _allowed(schema[name]), _meaning(name, field))
        for name, field in Settings.model_fields.items()
    ]
    lines = ["# Settings", "", "Environment variables of all processes; [deployment](../deployment.md) tells"]
    lines += ["which ones to set when. An invalid value ends a process at its start with a message."]
    return "\n".join([*lines, *table(["variable", "default", "allowed", "meaning"], rows)])


def _default(value: object) -> str:
    return "" if value is None or value == "" else f"`{value}`"


def _allowed(field: dict[str, Any]) -> str:
    kinds = field.get("anyOf", [field])
    choices = [str(choice) for kind in kinds for choice in kind.get("enum", [])]
    bounds = [f"{sign} {kind[word]:g}" for kind in kinds for word, sign in _BOUNDS.items() if word in kind]
    return cell(", ".join(f"`{choice}`" for choice in choices) or " and ".join(bounds))


def _meaning(name: str, field: Any) -> str:
    text = cell(field.description or "Port to listen on; 0 picks a free one.")
    if isinstance(field.validation_alias, AliasChoices):
        old = [alias for alias in field.validation_alias.choices if alias != f"STMS_{name.upper()}"]
        text += f" Older name: `{old[0]}`."
    return text
