"""Models with known weights, published without training, for tests and measurements of serving."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from app.domain.entities import Job, JobState, Json, ModelVersion, StudentRow, StudentState, new_id
from app.services import models
from app.store.unit_of_work import Store
from core.packed import LinearBasis, LinearForm, PackedStudent, PackedTeacher
from core.packed.encoder import Encoder
from core.packed.input_profile import InputProfile


def linear_student(
    label: str, coef: ArrayLike, intercept: float = 0.0, *, threshold: float = 0.0
) -> PackedStudent:
    """score(x) = coef·x + intercept, coef (d,)."""
    weights = np.asarray(coef, dtype=np.float64)
    return PackedStudent(
        map=LinearBasis(len(weights)),
        form=LinearForm(weights, intercept, np.zeros(len(weights)), 0.0),
        threshold=threshold,
        label=label,
    )


def linear_teacher(classes: Sequence[str], coef: ArrayLike) -> PackedTeacher:
    """S(x) = coef x, coef (K, d)."""
    weights = np.asarray(coef, dtype=np.float64)
    return PackedTeacher(LinearBasis(weights.shape[1]), weights, np.zeros(len(weights)), tuple(classes))


def publish(
    store: Store,
    model: str,
    students: Mapping[str, PackedStudent],
    teacher: PackedTeacher,
    *,
    alias: str | None = "latest",
    inputs: Json | None = None,
    encoder: Encoder | None = None,
    profile: InputProfile | None = None,
    seen: bytes | None = None,
    measured: Mapping[str, Json] | None = None,
) -> ModelVersion:
    """Publish the students as the next version of ``model``, as a training job would at its end.

    inputs: what it keeps of its columns, see `Dataset.inputs`. encoder, profile: if it takes records.
    seen: the numbers of its training rows, `core.data.row_identity.identity_bytes`; None as of old jobs.
    measured: metrics of students by class.
    """
    job = Job(
        id=new_id("job"),
        dataset_id=new_id("ds"),
        model=model,
        spec={"student": {"method": "svm"}},
        state=JobState.SUCCEEDED,
        attempt=0,
        stage="finished",
        progress_done=len(students) + 1,
        progress_total=len(students) + 1,
        created_at=time.time(),
        created_by="benchmark",
        tenant=store.tenant,
    )
    job = dataclasses.replace(job, alias_revision=models.alias_revision(store, model, alias))
    with store.begin() as uow:
        rows_digest = None if seen is None else uow.blobs.put([seen])[0]
        job = dataclasses.replace(job, rows_digest=rows_digest)
        uow.jobs.add(job)
        rows = []
        for number, (label, student) in enumerate(students.items()):
            digest, _ = uow.blobs.put([student.to_bytes()])
            row = StudentRow(job.id, number, label, "svm", StudentState.SUCCEEDED, digest=digest)
            metrics = dict((measured or {}).get(label, {}))
            row = dataclasses.replace(row, metrics=metrics)
            if student.shares_map:
                row = dataclasses.replace(row, map_digest=uow.blobs.put([student.map.to_bytes()])[0])
            rows.append(row)
        uow.students.save_all(rows)
        teacher_digest, _ = uow.blobs.put([teacher.to_bytes()])
        return models.publish(
            uow,
            job,
            dataset_digest="0" * 64,
            method="svm",
            classes=list(students),
            columns=teacher.map.n_columns,
            teacher_digest=teacher_digest,
            metrics={"inputs": inputs} if inputs else {},
            encoder_digest=None if encoder is None else uow.blobs.put([encoder.to_bytes()])[0],
            profile_digest=None if profile is None else uow.blobs.put([profile.to_bytes()])[0],
            alias=alias,
        )


def publish_linear(
    store: Store, model: str, weights: ArrayLike, labels: Sequence[str] = (), **options: Any
) -> ModelVersion:
    """Publish a model whose class k has the score ``weights[k]``·x, weights (K, d), with threshold 0.

    labels: of the classes; by default their numbers. options: of `publish`.
    """
    rows = np.asarray(weights, dtype=np.float64)
    names = labels or [str(k) for k in range(len(rows))]
    students = {label: linear_student(label, row) for label, row in zip(names, rows, strict=True)}
    return publish(store, model, students, linear_teacher(names, rows), **options)
