"""The loaded students and teachers of one server process.

Every structure here belongs to the event loop; only loading runs in threads. So a lookup takes no lock, and
two requests that miss at the same time share one load. A published version never changes, so a loaded one
never becomes stale. Only the version that a reference resolves to can change: `refresh` preloads from the new
version what was loaded of the old one, and switches queries over afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from app.domain.entities import ModelVersion
from app.domain.errors import InputFault, NotFound
from app.serving.loader import ModelSource, Teacher
from app.serving.lru import LruCache, Part
from app.serving.servable import ServableStudent
from core.packed import LinearBasis, PackedHead, PackedStudent

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

MISSING_SECONDS = 1.0
"""Seconds for which an unknown model or class is cached as unknown, unless the registry changes."""

MOVE_SECONDS = 0.5
"""Longest wait of `refresh`, in seconds, for the preloading of moved references."""

_MAX_MISSING = 4096
_MAX_PRELOADED = 256
_LOADERS = 4
_NO_STUDENT = ("class_not_found", "student_not_found")
_MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class ServableTeacher:
    """A loaded teacher. codes: number of each class by name."""

    teacher: Teacher
    model: str
    version: int
    codes: Mapping[str, int]


class ModelCache:
    """LRU cache of students by (model, version, class) and of teachers by (model, version).

    serve: makes a `ServableStudent` of a loaded student. budget: bytes kept. hits: lookups of students that
    were loaded. misses: loads.
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
        """Bytes of everything that is loaded."""
        return self._loaded.size

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def up_to_date(self) -> bool:
        """Whether every reference is at its newest version; otherwise call `refresh` again."""
        return not self._moves and not self._failed

    def get(self, reference: str, label: str) -> ServableStudent | None:
        """The student of a class if it is loaded or in a local file; neither waits nor asks the database."""
        version = self._versions.get(reference)
        if version is None:
            return None
        # Entries with a label are students.
        entry = cast("ServableStudent | None", self._loaded.get((version.model, version.version, label)))
        if entry is None:
            entry = self._get_if_local(version, label)
        if entry is not None:
            self.hits += 1
        return entry

    async def student(self, reference: str, label: str) -> ServableStudent:
        """The student of a class, loaded if necessary. Raises NotFound and Unavailable."""
        entry = self.get(reference, label)
        if entry is not None:
            return entry
        return cast("ServableStudent", await self._load(reference, label))

    async def students(self, reference: str, labels: Sequence[str]) -> list[ServableStudent]:
        """The students of several classes of one and the same version, loaded if necessary.

        Raises NotFound naming every class without a student, and Unavailable.
        """
        students = [student for label in labels if (student := self.get(reference, label)) is not None]
        if len(students) == len(labels):
            # No alias can have moved between these lookups, which never wait.
            return students
        students = await self._load_students(reference, labels)
        newest = max(student.version for student in students)
        if any(student.version != newest for student in students):
            # An alias moved during the loads.
            students = await self._load_students(f"{students[0].model}@{newest}", labels)
        return students

    async def _load_students(self, reference: str, labels: Sequence[str]) -> list[ServableStudent]:
        results = await asyncio.gather(
            *(self.student(reference, label) for label in labels), return_exceptions=True
        )
        missing: dict[str, NotFound] = {}
        students: list[ServableStudent] = []
        for label, result in zip(labels, results, strict=True):
            if isinstance(result, NotFound) and result.reason in _NO_STUDENT:
                missing[label] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                students.append(result)
        if missing:
            raise _without_students(reference, missing)
        return students

    async def teacher(self, reference: str) -> ServableTeacher:
        """The teacher of a model, loaded if necessary. Raises NotFound and Unavailable."""
        version = self._versions.get(reference)
        if version is not None:
            entry = self._loaded.get((version.model, version.version, None))
            if entry is not None:
                return cast("ServableTeacher", entry)
        return cast("ServableTeacher", await self._load(reference, None))

    def drop(self, model: str, version: int | None = None, label: str | None = None) -> None:
        """Unload a model, one version of it, or one class; the next query loads it again."""
        for key in list(self._loaded.newest_first()):
            if key[0] == model and version in (None, key[1]) and label in (None, key[2]):
                self._loaded.pop(key)

    async def refresh(self) -> None:
        """Resolve all references again. Call it when the revision changed or `up_to_date` is false.

        Not for concurrent calls. References move side by side: one that loads a large file continues in the
        background after this call, so that it does not delay the others. If the registry cannot be read, the
        error is raised and every reference stays where it is.
        """
        self._generation += 1
        self._failed = False
        self._missing.clear()
        # References to a version number, too: the version does not move, but may have been deleted.
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
        """Start the move of a reference to a new version, and cancel a move to an outdated one."""
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
        """Start no more loads; running ones end on their own."""
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
            entry_key = (*_name(version), label)
            entry = self._loaded.get(entry_key)
            if entry is not None:
                return entry
            return await self._single_flight(entry_key, partial(self._fetch, version, label))
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
            # The registry changed during the read, before `refresh` could see this reference: read again.

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
        """A student that is cheaper to build here from a local file than to load in a thread."""
        entry = self._source.get_if_local(version, label)
        return None if entry is None else self._keep(version, label, *entry)

    def _keep(self, version: ModelVersion, label: str, student: PackedStudent, size: int) -> ServableStudent:
        served = self._serve(student, version)
        shared = None
        if not isinstance(student.map, LinearBasis):
            arrays = student.map.arrays().values()
            shared = Part(id(student.map), sum(array.nbytes for array in arrays))
        self._loaded.put((version.model, version.version, label), served, size, shared)
        return served

    async def _preload(self, old: ModelVersion, new: ModelVersion) -> None:
        """Load the classes of ``new`` that were last used of ``old``, except those that ``new`` lacks."""
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
        """The result of one load, shared by all callers; it continues if a caller is cancelled."""
        task = self._inflight.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(start())
            self._inflight[key] = task
            task.add_done_callback(lambda task: self._on_loaded(key, task))
        return cast("Loaded", await asyncio.shield(task))

    def _on_loaded(self, key: object, task: asyncio.Task[Any]) -> None:
        del self._inflight[key]
        if not task.cancelled():
            # Marks the exception as retrieved, in case all waiting callers were cancelled.
            task.exception()

    async def _in_thread(self, read: Callable[[], Loaded]) -> Loaded:
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)


def _name(version: ModelVersion) -> tuple[str, int]:
    return version.model, version.version


def _without_students(reference: str, missing: Mapping[str, NotFound]) -> NotFound:
    names = ", ".join(repr(label) for label in list(missing)[:_MAX_NAMED])
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    return NotFound(
        f"Model {reference!r} has no student for {names}{more}.",
        code=min(error.reason for error in missing.values()),
        faults=[InputFault("classes", error.reason, error.message) for error in missing.values()],
    )
