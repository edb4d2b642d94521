"""Loading of students and teachers from the database, through the cache on local disk.

All calls except `get_if_local` and `is_at` block, so they run in threads.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from app.domain.entities import ApiKey, ModelVersion, TokenRevocation
from app.domain.errors import NotFound, Unavailable
from app.domain.monitors import ActiveMonitor
from app.domain.names import split_qualified
from app.domain.shadows import ActiveShadow
from app.services import models
from app.serving.lru import LruCache
from app.store.blob_cache import BlobCache, open_blob
from app.store.revision_reader import RevisionReader
from app.store.unit_of_work import Store, UnitOfWork
from core.errors import InvalidPackage
from core.packed import IsotonicCalibration, LinearBasis, PackedHead, PackedMap, PackedStudent, PackedTeacher
from core.packed.encoder import Encoder
from core.packed.input_profile import InputProfile
from core.packed.map_packages import map_from_bytes

logger = logging.getLogger(__name__)

Teacher: TypeAlias = PackedTeacher | PackedHead
Packed = TypeVar("Packed")

_OBJECT_BYTES: Final = 2048
"""Memory of a student besides its arrays, in bytes."""

_MAX_HEADS: Final = 64
"""Largest number of open heads; tenants have shares of it. A mapped file takes address space and a
descriptor, but no memory.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class RegistryChanges:
    """The changes up to a revision of the registry.

    keys: the API keys that are new or changed. models: names of the models whose versions or aliases changed;
    None if that is not known: then ``keys`` are all keys, and every reference must be resolved again.
    revocations: of tokens, the new ones or likewise all. monitors, shadows: of the changed models, or
    likewise all.
    """

    revision: int
    keys: Sequence[ApiKey]
    models: Collection[str] | None
    revocations: Sequence[TokenRevocation] = ()
    monitors: Sequence[ActiveMonitor] = ()
    shadows: Sequence[ActiveShadow] = ()


class ModelSource(Protocol):
    """Source of published models. Methods raise NotFound, and Unavailable if the data cannot be read."""

    def resolve(self, reference: str) -> ModelVersion:
        """The current version of ``tenant/name``, ``tenant/name@alias`` or ``tenant/name@3``."""
        ...

    def student(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        """The student of a class, and its size in bytes without its map."""
        ...

    def get_if_local(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int] | None:
        """The same if it takes only microseconds, without the database; otherwise None."""
        ...

    def teacher(self, version: ModelVersion) -> tuple[Teacher, int]:
        """The teacher, and its size in bytes."""
        ...

    def encoder(self, version: ModelVersion) -> Encoder:
        """The encoder of a version that has one."""
        ...

    def profile(self, version: ModelVersion, encoder: Encoder) -> InputProfile | None:
        """The profile of a version; None if it cannot be read, because queries do not need it."""
        ...


class DatabaseSource(ModelSource):
    """`ModelSource` over the database; also the registry that the refresher polls.

    samples: whether the monitors of aliases are followed.
    """

    def __init__(self, store: Store, files: BlobCache, *, samples: bool = False) -> None:
        self._follows_monitors = samples
        self._store = store.of_all_tenants()
        self._files = files
        self._maps: WeakValueDictionary[str, PackedMap] = WeakValueDictionary()
        self._encoders: WeakValueDictionary[str, Encoder] = WeakValueDictionary()
        self._heads: LruCache[tuple[str, str, str | None], PackedHead] = LruCache(_MAX_HEADS)
        self._lock = threading.Lock()
        self._revision = RevisionReader(store.engine)

    def is_at(self, revision: int) -> bool:
        """Whether this is certainly the registry's revision. It does not block."""
        return self._revision.revision() == revision

    def close(self) -> None:
        """Close the connection of `is_at`."""
        self._revision.close()

    def changes(self, after: int | None) -> RegistryChanges | None:
        """The changes after a revision; None if there are none. after: None to read everything."""
        with self._store.peek() as uow:
            if uow.registry.revision() == after:
                return None
        with self._store.read() as uow:
            revision = uow.registry.revision()
            changed = None if after is None else uow.registry.changes(after, revision)
            if changed is None:
                known = uow.keys.known(), None, uow.token_revocations.known()
                shadows = uow.shadows.active(None, time.time())
                return RegistryChanges(revision, *known, self._monitors(uow, None), shadows)
            revocations = uow.token_revocations.some(changed.token_revocations)
            keys, monitors = uow.keys.some(changed.keys), self._monitors(uow, changed.models)
            shadows = uow.shadows.active(changed.models, time.time())
            return RegistryChanges(revision, keys, changed.models, revocations, monitors, shadows)

    def _monitors(self, uow: UnitOfWork, models: Collection[str] | None) -> Sequence[ActiveMonitor]:
        return uow.monitors.active(models) if self._follows_monitors else ()

    def resolve(self, reference: str) -> ModelVersion:
        tenant, name = split_qualified(reference)
        with self._store.of_tenant(tenant).read() as uow:
            return models.resolve(uow.models, name)

    def resolve_all(self, references: Collection[str]) -> dict[str, ModelVersion]:
        """Like `resolve` for many references, in a few queries; without references that no longer exist."""
        with self._store.read() as uow:
            return models.resolve_all(uow.models, references)

    def student(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        if version.imported:
            return self._row(version, label)
        row = models.served_student(self._store, self._files, version, label)
        maps = {} if row.map_digest is None else {row.map_digest: self._map(version, row.map_digest)}

        def parse(data: memoryview) -> PackedStudent:
            return PackedStudent.from_bytes(data, maps=maps)

        student = self._read(version, f"the student of class {label!r}", str(row.digest), parse)
        return self._sized(student if student.shares_map else self._sharing_map(student))

    def get_if_local(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int] | None:
        # A row of an open head is a few pages of a local file, which are nearly always in memory.
        if not version.imported:
            return None
        with self._lock:
            head = self._heads.get(_head_key(version))
        if head is None:
            return None
        with suppress(InvalidPackage):
            row = head.labels.find(label)
            return None if row is None else self._sized(head.student(row))
        # A file is damaged: `student` fetches it again.
        return None

    def teacher(self, version: ModelVersion) -> tuple[Teacher, int]:
        if version.imported:
            # Its pages belong to the page cache of the system, which can reclaim them.
            return self._with_refetch(version, lambda: self._head(version)), _OBJECT_BYTES
        digest = version.teacher_digest
        if digest is None:
            text = (
                f"Version {version.version} of model {version.model!r} came from a bundle without teacher, or"
                " has classes that were added and that its teacher does not know."
            )
            raise NotFound(text, code="teacher_not_found")
        teacher = self._read(version, "the teacher", digest, PackedTeacher.from_bytes)
        return teacher, teacher.coef.nbytes + teacher.map.nbytes + _OBJECT_BYTES

    def encoder(self, version: ModelVersion) -> Encoder:
        digest = str(version.encoder_digest)
        with self._lock:
            encoder = self._encoders.get(digest)
        if encoder is not None:
            return encoder
        encoder = self._read(version, "the encoder", digest, Encoder.from_bytes)
        with self._lock:
            return self._encoders.setdefault(digest, encoder)

    def profile(self, version: ModelVersion, encoder: Encoder) -> InputProfile | None:
        def parse(data: memoryview) -> InputProfile:
            return InputProfile.from_bytes(data, encoder)

        try:
            return self._read(version, "the profile of inputs", str(version.profile_digest), parse)
        except Unavailable as error:
            logger.warning("inputs are counted without their bins: %s", error)
            return None

    def _row(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        def look() -> PackedStudent | NotFound:
            head = self._head(version)
            row = head.labels.find(label)
            return models.unknown_class(version, label, head.labels) if row is None else head.student(row)

        result = self._with_refetch(version, look)
        if isinstance(result, NotFound):
            raise result
        return self._sized(result)

    def _with_refetch(self, version: ModelVersion, look: Callable[[], Packed]) -> Packed:
        """The result of ``look`` in a head, whose damaged files are fetched again once."""
        try:
            return look()
        except InvalidPackage:
            with self._lock:
                self._heads.pop(_head_key(version))
            self._files.discard(str(version.teacher_digest))
            self._files.discard(str(version.class_table))
        try:
            return look()
        except InvalidPackage as error:
            raise _damaged(version, "the head") from error

    def _head(self, version: ModelVersion) -> PackedHead:
        key = _head_key(version)
        with self._lock:
            head = self._heads.get(key)
        if head is not None:
            return head
        head = models.open_head(self._store, self._files, version)
        with self._lock:
            self._heads.put(version.tenant, key, head, 1)
        return head

    def _read(
        self, version: ModelVersion, what: str, digest: str, parse: Callable[[memoryview], Packed]
    ) -> Packed:
        """Parse a package from the disk cache; a damaged file is fetched again once."""
        try:
            return self._files.with_refetch(
                lambda: parse(open_blob(self._store, self._files, digest).whole()), digest
            )
        except InvalidPackage as error:
            raise _damaged(version, what) from error

    def _map(self, version: ModelVersion, digest: str) -> PackedMap:
        """The map that packages of students name; it is in memory once for all of them."""
        with self._lock:
            shared = self._maps.get(digest)
        if shared is None:
            read = self._read(version, "the map of the students", digest, map_from_bytes)
            with self._lock:
                shared = self._maps.setdefault(digest, read)
        return shared.ready()

    def _sharing_map(self, student: PackedStudent) -> PackedStudent:
        """A student that holds its map with the object of others, so that an equal map is in memory once."""
        if isinstance(student.map, LinearBasis):
            return student
        with self._lock:
            shared = self._maps.setdefault(student.map.digest, student.map)
        shared = shared.ready()
        if shared is student.map:
            return student
        calibration = student.calibration
        if isinstance(calibration, IsotonicCalibration):
            calibration = IsotonicCalibration(calibration.knots.copy(), calibration.values.copy())
        # Copies, because a view would keep the memory of the whole package, including its map.
        return dataclasses.replace(
            student,
            map=shared,
            form=student.form.copied(),
            calibration=calibration,
        )

    @staticmethod
    def _sized(student: PackedStudent) -> tuple[PackedStudent, int]:
        return student, student.form.nbytes + _OBJECT_BYTES


def _head_key(version: ModelVersion) -> tuple[str, str, str | None]:
    return version.tenant, str(version.teacher_digest), version.class_table


def _damaged(version: ModelVersion, what: str) -> Unavailable:
    return Unavailable(
        f"Of model {version.model!r} version {version.version}, {what} is damaged in the database."
    )
