"""Adds a class to a version: trains its student in closed form, and finds others that accept its rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.sparse as sp

from app.domain.entities import Json
from app.services.class_additions import unpack_examples
from app.services.models import open_packed
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from core.monitoring.addition import AddedClass, AdditionBase, add_class, conflicts
from core.packed.maps import PackedMap
from core.run import Run
from core.types import Matrix

_LISTED: Final = 100
"""Largest number of classes in a report whose students accept the examples."""


@dataclass(frozen=True, slots=True)
class AddedStudent:
    """The student of an added class. row: its numbers, JSON-ready. base: a package, if it was made.

    report: results of leave-one-out scores, and the other students that accept its examples.
    """

    row: Json
    report: Json
    packed: bytes
    base: bytes | None


def add_student(
    store: Store,
    files: BlobCache,
    train: LabelledData,
    names: Sequence[str | None],
    examples: Matrix,
    *,
    label: str,
    budget: float,
    confidence: float | None,
    base_digest: str | None,
    students: Sequence[tuple[str, str, str | None]] | None,
    seed: int,
    run: Run,
) -> AddedStudent:
    """Train the student of a class on its examples and the training rows of the others.

    train: training rows of the version. names: present names of its classes, None for removed classes, whose
    rows are left out. examples: (q, d), dense or sparse like the rows. base_digest: of the stored base, None
    to make it. students: label, digest and digest of the map of the other students; None to skip the
    comparison.

    Raises InvalidProblem for unusable rows, NotFound, Unavailable, InvalidPackage, Cancelled.
    """
    started = time.perf_counter()
    known = np.flatnonzero([code >= 0 and names[code] is not None for code in train.y.tolist()])
    X = train.X if len(known) == train.n else train.X[known]
    made = None
    if base_digest is None:
        base = AdditionBase.fit(X, train.layout, seed, run)
        made = base.to_bytes()
    else:
        digest = base_digest
        base = files.with_refetch(
            lambda: AdditionBase.from_bytes(open_blob(store, files, digest).whole()), digest
        )
    added = add_class(
        base, X, label, examples, classes=train.y[known], budget=budget, confidence=confidence, run=run
    )
    seconds = time.perf_counter() - started
    student = added.student
    row: Json = {
        "threshold": student.threshold,
        "seconds": seconds,
        "metrics": {
            "threshold_rule": "fpr",
            "calibration": "sigmoid",
            "false_positives": added.promise.as_dict(),
        },
    }
    report = _held_out(added) | {"seconds": seconds}
    if students is None:
        report["conflicts"] = None
    else:
        report |= _conflicts(store, files, students, examples)
    return AddedStudent(row, report, student.to_bytes(), made)


def stored_examples(store: Store, files: BlobCache, digest: str, like: Matrix) -> Matrix:
    """The examples that a request sent, (q, d), dense or sparse like the rows ``like``."""
    table = files.with_refetch(lambda: unpack_examples(open_blob(store, files, digest).whole()), digest)
    return sp.csr_array(table) if sp.issparse(like) else table


def _held_out(added: AddedClass) -> Json:
    return {**added.as_dict(), "threshold": added.student.threshold}


def _conflicts(
    store: Store, files: BlobCache, students: Sequence[tuple[str, str, str | None]], examples: Matrix
) -> Json:
    """Students that accept more examples than chance explains, those that accept most first."""
    found: list[Json] = []
    maps: dict[str, PackedMap] = {}
    for label, digest, map_digest in students:
        student = open_packed(store, files, digest, map_digest, maps)
        for name, accepts in conflicts({label: student}, examples).items():
            found.append({"class": name, "accepts": accepts, "of": examples.shape[0]})
    found.sort(key=lambda one: -one["accepts"])
    return {"conflicts": found[:_LISTED], "conflicting": len(found)}
