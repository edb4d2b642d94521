"""`stms workers`: list worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.commands.methods import made
from app.commands.output import field, moment
from stms_client import Client


def _slots(worker: Mapping[str, Any]) -> str:
    return f"{len(worker['units'])}/{worker['slots']}"


def _unit(unit: Mapping[str, Any]) -> str:
    """Text for a unit, for example ``job_01 chunk 3 (7 classes)``."""
    classes = f" ({unit['classes']} classes)" if unit["classes"] else ""
    name = unit["kind"] if unit["unit"] <= 0 else f"{unit['kind']} {unit['unit']}"
    return f"{unit['job_id']} {name}{classes}"


workers = made(
    Client.workers,
    tenant=False,
    columns=[
        *map(field, ("id", "host", "pid")),
        ("alive", lambda worker: "yes" if worker["alive"] else "no"),
        moment("beat_at", "last heartbeat"),
        ("slots", _slots),
        ("running", lambda worker: "; ".join(map(_unit, worker["units"]))),
    ],
    empty="There is no worker. Start one with `stms worker`.",
)
