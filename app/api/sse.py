"""Server-sent events of a job: the stored events, then new ones until the job ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeAlias

from fastapi.sse import format_sse_event

from app.api.schemas import timestamp
from app.domain.entities import Event
from app.domain.errors import InvalidRequest, Unavailable

POLL_SECONDS: Final = 0.3
HEARTBEAT_SECONDS: Final = 10.0
HEARTBEAT: Final = format_sse_event(comment="heartbeat")

ReadEvents: TypeAlias = Callable[[int], tuple[Sequence[Event], bool]]
"""Maps the number of the last event seen to the events after it, and whether these are the last. Blocks."""


def encode_event(event: Event) -> bytes:
    """One event with its number as id; the data contain its time as ``at``."""
    data = json.dumps({"at": timestamp(event.at), **event.data}, separators=(",", ":"))
    return format_sse_event(data_str=data, event=event.type, id=str(event.seq))


def last_event_id(value: str | None) -> int:
    """The event number of a Last-Event-ID header, 0 if it is missing. Raises InvalidRequest."""
    if not value:
        return 0
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InvalidRequest("Last-Event-ID must be the number of an event.", code="bad_last_event_id")
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
    """The encoded events after number ``after``, until the job ends or ``stopping`` returns True.

    first: the result of a first ``read(after)``. A comment is sent when nothing else was for
    ``heartbeat_seconds``, so that proxies keep the connection open and a lost client is detected.
    """
    loop = asyncio.get_running_loop()
    last_sent = loop.time()
    events, ended = first
    while True:
        for event in events:
            after = event.seq
            yield encode_event(event)
        if events:
            last_sent = loop.time()
        elif loop.time() - last_sent >= heartbeat_seconds:
            yield HEARTBEAT
            last_sent = loop.time()
        if ended or stopping():
            return
        await asyncio.sleep(poll_seconds)
        try:
            events, ended = await asyncio.to_thread(read, after)
        except Unavailable:
            # The client reconnects by itself and resumes after the last event it received.
            return
