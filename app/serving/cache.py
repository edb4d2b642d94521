"""Loaded students and teachers of one server process.

Every structure here belongs to the event loop; only loading runs in threads. So a lookup takes no lock, and
two requests that miss together wait for one load. A published version never changes, so what is loaded stays
true; what can change is which version a reference means, and `refresh` sees to that: it loads from the new
version what was in use of the old one, and only then lets queries see the move.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from app.domain.entities import ModelVersion
from app.domain.errors import NotFound
from app.serving.loader import ModelSource, Teacher
from app.serving.lru import LruCache, Part
from app.serving.servable import ServableStudent
from core.packed import LinearBasis, PackedHead, PackedStudent

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

MISSING_SECONDS = 1.0
"""How long an unknown model or class is remembered as unknown, unless the registry changes before."""

MOVE_SECONDS = 0.5
"""How long a look at the registry waits for what a moved reference has to load."""

_MAX_MISSING = 4096
_MAX_PRELOADED = 256
_LOADERS = 4


@dataclass(frozen=True, slots=True)
class ServableTeacher:
    """A teacher ready to answer. codes: class name → its number."""

    teacher: Teacher
    model: str
    version: int
    codes: Mapping[str, int]


class ModelCache:
    """Students by (model, version, class) and teachers by (model, version), least recently used out first.

    serve: makes a `ServableStudent` of what the source loaded. budget: bytes kept.
    hits, misses: students that were at hand when they were asked for, and what had to be loaded first.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        budget: int,
        serve: Callable[[PackedStudent, ModelVersion], ServableStudent],
    ) -> None:
        self._source = source
        self._serve = serve
        self._versions: dict[str, ModelVersion] = {}
        self._loaded: LruCache[tuple[str, int, str | None], ServableStudent | ServableTeacher] = LruCache(
            budget
        )
        self._missing: dict[tuple[str, str | None], tuple[NotFound, float]] = {}
        self._inflight: dict[object, asyncio.Task[Any]] = {}
        self._generation = 0
        self._moves: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._failed = False
        self._threads = ThreadPoolExecutor(_LOADERS, thread_name_prefix="stms-load")
        self.hits = self.misses = 0

    @property
    def size(self) -> int:
        """Bytes of all that is loaded."""
        return self._loaded.size

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def up_to_date(self) -> bool:
        """Whether every reference is where the last `refresh` saw it; else it should be called again."""
        return not self._moves and not self._failed

    def get(self, reference: str, label: str) -> ServableStudent | None:
        """The student of a class if it is loaded, or at hand: no waiting, no database."""
        version = self._versions.get(reference)
        if version is None:
            return None
        # A key with a label only ever holds a student.
        found = cast("ServableStudent | None", self._loaded.get((version.model, version.version, label)))
        if found is None:
            found = self._get_if_local(version, label)
        if found is not None:
            self.hits += 1
        return found

    async def student(self, reference: str, label: str) -> ServableStudent:
        """The student of a class, loaded if need be. Raises NotFound and Unavailable."""
        found = self.get(reference, label)
        if found is not None:
            return found
        return cast("ServableStudent", await self._load(reference, label))

    async def teacher(self, reference: str) -> ServableTeacher:
        """The whole teacher, loaded if need be. Raises NotFound and Unavailable."""
        version = self._versions.get(reference)
        if version is not None:
            found = self._loaded.get((version.model, version.version, None))
            if found is not None:
                return cast("ServableTeacher", found)
        return cast("ServableTeacher", await self._load(reference, None))

    def drop(self, model: str, version: int | None = None, label: str | None = None) -> None:
        """Free what is loaded of a model, of one version or of one class; a query loads it again."""
        for key in list(self._loaded.newest_first()):
            if key[0] == model and version in (None, key[1]) and label in (None, key[2]):
                self._loaded.pop(key)

    async def refresh(self) -> None:
        """Follow the registry. Call it when the revision changed or `up_to_date` is false; not concurrently.

        Moves go on side by side: one that has to fetch a large file goes on behind this call, so that it
        keeps none of the others waiting. When something cannot be read, the error is raised and everything
        answers as before.
        """
        self._generation += 1
        self._failed = False
        self._missing.clear()
        # Also those that name a version by its number: it does not move, but may have been deleted.
        known = list(self._versions)
        now = await self._in_thread(lambda: self._source.resolve_all(known))
        begun = [self._follow(name, self._versions[name], now.get(name)) for name in known]
        moves = [move for move in begun if move is not None]
        if moves:
            done, _ = await asyncio.wait(moves, timeout=MOVE_SECONDS)
            for move in done:
                move.result()

    def _follow(
        self, reference: str, old: ModelVersion, new: ModelVersion | None
    ) -> asyncio.Task[None] | None:
        """Begin the move of a reference, and end one that leads to where it does not point any more."""
        number, move = self._moves.get(reference, (old.version, None))
        if new is not None and number == new.version:
            return None
        if move is not None:
            move.cancel()
            del self._moves[reference]
        if new is None:
            del self._versions[reference]
        elif new.version != old.version:
            task = asyncio.get_running_loop().create_task(self._move(reference, old, new))
            self._moves[reference] = (new.version, task)
            task.add_done_callback(partial(self._moved, reference))
            return task
        return None

    async def _move(self, reference: str, old: ModelVersion, new: ModelVersion) -> None:
        await self._preload(old, new)
        self._versions[reference] = new

    def _moved(self, reference: str, task: asyncio.Task[None]) -> None:
        if self._moves.get(reference, (0, None))[1] is task:
            del self._moves[reference]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed = True
            logger.warning(
                "%s stays at its version, the one it moved to cannot be read: %s", reference, error
            )

    def close(self) -> None:
        """Take no more loads; those under way end by themselves."""
        for _, move in self._moves.values():
            move.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, reference: str, label: str | None) -> ServableStudent | ServableTeacher:
        self.misses += 1
        key = (reference, label)
        missing = self._missing.get(key)
        if missing is not None and time.monotonic() < missing[1]:
            raise missing[0].with_traceback(None)
        try:
            version = self._versions.get(reference)
            if version is None:
                version = await self._single_flight(reference, lambda: self._resolve(reference))
            place = (*_name(version), label)
            found = self._loaded.get(place)
            if found is not None:
                return found
            return await self._single_flight(place, partial(self._fetch, version, label))
        except NotFound as error:
            if len(self._missing) >= _MAX_MISSING:
                self._missing.clear()
            self._missing[key] = (error, time.monotonic() + MISSING_SECONDS)
            raise

    async def _resolve(self, reference: str) -> ModelVersion:
        while True:
            generation = self._generation
            version = await self._in_thread(lambda: self._source.resolve(reference))
            if generation == self._generation:
                self._versions[reference] = version
                return version
            # The registry moved while we were reading, and `refresh` has not seen this reference: read again.

    async def _fetch(self, version: ModelVersion, label: str | None) -> ServableStudent | ServableTeacher:
        served: ServableStudent | ServableTeacher
        if label is None:
            teacher, size = await self._in_thread(lambda: self._source.teacher(version))
            codes = (
                teacher.labels.codes
                if isinstance(teacher, PackedHead)
                else {name: code for code, name in enumerate(teacher.classes)}
            )
            served = ServableTeacher(teacher, version.model, version.version, codes)
        else:
            student, size = await self._in_thread(lambda: self._source.student(version, label))
            return self._keep(version, label, student, size)
        self._loaded.put((version.model, version.version, None), served, size)
        return served

    def _get_if_local(self, version: ModelVersion, label: str) -> ServableStudent | None:
        """A student that is not loaded, but so near that changing threads for it would cost more."""
        found = self._source.get_if_local(version, label)
        return None if found is None else self._keep(version, label, *found)

    def _keep(self, version: ModelVersion, label: str, student: PackedStudent, size: int) -> ServableStudent:
        served = self._serve(student, version)
        shared = None
        if not isinstance(student.map, LinearBasis):
            arrays = student.map.arrays().values()
            shared = Part(id(student.map), sum(array.nbytes for array in arrays))
        self._loaded.put((version.model, version.version, label), served, size, shared)
        return served

    async def _preload(self, old: ModelVersion, new: ModelVersion) -> None:
        """Load from ``new`` what was last used of ``old``; a class that ``new`` does not have is left out."""
        labels = [
            label for model, number, label in self._loaded.newest_first() if (model, number) == _name(old)
        ]
        for label in labels[:_MAX_PRELOADED]:
            if self._loaded.get((*_name(new), label)) is None:
                try:
                    await self._single_flight((*_name(new), label), partial(self._fetch, new, label))
                except NotFound:
                    logger.info("model %s version %d has no class %r any more", new.model, new.version, label)

    async def _single_flight(self, key: object, start: Callable[[], Coroutine[Any, Any, Loaded]]) -> Loaded:
        """The result of one load however many wait for it, and whoever of them goes away."""
        task = self._inflight.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(start())
            self._inflight[key] = task
            task.add_done_callback(lambda task: self._on_loaded(key, task))
        return cast("Loaded", await asyncio.shield(task))

    def _on_loaded(self, key: object, task: asyncio.Task[Any]) -> None:
        del self._inflight[key]
        if not task.cancelled():
            # Marks the error as seen: the waiters, if any are left, get it too.
            task.exception()

    async def _in_thread(self, read: Callable[[], Loaded]) -> Loaded:
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)


def _name(version: ModelVersion) -> tuple[str, int]:
    return version.model, version.version
