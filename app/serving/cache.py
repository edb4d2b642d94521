"""The loaded students and teachers of one server process.

Every structure here belongs to the event loop; only loading runs in threads. So a lookup takes no lock, and
two requests that miss at the same time share one load. A published version never changes, so a loaded one
never becomes stale. Only the version that a reference resolves to can change: `refresh` preloads from the new
version what was loaded from the old one, and then switches queries over.

Tenants have shares: a tenant that uses more than half of the budget loses its own students first, and tenants
take turns with loads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

from app.auth.places import Turns
from app.domain.entities import Caller, ModelVersion
from app.domain.errors import InputFault, NotFound
from app.domain.names import split_qualified
from app.serving.columns.base import Columns
from app.serving.columns.of_version import columns_of
from app.serving.columns.outside import RowCount
from app.serving.columns.tally import InputTallies
from app.serving.loader import ModelSource, Teacher
from app.serving.loop_time import LoopTime
from app.serving.lru import LruCache, Part
from app.serving.moves import Moves
from app.serving.references import References
from app.serving.servable import ServableStudent, metric_label
from app.serving.watch import AnswerWatch, AnswerWatches
from core.packed import LinearBasis, PackedHead, PackedStudent

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

MISSING_SECONDS = 1.0
"""Seconds for which an unknown model or class is cached as unknown, unless the registry changes."""

MOVE_SECONDS = 1.5
"""Default of the longest preloading of a moved reference."""

_MAX_MISSING = 4096
_MAX_PRELOADED = 256
_MAX_SCANNED = 20_000
"""Number of a tenant's most recently used entries that a move searches for classes to preload."""
_LOADERS = 5
_LOADERS_OF_TENANT = _LOADERS - 1
"""So that a load of another tenant finds a thread."""
_NO_STUDENT = ("class_not_found", "student_not_found")
_MAX_NAMED = 10

_Key: TypeAlias = tuple[str, str, int, str | None]
"""(tenant, model, version, class); no class means the teacher."""


@dataclass(frozen=True, slots=True)
class ServableTeacher:
    """A loaded teacher. codes: number of each class by name. metric_label: label of its model in the metrics.

    columns: of its version. loop: times of its answers in the event loop.
    """

    teacher: Teacher
    model: str
    version: int
    metric_label: str
    codes: Mapping[str, int]
    columns: Columns
    loop: LoopTime


class ModelCache:
    """LRU cache of students by (tenant, model, version, class) and of teachers by (tenant, model, version).

    A reference begins with its tenant: ``tenant/name``, ``tenant/name@alias`` or ``tenant/name@3``.

    serve: makes a `ServableStudent` from a loaded student. budget: bytes to keep. move_seconds: longest
    preloading of a moved reference. hits: lookups of loaded students. misses: loads.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        budget: int,
        serve: Callable[[PackedStudent, ModelVersion, Columns, AnswerWatch], ServableStudent],
        move_seconds: float = MOVE_SECONDS,
    ) -> None:
        self._source = source
        self._serve = serve
        self._references = References()
        self._recent = self._references.recent
        self._moves = Moves(self._references, self._preload, move_seconds)
        self._loaded: LruCache[_Key, ServableStudent | ServableTeacher] = LruCache(budget)
        self._columns: WeakValueDictionary[tuple[str, str, int], Columns] = WeakValueDictionary()
        self._missing: dict[tuple[str, str | None], tuple[NotFound, float]] = {}
        self._inflight: dict[object, asyncio.Task[Any]] = {}
        self._generation = 0
        self._turns = Turns(_LOADERS, _LOADERS_OF_TENANT)
        # Preloading leaves one loader free for queries, both in total and for each tenant.
        self._preloading = Turns(_LOADERS - 1, _LOADERS_OF_TENANT - 1)
        self._threads = ThreadPoolExecutor(_LOADERS, thread_name_prefix="stms-load")
        self.hits = self.misses = 0
        self.row_count = RowCount()
        self.tallies = InputTallies()
        self.watches = AnswerWatches()

    @property
    def size(self) -> int:
        """Bytes of everything that is loaded."""
        return self._loaded.size

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def reference_count(self) -> int:
        """Number of references that are followed."""
        return len(self._references)

    @property
    def moves_failed(self) -> Mapping[str, int]:
        """Moves of references whose preloading did not succeed, by reason."""
        return self._moves.failed

    @property
    def moving_since(self) -> float:
        """Since when the oldest unfinished move is due, in monotonic seconds; infinite without one."""
        return self._moves.since

    def get(self, reference: str, label: str) -> ServableStudent | None:
        """The student of a class if it is loaded or in a local file; does not wait or read the database."""
        version = self._recent.get(reference)
        if version is None:
            version = self._references.get(reference)
            if version is None:
                return None
        # Entries with a label are students.
        key = (version.tenant, version.model, version.version, label)
        entry = cast("ServableStudent | None", self._loaded.get(key))
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
            students = await self._load_students(f"{reference.partition('@')[0]}@{newest}", labels)
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
        entry = self.loaded_teacher(reference)
        return entry or cast("ServableTeacher", await self._load(reference, None))

    def loaded_teacher(self, reference: str) -> ServableTeacher | None:
        """The teacher of a model if it is loaded."""
        version = self._references.get(reference)
        entry = None if version is None else self._loaded.get((*_name(version), None))
        return cast("ServableTeacher | None", entry)

    def load_small_teacher(self, reference: str, most: int) -> None:
        """Load the teacher of a model in the background, unless it has more than ``most`` weights in all."""
        key = ("small teacher", reference)
        if key not in self._inflight:
            task = asyncio.get_running_loop().create_task(self._load_if_small(reference, most))
            self._inflight[key] = task
            task.add_done_callback(lambda task: self._on_loaded(key, task))

    async def _load_if_small(self, reference: str, most: int) -> None:
        version = self._references.get(reference)
        if version is None:
            version = await self._single_flight(reference, lambda: self._resolve(reference))
        if version.class_count * version.columns <= most:
            await self.teacher(reference)

    def drop(self, tenant: str, model: str, version: int | None = None, label: str | None = None) -> None:
        """Unload a model, one version of it, or one class; the next query loads it again."""
        for key in list(self._loaded.newest_first(tenant)):
            if key[1] == model and version in (None, key[2]) and label in (None, key[3]):
                self._loaded.pop(key)

    def begin_refresh(self, models: Collection[str] | None) -> list[str]:
        """The references to models that changed, None for all models: resolve them and call `follow`.

        From now on, a reference that a query is resolving for the first time is resolved again.
        """
        self._generation += 1
        self._missing.clear()
        return self._references.of_models(models)

    def follow(self, references: Sequence[str], versions: Mapping[str, ModelVersion], since: float) -> None:
        """Let references follow the versions that they resolve to now; references without one are removed.

        since: the last moment at which their present versions were known to be current, in seconds of the
        monotonic clock. Moves continue in parallel after this call.
        """
        for reference in references:
            self._moves.follow(reference, versions.get(reference), since)

    async def settle(self, model: str | None) -> None:
        """Wait until the present moves of the references to a model, None for all, have ended."""
        await self._moves.settle(self._references.of_models(None if model is None else [model]))

    def evict_unused(self) -> None:
        """Forget references that were not used for a while; call it regularly."""
        self._references.evict_unused()

    def close(self) -> None:
        """Start no more loads; running loads end by themselves."""
        self._moves.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, reference: str, label: str | None) -> ServableStudent | ServableTeacher:
        self.misses += 1
        key = (reference, label)
        missing = self._missing.get(key)
        if missing is not None and time.monotonic() < missing[1]:
            raise missing[0].with_traceback(None)
        try:
            version = self._references.get(reference)
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
            version = await self._in_thread(
                split_qualified(reference)[0], lambda: self._source.resolve(reference)
            )
            if generation == self._generation:
                self._references.put(reference, version)
                return version
            # The registry changed during the read, and `begin_refresh` did not see this reference.

    async def _fetch(self, version: ModelVersion, label: str | None) -> ServableStudent | ServableTeacher:
        # Held until the entry below holds it.
        columns = await self.columns(version)
        if label is None:
            teacher, size = await self._in_thread(version.tenant, lambda: self._source.teacher(version))
            codes = (
                teacher.labels.codes
                if isinstance(teacher, PackedHead)
                else {name: code for code, name in enumerate(teacher.classes)}
            )
            served_teacher = ServableTeacher(
                teacher,
                version.model,
                version.version,
                metric_label(version),
                codes,
                columns,
                LoopTime(f"The teacher of {version.qualified_model}@{version.version}"),
            )
            shared = _part(version, columns)
            self._loaded.put(version.tenant, (*_name(version), None), served_teacher, size, *shared)
            return served_teacher
        served, size = await self._in_thread(version.tenant, partial(self._read, version, label, columns))
        return self._keep(version, label, served, size)

    def _read(self, version: ModelVersion, label: str, columns: Columns) -> tuple[ServableStudent, int]:
        """A student and its size. It blocks, also to prepare one of very many rejections."""
        student, size = self._source.student(version, label)
        watch = self.watches.of(version, student)
        watch.columns = columns
        return self._serve(student, version, columns, watch), size

    def _get_if_local(self, version: ModelVersion, label: str) -> ServableStudent | None:
        """A student that is cheaper to build here from a local file than to load in a thread."""
        entry = self._source.get_if_local(version, label)
        if entry is None:
            return None
        student, size = entry
        watch = self.watches.of(version, student)
        watch.columns = columns = self._columns_of(version)
        served = self._serve(student, version, columns, watch)
        return self._keep(version, label, served, size)

    def _keep(self, version: ModelVersion, label: str, served: ServableStudent, size: int) -> ServableStudent:
        shared, packed = _part(version, served.columns), served.student.map
        if not isinstance(packed, LinearBasis):
            shared.append(Part(id(packed), packed.nbytes))
        self._loaded.put(version.tenant, (*_name(version), label), served, size, *shared)
        return served

    async def columns(self, version: ModelVersion) -> Columns:
        """The columns of a version with its encoder, if it has one."""
        if version.encoder_digest is None or _name(version) in self._columns:
            return self._columns_of(version)
        return await self._single_flight(("columns", *_name(version)), partial(self._read_columns, version))

    async def _read_columns(self, version: ModelVersion) -> Columns:
        columns = await self._in_thread(version.tenant, partial(self._make_columns, version))
        return self._columns.setdefault(_name(version), columns)

    def _make_columns(self, version: ModelVersion) -> Columns:
        """The columns of a version with an encoder, which may have a million known values. It blocks."""
        encoder = self._source.encoder(version)
        profile = None if version.profile_digest is None else self._source.profile(version, encoder)
        return columns_of(version, self.row_count, encoder, partial(self.tallies.make, version, profile))

    def _columns_of(self, version: ModelVersion) -> Columns:
        """The columns of a version without encoder, or of one whose columns are loaded; in memory once."""
        columns = self._columns.get(_name(version))
        if columns is None:
            columns = self._columns[_name(version)] = columns_of(version, self.row_count)
        return columns

    async def _preload(self, old: ModelVersion, new: ModelVersion) -> Sequence[Exception]:
        """Load the classes of ``new`` that were last used of ``old``; returns the errors of the others."""
        recent = islice(self._loaded.newest_first(old.tenant), _MAX_SCANNED)
        name = _name(old)
        used = [key[3] for key in recent if key[:3] == name]
        labels = [label for label in used[:_MAX_PRELOADED] if (*_name(new), label) not in self._loaded]
        results = await asyncio.gather(
            *(self._preload_class(new, label) for label in labels), return_exceptions=True
        )
        return [result for result in results if isinstance(result, Exception)]

    async def _preload_class(self, version: ModelVersion, label: str | None) -> None:
        async with self._preloading.turn(_turn_of(version.tenant)):
            try:
                await self._single_flight((*_name(version), label), partial(self._fetch, version, label))
            except NotFound:
                text = "model %s version %d has no class %r any more"
                logger.info(text, version.model, version.version, label)

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

    async def _in_thread(self, tenant: str, read: Callable[[], Loaded]) -> Loaded:
        async with self._turns.turn(_turn_of(tenant)):
            return await asyncio.get_running_loop().run_in_executor(self._threads, read)


def _turn_of(tenant: str) -> Caller:
    """The caller for taking turns: tenants take turns, for all of their keys."""
    return Caller(tenant, tenant)


def _name(version: ModelVersion) -> tuple[str, str, int]:
    return version.tenant, version.model, version.version


def _part(version: ModelVersion, columns: Columns) -> list[Part]:
    return [Part(_name(version), columns.nbytes)] if columns.nbytes else []


def _without_students(reference: str, missing: Mapping[str, NotFound]) -> NotFound:
    names = ", ".join(repr(label) for label in list(missing)[:_MAX_NAMED])
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    first = next(iter(missing.values())).message
    every = f"Model {split_qualified(reference)[1]!r} has no student for {names}{more}."
    return NotFound(
        first if len(missing) == 1 else f"{every} {first}",
        code=min(error.reason for error in missing.values()),
        faults=[InputFault("classes", error.reason, error.message) for error in missing.values()],
    )
