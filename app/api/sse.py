"""Server-sent events of a job: what is stored, then what happens, until the job has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeAlias

from app.api.schemas import timestamp
from app.domain.entities import Event
from app.domain.errors import InvalidRequest, Unavailable

POLL_SECONDS: Final = 0.3
HEARTBEAT_SECONDS: Final = 10.0
HEARTBEAT: Final = b": still here\n\n"

ReadEvents: TypeAlias = Callable[[int], tuple[Sequence[Event], bool]]
"""Number of the last event seen → the events after it, and whether there will be no more. Blocks."""


def encode_event(event: Event) -> bytes:
    """One event on the wire: its number as id, its type, and its data with the time of it."""
    data = json.dumps({"at": timestamp(event.at), **event.data}, separators=(",", ":"))
    return f"id: {event.seq}\nevent: {event.type}\ndata: {data}\n\n".encode()


def last_event_id(value: str | None) -> int:
    """The number in a Last-Event-ID header, 0 without one. Raises InvalidRequest."""
    if not value:
        return 0
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InvalidRequest("Last-Event-ID is not the number of an event.", code="bad_last_event_id")
    return int(value)


async def event_stream(
    read: ReadEvents,
    first: tuple[Sequence[Event], bool],
    *,
    after: int,
    stopping: Callable[[], bool],
    poll_seconds: float = POLL_SECONDS,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> AsyncIterator[bytes]:
    """The stream, beginning with ``first``, what was read after event ``after``, until ``stopping``.

    A line of comment goes out when nothing else did for ``heartbeat_seconds``, so that proxies keep the line
    open and a vanished client is noticed.
    """
    loop = asyncio.get_running_loop()
    quiet_since = loop.time()
    events, ended = first
    while True:
        for event in events:
            after = event.seq
            yield encode_event(event)
        if events:
            quiet_since = loop.time()
        elif loop.time() - quiet_since >= heartbeat_seconds:
            yield HEARTBEAT
            quiet_since = loop.time()
        if ended or stopping():
            return
        await asyncio.sleep(poll_seconds)
        try:
            events, ended = await asyncio.to_thread(read, after)
        except Unavailable:
            # The client comes back by itself, and goes on after the last event it saw.
            return
