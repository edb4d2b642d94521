"""``python -m lab.verification.scale``: what grows with the size of an installation, and must not.

finish_million_s       to finish a job with a million rows of students on PostgreSQL (at most 60)
revocation_s           until a revocation holds, with 10⁴ keys and 10⁵ references (at most 1)
cold_fetch_ratio       a blob that is not in the cache: with 10⁵ files in it against none (at most 1.5)
idle_statements_per_s  of 100 idle workers (at most 300)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import resource
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from dbos import SQLAlchemyDatasource

from app.domain.entities import Job, JobState, new_id
from app.domain.training_spec import TrainingSpec
from app.jobs.engine.config import SCHEMA, serializer
from app.jobs.engine.step_runner import StepRunner
from app.jobs.workflow.finish import finish
from app.jobs.workflow.running_job import CancellationCheck, JobPlans
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_database
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from lab.verification import idle, revocation
from tests.system.postgres import postgres
from tests.system.stored_dataset import add_dataset

LIMITS: Final = {
    "finish_million_s": 60.0,
    "revocation_s": 1.0,
    "cold_fetch_ratio": 1.5,
    "idle_statements_per_s": 300.0,
}
_STUDENTS: Final = """
    INSERT INTO job_students (job_id, class_index, method, label, state, objective, gap, iterations, seconds,
                              status, threshold, metrics)
    SELECT :job, number, method, 'class ' || number, 'succeeded', 1.0, 0.0001, 10, 0.1, 'converged', 0.0,
           json_build_object('accuracy', 0.99, 'f1', random(), 'auc', 0.97, 'brier', 0.01,
                             'calibration', 'sigmoid')
    FROM generate_series(0, :last) AS number, unnest(ARRAY['gsvm', 'teacher']) AS method
"""


def main() -> int:
    """0 if every figure is within its limit."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, to which the limits apply too")
    quick = parser.parse_args().quick
    logging.disable(logging.WARNING)
    # First, because it forks: the other measurements start threads.
    figures: dict[str, Any] = dict(idle.measure(quick=quick))
    figures |= measure_finish(20_000 if quick else 1_000_000)
    figures |= measure_cold_fetch(5_000 if quick else 100_000)
    figures |= revocation.measure(quick)
    print(json.dumps(figures))
    return int(any(figures[name] > limit for name, limit in LIMITS.items()))


def measure_finish(rows: int) -> dict[str, float]:
    """``finish_million_s``: a job of rows / 2 classes with a student and a teacher row each."""
    with postgres() as server, tempfile.TemporaryDirectory() as folder:
        address = server.create_database("stms")
        upgrade(address)
        settings = Settings(data_dir=Path(folder), database_url=address)
        # The limits of a worker: idle transactions end after the takeover time.
        engine = open_database(settings, "worker", idle=settings.takeover_seconds)
        store = Store(engine).of_all_tenants()
        job = _trained_job(store, rows // 2)
        datasource = SQLAlchemyDatasource.create(
            address, engine=engine, schema=SCHEMA, serializer=serializer()
        )
        runner = StepRunner(store, datasource, lambda: None)
        longest = _Longest(engine)
        memory = _peak_mib()
        began = time.monotonic()
        plan = JobPlans(store).of_job(job.id)
        attempt = (job.id, job.attempt)
        finish(runner, CancellationCheck(store, threading.Event(), *attempt), attempt, plan)
        seconds = time.monotonic() - began
        with store.read() as uow:
            ended = uow.jobs.get(job.id)
        store.dispose()
    if ended.state is not JobState.SUCCEEDED or ended.version != 1:
        raise RuntimeError(f"the job is {ended.state}")
    print(
        f"finishing {rows} rows: {seconds:.1f} s, longest transaction {longest.transaction:.2f} s, "
        f"{_peak_mib() - memory:.0f} MiB"
    )
    return {
        "finish_million_s": round(seconds, 2),
        "finish_longest_transaction_s": round(longest.transaction, 2),
    }


class _Longest:
    """The longest transaction of an engine, in seconds."""

    def __init__(self, engine: sa.Engine) -> None:
        self.transaction = 0.0
        self._began = 0.0
        sa.event.listen(engine, "begin", self._begin)
        sa.event.listen(engine, "commit", self._end)
        sa.event.listen(engine, "rollback", self._end)

    def _begin(self, _connection: sa.Connection) -> None:
        self._began = time.monotonic()

    def _end(self, _connection: sa.Connection) -> None:
        self.transaction = max(self.transaction, time.monotonic() - self._began)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _trained_job(store: Store, classes: int) -> Job:
    """A running job, all of whose students have been trained."""
    one = store.of_tenant("default")
    with one.begin() as uow:
        dataset = add_dataset(
            uow, [f"class {number}" for number in range(classes)], name="large", rows=classes
        )
        job = Job(
            id=new_id("job"),
            dataset_id=dataset.id,
            model="large",
            spec=TrainingSpec(automatic=False).model_dump(mode="json"),
            state=JobState.RUNNING,
            attempt=0,
            stage="students",
            progress_done=classes,
            progress_total=classes + 1,
            created_at=time.time(),
            created_by="benchmark",
            teacher_digest=dataset.blob_digest,
            preparation_digest=dataset.blob_digest,
        )
        uow.jobs.add(job)
        uow.connection.execute(sa.text(_STUDENTS), {"job": job.id, "last": classes - 1})
    return job


def measure_cold_fetch(files: int) -> dict[str, float]:
    """``cold_fetch_ratio``: median time of a cold fetch with ``files`` files in the cache against none.

    The two take turns, so that other work of the machine disturbs both.
    """
    folder = Path(tempfile.mkdtemp(prefix="stms-cache-"))
    try:
        empty, full = BlobCache(folder / "empty", 2**40), BlobCache(folder / "full", 2**40)
        for cache in (empty, full):
            _fetch(cache, b"first")
        for number in range(files):
            path = full.path(hashlib.sha256(b"%d" % number).hexdigest())
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(1700))
        times: dict[BlobCache, list[float]] = {empty: [], full: []}
        for number in range(300):
            for cache in (empty, full):
                times[cache].append(_fetch(cache, b"cold %d" % number * 170))
    finally:
        shutil.rmtree(folder)
    without, with_files = (sorted(each)[len(each) // 2] for each in (times[empty], times[full]))
    print(f"a cold fetch: {1e3 * without:.2f} ms, with {files} files {1e3 * with_files:.2f} ms")
    return {"cold_fetch_ratio": round(with_files / without, 2), "cold_fetch_ms": round(1e3 * with_files, 2)}


def _fetch(cache: BlobCache, content: bytes) -> float:
    digest = hashlib.sha256(content).hexdigest()
    began = time.perf_counter()
    cache.open(digest, lambda: [content])
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
