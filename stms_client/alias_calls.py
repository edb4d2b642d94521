"""Calls of aliases, their gates and monitors, and of evaluations, which both clients make."""

from __future__ import annotations

from typing import Any

from stms_client.calls import (
    Call,
    alias_path,
    condition,
    decoded,
    encoded,
    model_path,
    segment,
    true_or_none,
    without_none,
)
from stms_client.documents import Alias, Gate, Monitor, Schedule, Shadow
from stms_client.errors import Json

_JSON = {"Content-Type": "application/json"}


def point_alias(
    model: str,
    alias: str,
    version: int,
    revision: int | None,
    *,
    allow_schema_change: bool = False,
    override: str | None = None,
) -> Call[Alias]:
    """Move of an alias that was read at ``revision``, or its creation if that is None."""
    allowed = {"allow_schema_change": allow_schema_change or None, "override": override}
    content = encoded({"version": version} | without_none(allowed))
    headers = _JSON | condition(revision)
    return Call("PUT", alias_path(model, alias), decoded, {}, headers, content, repeatable=False)


def delete_alias(model: str, alias: str, revision: int, *, allow_schema_change: bool = False) -> Call[None]:
    """Deletion of an alias that was read at ``revision``."""
    params = without_none({"allow_schema_change": true_or_none(allow_schema_change)})
    return Call("DELETE", alias_path(model, alias), lambda _: None, params, condition(revision))


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


def monitor_path(model: str, alias: str) -> str:
    """Path of the monitor of an alias."""
    return f"{alias_path(model, alias)}/monitor"


def put_monitor(model: str, alias: str, settings: Json, revision: int | None) -> Call[Monitor]:
    """Change of a monitor that was read at ``revision``, or its creation if that is None."""
    headers = _JSON | condition(revision)
    return Call("PUT", monitor_path(model, alias), decoded, {}, headers, encoded(settings), repeatable=False)


def delete_monitor(model: str, alias: str, revision: int) -> Call[None]:
    """Deletion of a monitor that was read at ``revision``."""
    path = monitor_path(model, alias)
    return Call("DELETE", path, lambda _: None, {}, condition(revision), repeatable=False)


def put_schedule(model: str, settings: Json, revision: int | None) -> Call[Schedule]:
    """Change of the schedule of a model that was read at ``revision``, or its creation if that is None."""
    headers = _JSON | condition(revision)
    path = f"{model_path(model)}/schedule"
    return Call("PUT", path, decoded, {}, headers, encoded(settings), repeatable=False)


def delete_schedule(model: str, revision: int) -> Call[None]:
    """Deletion of the schedule of a model that was read at ``revision``."""
    path = f"{model_path(model)}/schedule"
    return Call("DELETE", path, lambda _: None, {}, condition(revision), repeatable=False)


def shadow_path(model: str, alias: str) -> str:
    """Path of the shadow of an alias."""
    return f"{alias_path(model, alias)}/shadow"


def put_shadow(model: str, alias: str, settings: Json) -> Call[Shadow]:
    """A shadow in place of the present one of an alias."""
    path = shadow_path(model, alias)
    return Call("PUT", path, decoded, {}, _JSON, encoded(settings), repeatable=False)


def delete_shadow(model: str, alias: str) -> Call[None]:
    """Deletion of a shadow."""
    return Call("DELETE", shadow_path(model, alias), lambda _: None, repeatable=False)
