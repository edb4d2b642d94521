"""Server-sent events, and what following a job over many connections has to remember."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator

from app.client.errors import Problem, StmsError, TooBusy, Unavailable
from app.client.results import JobEvent

ENDED = frozenset({"succeeded", "partially_succeeded", "failed", "cancelled"})
"""States in which a job stays."""


class EventReader:
    """Events out of the lines of a stream."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> JobEvent | None:
        """The event that ends with ``line``; comments (heartbeats) are skipped."""
        if not line:
            fields, self._fields = self._fields, {}
            if "data" not in fields:
                return None
            return JobEvent(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
        if not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            more = name == "data" and name in self._fields
            self._fields[name] = f"{self._fields[name]}\n{value}" if more else value
        return None


def parse_events(lines: Iterable[str]) -> Iterator[JobEvent]:
    """All events of the lines of a stream."""
    reader = EventReader()
    for line in lines:
        event = reader.feed(line)
        if event is not None:
            yield event


class Following:
    """Where a follower is in a job's events, and how long the server has been away.

    patience: seconds without the server after which its error is raised.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lost_at: float | None = None
        self.last_id = ""

    @property
    def headers(self) -> dict[str, str]:
        """To go on after the last event that was seen."""
        return {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last_id} if self.last_id else {})

    def saw(self, event: JobEvent) -> None:
        """The server is there."""
        self.last_id, self._lost_at = event.id or self.last_id, None

    def lost(self, error: StmsError) -> None:
        """The stream broke off. Raises the error when it will not get better, or patience has ended."""
        self._lost_at = self._lost_at or time.monotonic()
        refused = isinstance(error, Problem) and not isinstance(error, TooBusy | Unavailable)
        if refused or time.monotonic() - self._lost_at > self._patience:
            raise error
