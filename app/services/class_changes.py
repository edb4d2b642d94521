"""Use case of classes with other names, and of classes that are taken away: a version without training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from app.domain.entities import Json, ModelVersion, StudentRow
from app.domain.errors import Conflict, InputFault, InvalidRequest, NotFound, TooLarge, Unavailable
from app.services.derived_versions import Change, publish_change, trained_version
from app.services.models import LISTED_CLASSES, find_unknown_class, maps_of
from app.services.version_metrics import StudentTotals
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.repositories.students import StudentKey
from app.store.unit_of_work import Store
from core.errors import InvalidPackage
from core.packed import PackedStudent, PackedTeacher

_AUDITED: Final = 20
"""Classes that the audit record names; the provenance of the new version's job has all."""
_MAX_FAULTS: Final = 10
_MAX_BYTES: Final = 256 * 1024**2
"""Largest size of a student or a teacher; with a kernel these hold rows of the training part."""

Packed = TypeVar("Packed", PackedStudent, PackedTeacher)


def change_classes(
    store: Store,
    files: BlobCache,
    settings: Settings,
    model: str,
    base: int | str,
    *,
    rename: Mapping[str, str],
    remove: Sequence[str],
    created_by: str,
) -> ModelVersion:
    """Publish the next version of a model: ``base`` with other names of classes, and without some. No alias
    is moved.

    rename: new names by the present ones. Students, their thresholds and curves, and the teacher stay
    unchanged, except for names and removed classes.

    Raises NotFound for a class that the version does not have, InvalidRequest for a name that another class
    has, TooLarge for a version of more than 1000 classes and for packages of more than 256 MiB, and Conflict
    if no class would be left, for an imported version, and beyond the quota of versions.
    """
    version = trained_version(store, model, base, "classes")
    if version.class_count > LISTED_CLASSES:
        text = (
            f"Version {version.version} of model {model!r} has {version.class_count} classes; at most"
            f" {LISTED_CLASSES} can be changed without a training."
        )
        raise TooLarge(text, code="too_many_classes")
    _require_known(store, files, version, [*rename, *remove])
    names = _names(version.classes, rename, remove)
    rows, curves, traces = _all_rows(store, version)
    numbers = {old: new for new, old in enumerate(k for k, name in enumerate(names) if name is not None)}
    students = [
        _renamed(store, files, row, numbers[row.class_index], str(names[row.class_index]), rename)
        for row in rows
        if row.class_index in numbers
    ]
    labels = [name for name in names if name is not None]
    totals = StudentTotals(version.method)
    totals.add([row for row, _ in students])
    said: Json = {"renamed": dict(rename), "removed": list(remove)}
    change = Change(
        students=students,
        labels=labels,
        metrics=totals.metrics(),
        said=("classes_changed", said),
        kept={"class_changes": [*_earlier_changes(store, version), said]},
        audited={
            "renamed": dict(islice(rename.items(), _AUDITED)),
            "removed": list(remove[:_AUDITED]),
        },
        teacher=_teacher(store, files, version, names),
        is_whole=True,
        curves=_numbered(curves, numbers),
        traces=_numbered(traces, numbers),
    )
    return publish_change(store, settings, version, change, created_by)


def present_names(classes: Sequence[str], changes: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """The names of classes after some changes, each with ``renamed`` and ``removed``; None for removed
    classes.
    """
    names: list[str | None] = list(classes)
    for change in changes:
        renamed, removed = change["renamed"], set(change["removed"])
        names = [None if name is None or name in removed else renamed.get(name, name) for name in names]
    return names


def _earlier_changes(store: Store, version: ModelVersion) -> Sequence[Json]:
    with store.read() as uow:
        changes: Sequence[Json] = uow.jobs.get(str(version.job_id)).provenance.get("class_changes", ())
    return changes


def _require_known(store: Store, files: BlobCache, version: ModelVersion, labels: Sequence[str]) -> None:
    unknown = [one for label in labels if (one := find_unknown_class(store, files, version, label))]
    if unknown:
        faults = [InputFault("body", "class_not_found", one.message) for one in unknown[:_MAX_FAULTS]]
        raise NotFound(unknown[0].message, code="class_not_found", faults=faults)


def _names(classes: Sequence[str], rename: Mapping[str, str], remove: Sequence[str]) -> list[str | None]:
    """The new name of each class; None for one that is taken away. Raises InvalidRequest, Conflict."""
    both = next((label for label in remove if label in rename), None)
    if both is not None:
        text = f"Class {both!r:.100} has a new name and is taken away: give one of them."
        raise InvalidRequest(text, code="given_twice", faults=[InputFault("remove", "given_twice", text)])
    names = present_names(classes, [{"renamed": rename, "removed": remove}])
    left = [name for name in names if name is not None]
    if not left:
        raise Conflict(
            "A version needs a class: this would take away all that there are.", code="last_classes"
        )
    taken = next((name for name in rename.values() if left.count(name) > 1), None)
    if taken is not None:
        text = f"Two classes would have the name {taken!r:.100}."
        raise InvalidRequest(text, code="class_exists", faults=[InputFault("rename", "class_exists", text)])
    return names


def _all_rows(
    store: Store, version: ModelVersion
) -> tuple[Sequence[StudentRow], dict[StudentKey, bytes], dict[StudentKey, bytes]]:
    """All students of a version with their curves and searches."""
    job_id = str(version.job_id)
    rows: list[StudentRow] = []
    with store.read() as uow:
        has_more, last = True, -1
        while has_more:
            page, has_more = uow.students.page(job_id, after=last, limit=LISTED_CLASSES)
            rows += page
            last = page[-1].class_index if page else last
        return rows, uow.students.all_curves(job_id), uow.students.all_traces(job_id)


def _renamed(
    store: Store,
    files: BlobCache,
    row: StudentRow,
    number: int,
    label: str,
    rename: Mapping[str, str],
) -> tuple[StudentRow, bytes | None]:
    """The row of a student under another number and name, and its package if that has the name."""
    packed = None
    if label != row.label and row.digest is not None:
        maps = maps_of(store, files, row.map_digest)
        student = _parsed(store, files, row.digest, lambda data: PackedStudent.from_bytes(data, maps=maps))
        packed = dataclasses.replace(student, label=label).to_bytes()
    metrics = row.metrics
    if "yes_by_class" in metrics:
        answers = metrics["yes_by_class"]
        named = [one | {"label": rename.get(one["label"], one["label"])} for one in answers["classes"]]
        metrics = metrics | {"yes_by_class": answers | {"classes": named}}
    return dataclasses.replace(row, class_index=number, label=label, metrics=metrics), packed


def _numbered(stored: Mapping[StudentKey, bytes], numbers: Mapping[int, int]) -> dict[StudentKey, bytes]:
    return {(numbers[index], method): one for (index, method), one in stored.items() if index in numbers}


def _teacher(
    store: Store, files: BlobCache, version: ModelVersion, names: Sequence[str | None]
) -> bytes | None:
    """The teacher with these classes as a package; None for a version without teacher."""
    if version.teacher_digest is None:
        return None
    teacher = _parsed(store, files, version.teacher_digest, PackedTeacher.from_bytes)
    kept = [number for number, name in enumerate(names) if name is not None]
    return dataclasses.replace(
        teacher,
        coef=teacher.coef[kept],
        intercept=teacher.intercept[kept],
        classes=tuple(name for name in names if name is not None),
    ).to_bytes()


def _parsed(store: Store, files: BlobCache, digest: str, parse: Callable[[memoryview], Packed]) -> Packed:
    """A package of a version. Raises TooLarge beyond `_MAX_BYTES`, Unavailable."""

    def read() -> Packed:
        data = open_blob(store, files, digest).whole()
        if len(data) > _MAX_BYTES:
            text = (
                f"A package of the version is {len(data)} bytes; those of at most {_MAX_BYTES} are changed."
            )
            raise TooLarge(text, code="package_too_large")
        return parse(data)

    try:
        return files.with_refetch(read, digest)
    except InvalidPackage as error:
        raise Unavailable("A package of the version is damaged.", code="blob_damaged") from error
