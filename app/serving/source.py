"""Where a server's caches are filled from: blocking reads, called away from the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from app.domain.entities import ApiKey, ModelVersion
from app.domain.errors import NotFound, Unavailable
from app.services import models
from app.services.keys import list_keys
from app.store.unit_of_work import Store
from core.errors import InvalidPackage
from core.packed import PackedStudent, PackedTeacher


class ModelSource(Protocol):
    """Published models. Raises NotFound for what does not exist, Unavailable for what cannot be read."""

    def resolve(self, reference: str) -> ModelVersion:
        """The version that ``name``, ``name@alias`` or ``name@3`` means now."""
        ...

    def resolve_all(self, references: Iterable[str]) -> dict[str, ModelVersion]:
        """The same for many, seen at one moment; those that no longer exist are left out."""
        ...

    def student(self, version: ModelVersion, label: str) -> tuple[PackedStudent, int]:
        """A class's student and its size in bytes."""
        ...

    def teacher(self, version: ModelVersion) -> tuple[PackedTeacher, int]:
        """The teacher and its size in bytes."""
        ...


class DatabaseSource:
    """`ModelSource` over the database, with the clock and the keys that the refresher asks for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def clock(self) -> int:
        """Revision of the registry: the same number means that nothing cached has changed."""
        with self._store.read() as uow:
            return uow.models.clock()

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
        row, data = models.read_student(self._store, version, label)
        try:
            return PackedStudent.from_bytes(data, digest=row.digest), len(data)
        except InvalidPackage as error:
            raise _damaged(version, f"the student of class {label!r}") from error

    def teacher(self, version: ModelVersion) -> tuple[PackedTeacher, int]:
        data = models.read_teacher(self._store, version)
        try:
            return PackedTeacher.from_bytes(data, digest=version.teacher_digest), len(data)
        except InvalidPackage as error:
            raise _damaged(version, "the teacher") from error


def _damaged(version: ModelVersion, what: str) -> Unavailable:
    return Unavailable(
        f"Of model {version.model!r} version {version.version}, {what} is damaged in the database."
    )
