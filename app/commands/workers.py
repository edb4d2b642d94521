"""`stms workers`: list worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.commands.output import Answer, field, listing, moment
from app.commands.remote import RemoteServer, asks_server


@asks_server(tenant=False)
def workers(client: RemoteServer) -> Answer:
    """List worker processes and the units of work that each is running."""
    return listing(
        client.pages("/v1/workers"),
        [
            *map(field, ("id", "host", "pid")),
            ("alive", lambda worker: "yes" if worker["alive"] else "no"),
            moment("beat_at", "last heartbeat"),
            ("slots", _slots),
            ("running", lambda worker: "; ".join(map(_unit, worker["units"]))),
        ],
        empty="There is no worker. Start one with `stms worker`.",
    )


def _slots(worker: Mapping[str, Any]) -> str:
    return f"{len(worker['units'])}/{worker['slots']}"


def _unit(unit: Mapping[str, Any]) -> str:
    """Text for a unit, for example ``job_01 chunk 3 (7 classes)``."""
    classes = f" ({unit['classes']} classes)" if unit["classes"] else ""
    name = unit["kind"] if unit["kind"] == "prepare" else f"{unit['kind']} {unit['unit']}"
    return f"{unit['job_id']} {name}{classes}"
