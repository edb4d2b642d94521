"""Makes vectors of the pictures of a job's data sets before its preparation, and keeps them.

Portions of some hundred pictures are stored one by one, so that a worker that takes over goes on with the
next one, and a second job on the same data set finds all of them. The pictures are decoded by the children of
the pool, never here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.domain.entities import Dataset, Job, Json
from app.domain.training_spec import TrainingSpec
from app.encoders.faults import PictureFault
from app.encoders.pool import EncoderPool
from app.encoders.specification import BUILT_IN, EncoderSpecification
from app.ingest.dataset_rows import StoredPart
from app.jobs.errors import SolverFailed
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.data.schema import Kind

PORTION: Final = 200
"""Pictures of a portion: some 2.6 MB of vectors, and seconds of work."""
_NAMED: Final = 10
"""Faulty pictures that the message of a failed job names."""

Report = Callable[[Json], None]


@dataclass(frozen=True, slots=True)
class _Task:
    """One column of one part of a data set, for one encoder. count: different pictures."""

    dataset: Dataset
    part: str
    number: int
    column: str
    encoder: EncoderSpecification
    count: int


class PictureEmbedding:
    """Vectors of the pictures of one job. check: raises where the job is to stop. report: takes progress."""

    def __init__(
        self,
        store: Store,
        files: BlobCache,
        pool: EncoderPool,
        check: Callable[[], None],
        report: Report,
    ) -> None:
        self._store, self._files, self._pool = store, files, pool
        self._check, self._report = check, report

    def run(self, job: Job) -> None:
        """Make the vectors that are missing.

        Raises SolverFailed that names the pictures that cannot be decoded, and what ``check`` raises.
        """
        spec = TrainingSpec.model_validate(job.spec)
        tasks = [task for dataset in self._datasets(job, spec) for task in self._tasks(dataset, spec)]
        total, done = sum(task.count for task in tasks), 0
        for task in tasks:
            with self._store.read() as uow:
                kept = uow.picture_vectors.portions(
                    task.dataset.id, task.part, task.number, task.encoder.identity
                )
            known = dict(kept)
            for first in range(0, task.count, PORTION):
                end = min(first + PORTION, task.count)
                if known.get(first) != end - first:
                    self._report({"stage": "embed", "done": done, "total": total})
                    self._embed(task, first, end)
                    self._check()
                done += end - first

    def _datasets(self, job: Job, spec: TrainingSpec) -> Iterator[Dataset]:
        with self._store.read() as uow:
            ids = dict.fromkeys([job.dataset_id, spec.evaluation.dataset_id])
            found = [uow.datasets.get(dataset_id) for dataset_id in ids if dataset_id is not None]
        for dataset in found:
            kinds = {column.get("kind") for column in dataset.summary.get("schema") or ()}
            if Kind.IMAGE in kinds:
                yield dataset

    def _tasks(self, dataset: Dataset, spec: TrainingSpec) -> Iterator[_Task]:
        said = {} if spec.inputs is None else spec.inputs.encoders
        kinds = {} if spec.inputs is None else spec.inputs.kinds
        for part in ("train", "test") if dataset.test_rows else ("train",):
            stored = self._stored(dataset, part)
            for number, column in stored.picture_columns:
                if column in kinds and kinds[column].kind is Kind.IGNORE:
                    continue
                with self._store.read() as uow:
                    references = said.get(column, tuple(BUILT_IN))
                    encoders = [uow.own_encoders.specification(reference) for reference in references]
                for encoder in encoders:
                    count = stored.picture_count(number)
                    yield _Task(dataset, part, number, column, encoder, count)

    def _stored(self, dataset: Dataset, part: str) -> StoredPart:
        digest = dataset.blob_digest
        return self._files.with_refetch(
            lambda: StoredPart(open_blob(self._store, self._files, digest).read, part), digest
        )

    def _embed(self, task: _Task, first: int, end: int) -> None:
        stored = self._stored(task.dataset, task.part)
        pictures = stored.pictures(task.number, first, end)
        vectors = self._pool.vectors(task.encoder, pictures, tenant=task.dataset.tenant, check=self._check)
        faults = [(k, one) for k, one in enumerate(vectors) if isinstance(one, PictureFault)]
        if faults:
            raise self._failed(task, stored, [(first + k, fault) for k, fault in faults])
        data = np.stack([one for one in vectors if not isinstance(one, PictureFault)]).astype("<f4")
        with self._store.begin() as uow:
            uow.picture_vectors.save(
                task.dataset.id,
                task.part,
                task.number,
                task.encoder.identity,
                first,
                len(data),
                data.tobytes(),
            )

    def _failed(
        self, task: _Task, stored: StoredPart, faults: Sequence[tuple[int, PictureFault]]
    ) -> SolverFailed:
        named = []
        for picture, fault in faults[:_NAMED]:
            rows = stored.rows_of_picture(task.number, picture)
            named.append(f"row {rows[0] if rows else picture} ({fault.code}: {fault.message})")
        more = f" and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        text = (
            f"{len(faults)} pictures of column {task.column!r:.80} of the {task.part} part cannot be encoded:"
            f" {'; '.join(named)}{more}. Rows are counted from 0. Send the data set without them."
        )
        return SolverFailed(faults[0][1].code, text)
