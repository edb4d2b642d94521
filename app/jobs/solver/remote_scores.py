"""Scores of a remote teacher for the rows of a job: reads stored batches, and requests the others.

Each batch from the server goes to the worker at once, which stores it. A solver that starts after an
interruption requests only the missing batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Json
from app.domain.origins import AllowedServers, Origin
from app.domain.remote_teacher import RemoteScores
from app.remote.addresses import Resolve, addresses_of
from app.remote.connection import RemoteConnection
from app.remote.errors import RemoteFailed, RemoteUnavailable
from app.remote.inference import RemoteModel
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from core.solvers.jit import is_sparse

STAGE: Final = "remote_scores"
_DTYPE: Final = np.dtype("<f8")


@dataclass(frozen=True, slots=True)
class RemoteScorer:
    """Scores the rows of one job.

    job_id: the job whose stored batches are read. allowed, token: from the settings. send: gives a batch to
    the worker, a header with part, first and rows, and the scores as float64, little endian. report: takes
    the fields of a progress message. resolve: by default the system's resolver.
    """

    teacher: RemoteScores
    store: Store
    job_id: str
    allowed: AllowedServers
    token: str | None
    send: Callable[[Json, bytes], None]
    report: Callable[[Json], None]
    resolve: Resolve | None = None

    def with_scores(self, data: LabelledData, part: int) -> LabelledData:
        """The data with ``teacher_scores`` (n, K) from the server, which replace existing scores.

        part: 0 for the training rows, 1 for the test rows. Raises RemoteFailed, Unavailable.
        """
        size = self.teacher.rows_of_a_request(data.d, len(self.teacher.columns or data.classes))
        scores = np.empty((data.n, data.K))
        stored = self._read_stored(scores, part, size)
        missing = [first for first in range(0, data.n, size) if first not in stored]
        if missing:
            self._ask(data, part, missing, scores)
        return replace(data, extras=replace(data.extras, teacher_scores=scores))

    def _read_stored(self, scores: NDArray[np.float64], part: int, size: int) -> set[int]:
        """Fill in the stored batches; returns the numbers of their first rows."""
        found = set()
        with self.store.read() as uow:
            for first, content in uow.remote_scores.of_part(self.job_id, part):
                rows = scores[first : first + size]
                if len(content) == rows.nbytes:
                    rows[...] = np.frombuffer(content, _DTYPE).reshape(rows.shape)
                    found.add(first)
        return found

    def _ask(self, data: LabelledData, part: int, missing: list[int], scores: NDArray[np.float64]) -> None:
        """Fill in the batches that begin with the rows ``missing``, and send each to the worker."""
        columns = self.teacher.columns or data.classes
        order = [columns.index(label) for label in data.classes]
        size = self.teacher.rows_of_a_request(data.d, len(columns))
        done = data.n - sum(min(size, data.n - first) for first in missing)

        def progress(waiting: str | None = None) -> None:
            self.report({"stage": STAGE, "done": done, "total": data.n, "part": part, "waiting": waiting})

        progress()
        connection = self._connect()
        model = RemoteModel(self.teacher, connection, len(columns), progress)
        try:
            for first in missing:
                rows = data.X[first : first + size]
                dense = rows.toarray() if is_sparse(rows) else rows
                batch = np.ascontiguousarray(model.scores(dense)[:, order], dtype=_DTYPE)
                scores[first : first + size] = batch
                self.send({"part": part, "first": first, "rows": len(batch)}, batch.tobytes())
                done += len(batch)
                progress()
        finally:
            connection.close()

    def _connect(self) -> RemoteConnection:
        origin = Origin.of(self.teacher.url)
        try:
            addresses = addresses_of(origin, self.allowed, self.resolve)
        except RemoteUnavailable as error:
            raise RemoteFailed(
                f"The remote teacher cannot be found: {error}.", code="remote_unavailable"
            ) from error
        return RemoteConnection(origin, addresses, self.teacher.timeout, self.token)
