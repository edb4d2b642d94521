"""The event stream of an unfinished job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.api.sse import HEARTBEAT, event_stream
from app.domain.entities import Event
from app.domain.errors import Unavailable


def event(seq: int) -> Event:
    return Event("job_1", seq, 1_800_000_000.0, "stage_progress", {"done": seq})


class ScriptedJob:
    """A job whose next events appear with each poll; it ends with the last."""

    def __init__(self, *polls: int) -> None:
        self.polls = list(polls)
        self.asked: list[int] = []

    def read(self, after: int) -> tuple[Sequence[Event], bool]:
        self.asked.append(after)
        count = self.polls.pop(0)
        return [event(after + 1 + i) for i in range(count)], not self.polls


def collect(job: ScriptedJob, first: int, **options: float) -> list[bytes]:
    async def run() -> list[bytes]:
        stream = event_stream(
            job.read,
            ([event(1 + i) for i in range(first)], False),
            after=0,
            stopping=lambda: False,
            poll_seconds=0.001,
            **options,
        )
        return [piece async for piece in stream]

    return asyncio.run(run())


def test_a_stream_has_every_event_until_the_job_ends():
    job = ScriptedJob(0, 2, 0, 1)
    pieces = collect(job, 1)
    assert [piece.split(b"\n")[2] for piece in pieces] == [b"id: 1", b"id: 2", b"id: 3", b"id: 4"]
    assert job.asked == [1, 1, 3, 3]
    assert pieces[0] == (
        b'event: stage_progress\ndata: {"at":"2027-01-15T08:00:00.000Z","done":1}\nid: 1\n\n'
    )


def test_heartbeats_are_sent_between_events():
    pieces = collect(ScriptedJob(0, 0, 0, 1), 1, heartbeat_seconds=0.0)
    assert pieces.count(HEARTBEAT) >= 2
    assert pieces[-1].endswith(b"id: 2\n\n")


def test_a_stream_ends_when_the_database_cannot_be_read():
    class Broken(ScriptedJob):
        def read(self, after: int) -> tuple[Sequence[Event], bool]:
            raise Unavailable("The database is down.")

    assert len(collect(Broken(), 2)) == 2


def test_a_stream_ends_when_the_server_stops():
    async def run() -> list[bytes]:
        stream = event_stream(lambda _: ([], False), ([event(1)], False), after=0, stopping=lambda: True)
        return [piece async for piece in stream]

    assert len(asyncio.run(run())) == 1
