"""The page of the settings, written from the pydantic model."""

from __future__ import annotations

from typing import Any

from app.settings import Settings
from docs.site.markdown import cell, table

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    """Every environment variable with default, bounds and meaning."""
    schema = Settings.model_json_schema()["properties"]
    rows = [
        (
            f"`STMS_{name.upper()}`",
            _default(field.default),
            _allowed(schema[name]),
            _meaning(field.description),
        )
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


def _meaning(description: str | None) -> str:
    return cell(description or "Port to listen on; 0 picks a free one.")
