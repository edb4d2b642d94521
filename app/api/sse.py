"""Server-sent events of jobs: the stored events, then new ones until the job ends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fastapi.sse import format_sse_event
from starlette.responses import StreamingResponse

from app.domain.entities import Event
from app.domain.errors import InvalidRequest, Overloaded, Unavailable
from app.domain.moments import timestamp
from app.http.types import Receive, Scope, Send
from app.store.unit_of_work import Store

POLL_SECONDS: Final = 0.3
HEARTBEAT_SECONDS: Final = 10.0
HEARTBEAT: Final = format_sse_event(comment="heartbeat")
PAGE: Final = 1000
"""Most events that are read at a time, and that are kept of a job for its streams."""

Result = TypeVar("Result")


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


@dataclass(eq=False, slots=True)
class _FollowedJob:
    """A job with open streams. seq: number of its newest event that was read.

    recent: its newest events as (number, encoded), up to ``seq`` without a gap. ended: no event follows
    ``seq``, or none can be read. changed: set when the other fields change, and replaced.
    """

    seq: int
    streams: int = 0
    recent: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=PAGE))
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def events_after(self, seq: int) -> list[tuple[int, bytes]] | None:
        """The encoded events after number ``seq``; None if older ones than `recent` are needed."""
        if seq >= self.seq:
            return []
        if not self.recent or self.recent[0][0] > seq + 1:
            return None
        # Numbers of a job's events have no gaps.
        return list(self.recent)[seq + 1 - self.recent[0][0] :]


class EventStreams:
    """All event streams of a server process.

    One task polls for the jobs of all streams with a single statement, which returns only the state and the
    number of the newest event of each job; events are read and encoded once for all streams of a job.
    Blocking work is done by one thread.

    max_per_key: open streams of one API key. stopping: whether the server shuts down, which ends all streams.
    is_valid: whether the API key with an id is neither revoked nor expired; no event is sent to others.
    """

    def __init__(
        self,
        store: Store,
        max_per_key: int,
        stopping: Callable[[], bool],
        is_valid: Callable[[str], bool] = lambda _: True,
        poll_seconds: float = POLL_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._store = store
        self.max_per_key = max_per_key
        self._stopping = stopping
        self._is_valid = is_valid
        self._poll_seconds = poll_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._open: Counter[str] = Counter()
        self._jobs: dict[str, _FollowedJob] = {}
        self._poller: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="stms-events")

    def count(self, key_id: str | None = None) -> int:
        """Open streams of an API key, or of all."""
        return self._open.total() if key_id is None else self._open[key_id]

    def require_capacity(self, key_id: str) -> None:
        """Raise Overloaded if the key has its full number of streams."""
        if self._open[key_id] >= self.max_per_key:
            message = f"This API key has {self.max_per_key} event streams already. Close one of them first."
            raise Overloaded(message, code="too_many_streams", retry_after=5.0)

    def response(self, key_id: str, job_id: str, after: int, first: tuple[Sequence[Event], bool]) -> Any:
        """The response that streams the events of a job after number ``after``.

        first: the first page of these events, and whether they are the last.
        """
        return _EventStreamResponse(self, key_id, self.events(job_id, after, first, key_id))

    async def events(
        self, job_id: str, after: int, first: tuple[Sequence[Event], bool], key_id: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """The encoded events after number ``after``, until the job ends, the server stops or reading fails.

        A comment is sent when nothing else was for ``heartbeat_seconds``, so that proxies keep the connection
        open and a lost client is detected. The arguments are those of `response`.
        """
        events, ended = first
        for event in events:
            after = event.seq
            yield encode_event(event)
        if ended:
            return
        job = self._follow(job_id, after)
        try:
            while not self._stopping() and self._is_valid(key_id):
                new = job.events_after(after)
                if new is None:
                    try:
                        new = await self._in_thread(self._read_events, job_id, after)
                    except Unavailable:
                        # The client reconnects by itself and resumes after the last event it received.
                        return
                for number, encoded in new:
                    after = number
                    yield encoded
                if not new and job.ended:
                    return
                if not new and not await self._wait_for_change(job, after):
                    yield HEARTBEAT
        finally:
            self._unfollow(job_id, job)

    def close(self) -> None:
        """Stop polling, and accept no more work."""
        if self._poller is not None:
            self._poller.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_change(self, job: _FollowedJob, after: int) -> bool:
        """Whether the job changed within ``heartbeat_seconds``."""
        changed = job.changed
        if job.ended or job.seq > after:
            return True
        try:
            await asyncio.wait_for(changed.wait(), self._heartbeat_seconds)
        except TimeoutError:
            return False
        return True

    def _follow(self, job_id: str, after: int) -> _FollowedJob:
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = _FollowedJob(after)
        job.streams += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())
        return job

    def _unfollow(self, job_id: str, job: _FollowedJob) -> None:
        job.streams -= 1
        if not job.streams and self._jobs.get(job_id) is job:
            del self._jobs[job_id]

    async def _poll(self) -> None:
        """Poll until no stream is open."""
        while self._jobs:
            await asyncio.sleep(self._poll_seconds)
            seen = {job_id: job.seq for job_id, job in self._jobs.items()}
            try:
                changes = {} if self._stopping() else await self._in_thread(self._read_changes, seen)
            except Unavailable:
                changes = {job_id: ([], True) for job_id in seen}
            except BaseException:
                self._end(seen)
                raise
            if self._stopping():
                self._end(seen)
            for job_id, (events, ended) in changes.items():
                self._update(job_id, events, ended)

    def _update(self, job_id: str, events: list[tuple[int, bytes]], ended: bool) -> None:
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.recent.extend(events)
        job.seq = events[-1][0] if events else job.seq
        job.ended = ended
        if ended:
            # A stream that is opened from now on must not find a job that is no longer polled.
            del self._jobs[job_id]
        job.notify()

    def _end(self, job_ids: Sequence[str] | dict[str, int]) -> None:
        for job_id in job_ids:
            self._update(job_id, [], ended=True)

    def _read_changes(self, seen: dict[str, int]) -> dict[str, tuple[list[tuple[int, bytes]], bool]]:
        """By job id the encoded events after the number in ``seen``, and whether they are the last.

        Only jobs that changed are in it; a deleted job has ended.
        """
        with self._store.read() as uow:
            states = uow.events.newest(list(seen))
        changes: dict[str, tuple[list[tuple[int, bytes]], bool]] = {}
        for job_id, seq in seen.items():
            ended, newest = states.get(job_id, (True, seq))
            if newest > seq:
                events = self._read_events(job_id, seq)
                changes[job_id] = events, ended and bool(events) and events[-1][0] >= newest
            elif ended:
                changes[job_id] = [], True
        return changes

    def _read_events(self, job_id: str, after: int) -> list[tuple[int, bytes]]:
        with self._store.read() as uow:
            events = uow.events.after(job_id, after, limit=PAGE)
        return [(event.seq, encode_event(event)) for event in events]

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


class _EventStreamResponse(StreamingResponse):
    """A stream that counts as one of its API key's. Raises Overloaded at the start if they are too many."""

    def __init__(self, streams: EventStreams, key_id: str, events: AsyncGenerator[bytes, None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._streams, self._key_id, self._events = streams, key_id, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams, key_id = self._streams, self._key_id
        streams.require_capacity(key_id)
        streams._open[key_id] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            streams._open[key_id] -= 1
            if not streams._open[key_id]:
                del streams._open[key_id]
            await self._events.aclose()
