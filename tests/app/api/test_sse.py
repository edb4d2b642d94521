"""The event streams of unfinished jobs, which share one poller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from app.api.sse import HEARTBEAT, PAGE, EventStreams
from app.domain.entities import Job, JobState
from app.domain.errors import Overloaded, Unavailable
from app.services.keys import create_key, revoke_key
from app.store.unit_of_work import Store

ACCEPT = {"accept": "text/event-stream"}


@pytest.fixture
def job(store: Store, add_job) -> Job:
    """A running job with one event."""
    with store.begin() as uow:
        added = add_job(uow, state=JobState.RUNNING)
        uow.events.append(added.id, "job_started", {})
    return added


@pytest.fixture
def open_streams(store: Store):
    """Makes `EventStreams` over the store; all are closed after the test."""
    opened: list[EventStreams] = []

    def make(**options: Any) -> EventStreams:
        values = {"max_per_key": 10, "stopping": lambda: False, "poll_seconds": 0.01}
        opened.append(EventStreams(store, **values | options))
        return opened[-1]

    yield make
    for streams in opened:
        streams.close()


def append(store: Store, job: Job, count: int = 1) -> None:
    with store.begin() as uow:
        uow.events.append_all(job.id, [("stage_progress", {"done": i}) for i in range(count)])


def end(store: Store, job: Job) -> None:
    with store.begin() as uow:
        uow.jobs.move(job.id, JobState.FAILED)
        uow.events.append(job.id, "job_failed", {})


def numbers(pieces: list[bytes]) -> list[int]:
    return [int(piece.split(b"\nid: ")[1]) for piece in pieces if piece != HEARTBEAT]


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 300))


async def collect(events: AsyncIterator[bytes]) -> list[bytes]:
    return [piece async for piece in events]


def test_streams_of_a_job_have_every_event_until_it_ends(store, job, open_streams):
    streams = open_streams()

    async def scenario() -> list[list[bytes]]:
        reading = [
            asyncio.create_task(collect(streams.events(job.id, after, ([], False)))) for after in (0, 1)
        ]
        for _ in range(3):
            await asyncio.sleep(0.03)
            await asyncio.to_thread(append, store, job, 2)
        late = asyncio.create_task(collect(streams.events(job.id, 2, ([], False))))
        await asyncio.sleep(0.03)
        await asyncio.to_thread(end, store, job)
        return list(await asyncio.gather(*reading, late))

    first, second, late = run(scenario())
    assert (numbers(first), numbers(second)) == (list(range(1, 9)), list(range(2, 9)))
    assert numbers(late) == list(range(3, 9))
    assert first[-1].startswith(b"event: job_failed\n")


def test_a_stream_that_lags_behind_by_many_events_misses_none(store, job, open_streams):
    streams = open_streams()
    count = 2 * PAGE + 500

    async def scenario() -> list[bytes]:
        quick = asyncio.create_task(collect(streams.events(job.id, 1, ([], False))))
        slow = streams.events(job.id, 0, ([], False))
        pieces = [await anext(slow)]
        for _ in range(5):
            await asyncio.to_thread(append, store, job, count // 5)
            await asyncio.sleep(0.05)
        await asyncio.to_thread(end, store, job)
        assert numbers(await quick) == list(range(2, count + 3))
        return pieces + await collect(slow)

    assert numbers(run(scenario())) == list(range(1, count + 3))


def test_quiet_streams_share_one_statement_a_poll(store, job, open_streams, monkeypatch):
    """At 20ce477 each stream made two transactions a poll: 400 quiet streams took a core."""
    streams = open_streams(poll_seconds=0.02)
    polls, others = [], []
    events = type(store).read

    def read(self: Store) -> Any:
        (polls if threading.current_thread().name.startswith("stms-events") else others).append(1)
        return events(self)

    monkeypatch.setattr(Store, "read", read)

    async def scenario() -> float:
        reading = [asyncio.create_task(collect(streams.events(job.id, 1, ([], False)))) for _ in range(100)]
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.5)
        seconds = asyncio.get_running_loop().time() - began
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        return seconds

    seconds = run(scenario())
    assert 1 <= len(polls) <= seconds / 0.02 + 1
    assert not others
    assert not streams._jobs


async def test_polling_ends_with_the_last_stream_and_begins_again(store, job, open_streams):
    streams = open_streams()
    for _ in range(2):
        reading = asyncio.create_task(collect(streams.events(job.id, 1, ([], False))))
        await asyncio.sleep(0.05)
        assert not streams._poller.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await asyncio.wait_for(streams._poller, 60)


def test_heartbeats_are_sent_between_events(store, job, open_streams):
    streams = open_streams(heartbeat_seconds=0.02)

    async def scenario() -> list[bytes]:
        reading = asyncio.create_task(collect(streams.events(job.id, 1, ([], False))))
        await asyncio.sleep(0.15)
        await asyncio.to_thread(end, store, job)
        return await reading

    pieces = run(scenario())
    assert pieces.count(HEARTBEAT) >= 2
    assert numbers(pieces) == [2]


@pytest.mark.parametrize("error", [Unavailable("The database is down."), RuntimeError("unexpected")])
def test_streams_end_when_the_database_cannot_be_read(store, job, open_streams, monkeypatch, error):
    streams = open_streams()

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(streams, "_read_changes", fails)
    assert run(collect(streams.events(job.id, 1, ([], False)))) == []


def test_streams_end_when_the_job_is_deleted(store, job, open_streams):
    streams = open_streams()
    assert run(collect(streams.events("job_gone", 0, ([], False)))) == []


def test_streams_end_when_the_server_stops(store, job, open_streams):
    stopping = threading.Event()
    streams = open_streams(stopping=stopping.is_set)

    async def scenario() -> list[bytes]:
        reading = asyncio.create_task(collect(streams.events(job.id, 1, ([], False))))
        await asyncio.sleep(0.05)
        stopping.set()
        return await reading

    assert run(scenario()) == []


def test_the_streams_of_a_revoked_key_end_without_another_event(make_client, store, job):
    """At 20ce477 a stream of a revoked key went on until the end of its job."""
    key, text = create_key(store, "one", scopes={"admin"})
    client = make_client(require_keys=True)
    path = f"/v1/training-jobs/{job.id}/events"

    async def scenario() -> str:
        headers = ACCEPT | {"authorization": f"Bearer {text}"}
        asked = asyncio.create_task(client._http.get(path, headers=headers))
        while client.context.event_streams.count() < 1:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(revoke_key, store, key.id)
        await client.context.refresher.refresh()
        await asyncio.to_thread(append, store, job)
        return str((await asyncio.wait_for(asked, 120)).text)

    assert client.run(scenario()).count("\nid: ") == 1


def test_the_streams_of_a_key_are_limited(make_client, store, job, problem: Callable[..., Any]):
    keys = [create_key(store, name, scopes={"admin"})[1] for name in "ab"]
    client = make_client(max_streams_per_key=2, require_keys=True)
    path = f"/v1/training-jobs/{job.id}/events"

    def headers(key: str) -> dict[str, str]:
        return ACCEPT | {"authorization": f"Bearer {key}"}

    async def scenario() -> None:
        streams = client.context.event_streams
        asked = [asyncio.create_task(client._http.get(path, headers=headers(keys[0]))) for _ in range(2)]
        while streams.count() < 2:
            await asyncio.sleep(0.01)
        refused = await client._http.get(path, headers=headers(keys[0]))
        assert problem(refused, 429, "too_many_streams")["detail"].startswith(
            "This API key has 2 event streams"
        )
        assert refused.headers["retry-after"] == "5"
        assert (
            await client._http.get(path, headers={"authorization": f"Bearer {keys[0]}"})
        ).status_code == 200
        other = asyncio.create_task(client._http.get(path, headers=headers(keys[1])))
        while streams.count() < 3:
            await asyncio.sleep(0.01)
        asked[0].cancel()
        await asyncio.gather(asked[0], return_exceptions=True)
        while streams.count() > 2:
            await asyncio.sleep(0.01)
        again = asyncio.create_task(client._http.get(path, headers=headers(keys[0])))
        while streams.count() < 3:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(end, store, job)
        answers = await asyncio.gather(asked[1], other, again)
        assert [answer.text.count("\nid: ") for answer in answers] == [2, 2, 2]
        assert streams.count() == 0

    client.run(asyncio.wait_for(scenario(), 300))


def test_a_stream_over_the_limit_is_refused_before_it_starts(open_streams, job):
    streams = open_streams(max_per_key=1)
    response = streams.response("key_1", job.id, 0, ([], False))
    streams._open["key_1"] = 1

    async def send(_message: Any) -> None:
        pytest.fail("nothing may be sent")

    with pytest.raises(Overloaded):
        run(response({"type": "http"}, None, send))
    assert streams.count("key_1") == 1
