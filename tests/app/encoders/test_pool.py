"""Children that die, stand still or take too long: what their callers get, and what others do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from app.domain.errors import InvalidRequest, Overloaded, Unavailable
from app.encoders import faults, process
from app.encoders.cache import VectorCache, cache_key
from app.encoders.faults import PictureFault
from app.encoders.pool import EncoderPool, Vector
from app.encoders.rests import Rests
from app.encoders.specification import HLC, RND
from tests.pictures import flat_png, good


@pytest.fixture
def pool() -> Iterator[EncoderPool]:
    made = EncoderPool(cache_bytes=0)
    yield made
    made.close_now()


async def _asked_while(pool: EncoderPool, picture: bytes, *signals: signal.Signals) -> Vector:
    """The answer to a question of the tenant ``t`` during which its child gets signals."""
    await pool.vector(RND, good()["jpeg"], tenant="t")
    [pid] = pool.pids
    os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(pool.vector(RND, picture, tenant="t"))
    await asyncio.sleep(0.1)
    for signum in signals:
        os.kill(pid, signum)
    return await asked


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGKILL], [], [signal.SIGTERM, signal.SIGCONT]],
    ids=["killed", "stopped", "terminated"],
)
async def test_a_child_that_is_killed_or_stopped_costs_its_caller_a_second_try(
    signals: list[signal.Signals], pool: EncoderPool
):
    picture = good()["png"]
    expected = await pool.vector(RND, picture, tenant="t")
    [pid] = pool.pids
    start = time.monotonic()
    again = await _asked_while(pool, picture, *signals)
    assert again.tobytes() == expected.tobytes()
    assert time.monotonic() - start < 20
    assert pool.pids != [pid]
    assert pool.restarts == 1


async def test_after_three_deaths_an_encoder_rests_for_one_tenant(pool: EncoderPool):
    picture = good()["png"]
    for _ in range(2):
        await _asked_while(pool, picture, signal.SIGKILL)
    with pytest.raises(Unavailable) as caught:
        await _asked_while(pool, picture, signal.SIGKILL)
    assert caught.value.reason == "encoder_unavailable"
    assert 50 < caught.value.retry_after <= 60
    assert (await pool.vector(RND, picture, tenant="other")).size == RND.width
    assert (await pool.vector(HLC, picture, tenant="t")).size == HLC.width


async def test_a_picture_that_takes_too_long_is_refused_and_the_next_one_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(process, "SECONDS", 0.05)
    pool = EncoderPool()
    try:
        await pool.vector(RND, good()["png"], tenant="t")
        costly = flat_png(4000, 4000, 8, 2)
        for _ in range(4):  # The fault is kept, or the encoder would rest.
            with pytest.raises(PictureFault) as caught:
                await pool.vector(RND, costly, tenant="t")
            assert (caught.value.code, caught.value.status) == ("image_too_costly", 413)
        assert pool.restarts == 1
        assert (await pool.vector(RND, good()["jpeg"], tenant="t")).size == RND.width
    finally:
        await pool.close()


async def test_an_encoder_that_computes_other_numbers_here_is_refused(pool: EncoderPool):
    other = replace(RND, probe="0" * 64)
    with pytest.raises(Unavailable) as caught:
        await pool.vector(other, good()["png"], tenant="t")
    assert caught.value.reason == "encoder_differs"
    assert "Pillow" in caught.value.message


async def test_too_many_questions_of_one_tenant_leave_room_for_another(pool: EncoderPool):
    pictures = list(good().values())
    await pool.vector(RND, pictures[0], tenant="many")
    os.kill(pool.pids[0], signal.SIGSTOP)
    asked = [asyncio.create_task(pool.vector(RND, picture, tenant="many")) for picture in pictures]
    other = asyncio.create_task(pool.vector(RND, pictures[0], tenant="other"))
    answers = await asyncio.gather(*asked, other, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert {answer.reason for answer in refused} == {"encoder_busy"}
    assert len(refused) == len(pictures) - 5
    assert isinstance(answers[-1], np.ndarray)


async def test_a_pool_that_closes_leaves_no_child_and_no_caller_waiting():
    pool = EncoderPool()
    await pool.vector(RND, good()["png"], tenant="t")
    [pid] = pool.pids
    os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(pool.vector(RND, good()["jpeg"], tenant="t"))
    await asyncio.sleep(0.05)
    await pool.close()
    with pytest.raises(Unavailable) as caught:
        await asked
    assert caught.value.reason == "shutting_down"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_without_the_library_of_pictures_the_refusal_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, pool: EncoderPool
):
    monkeypatch.setattr(faults, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest) as caught:
        await pool.vector(RND, good()["png"], tenant="t")
    assert caught.value.reason == "images_not_installed"
    assert "pip install 'stms[images]'" in caught.value.message
    assert pool.pids == []


async def test_the_same_picture_is_encoded_once():
    pool = EncoderPool()
    try:
        first = await pool.vector(RND, good()["png"], tenant="t")
        os.kill(pool.pids[0], signal.SIGSTOP)
        assert (await pool.vector(RND, good()["png"], tenant="other")) is first
        assert not first.flags.writeable
    finally:
        await pool.close()


def test_a_check_ends_the_waiting_of_a_job(pool: EncoderPool):
    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        pool.vectors(RND, [good()["png"]], tenant="t", check=check)


def test_the_cache_forgets_what_was_not_used_for_longest():
    cache = VectorCache(2 * (400 + 512))
    keys = [cache_key(bytes([k]), "e") for k in range(3)]
    vector = np.zeros(100, np.float32)
    cache.put(keys[0], vector)
    cache.put(keys[1], vector)
    assert cache.get(keys[0]) is vector
    cache.put(keys[2], vector)
    cache.put(keys[2], vector)
    assert [cache.get(key) is not None for key in keys] == [True, False, True]
    cache.put(keys[1], np.zeros(1000, np.float32))
    assert (cache.get(keys[1]), cache.hits, cache.misses) == (None, 3, 2)


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        ([0, 1], 0),
        ([0, 1, 2], 60),
        ([0, 300, 601], 0),
        ([0, 1, 2, 100, 101, 102], 120),
        ([k for j in range(8) for k in (1000 * j / 8, 1000 * j / 8 + 1, 1000 * j / 8 + 2)], 900),
        ([0, 1, 2, 3000, 3001, 3002], 60),
    ],
    ids=str,
)
def test_rests_double_up_to_a_quarter_of_an_hour(deaths: list[float], expected: float):
    now = [0.0]
    rests = Rests(lambda: now[0])
    for at in deaths:
        now[0] = at
        rests.note_death(("e", "t"))
    rests.check(("e", "other"), "e")
    if not expected:
        rests.check(("e", "t"), "e")
        return
    with pytest.raises(Unavailable) as caught:
        rests.check(("e", "t"), "e")
    assert caught.value.retry_after == expected
    now[0] += expected + 0.1
    rests.check(("e", "t"), "e")
