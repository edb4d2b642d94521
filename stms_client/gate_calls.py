"""Calls of evaluations and gates, which both clients make."""

from __future__ import annotations

from typing import Any

from stms_client.calls import Call, alias_path, condition, decoded, encoded, segment
from stms_client.documents import Gate

_JSON = {"Content-Type": "application/json"}


def evaluation_path(evaluation_id: str) -> str:
    """Path of an evaluation."""
    return f"/v1/evaluations/{segment(evaluation_id)}"


def gate_path(model: str, alias: str) -> str:
    """Path of the gate of an alias."""
    return f"{alias_path(model, alias)}/gate"


def set_gate(model: str, alias: str, gate: dict[str, Any], revision: int | None) -> Call[Gate]:
    """Change of a gate that was read at ``revision``, or its creation if that is None."""
    headers = _JSON | condition(revision)
    return Call("PUT", gate_path(model, alias), decoded, {}, headers, encoded(gate), repeatable=False)


def delete_gate(model: str, alias: str, revision: int) -> Call[None]:
    """Deletion of a gate that was read at ``revision``."""
    return Call("DELETE", gate_path(model, alias), lambda _: None, {}, condition(revision))
