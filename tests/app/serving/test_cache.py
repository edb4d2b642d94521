"""The model cache: single-flight loads, atomic moves of references, and its budget."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import numpy as np
import pytest

from app.domain.entities import ModelVersion
from app.domain.errors import NotFound, Unavailable
from app.serving import cache as cache_module
from app.serving.cache import ModelCache
from app.serving.loader import ModelSource
from app.serving.lru import LruCache, Part
from app.serving.servable import make_servable
from benchmarks.published import linear_student, linear_teacher
from core.packed import PackedHead, PackedLabels, PackedStudent, PackedTeacher, RbfBasis
from core.packed.codec import encode
from core.packed.head import head_header

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
        self._read("all")
        found = {reference: self._meant(reference) for reference in references}
        return {reference: version for reference, version in found.items() if version is not None}

    def _meant(self, reference: str) -> ModelVersion | None:
        name, _, suffix = reference.partition("@")
        number = int(suffix) if suffix.isdigit() else self.latest
        return self.versions.get(number) if name == "pets" else None

    def student(self, found: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        self._read((found.version, label))
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

    def publish(self, number: int) -> None:
        self.versions[number] = version(number)
        self.latest = number

    def _read(self, what: object) -> None:
        self.reads.append(what)
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def run(shelf: Shelf, story: Callable[[ModelCache], Coroutine[Any, Any, Any]], budget: int = 10_000) -> Any:
    async def main() -> Any:
        cache = ModelCache(shelf, budget=budget, serve=make_servable)
        try:
            return await story(cache)
        finally:
            cache.close()

    return asyncio.run(main())


def test_a_student_is_loaded_once(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        assert cache.get("pets", "cat") is None
        loaded = await cache.student("pets", "cat")
        assert cache.get("pets", "cat") is loaded
        assert await cache.student("pets", "cat") is loaded
        assert shelf.reads == ["pets", (1, "cat")]
        assert (len(cache), cache.size) == (1, 100)

    run(shelf, story)


def test_references_to_one_version_share_its_students(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        assert await cache.student("pets", "cat") is await cache.student("pets@1", "cat")
        assert shelf.reads == ["pets", (1, "cat"), "pets@1"]

    run(shelf, story)


def test_misses_at_the_same_time_load_once(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        shelf.gate.clear()
        waiting = [asyncio.create_task(cache.student("pets", "cat")) for _ in range(20)]
        await asyncio.sleep(0.05)
        shelf.gate.set()
        assert len({id(served) for served in await asyncio.gather(*waiting)}) == 1
        assert shelf.reads == ["pets", (1, "cat")]

    run(shelf, story)


def test_a_cancelled_caller_does_not_cancel_the_load(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        shelf.gate.clear()
        first, second = (asyncio.create_task(cache.student("pets", "cat")) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        shelf.gate.set()
        assert (await second).model == "pets"
        assert first.cancelled()

    run(shelf, story)


def test_unknown_names_are_cached_for_a_second(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    async def story(cache: ModelCache) -> None:
        for _ in range(3):
            with pytest.raises(NotFound):
                await cache.student("cars", "cat")
            with pytest.raises(NotFound):
                await cache.student("pets", "bird")
        assert shelf.reads == ["cars", "pets", (1, "bird")]
        await cache.refresh()
        with pytest.raises(NotFound):
            await cache.student("cars", "cat")
        assert shelf.reads[-1] == "cars"
        monkeypatch.setattr(cache_module, "MISSING_SECONDS", -1.0)
        with pytest.raises(NotFound):
            await cache.student("pets", "bird")
        with pytest.raises(NotFound):
            await cache.student("pets", "bird")
        assert shelf.reads[-2:] == [(1, "bird"), (1, "bird")]

    run(shelf, story)


def test_the_cache_of_unknown_names_is_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_module, "_MAX_MISSING", 3)

    async def story(cache: ModelCache) -> None:
        for i in range(10):
            with pytest.raises(NotFound):
                await cache.student("pets", f"bird{i}")
        assert len(cache._missing) <= 3

    run(shelf, story)


def test_a_failed_load_is_retried(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        shelf.error = Unavailable("The database is down.")
        with pytest.raises(Unavailable):
            await cache.student("pets", "cat")
        shelf.error = None
        assert (await cache.student("pets", "cat")).version == 1

    run(shelf, story)


def test_a_moved_reference_is_preloaded_before_queries_use_it(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        for label in ("cat", "dog"):
            await cache.student("pets", label)
        await cache.teacher("pets")
        shelf.publish(2)
        shelf.gate.clear()
        refreshing = asyncio.create_task(cache.refresh())
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

    run(shelf, story)


def test_a_failed_preload_keeps_the_old_version(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        shelf.publish(2)
        shelf.error = Unavailable("The database is down.")
        with pytest.raises(Unavailable):
            await cache.refresh()
        assert (await cache.student("pets", "cat")).version == 1
        shelf.error = None
        await cache.refresh()
        assert (await cache.student("pets", "cat")).version == 2

    run(shelf, story)


def test_a_class_missing_in_the_new_version_is_unknown_after_the_move(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        await cache.student("pets", "fox")
        shelf.classes[2] = {"cat"}
        shelf.publish(2)
        await cache.refresh()
        assert (await cache.student("pets", "cat")).version == 2
        with pytest.raises(NotFound):
            await cache.student("pets", "fox")
        assert (await cache.student("pets@1", "fox")).version == 1

    run(shelf, story)


def test_a_version_number_resolves_until_it_is_deleted(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        await cache.student("pets@1", "cat")
        shelf.publish(2)
        await cache.refresh()
        shelf.reads.clear()
        assert (await cache.student("pets@1", "cat")).version == 1
        assert shelf.reads == []
        del shelf.versions[1]
        await cache.refresh()
        assert cache.get("pets@1", "cat") is None
        with pytest.raises(NotFound):
            await cache.student("pets@1", "cat")

    run(shelf, story)


def test_a_deleted_reference_is_unknown(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        del shelf.versions[1]
        await cache.refresh()
        with pytest.raises(NotFound):
            await cache.student("pets", "cat")

    run(shelf, story)


def test_a_move_during_the_first_resolution_is_not_missed(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        # resolve() reads version 1 and stands still before it hands it over; meanwhile the alias moves.
        real, looked, go_on = shelf.resolve, threading.Event(), threading.Event()

        def slow(reference: str) -> ModelVersion:
            found = real(reference)
            if not looked.is_set():
                looked.set()
                assert go_on.wait(10)
            return found

        shelf.resolve = slow  # type: ignore[method-assign]
        asking = asyncio.create_task(cache.student("pets", "cat"))
        assert await asyncio.to_thread(looked.wait, 10)
        shelf.publish(2)
        await cache.refresh()
        go_on.set()
        assert (await asking).version == 2

    run(shelf, story)


def test_the_budget_evicts_the_least_recently_used(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        await cache.student("pets", "dog")
        cache.get("pets", "cat")
        await cache.student("pets", "fox")
        assert cache.get("pets", "dog") is None
        assert cache.get("pets", "cat") is not None
        assert cache.size == 200

    run(shelf, story, budget=250)


def test_a_value_larger_than_the_budget_is_kept_alone():
    lru: LruCache[str, int] = LruCache(10)
    lru.put("a", 1, 5)
    lru.put("b", 2, 50)
    assert (lru.get("a"), lru.get("b"), lru.size, len(lru)) == (None, 2, 50, 1)
    lru.put("b", 3, 4)
    lru.put("c", 4, 4)
    assert (lru.get("b"), lru.size) == (3, 8)
    assert list(lru.newest_first()) == ["b", "c"]


def test_a_shared_part_is_counted_once_while_in_use():
    lru: LruCache[str, int] = LruCache(100)
    lru.put("a", 1, 5, Part("map", 50))
    lru.put("b", 2, 5, Part("map", 50))
    assert lru.size == 60
    lru.pop("a")
    assert lru.size == 55
    lru.put("b", 2, 7, Part("map", 50))
    assert lru.size == 57
    lru.put("c", 3, 44)
    assert (lru.get("b"), lru.size) == (None, 44)
    lru.pop("never")
    assert lru.size == 44


def test_students_on_one_map_count_it_once(shelf: Shelf):
    basis = RbfBasis(np.zeros(2), np.ones(2), np.eye(2))
    shelf.maps = {"cat": basis, "dog": basis}

    async def story(cache: ModelCache) -> None:
        for label in ("cat", "dog"):
            await cache.student("pets", label)
        assert cache.size == 2 * shelf.size + sum(array.nbytes for array in basis.arrays().values())

    run(shelf, story)


def test_local_students_are_loaded_without_a_thread(shelf: Shelf):
    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        assert cache.get("pets", "dog") is None
        shelf.near = {"dog"}
        found = cache.get("pets", "dog")
        assert found is not None
        assert found.student.label == "dog"
        shelf.near = set()
        assert cache.get("pets", "dog") is found

    run(shelf, story)


def test_the_classes_of_a_head_are_found_in_its_table(shelf: Shelf):
    head = PackedHead.from_bytes(
        encode(head_header("head"), {"weights": np.eye(3), "bias": np.zeros(3)}), PackedLabels.of(CLASSES)
    )
    shelf.teacher = lambda found: (head, 10)  # type: ignore[method-assign,assignment,return-value]

    async def story(cache: ModelCache) -> None:
        served = await cache.teacher("pets")
        assert served.teacher is head
        assert dict(served.codes) == {"cat": 0, "dog": 1, "fox": 2}

    run(shelf, story)


def test_a_slow_move_continues_in_the_background(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_module, "MOVE_SECONDS", 0.05)

    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        slow, go_on = shelf.student, threading.Event()

        def student(found: ModelVersion, label: str) -> tuple[PackedStudent, int]:
            assert go_on.wait(10)
            return slow(found, label)

        shelf.student = student  # type: ignore[method-assign]
        shelf.publish(2)
        await cache.refresh()
        assert not cache.up_to_date
        assert (await cache.student("pets", "cat")).version == 1
        await cache.refresh()
        assert (await cache.student("pets", "cat")).version == 1, "a second look begins nothing anew"
        go_on.set()
        while not cache.up_to_date:
            await asyncio.sleep(0.01)
        assert (await cache.student("pets", "cat")).version == 2
        assert shelf.reads.count((2, "cat")) == 1

    run(shelf, story)


def test_a_failed_background_move_is_retried(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_module, "MOVE_SECONDS", 0.0)

    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        slow = shelf.student

        def student(found: ModelVersion, label: str) -> tuple[PackedStudent, int]:
            raise Unavailable("The database is down.")

        shelf.student = student  # type: ignore[method-assign]
        shelf.publish(2)
        await cache.refresh()
        while cache._moves:
            await asyncio.sleep(0.01)
        assert not cache.up_to_date
        shelf.student = slow  # type: ignore[method-assign]
        await cache.refresh()
        while not cache.up_to_date:
            await asyncio.sleep(0.01)
        assert (await cache.student("pets", "cat")).version == 2

    run(shelf, story)


@pytest.mark.parametrize("then", ["back", "on", "gone"])
def test_a_move_is_cancelled_when_the_alias_moves_again(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, then: str
):
    monkeypatch.setattr(cache_module, "MOVE_SECONDS", 0.0)
    shelf.classes[3] = set(CLASSES)

    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        quick, go_on = shelf.student, threading.Event()

        def student(found: ModelVersion, label: str) -> tuple[PackedStudent, int]:
            assert found.version != 2 or go_on.wait(10)
            return quick(found, label)

        shelf.student = student  # type: ignore[method-assign]
        shelf.publish(2)
        await cache.refresh()
        if then == "on":
            shelf.publish(3)
        elif then == "back":
            shelf.latest = 1
        else:
            shelf.latest = 9
        await cache.refresh()
        while not cache.up_to_date:
            await asyncio.sleep(0.01)
        go_on.set()
        await asyncio.sleep(0.05)
        if then == "gone":
            assert cache.get("pets", "cat") is None
        else:
            assert (await cache.student("pets", "cat")).version == (3 if then == "on" else 1)

    run(shelf, story)


def test_closing_cancels_running_moves(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_module, "MOVE_SECONDS", 0.0)

    async def story(cache: ModelCache) -> None:
        await cache.student("pets", "cat")
        shelf.publish(2)
        shelf.gate.clear()
        refreshing = asyncio.create_task(cache.refresh())
        await asyncio.sleep(0.05)
        shelf.gate.set()
        await refreshing
        cache.close()
        await asyncio.sleep(0.05)
        assert cache._moves == {}

    run(shelf, story)
