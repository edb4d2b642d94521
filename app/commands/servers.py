"""`stms servers` and `stms whoami`: live figures of the servers, and what an API key may do."""

from __future__ import annotations

from app.commands.methods import made
from app.commands.output import clock, field, moment
from stms_client import Client


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000.0 * seconds, 2)


servers = made(
    Client.servers,
    tenant=False,
    columns=[
        *map(field, ("host", "pid", "version")),
        ("alive", lambda row: "yes" if row["alive"] else "no"),
        moment("started_at", "started"),
        ("processes", lambda row: f"{row['processes']}/{row['target_processes']}"),
        ("queries/s", lambda row: round(row["queries_per_second"], 1)),
        ("refused/s", lambda row: round(row.get("refused_per_second", 0.0), 1)),
        ("p50 ms", lambda row: _milliseconds(row["latency"]["p50"])),
        ("p99 ms", lambda row: _milliseconds(row["latency"]["p99"])),
        ("queries", lambda row: int(row["queries"])),
        ("failed", lambda row: int(row["failed_queries"])),
        ("requests", lambda row: int(row["requests"])),
        ("errors", lambda row: int(row["errors"])),
    ],
    empty="No server has reported yet.",
)
whoami = made(
    Client.whoami,
    tenant=False,
    fields=lambda key: {
        "key": f"{key['name']} ({key['id']})",
        "tenant": key["tenant"],
        "scopes": ", ".join(key["scopes"]),
        "models": ", ".join(key["models"]) or "all",
        "expires": clock(key["expires_at"]) if key["expires_at"] else "never",
        "server": f"{key['server']}, version {key['version']}",
    },
)
