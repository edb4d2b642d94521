"""Parsing of server-sent events, and the position in a job's events across connections."""

from __future__ import annotations

import time

import msgspec

from stms_client.errors import Problem, StmsError, TooBusy, Unavailable
from stms_client.results import JobEvent

ENDED = frozenset({"succeeded", "partially_succeeded", "failed", "cancelled"})
"""Final states of a job."""


class EventReader:
    """Parses events from the lines of a stream."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> JobEvent | None:
        """The event that ``line`` completes, or None. Comments (heartbeats) are skipped."""
        if not line:
            fields, self._fields = self._fields, {}
            if "data" not in fields:
                return None
            data = msgspec.json.decode(fields["data"])
            return JobEvent(fields.get("id", ""), fields.get("event", "message"), data)
        if not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            more = name == "data" and name in self._fields
            self._fields[name] = f"{self._fields[name]}\n{value}" if more else value
        return None


class Patience:
    """How long to go on without the server. seconds: after which its error is raised."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lost_at: float | None = None

    def answered(self) -> None:
        """Record that the server has answered."""
        self._lost_at = None

    def connection_lost(self, error: StmsError) -> None:
        """Record that it has not. Raises the error when it is permanent or the time is over."""
        self._lost_at = self._lost_at or time.monotonic()
        permanent = isinstance(error, Problem) and not isinstance(error, TooBusy | Unavailable)
        if permanent or time.monotonic() - self._lost_at > self._seconds:
            raise error


class EventCursor(Patience):
    """The position in a job's events, and since when the server has been unreachable."""

    def __init__(self, patience: float) -> None:
        super().__init__(patience)
        self.last_id = ""

    @property
    def headers(self) -> dict[str, str]:
        """Request headers that resume the stream after the last event seen."""
        return {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last_id} if self.last_id else {})

    def advance(self, event: JobEvent) -> None:
        """Record an event that arrived."""
        self.last_id = event.id or self.last_id
        self.answered()
