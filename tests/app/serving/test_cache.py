"""The model cache: single-flight loads, atomic moves of references, and its budget."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import heapq
import math
import threading
import time
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.domain.entities import ModelVersion
from app.domain.errors import NotFound, Unavailable
from app.domain.names import split_qualified
from app.serving import cache as cache_module
from app.serving import references as references_module
from app.serving.cache import ModelCache
from app.serving.loader import ModelSource
from app.serving.lru import LruCache, Part
from app.serving.references import References
from app.serving.servable import make_servable
from core.encoding.profile import fit_profile
from core.packed import PackedHead, PackedLabels, PackedStudent, PackedTeacher, RbfBasis
from core.packed.codec import encode
from core.packed.encoder import Encoder
from core.packed.head import head_header
from core.packed.input_profile import InputProfile
from tests.app.serving.written_records import numbers_encoder, numbers_table
from tests.system.published import linear_student, linear_teacher

CLASSES = ("cat", "dog", "fox")


def version(number: int) -> ModelVersion:
    return ModelVersion("pets", number, f"job{number}", "", "svm", CLASSES, 2, "", {}, 0.0)


class Shelf(ModelSource):
    """Versions in memory; remembers what was read, and can be stopped or broken."""

    def __init__(self) -> None:
        self.versions = {1: version(1)}
        self.latest = 1
        self.classes = {1: set(CLASSES), 2: set(CLASSES)}
        self.reads: list[object] = []
        self.size = 100
        self.error: Exception | None = None
        self.near: set[str] = set()
        self.damaged: set[tuple[int, str]] = set()
        self.maps: dict[str, RbfBasis] = {}
        self.gate = threading.Event()
        self.gate.set()

    def resolve(self, reference: str) -> ModelVersion:
        self._read(reference)
        found = self._meant(reference)
        if found is None:
            raise NotFound(f"There is no {reference}.")
        return found

    def resolve_all(self, references: Iterable[str]) -> dict[str, ModelVersion]:
        found = {reference: self._meant(reference) for reference in references}
        return {reference: version for reference, version in found.items() if version is not None}

    def _meant(self, reference: str) -> ModelVersion | None:
        name, _, suffix = reference.partition("@")
        number = int(suffix) if suffix.isdigit() else self.latest
        return self.versions.get(number) if name == "pets" else None

    def student(self, found: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        self._read((found.version, label))
        if (found.version, label) in self.damaged:
            raise Unavailable("The student is damaged in the database.")
        if label not in self.classes[found.version]:
            raise NotFound(f"There is no class {label}.")
        student = linear_student(label, [float(found.version), 0.0])
        if label in self.maps:
            student = dataclasses.replace(student, map=self.maps[label])
        return student, self.size

    def get_if_local(self, found: ModelVersion, label: str) -> tuple[PackedStudent, int] | None:
        return self.student(found, label) if label in self.near else None

    def teacher(self, found: ModelVersion) -> tuple[PackedTeacher, int]:
        self._read((found.version, None))
        return linear_teacher(CLASSES, [[1, 0], [0, 1], [1, 1]]), self.size

    def encoder(self, found: ModelVersion) -> Encoder:
        self._read((found.version, "encoder"))
        return numbers_encoder()

    def profile(self, found: ModelVersion, known: Encoder) -> InputProfile | None:
        self._read((found.version, "profile"))
        return fit_profile(numbers_table(), known)

    def publish(self, number: int) -> None:
        self.versions[number] = version(number)
        self.latest = number

    def _read(self, what: object) -> None:
        self.reads.append(what)
        assert self.gate.wait(120)
        if self.error is not None:
            raise self.error


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@contextlib.asynccontextmanager
async def opened(shelf: Shelf, budget: int = 10_000, move_seconds: float = 60.0) -> AsyncIterator[ModelCache]:
    cache = ModelCache(shelf, budget=budget, serve=make_servable, move_seconds=move_seconds)
    try:
        yield cache
    finally:
        cache.close()


@pytest.fixture
async def cache(shelf: Shelf) -> AsyncIterator[ModelCache]:
    async with opened(shelf) as made:
        yield made


async def refresh(cache: ModelCache, shelf: Shelf, since: float = 0.0) -> None:
    """As the refresher: resolve the references to the model, begin their moves and wait for them."""
    follow(cache, shelf, since)
    await cache.settle("default/pets")


def follow(cache: ModelCache, shelf: Shelf, since: float = 0.0) -> None:
    references = cache.begin_refresh(["default/pets"])
    cache.follow(references, shelf.resolve_all(references), since)


def slowly(shelf: Shelf, number: int) -> threading.Event:
    """Have students of one version wait for the event that is returned."""
    quick, go_on = shelf.student, threading.Event()

    def student(found: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        assert found.version != number or go_on.wait(120)
        return quick(found, label)

    shelf.student = student  # type: ignore[method-assign]
    return go_on


async def test_a_student_is_loaded_once(shelf: Shelf, cache: ModelCache):
    assert cache.get("pets", "cat") is None
    loaded = await cache.student("pets", "cat")
    assert cache.get("pets", "cat") is loaded
    assert await cache.student("pets", "cat") is loaded
    assert shelf.reads == ["pets", (1, "cat")]
    assert (len(cache), cache.size) == (1, 100)


async def test_references_to_one_version_share_its_students(shelf: Shelf, cache: ModelCache):
    assert await cache.student("pets", "cat") is await cache.student("pets@1", "cat")
    assert shelf.reads == ["pets", (1, "cat"), "pets@1"]


async def test_misses_at_the_same_time_load_once(shelf: Shelf, cache: ModelCache):
    shelf.gate.clear()
    waiting = [asyncio.create_task(cache.student("pets", "cat")) for _ in range(20)]
    await asyncio.sleep(0.05)
    shelf.gate.set()
    assert len({id(served) for served in await asyncio.gather(*waiting)}) == 1
    assert shelf.reads == ["pets", (1, "cat")]


async def test_a_cancelled_caller_does_not_cancel_the_load(shelf: Shelf, cache: ModelCache):
    shelf.gate.clear()
    first, second = (asyncio.create_task(cache.student("pets", "cat")) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    shelf.gate.set()
    assert (await second).model == "pets"
    assert first.cancelled()


async def test_unknown_names_are_cached_for_a_second(
    shelf: Shelf, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(3):
        with pytest.raises(NotFound):
            await cache.student("cars", "cat")
        with pytest.raises(NotFound):
            await cache.student("pets", "bird")
    assert shelf.reads == ["cars", "pets", (1, "bird")]
    await refresh(cache, shelf)
    with pytest.raises(NotFound):
        await cache.student("cars", "cat")
    assert shelf.reads[-1] == "cars"
    monkeypatch.setattr(cache_module, "MISSING_SECONDS", -1.0)
    with pytest.raises(NotFound):
        await cache.student("pets", "bird")
    with pytest.raises(NotFound):
        await cache.student("pets", "bird")
    assert shelf.reads[-2:] == [(1, "bird"), (1, "bird")]


async def test_the_cache_of_unknown_names_is_bounded(
    shelf: Shelf, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cache_module, "_MAX_MISSING", 3)
    for i in range(10):
        with pytest.raises(NotFound):
            await cache.student("pets", f"bird{i}")
    assert len(cache._missing) <= 3


async def test_a_failed_load_is_retried(shelf: Shelf, cache: ModelCache):
    shelf.error = Unavailable("The database is down.")
    with pytest.raises(Unavailable):
        await cache.student("pets", "cat")
    shelf.error = None
    assert (await cache.student("pets", "cat")).version == 1


async def test_a_moved_reference_is_preloaded_before_queries_use_it(shelf: Shelf, cache: ModelCache):
    for label in ("cat", "dog"):
        await cache.student("pets", label)
    await cache.teacher("pets")
    shelf.publish(2)
    shelf.gate.clear()
    refreshing = asyncio.create_task(refresh(cache, shelf))
    await asyncio.sleep(0.05)
    found = cache.get("pets", "cat")
    assert found is not None
    assert found.version == 1, "the old version answers while the new one is loaded"
    shelf.gate.set()
    await refreshing
    for label in ("cat", "dog"):
        found = cache.get("pets", label)
        assert found is not None
        assert found.version == 2
    reads = len(shelf.reads)
    assert (await cache.teacher("pets")).version == 2
    assert len(shelf.reads) == reads


async def test_a_class_that_cannot_be_preloaded_fails_its_own_queries_alone(
    shelf: Shelf, cache: ModelCache, caplog: pytest.LogCaptureFixture
):
    for label in ("cat", "dog"):
        await cache.student("pets", label)
    shelf.publish(2)
    shelf.damaged = {(2, "cat")}
    await refresh(cache, shelf)
    served = cache.get("pets", "dog")
    assert served is not None
    assert served.version == 2
    with pytest.raises(Unavailable):
        await cache.student("pets", "cat")
    assert cache.moves_failed == {"error": 1, "timeout": 0}
    assert cache.moving_since == math.inf
    # The second move back and forth fails again, but does not log again.
    for latest in (1, 2):
        shelf.latest = latest
        await refresh(cache, shelf)
    assert cache.moves_failed == {"error": 2, "timeout": 0}
    shelf.damaged = set()
    assert (await cache.student("pets", "cat")).version == 2
    assert caplog.text.count("could not be preloaded") == 1


async def test_a_class_missing_in_the_new_version_is_unknown_after_the_move(shelf: Shelf, cache: ModelCache):
    await cache.student("pets", "cat")
    await cache.student("pets", "fox")
    shelf.classes[2] = {"cat"}
    shelf.publish(2)
    await refresh(cache, shelf)
    assert (await cache.student("pets", "cat")).version == 2
    with pytest.raises(NotFound):
        await cache.student("pets", "fox")
    assert (await cache.student("pets@1", "fox")).version == 1


async def test_a_version_number_resolves_until_it_is_deleted(shelf: Shelf, cache: ModelCache):
    await cache.student("pets@1", "cat")
    shelf.publish(2)
    await refresh(cache, shelf)
    shelf.reads.clear()
    assert (await cache.student("pets@1", "cat")).version == 1
    assert shelf.reads == []
    del shelf.versions[1]
    await refresh(cache, shelf)
    assert cache.get("pets@1", "cat") is None
    with pytest.raises(NotFound):
        await cache.student("pets@1", "cat")


async def test_a_deleted_reference_is_unknown(shelf: Shelf, cache: ModelCache):
    await cache.student("pets", "cat")
    del shelf.versions[1]
    await refresh(cache, shelf)
    with pytest.raises(NotFound):
        await cache.student("pets", "cat")


async def test_a_move_during_the_first_resolution_is_not_missed(shelf: Shelf, cache: ModelCache):
    # resolve() reads version 1 and stands still before it hands it over; meanwhile the alias moves.
    real, looked, go_on = shelf.resolve, threading.Event(), threading.Event()

    def slow(reference: str) -> ModelVersion:
        found = real(reference)
        if not looked.is_set():
            looked.set()
            assert go_on.wait(120)
        return found

    shelf.resolve = slow  # type: ignore[method-assign]
    asking = asyncio.create_task(cache.student("pets", "cat"))
    assert await asyncio.to_thread(looked.wait, 120)
    shelf.publish(2)
    await refresh(cache, shelf)
    go_on.set()
    assert (await asking).version == 2


async def test_the_budget_evicts_the_least_recently_used(shelf: Shelf):
    async with opened(shelf, budget=250) as cache:
        await cache.student("pets", "cat")
        await cache.student("pets", "dog")
        cache.get("pets", "cat")
        await cache.student("pets", "fox")
        assert cache.get("pets", "dog") is None
        assert cache.get("pets", "cat") is not None
        assert cache.size == 200


def test_a_value_larger_than_the_budget_is_kept_alone():
    lru: LruCache[str, int] = LruCache(10)
    lru.put("one", "a", 1, 5)
    lru.put("one", "b", 2, 50)
    assert (lru.get("a"), lru.get("b"), lru.size, len(lru)) == (None, 2, 50, 1)
    lru.put("one", "b", 3, 4)
    lru.put("one", "c", 4, 4)
    assert (lru.get("b"), lru.size) == (3, 8)
    assert list(lru.newest_first("one")) == ["b", "c"]


def test_a_shared_part_is_counted_once_while_in_use():
    lru: LruCache[str, int] = LruCache(100)
    lru.put("one", "a", 1, 5, Part("map", 50))
    lru.put("one", "b", 2, 5, Part("map", 50))
    assert lru.size == 60
    lru.pop("a")
    assert lru.size == 55
    lru.put("one", "b", 2, 7, Part("map", 50))
    assert lru.size == 57
    lru.put("one", "c", 3, 44)
    assert (lru.get("b"), lru.size) == (None, 44)
    lru.pop("never")
    assert lru.size == 44


def fill(lru: LruCache[str, int], owner: str, number: int, size: int = 10, *, first: int = 0) -> None:
    for place in range(first, first + number):
        lru.put(owner, f"{owner}{place}", place, size)


def number_of(lru: LruCache[str, int], owner: str) -> int:
    return len([*lru.newest_first(owner)])


def test_an_owner_that_puts_without_end_evicts_its_own_beyond_half():
    lru: LruCache[str, int] = LruCache(100)
    fill(lru, "a", 3)
    fill(lru, "b", 1000)
    assert {owner: number_of(lru, owner) for owner in "ab"} == {"a": 3, "b": 7}
    assert [lru.get(f"a{place}") for place in range(3)] == [0, 1, 2]
    assert [*lru.newest_first("b")] == [f"b{place}" for place in range(999, 992, -1)]


def test_an_owner_alone_has_all_and_gives_half_to_another_that_needs_it():
    lru: LruCache[str, int] = LruCache(100)
    fill(lru, "a", 30)
    assert number_of(lru, "a") == 10
    fill(lru, "b", 30)
    assert {owner: number_of(lru, owner) for owner in "ab"} == {"a": 5, "b": 5}
    fill(lru, "a", 30, first=30)
    assert {owner: number_of(lru, owner) for owner in "ab"} == {"a": 5, "b": 5}


def test_what_nobody_uses_is_evicted_first_while_nobody_has_more_than_half():
    lru: LruCache[str, int] = LruCache(100)
    for owner in "abc":
        fill(lru, owner, 3)
    for key in ("a0", "a1", "b2"):
        lru.get(key)
    fill(lru, "d", 5)
    # Of the first three, in the order of their use: a2, b0, b1, c0, c1, c2, and then a0.
    assert [key for owner in "abc" for key in lru.newest_first(owner)] == ["a1", "a0", "b2", "c2", "c1"]


def test_a_part_of_several_owners_counts_for_each_but_once_in_all():
    lru: LruCache[str, int] = LruCache(100)
    lru.put("a", "a0", 1, 5, Part("map", 50))
    lru.put("b", "b0", 1, 5, Part("map", 50))
    lru.put("c", "c0", 1, 30)
    assert (lru.size, len(lru)) == (90, 3)
    lru.put("c", "c1", 1, 15)
    assert lru.size == 100, "b's part stays for it"
    assert [lru.get(key) for key in ("a0", "b0", "c0", "c1")] == [None, 1, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_evictions_are_those_of_the_rule(seed: int):
    """Against the rule itself, which looks at all entries each time."""
    rng = np.random.default_rng(seed)
    budget, lru = 200, LruCache[str, int](200)
    # Keys with owner, size, and the number of puts before their last use, in the order of their use.
    kept: dict[str, tuple[str, int, int]] = {}

    def held(owner: str) -> int:
        return sum(size for name, size, _ in kept.values() if name == owner)

    for puts in range(1, 1500):
        owner = str(rng.choice([*"abcde"], p=[0.1, 0.5, 0.1, 0.1, 0.2]))
        key, size = f"{owner}{rng.integers(40)}", int(rng.integers(1, 40))
        kept.pop(key, None)
        while sum(one[1] for one in kept.values()) + size > budget and kept:
            most = max("abcde", key=lambda name: held(name) + size * (name == owner))
            is_large = 2 * (held(most) + size * (most == owner)) > budget and held(most)
            among = [name for name in kept if not is_large or kept[name][0] == most]
            del kept[min(among, key=lambda name: (kept[name][2], kept[name][0] if not is_large else ""))]
        kept[key] = owner, size, puts
        lru.put(owner, key, puts, size)
        for used in rng.choice([*kept], 2):
            if rng.random() < 0.7:
                name, size, _ = kept.pop(str(used))
                kept[str(used)] = name, size, puts
                assert lru.get(str(used)) is not None
        if rng.random() < 0.02:
            dropped = str(rng.choice([*kept]))
            del kept[dropped]
            lru.pop(dropped)
        assert {key for key in kept if key in lru} == set(kept)
        assert (len(lru), lru.size) == (len(kept), sum(one[1] for one in kept.values()))


def test_an_eviction_looks_at_few_entries_however_many_there_are(monkeypatch: pytest.MonkeyPatch):
    steps = 0

    def replace(*of: Any) -> Any:
        nonlocal steps
        steps += 1
        return heapq.heapreplace(*of)

    monkeypatch.setattr("app.serving.lru.heapq", SimpleNamespace(**vars(heapq) | {"heapreplace": replace}))
    lru: LruCache[str, int] = LruCache(10_000)
    for number in range(100):
        fill(lru, f"owner {number}-", 100, 1)
    for place in range(100):
        for number in range(100):
            lru.get(f"owner {number}-{place}")
    fill(lru, "new", 2000, 1)
    assert len(lru) == 10_000
    assert steps <= 2000 + 2 * 100


class Tenants(Shelf):
    """The model "pets" of any tenant, with any class. held: tenants whose loads wait for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def resolve(self, reference: str) -> ModelVersion:
        return dataclasses.replace(version(1), tenant=split_qualified(reference)[0])

    def student(self, found: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        self.reads.append((found.tenant, found.version, label))
        assert found.tenant not in self.held or self.gate.wait(120)
        return linear_student(label, [float(found.version), 0.0]), self.size

    def reads_of(self, tenant: str) -> int:
        return sum(read[0] == tenant for read in self.reads if isinstance(read, tuple))


async def test_a_walk_through_very_many_classes_unloads_nothing_of_another_tenant():
    shelf = Tenants()
    labels = [f"c{number}" for number in range(30)]
    async with opened(shelf, budget=100 * shelf.size) as cache:
        for label in labels:
            await cache.student("quiet/pets", label)
        await cache.student("walker/pets", "first")
        shelf.near = {f"w{number}" for number in range(20_000)}
        for label in shelf.near:
            assert cache.get("walker/pets", label) is not None
        assert [cache.get("quiet/pets", label) is not None for label in labels] == [True] * 30
        assert shelf.reads_of("quiet") == 30
        assert len(cache) == 100


async def test_no_tenant_takes_all_loaders():
    shelf = Tenants()
    async with opened(shelf) as cache:
        for tenant in ("busy", "other"):
            await cache.student(f"{tenant}/pets", "first")
        shelf.held = {"busy"}
        shelf.gate.clear()
        busy = [asyncio.create_task(cache.student("busy/pets", f"c{number}")) for number in range(50)]
        try:
            async with asyncio.timeout(60):
                while shelf.reads_of("busy") < 5:
                    await asyncio.sleep(0.001)
                for label in "abc":
                    await cache.student("other/pets", label)
            assert shelf.reads_of("busy") == 1 + 4
        finally:
            shelf.gate.set()
            await asyncio.gather(*busy)
        assert shelf.reads_of("busy") == 51


async def test_a_move_of_one_tenant_does_not_keep_that_of_another_waiting():
    shelf = Tenants()
    async with opened(shelf) as cache:
        moved = {}
        for tenant, number in (("busy", 40), ("other", 2)):
            for place in range(number):
                await cache.student(f"{tenant}/pets", f"c{place}")
            moved[f"{tenant}/pets"] = dataclasses.replace(version(2), tenant=tenant)
        shelf.held = {"busy"}
        shelf.gate.clear()
        for reference, new in moved.items():
            cache.follow(cache.begin_refresh([reference]), {reference: new}, 0.0)
        try:
            async with asyncio.timeout(60):
                await cache.settle("other/pets")
            assert [cache.get("other/pets", label).version for label in ("c0", "c1")] == [2, 2]  # type: ignore[union-attr]
            assert shelf.reads_of("busy") <= 40 + 3
        finally:
            shelf.gate.set()
            await cache.settle("busy/pets")


async def test_students_on_one_map_count_it_once(shelf: Shelf, cache: ModelCache):
    basis = RbfBasis(np.zeros(2), np.ones(2), np.eye(2))
    shelf.maps = {"cat": basis, "dog": basis}
    for label in ("cat", "dog"):
        await cache.student("pets", label)
    assert cache.size == 2 * shelf.size + sum(array.nbytes for array in basis.arrays().values())


async def test_local_students_are_loaded_without_a_thread(shelf: Shelf, cache: ModelCache):
    await cache.student("pets", "cat")
    assert cache.get("pets", "dog") is None
    shelf.near = {"dog"}
    found = cache.get("pets", "dog")
    assert found is not None
    assert found.student.label == "dog"
    shelf.near = set()
    assert cache.get("pets", "dog") is found


async def test_the_classes_of_a_head_are_found_in_its_table(shelf: Shelf, cache: ModelCache):
    head = PackedHead.from_bytes(
        encode(head_header("head"), {"weights": np.eye(3), "bias": np.zeros(3)}), PackedLabels.of(CLASSES)
    )
    shelf.teacher = lambda found: (head, 10)  # type: ignore[method-assign,assignment,return-value]
    served = await cache.teacher("pets")
    assert served.teacher is head
    assert dict(served.codes) == {"cat": 0, "dog": 1, "fox": 2}


async def test_a_move_has_a_time_limit(shelf: Shelf):
    async with opened(shelf, move_seconds=0.05) as cache:
        await cache.student("pets", "cat")
        go_on = slowly(shelf, 2)
        shelf.publish(2)
        await refresh(cache, shelf)
        assert cache.get("pets", "cat") is None, "no query gets the old version any more"
        assert cache.moves_failed == {"error": 0, "timeout": 1}
        asking = asyncio.create_task(cache.student("pets", "cat"))
        go_on.set()
        assert (await asking).version == 2
        assert shelf.reads.count((2, "cat")) == 1, "the load that was begun is used"


async def test_classes_are_preloaded_side_by_side_and_leave_a_loader_to_queries(
    shelf: Shelf, cache: ModelCache
):
    shelf.classes[1] = shelf.classes[2] = set("abcdefgh")
    for label in "abcdefgh":
        await cache.student("pets", label)
    go_on = slowly(shelf, 2)
    shelf.publish(2)
    follow(cache, shelf)
    await asyncio.sleep(0.02)
    assert (await cache.student("pets@1", "a")).version == 1
    cache.drop("pets", 1, "b")
    assert (await cache.student("pets@1", "b")).version == 1
    go_on.set()
    await cache.settle("default/pets")
    assert [cache.get("pets", label) is not None for label in "abcdefgh"] == [True] * 8


async def test_an_alias_that_keeps_moving_does_not_extend_the_time_limit(shelf: Shelf):
    for number in range(1, 500):
        shelf.classes[number] = set(CLASSES)
    async with opened(shelf, move_seconds=0.1) as cache:
        await cache.student("pets", "cat")
        shelf.gate.clear()
        started = time.monotonic()
        for number in range(2, 500):
            shelf.publish(number)
            follow(cache, shelf)
            await asyncio.sleep(0.01)
            if cache.get("pets", "cat") is None:
                break
        shelf.gate.set()
        assert time.monotonic() - started > 0.09
        assert number < 499, "the moves went on for 5 s, fifty times the limit"


async def test_the_lag_is_that_of_the_oldest_move(shelf: Shelf, cache: ModelCache):
    await cache.student("pets", "cat")
    assert cache.moving_since == math.inf
    go_on = slowly(shelf, 2)
    shelf.publish(2)
    follow(cache, shelf, since=7.0)
    assert cache.moving_since == 7.0
    go_on.set()
    await cache.settle("default/pets")
    assert cache.moving_since == math.inf


@pytest.mark.parametrize("then", ["back", "on", "gone"])
async def test_a_move_is_cancelled_when_the_alias_moves_again(shelf: Shelf, cache: ModelCache, then: str):
    shelf.classes[3] = set(CLASSES)
    await cache.student("pets", "cat")
    go_on = slowly(shelf, 2)
    shelf.publish(2)
    follow(cache, shelf)
    await asyncio.sleep(0.01)
    if then == "on":
        shelf.publish(3)
    else:
        shelf.latest = 1 if then == "back" else 9
    await refresh(cache, shelf)
    go_on.set()
    await asyncio.sleep(0.05)
    if then == "gone":
        assert cache.get("pets", "cat") is None
    else:
        assert (await cache.student("pets", "cat")).version == (3 if then == "on" else 1)


async def test_closing_cancels_running_moves(shelf: Shelf, cache: ModelCache):
    await cache.student("pets", "cat")
    shelf.publish(2)
    shelf.gate.clear()
    follow(cache, shelf)
    await asyncio.sleep(0.02)
    cache.close()
    shelf.gate.set()
    await cache.settle("default/pets")
    served = cache.get("pets", "cat")
    assert served is not None
    assert served.version == 1


async def test_references_that_are_not_used_are_forgotten(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(references_module, "UNUSED_SECONDS", 0.0)
    async with opened(shelf) as cache:
        for name in ("pets", "pets@1"):
            await cache.student(name, "cat")
        for _ in range(3):
            cache.evict_unused()
            assert cache.get("pets", "cat") is not None
        assert cache.reference_count == 1
        assert cache.begin_refresh(None) == cache.begin_refresh(["default/pets"]) == ["pets"]
        assert (await cache.student("pets@1", "cat")).version == 1
        shelf.publish(2)
        await refresh(cache, shelf)
        assert (await cache.student("pets", "cat")).version == 2


def test_the_number_of_references_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(references_module, "MAX_RECENT", 10)
    references = References()
    for number in range(100):
        references.put(f"pets@{number}", version(1))
    assert len(references) <= 20
    assert sorted(references.of_models([version(1).qualified_model])) == sorted(references.of_models(None))


def test_a_move_does_not_bring_an_evicted_reference_back():
    references = References()
    references.put("pets", version(1))
    references.remove("pets")
    references.replace("pets", version(2))
    assert references.get("pets") is None
    assert references.of_models(["pets"]) == []


async def test_students_and_columns_of_records_are_prepared_in_threads(
    shelf: Shelf, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
):
    """A million known values, or rejections, take a second."""
    names: list[str] = []

    def noting(make: Any) -> Any:
        def made(*arguments: Any) -> Any:
            names.append(threading.current_thread().name.partition("_")[0])
            return make(*arguments)

        return made

    monkeypatch.setattr(cache_module, "columns_of", noting(cache_module.columns_of))
    monkeypatch.setattr(cache, "_serve", noting(make_servable))
    shelf.versions[1] = dataclasses.replace(version(1), encoder_digest="0" * 64)
    await cache.student("pets", "cat")
    assert names == ["stms-load", "stms-load"]


async def test_students_of_a_version_share_its_encoder(shelf: Shelf, cache: ModelCache):
    shelf.versions[1] = dataclasses.replace(version(1), encoder_digest="0" * 64)
    cat, dog = await cache.students("pets", ["cat", "dog"])
    assert cat.columns is dog.columns
    assert cat.score_record is not None
    assert cat.score_record((2.0, 1.0)) == 2.0
    assert shelf.reads.count((1, "encoder")) == 1
    assert cache.size >= 2 * shelf.size + cat.columns.nbytes
    teacher = await cache.teacher("pets")
    assert teacher.columns is cat.columns
    assert await cache.columns(shelf.versions[1]) is cat.columns
    cache.drop("default", "pets")
    assert cache.size == 0


async def test_what_is_counted_of_a_version_outlives_it(shelf: Shelf, cache: ModelCache):
    shelf.versions[1] = dataclasses.replace(version(1), encoder_digest="0" * 64, profile_digest="1" * 64)
    for records in (1, 2):
        columns = (await cache.student("pets", "cat")).columns
        assert columns.named is not None
        assert columns.named.tally is not None
        assert columns.named.tally.profile == fit_profile(numbers_table(), numbers_encoder())
        columns.named.tally.add([[1.0] * records, [2.0] * records])
        del columns
        cache.drop("default", "pets")
        gc.collect()
    assert shelf.reads.count((1, "profile")) == 2
    assert [(one.qualified_model, taken.records) for one, taken in cache.tallies.take()] == [
        ("default/pets", 1),
        ("default/pets", 2),
    ]


async def test_the_encoder_of_a_version_is_freed_with_its_last_student(shelf: Shelf, cache: ModelCache):
    shelf.versions[1] = dataclasses.replace(version(1), encoder_digest="0" * 64)
    await cache.student("pets", "cat")
    cache.drop("default", "pets")
    gc.collect()
    await cache.student("pets", "cat")
    assert shelf.reads.count((1, "encoder")) == 2
