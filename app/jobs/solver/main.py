"""The solver process: ``python -m app.jobs.solver.main <pid of the worker> <niceness> <now|later>``.

It reads commands from standard input and answers on standard output, as framed by `app.jobs.solver.messages`:

open {database_url, dataset_id, spec, threads, log_level, …} → opened {threads}
prepare {targets}            → progress…, prepared {summary, seconds, metrics, parcels} + [preparation, packed
                               teacher], empty where `parcels` names a file of the cache instead
restore {preparation_digest} → progress…, restored
train {pairs}                → started, progress…, student {…} + [packed, trace if it was searched for]
                               or student_failed {…}…, trained

Any of them may be answered by failed {code, message, passing}, passing being whether waiting may cure it. It
reads the database and never writes to it; killing it at any moment loses nothing but the work since its last
answer.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from app.domain.entities import Json
from app.domain.errors import ServiceError, Unavailable
from app.domain.training_spec import TrainingSpec
from app.jobs.solver.messages import Frame, read_frame, write_frame
from app.logs import mask_logs
from app.processes.os_process import deprioritise, die_with_parent

if TYPE_CHECKING:
    from app.jobs.solver.session import Shared, Workbench
    from app.store.unit_of_work import Store
    from core.data.dataset import LabelledData
    from core.types import Progress

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.25
_LASTING = frozenset({"blob_damaged", "database_damaged", "schema_outdated"})
"""Codes of what is unavailable and will be so for as long as nobody repairs it."""


class Answers:
    """The way back to the worker; safe to use from several threads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._told_at: dict[str, float] = {}

    def send(self, kind: str, header: Json | None = None, *blobs: bytes) -> None:
        with self._lock:
            write_frame(self._stream, {"type": kind, **(header or {})}, blobs)

    def progress(self, step: Progress, **about: str) -> None:
        """Tell a new stage at once, and of each at most four times a second; the gap relative."""
        now = time.monotonic()
        if now - self._told_at.get(step.stage, -_PROGRESS_SECONDS) < _PROGRESS_SECONDS:
            return
        self._told_at[step.stage] = now
        gap = None
        if step.gap is not None and step.objective is not None:
            gap = step.gap / max(abs(step.objective), 1e-12)
        report = {"stage": step.stage, "done": step.done, "total": step.total}
        self.send("progress", {**report, "objective": step.objective, "gap": gap, **about})


class SolverChild:
    """The commands of one job."""

    def __init__(self, answers: Answers, order: Json) -> None:
        from joblib import cpu_count

        from app.store.blob_cache import BlobCache
        from app.store.engine import open_engine
        from app.store.unit_of_work import Store

        self._answers = answers
        self._store: Store = Store(open_engine(order["database_url"], pool_size=1))
        self._files = BlobCache(Path(order["cache_dir"]), order["cache_disk_bytes"])
        self._spec = TrainingSpec.model_validate(order["spec"])
        self._dataset_id: str = order["dataset_id"]
        self._threads: int = order["threads"] or cpu_count()
        self._bench: Workbench | None = None
        answers.send("opened", {"threads": self._threads})

    def prepare(self, command: Json) -> None:
        from app.jobs.solver.session import Workbench, load_head
        from app.jobs.solver.transfer import Parcel

        parts = self._parts()
        head = load_head(self._store, self._files, self._spec, parts[0])
        bench = Workbench.prepared(parts, self._spec, self._threads, self._answers.progress, head)
        report = bench.teacher_report(command["targets"]) | {"threads": self._threads}
        # One after the other: what went to a file leaves the memory before the next is made.
        parcels = [Parcel.pack(self._files, bench.preparation.to_bytes())]
        parcels.append(Parcel.pack(self._files, bench.preparation.packed_teacher().to_bytes()))
        self._bench = bench
        labels = {"parcels": [parcel.label for parcel in parcels]}
        self._answers.send("prepared", report | labels, *(parcel.data or b"" for parcel in parcels))

    def restore(self, command: Json) -> None:
        from app.jobs.solver.session import Workbench
        from app.store.blob_cache import open_blob

        digest = command["preparation_digest"]
        stored = self._files.with_refetch(lambda: open_blob(self._store, self._files, digest).whole(), digest)
        self._bench = Workbench.restored(stored, self._parts(), self._spec, self._answers.progress)
        self._answers.send("restored")

    def train(self, command: Json) -> None:
        from core.solvers.threads import one_blas_thread

        bench = self._bench
        if bench is None:
            raise RuntimeError("train came before prepare or restore")
        pairs: list[tuple[int, str]] = [(pair[0], pair[1]) for pair in command["pairs"]]
        # The limit must span the pool: set and lifted by the students' own threads it does not hold, and BLAS
        # threads that wait by spinning then slow every student down many times over.
        with one_blas_thread(), ThreadPoolExecutor(self._threads, thread_name_prefix="student") as pool:
            for batch in bench.batches(pairs):
                self._train_batch(pool, bench, batch)
        self._answers.send("trained")

    def _train_batch(self, pool: ThreadPoolExecutor, bench: Workbench, batch: list[tuple[int, str]]) -> None:
        shared = bench.shared(batch, self._threads, self._answers.progress)
        for done in [pool.submit(self._train_one, bench, shared, target, method) for target, method in batch]:
            done.result()

    def _train_one(self, bench: Workbench, shared: Shared, target: int, method: str) -> None:
        label = bench.preparation.classes[target]
        who: Json = {"class_index": target, "method": method, "label": label}
        self._answers.send("started", who)

        def progress(step: Progress) -> None:
            self._answers.progress(step, label=label, method=method)

        try:
            made = bench.student(target, method, shared, progress)
        except Exception as error:  # noqa: BLE001 - one class that fails must not take the others with it
            self._answers.send("student_failed", who | failure(error))
        else:
            traces = () if made.trace is None else (made.trace,)
            self._answers.send("student", who | made.row, made.packed, *traces)

    def _parts(self) -> tuple[LabelledData, LabelledData | None]:
        from app.jobs.solver.session import load_parts
        from core.types import Progress

        self._answers.progress(Progress("data", 0, 1))
        return load_parts(self._store, self._files, self._dataset_id, self._spec)


def failure(error: Exception) -> Json:
    """Code and message of an error as a user may read them; the log has an unexpected one's traceback."""
    from core.errors import InvalidProblem

    if isinstance(error, InvalidProblem):
        return {"code": error.faults[0].code, "message": str(error)}
    if isinstance(error, ServiceError):
        return {"code": error.reason, "message": error.message}
    logger.error("the solver failed", exc_info=error)
    if isinstance(error, MemoryError):
        return {"code": "out_of_memory", "message": "There is not enough memory for this job."}
    message = f"Unexpected {type(error).__name__} in the solver; the worker's log has the details."
    return {"code": "internal_error", "message": message}


def serve(commands: BinaryIO, answers: Answers) -> None:
    """Answer commands until the stream ends."""
    child: SolverChild | None = None
    while (frame := read_frame(commands)) is not None:
        try:
            if frame.type == "open":
                logging.basicConfig(
                    level=frame.header["log_level"], format="%(levelname)s %(name)s: %(message)s"
                )
                mask_logs()
                child = SolverChild(answers, frame.header)
            else:
                _obey(child, frame)
        except Exception as error:  # noqa: BLE001 - told to the worker, which decides
            passing = isinstance(error, Unavailable) and error.reason not in _LASTING
            answers.send("failed", failure(error) | {"passing": passing})


def _obey(child: SolverChild | None, frame: Frame) -> None:
    if child is None:
        raise RuntimeError(f"{frame.type} came before open")
    commands = {"prepare": child.prepare, "restore": child.restore, "train": child.train}
    commands[frame.type](frame.header)


def get_ready() -> None:
    """Load all that any job needs, down to the compiled kernels, by doing a tiny one."""
    import numpy as np

    from app.jobs.solver.session import Workbench
    from core.data.dataset import LabelledData

    X = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.9], [0.9, 0.0]])
    data = LabelledData.from_arrays(X, np.array(["a", "b", "a", "b"]))
    bench = Workbench.prepared((data, data), TrainingSpec(), 1, lambda _progress: None)
    bench.student(0, "gsvm", bench.shared([(0, "gsvm")], 1, lambda _progress: None), lambda _progress: None)


def main() -> int:
    """Tie the process to its worker, keep standard output to itself, and serve.

    A solver that is wanted now first loads what it needs and then lowers its priority, a spare one lowers it
    first: nobody waits for it, and it says when it is ready.
    """
    parent, niceness, when = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    die_with_parent(parent)
    commands = os.fdopen(os.dup(0), "rb")
    answers = Answers(os.fdopen(os.dup(1), "wb"))
    # Whatever a library prints must not get between the frames.
    os.dup2(2, 1)
    if when == "later":
        deprioritise(niceness)
        get_ready()
        answers.send("ready")
    else:
        import app.jobs.solver.session  # noqa: F401 - loaded at the priority of a job that waits

        deprioritise(niceness)
    serve(commands, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
