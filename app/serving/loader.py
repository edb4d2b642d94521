"""Where a server's caches are filled from: the database, by way of the cache on local disk.

All calls but `get_if_local` block, and are made away from the event loop.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from app.domain.entities import ApiKey, ModelVersion
from app.domain.errors import NotFound, Unavailable
from app.services import models
from app.services.keys import list_keys
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.errors import InvalidPackage
from core.packed import IsotonicCalibration, LinearBasis, PackedHead, PackedMap, PackedStudent, PackedTeacher

Teacher: TypeAlias = PackedTeacher | PackedHead
Packed = TypeVar("Packed")

_OBJECT_BYTES: Final = 2048
"""What a student takes besides its numbers: the objects around them."""

_MAX_HEADS: Final = 64
"""Heads kept open. A file that is mapped takes addresses and one descriptor, not memory."""


class ModelSource(Protocol):
    """Published models. Raises NotFound for what does not exist, Unavailable for what cannot be read."""

    def resolve(self, reference: str) -> ModelVersion:
        """The version that ``name``, ``name@alias`` or ``name@3`` means now."""
        ...

    def resolve_all(self, references: Iterable[str]) -> dict[str, ModelVersion]:
        """The same for many, seen at one moment; those that no longer exist are left out."""
        ...

    def student(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        """A class's student and its size in bytes, its map not counted."""
        ...

    def get_if_local(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int] | None:
        """The same where it takes microseconds: no database, no waiting. None where it would take more."""
        ...

    def teacher(self, version: ModelVersion) -> tuple[Teacher, int]:
        """The teacher and its size in bytes."""
        ...


class DatabaseSource(ModelSource):
    """`ModelSource` over the database, with the clock and the keys that the refresher asks for."""

    def __init__(self, store: Store, files: BlobCache) -> None:
        self._store = store
        self._files = files
        self._maps: WeakValueDictionary[str, PackedMap] = WeakValueDictionary()
        self._heads: OrderedDict[tuple[str, str | None], PackedHead] = OrderedDict()
        self._lock = threading.Lock()

    def revision(self) -> int:
        """Revision of the registry: the same number means that nothing cached has changed."""
        with self._store.read() as uow:
            return uow.models.revision()

    def keys(self) -> Sequence[ApiKey]:
        """All API keys as they are now."""
        return list_keys(self._store)

    def resolve(self, reference: str) -> ModelVersion:
        with self._store.read() as uow:
            return models.resolve(uow, reference)

    def resolve_all(self, references: Iterable[str]) -> dict[str, ModelVersion]:
        found: dict[str, ModelVersion] = {}
        with self._store.read() as uow:
            for reference in references:
                with suppress(NotFound):
                    found[reference] = models.resolve(uow, reference)
        return found

    def student(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        if version.imported:
            return self._row(version, label)
        digest = models.student_digest(self._store, self._files, version, label)
        data = self._read(version, f"the student of class {label!r}", digest, PackedStudent.from_bytes)
        return self._sized(self._sharing_map(data))

    def get_if_local(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int] | None:
        # A row of a head that is open is a few pages of a local file, nearly always in memory.
        head = self._heads.get(_head_key(version)) if version.imported else None
        if head is None:
            return None
        with suppress(InvalidPackage):
            row = head.labels.find(label)
            return None if row is None else self._sized(head.student(row))
        # A file is damaged: the slow way fetches it again.
        return None

    def teacher(self, version: ModelVersion) -> tuple[Teacher, int]:
        if version.imported:
            # Its pages belong to the file cache of the system, which takes them back when it needs them.
            return self._with_refetch(version, lambda: self._head(version)), _OBJECT_BYTES
        digest = version.teacher_digest
        teacher = self._read(version, "the teacher", digest, PackedTeacher.from_bytes)
        return teacher, teacher.coef.nbytes + _map_bytes(teacher.map) + _OBJECT_BYTES

    def _row(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        def look() -> PackedStudent | None:
            head = self._head(version)
            row = head.labels.find(label)
            return None if row is None else head.student(row)

        found = self._with_refetch(version, look)
        if found is None:
            raise models.unknown_class(version, label)
        return self._sized(found)

    def _with_refetch(self, version: ModelVersion, look: Callable[[], Packed]) -> Packed:
        """What is found in a head; if a file of it is damaged, in the one that is fetched instead."""
        try:
            return look()
        except InvalidPackage:
            with self._lock:
                self._heads.pop(_head_key(version), None)
            self._files.discard(version.teacher_digest)
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
                self._heads.move_to_end(key)
                return head
        head = models.open_head(self._store, self._files, version)
        with self._lock:
            self._heads[key] = head
            while len(self._heads) > _MAX_HEADS:
                self._heads.popitem(last=False)
        return head

    def _read(
        self, version: ModelVersion, what: str, digest: str, parse: Callable[[memoryview], Packed]
    ) -> Packed:
        """A package by way of the disk; a damaged file is fetched again, once."""
        try:
            return self._files.with_refetch(
                lambda: parse(open_blob(self._store, self._files, digest).whole()), digest
            )
        except InvalidPackage as error:
            raise _damaged(version, what) from error

    def _sharing_map(self, student: PackedStudent) -> PackedStudent:
        """The student on the map that others of its model have already, so that there is one of it."""
        if isinstance(student.map, LinearBasis):
            return student
        with self._lock:
            shared = self._maps.setdefault(student.map.digest, student.map)
        if shared is student.map:
            return student
        calibration = student.calibration
        if isinstance(calibration, IsotonicCalibration):
            calibration = IsotonicCalibration(calibration.knots.copy(), calibration.values.copy())
        # Copies: a view would hold on to the whole package, the map included.
        return dataclasses.replace(
            student,
            map=shared,
            form=student.form.copied(),
            calibration=calibration,
        )

    @staticmethod
    def _sized(student: PackedStudent) -> tuple[PackedStudent, int]:
        return student, student.form.nbytes + _OBJECT_BYTES


def _map_bytes(packed: PackedMap) -> int:
    return sum(array.nbytes for array in packed.arrays().values())


def _head_key(version: ModelVersion) -> tuple[str, str | None]:
    return version.teacher_digest, version.class_table


def _damaged(version: ModelVersion, what: str) -> Unavailable:
    return Unavailable(
        f"Of model {version.model!r} version {version.version}, {what} is damaged in the database."
    )
