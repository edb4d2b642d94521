"""The solver process: ``python -m app.jobs.solver <pid of the worker> <niceness> <now|later>``.

It reads commands from standard input and answers on standard output, in the messages of
`app.jobs.solver.messages`:

open {database_url, dataset_id, spec, threads, log_level, …} → opened {threads}
label {}                     → progress…, labelled {report, transfer} + [labels], of a job with a labelling
prepare {targets}            → progress…, prepared {summary, seconds, metrics, transfers} + what `transfers`
                               names, in its order: preparation, packed teacher, numbers of the
                               training rows, and as far as there are any encoder of records, profile of their
                               columns, suspects; empty where it names a file of the cache instead
add {label, examples_digest or dataset_id, base_digest, budget, confidence, students, class_changes}
                             → progress…, added {row, report, transfers} + [packed student, base of all
                               classes that are added, if it was made now]
restore {preparation_digest} → progress…, restored
either of these two          → scored {part, first, rows} + [scores], for each batch of a remote teacher
evaluate {evaluation_id}     → progress…, evaluated {result}
train {students}             → started, progress…, student {…} + [packed, the map that it names, trace of its
                               search], both empty where there is none, or student_failed {…}…, trained

With {stage, starves} a progress says that the solver waits for the processor, or no longer does.
Any of them may be answered by failed {code, message, retryable}; waiting may cure a retryable failure. The
process reads the database and never writes to it. Killing it at any moment loses only the work since its last
answer.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from app.domain.entities import Json
from app.domain.errors import ServiceError, Unavailable
from app.domain.log_context import work_on
from app.domain.origins import AllowedServers
from app.domain.remote_teacher import RemoteScores
from app.domain.training_spec import TrainingSpec
from app.jobs.solver.messages import (
    METRICS_PER_MESSAGE,
    Message,
    SolverSettings,
    StudentKey,
    read_message,
    write_message,
)
from app.jobs.solver.processor_share import ProcessorShare
from app.jobs.solver.scikit_learn import import_scikit_learn
from app.logs import mask_logs
from app.plugins import load_plugins
from app.processes.os_process import deprioritise, limit_memory

if TYPE_CHECKING:
    from app.jobs.solver.addition import AddedStudent
    from app.jobs.solver.job_data import JobData
    from app.jobs.solver.remote_scores import RemoteScorer
    from app.jobs.solver.session import BatchContext, SuspectRows, TrainingSession
    from app.store.unit_of_work import Store
    from core.labelling.base import Labelling
    from core.packed.encoder import Encoder
    from core.run import Run
    from core.types import Progress

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS: Final = 0.25
_PERMANENT: Final = frozenset({"blob_damaged", "database_damaged", "schema_outdated"})
"""Codes of Unavailable that do not pass by waiting, because an operator must act."""


class Answers:
    """The stream of answers to the worker. It is thread-safe."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._sent_at: dict[str, float] = {}
        self._stage = ""
        self._starves = False

    def send(self, kind: str, header: Json | None = None, *blobs: bytes) -> None:
        with self._lock:
            write_message(self._stream, {"type": kind, **(header or {})}, blobs)

    def processor(self, starves: bool) -> None:
        """Report whether the solver waits for the processor. A spare reports it with its first progress."""
        self._starves = starves
        if self._stage:
            self.send("progress", {"stage": self._stage, "starves": starves})

    def progress(self, step: Progress, **about: str) -> None:
        """Report progress, at most four times a second for each stage. The gap is sent as a relative gap."""
        now = time.monotonic()
        is_first, self._stage = not self._stage, step.stage
        if is_first and self._starves:
            self.processor(True)
        if now - self._sent_at.get(step.stage, -_PROGRESS_SECONDS) < _PROGRESS_SECONDS:
            return
        self._sent_at[step.stage] = now
        gap = None
        if step.gap is not None and step.objective is not None:
            gap = step.gap / max(abs(step.objective), 1e-12)
        report: Json = {"stage": step.stage, "done": step.done, "total": step.total}
        report |= {"objective": step.objective, "gap": gap, "expected_seconds": step.expected_seconds}
        self.send("progress", {**report, **about})


class CommandHandler:
    """Carries out the commands of one job."""

    def __init__(self, answers: Answers, settings: SolverSettings) -> None:
        from joblib import cpu_count

        from app.store.blob_cache import BlobCache
        from app.store.engine import open_engine
        from app.store.unit_of_work import Store

        self._answers = answers
        engine = open_engine(settings.database_url, pool_size=1)
        objects = None
        if settings.objects is not None:
            from app.store.opening import open_objects

            objects = open_objects(settings.objects)
        self._store: Store = Store(engine, settings.tenant, objects)
        self._files = BlobCache(
            Path(settings.cache_dir), settings.cache_disk_bytes, bytes.fromhex(settings.cache_key)
        )
        self._spec = TrainingSpec.model_validate(settings.spec)
        self._dataset_id, self._job_id = settings.dataset_id, settings.job_id
        self._threads: int = settings.threads or cpu_count()
        self._settings = settings
        self._session: TrainingSession | None = None
        self._report: Json | None = None
        self._labels: Labelling | None = None
        self._identities = b""
        self._suspects: SuspectRows | None = None
        self._added: AddedStudent | None = None
        if settings.memory_bytes:
            limit_memory(settings.memory_bytes)
        answers.send("opened", {"threads": self._threads})

    def label(self, _command: Json) -> None:
        """Label rows. If the command is repeated after the disk was full, only the writing is repeated."""
        from app.jobs.solver.job_data import label_rows
        from app.jobs.solver.transfer import Transfer

        if self._labels is None:
            import_scikit_learn()
            self._labels = label_rows(
                self._store,
                self._files,
                self._dataset_id,
                self._spec,
                self._threads,
                self._answers.progress,
            )
        transfer = Transfer.of(self._files, self._labels.to_bytes())
        header = {"report": self._labels.report(), "transfer": transfer.header}
        self._answers.send("labelled", header, transfer.data or b"")

    def prepare(self, command: Json) -> None:
        """Prepare the job.

        If the command is repeated after the disk was full, only the writing is repeated.
        """
        from app.jobs.solver.job_data import load_head
        from app.jobs.solver.session import TrainingSession
        from app.jobs.solver.transfer import Transfer

        session, report = self._session, self._report
        if session is None or report is None:
            rows = self._rows(identify=True)
            self._identities = rows.identities
            head = load_head(self._store, self._files, self._spec, rows.train)
            session = TrainingSession.prepared(rows, self._spec, self._run(), head)
            report = session.teacher_report(command["targets"]) | {"threads": self._threads}
            if rows.test_part is not None:
                report["test_part"] = rows.test_part._asdict()
            if rows.encoders:
                report["encoders"] = [choice.as_dict() for choice in rows.encoders]
            if rows.left_out:
                report["test_rows_left_out"] = rows.left_out
            if shared := rows.test_rows_in_training:
                report["test_rows_in_training"] = shared
            self._suspects = self._find_suspects(session)
            if self._suspects is not None:
                report["suspects"] = self._suspects.report()
            self._session, self._report = session, report
        # In this order, content that is moved to a file leaves the memory before the next is packed.
        transfers = {"preparation": Transfer.of(self._files, session.preparation.to_bytes())}
        transfers["teacher"] = Transfer.of(self._files, session.preparation.packed_teacher().to_bytes())
        transfers["rows"] = Transfer.of(self._files, self._identities)
        suspects = None if self._suspects is None else self._suspects.found
        others = (("encoder", session.encoder), ("profile", session.profile), ("suspects", suspects))
        for name, made in others:
            if made is not None:
                transfers[name] = Transfer.of(self._files, made.to_bytes())
        metrics = report["metrics"]
        for at in range(METRICS_PER_MESSAGE, len(metrics), METRICS_PER_MESSAGE):
            self._answers.send("measured", {"metrics": metrics[at : at + METRICS_PER_MESSAGE]})
        headers: Json = {"transfers": {name: transfer.header for name, transfer in transfers.items()}}
        headers["metrics"] = metrics[:METRICS_PER_MESSAGE]
        blobs = (transfer.data or b"" for transfer in transfers.values())
        self._answers.send("prepared", report | headers, *blobs)

    def _find_suspects(self, session: TrainingSession) -> SuspectRows | None:
        """Rows with suspect labels; None unless the job wants them and has the scores to find them."""
        limit = self._spec.suspects.limit
        if not limit:
            return None
        with self._store.read() as uow:
            dataset = uow.datasets.get(self._dataset_id)
        return session.suspects(limit, dataset.confirmed_rows)

    def add(self, command: Json) -> None:
        """Add a class. If the command is repeated after the disk was full, only the writing is repeated."""
        from app.jobs.solver.addition import add_student, stored_examples
        from app.jobs.solver.job_data import load_examples, load_training_rows
        from app.jobs.solver.transfer import Transfer
        from app.services.class_changes import present_names
        from core.types import Progress

        if self._added is None:
            self._answers.progress(Progress("data", 0, 1))
            encoder = self._encoder()
            train = load_training_rows(
                self._store, self._files, self._dataset_id, self._spec, self._stored_labels(), encoder
            )
            if command["examples_digest"] is not None:
                examples = stored_examples(self._store, self._files, command["examples_digest"], train.X)
            else:
                examples = load_examples(
                    self._store, self._files, command["dataset_id"], self._spec, train, encoder
                )
            self._added = add_student(
                self._store,
                self._files,
                train,
                present_names(train.classes, command["class_changes"]),
                examples,
                label=command["label"],
                budget=command["budget"],
                confidence=command["confidence"],
                base_digest=command["base_digest"],
                students=command["students"],
                seed=self._spec.seed,
                run=self._run(),
            )
        added = self._added
        transfers = {"student": Transfer.of(self._files, added.packed)}
        if added.base is not None:
            transfers["base"] = Transfer.of(self._files, added.base)
        header = {"row": added.row, "report": added.report}
        header["transfers"] = {name: transfer.header for name, transfer in transfers.items()}
        self._answers.send("added", header, *(transfer.data or b"" for transfer in transfers.values()))

    def restore(self, command: Json) -> None:
        from app.jobs.solver.session import TrainingSession
        from app.store.blob_cache import open_blob

        digest = command["preparation_digest"]
        stored = self._files.with_refetch(lambda: open_blob(self._store, self._files, digest).whole(), digest)
        self._session = TrainingSession.restored(stored, self._rows(), self._spec, self._answers.progress)
        self._answers.send("restored")

    def evaluate(self, command: Json) -> None:
        from app.jobs.solver.evaluation import evaluate

        result = evaluate(self._store, self._files, command["evaluation_id"], self._answers.progress)
        self._answers.send("evaluated", {"result": result})

    def train(self, command: Json) -> None:
        from core.solvers.threads import one_blas_thread

        session = self._session
        if session is None:
            raise RuntimeError("train came before prepare or restore")
        keys: list[StudentKey] = [(key[0], key[1]) for key in command["students"]]
        # The limit must include the whole pool. If each student's thread set and lifted it, it would have no
        # effect, and BLAS threads that wait by spinning would slow every student down many times over.
        with one_blas_thread(), ThreadPoolExecutor(self._threads, thread_name_prefix="student") as pool:
            for batch in session.batches(keys):
                self._train_batch(pool, session, batch)
        self._answers.send("trained")

    def _train_batch(
        self, pool: ThreadPoolExecutor, session: TrainingSession, batch: list[StudentKey]
    ) -> None:
        context = session.context(batch, self._threads, self._answers.progress)
        for future in [pool.submit(self._train_student, session, context, key) for key in batch]:
            future.result()

    def _train_student(self, session: TrainingSession, context: BatchContext, key: StudentKey) -> None:
        target, method = key
        label = session.preparation.classes[target]
        student: Json = {"class_index": target, "method": method, "label": label}
        self._answers.send("started", student)

        def progress(step: Progress) -> None:
            self._answers.progress(step, label=label, method=method)

        try:
            artifact = session.student(target, method, context, progress)
        except Exception as error:  # noqa: BLE001 - a class that fails must not take the others with it
            self._answers.send("student_failed", student | failure(error))
        else:
            parts = artifact.packed, artifact.map or b"", artifact.trace or b""
            self._answers.send("student", student | artifact.row, *parts)

    def _run(self) -> Run:
        """The run of a preparation, which resumes what an interrupted one has stored in the cache folder."""
        from core.run import Run, Scratch

        scratch = Scratch(Path(self._settings.cache_dir), bytes.fromhex(self._settings.cache_key))
        return Run(n_threads=self._threads, progress=self._answers.progress, scratch=scratch)

    def _rows(self, *, identify: bool = False) -> JobData:
        from app.jobs.solver.job_data import load_job_data
        from core.types import Progress

        self._answers.progress(Progress("data", 0, 1))
        labels = self._stored_labels()
        teacher = self._spec.teacher.spec
        score = self._scorer(teacher).with_scores if isinstance(teacher, RemoteScores) else None
        rows = load_job_data(
            self._store,
            self._files,
            self._dataset_id,
            self._spec,
            labels,
            score,
            self._encoder(),
            identify=identify,
            run=self._run().with_seed(self._spec.seed),
        )
        import_scikit_learn()
        return rows

    def _stored_labels(self) -> Labelling | None:
        """The labels that the job's labelling found; None without a labelling."""
        if self._spec.labelling is None:
            return None
        from app.services.labels import load_labels

        return load_labels(self._store, self._files, self._job_id)[0]

    def _encoder(self) -> Encoder | None:
        """The encoder that the job has stored; None if it has none, or not yet."""
        from app.store.blob_cache import open_blob
        from core.packed.encoder import Encoder

        digest = self._settings.encoder_digest
        if not digest:
            return None
        return self._files.with_refetch(
            lambda: Encoder.from_bytes(open_blob(self._store, self._files, digest).whole()), digest
        )

    def _scorer(self, teacher: RemoteScores) -> RemoteScorer:
        from app.jobs.solver.remote_scores import RemoteScorer

        return RemoteScorer(
            teacher,
            self._store,
            self._settings.job_id,
            AllowedServers.of(self._settings.remote_teachers),
            self._settings.remote_token or None,
            send=lambda header, data: self._answers.send("scored", header, data),
            report=lambda header: self._answers.send("progress", header),
        )


def failure(error: Exception) -> Json:
    """Code and message of an error for the job's user. Tracebacks of unexpected errors are logged."""
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


def serve(commands: BinaryIO, answers: Answers, job_begins: Callable[[], None] = lambda: None) -> None:
    """Carry out commands until the stream ends. job_begins: called before the first one."""
    handler: CommandHandler | None = None
    while (message := read_message(commands)) is not None:
        try:
            if message.type == "open":
                job_begins()
                settings = msgspec.convert(message.header, SolverSettings)
                logging.basicConfig(level=settings.log_level, format="%(levelname)s %(name)s: %(message)s")
                mask_logs(settings.log_format)
                work_on(settings.job_id)
                handler = CommandHandler(answers, settings)
            else:
                _dispatch(handler, message)
        except Exception as error:  # noqa: BLE001 - reported to the worker, which decides
            retryable = isinstance(error, Unavailable) and error.reason not in _PERMANENT
            answers.send("failed", failure(error) | {"retryable": retryable})


def _dispatch(handler: CommandHandler | None, message: Message) -> None:
    if handler is None:
        raise RuntimeError(f"{message.type} came before open")
    commands = {
        "add": handler.add,
        "evaluate": handler.evaluate,
        "label": handler.label,
        "prepare": handler.prepare,
        "restore": handler.restore,
        "train": handler.train,
    }
    commands[message.type](message.header)


def load_session() -> None:
    """Import what every job needs first: the code that reads its rows and compares maps of features."""
    import scipy.linalg
    import scipy.sparse.linalg
    import scipy.spatial.distance  # noqa: F401

    import app.jobs.solver.job_data
    import app.jobs.solver.session  # noqa: F401


class WarmUp(threading.Thread):
    """Loads what jobs need later, during the first steps of a job: scikit-learn, and the compiled kernels.

    It does so by training on four rows, unless a job has arrived meanwhile. ready: called at the end.
    """

    def __init__(self, ready: Callable[[], None]) -> None:
        super().__init__(name="warm-up", daemon=True)
        self._ready = ready
        self._has_job = threading.Event()

    def job_begins(self) -> None:
        """Skip what the job loads itself."""
        self._has_job.set()

    def run(self) -> None:
        """Load everything. If a library cannot be loaded, the job that needs it reports the error."""
        try:
            import_scikit_learn()
            if not self._has_job.is_set():
                train_on_four_rows()
        except Exception:
            logger.exception("the solver could not load everything ahead of a job")
        self._ready()


def train_on_four_rows() -> None:
    """Load all that any job needs, including the compiled kernels."""
    import numpy as np

    from app.jobs.solver.job_data import JobData
    from app.jobs.solver.session import TrainingSession
    from core.data.dataset import LabelledData
    from core.run import Run

    X = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.9], [0.9, 0.0]])
    data = LabelledData.from_arrays(X, np.array(["a", "b", "a", "b"]))
    spec = TrainingSpec()
    session = TrainingSession.prepared(JobData(data, data), spec, Run(n_threads=1))
    context = session.context([(0, spec.served_method)], 1, lambda _progress: None)
    session.student(0, spec.served_method, context, lambda _progress: None)


def main() -> int:
    """Reserve standard output for messages, and serve.

    A solver for a waiting job first loads what the job needs, and lowers its priority afterwards; a spare one
    lowers it first. The rest is loaded during the first steps of the job. From then on the solver watches
    whether it starves.
    """
    niceness, when = int(sys.argv[2]), sys.argv[3]
    load_plugins()
    commands = os.fdopen(os.dup(0), "rb")
    answers = Answers(os.fdopen(os.dup(1), "wb"))
    # Output that a library prints must not get between the messages.
    os.dup2(2, 1)
    if when == "later":
        deprioritise(niceness)
        load_session()
    else:
        load_session()
        deprioritise(niceness)
    ProcessorShare(niceness, answers.processor).start()
    warm_up = WarmUp(lambda: answers.send("ready"))
    warm_up.start()
    serve(commands, answers, warm_up.job_begins)
    return 0
