"""`stms servers` and `stms whoami`: live figures of the servers, and what an API key may do."""

from __future__ import annotations

from app.commands.output import Answer, Fields, clock, field, listing, moment
from app.commands.remote import RemoteServer, asks_server


@asks_server(tenant=False)
def servers(client: RemoteServer) -> Answer:
    """List groups of server processes with their live figures."""
    return listing(
        client.pages("/v1/servers"),
        [
            *map(field, ("host", "pid", "version")),
            ("alive", lambda row: "yes" if row["alive"] else "no"),
            moment("started_at", "started"),
            ("processes", lambda row: f"{row['processes']}/{row['target_processes']}"),
            ("queries/s", lambda row: round(row["queries_per_second"], 1)),
            ("refused/s", lambda row: round(row["refused_per_second"], 1)),
            ("p50 ms", lambda row: _milliseconds(row["latency"]["p50"])),
            ("p99 ms", lambda row: _milliseconds(row["latency"]["p99"])),
            ("queries", lambda row: int(row["queries"])),
            ("failed", lambda row: int(row["failed_queries"])),
            ("requests", lambda row: int(row["requests"])),
            ("errors", lambda row: int(row["errors"])),
        ],
        empty="No server has reported yet.",
    )


@asks_server(tenant=False)
def whoami(client: RemoteServer) -> Answer:
    """Show what the API key may do, and which server answers."""
    found = client.get("/v1/whoami")
    return Answer(
        found,
        Fields(
            {
                "key": f"{found['name']} ({found['id']})",
                "tenant": found["tenant"],
                "scopes": ", ".join(found["scopes"]),
                "models": ", ".join(found["models"]) or "all",
                "expires": clock(found["expires_at"]) if found["expires_at"] else "never",
                "server": f"{found['server']}, version {found['version']}",
            }
        ),
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000.0 * seconds, 2)
