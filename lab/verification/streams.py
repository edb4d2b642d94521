"""The CPU time of quiet event streams: ``python -m lab.verification.streams``; the last line is JSON.

400 streams of 20 unfinished jobs are open in a process that does nothing else. Before they shared a poller,
each read its job and its events 3.3 times a second, which is measured for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from app.api.sse import POLL_SECONDS, EventStreams
from app.domain.entities import Job, JobState, new_id
from app.domain.training_spec import TrainingSpec
from app.services import training
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store

STREAMS: Final = 400
JOBS: Final = 20
MAX_SHARE: Final = 0.05


def main() -> int:
    """0 if the quiet streams take less than a twentieth of a core."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.streams", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure for 3 seconds instead of 15")
    seconds = 3.0 if parser.parse_args().quick else 15.0
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'stms.sqlite'}"
        upgrade(url)
        store = Store(open_engine(url))
        jobs = [_add_job(store) for _ in range(JOBS)]
        alone = _seconds_of_a_poll(store, jobs[0]) / POLL_SECONDS * STREAMS
        share = asyncio.run(_share_of_a_core(store, jobs, seconds))
        store.dispose()
    print(f"{STREAMS} quiet streams: {share:.4f} of a core; each with its own poll: {alone:.2f}")
    print(json.dumps({"quiet_streams": STREAMS, "quiet_streams_cores": round(share, 4)}))
    return int(share > MAX_SHARE)


def _add_job(store: Store) -> str:
    job = Job(
        id=new_id("job"),
        dataset_id="ds_none",
        model="m",
        spec=TrainingSpec().model_dump(mode="json"),
        state=JobState.RUNNING,
        attempt=0,
        stage="queued",
        progress_done=0,
        progress_total=1,
        created_at=time.time(),
        created_by="benchmark",
    )
    with store.begin() as uow:
        uow.jobs.add(job)
        uow.events.append(job.id, "job_queued", {})
    return job.id


def _seconds_of_a_poll(store: Store, job_id: str) -> float:
    """CPU seconds of what each stream read at each poll before."""
    count = 200
    began = time.process_time()
    for _ in range(count):
        training.get_job(store, job_id)
        training.job_events(store, job_id, after=1)
    return (time.process_time() - began) / count


async def _share_of_a_core(store: Store, jobs: list[str], seconds: float) -> float:
    streams = EventStreams(store, STREAMS, lambda: False)

    async def read(job_id: str) -> None:
        async for _ in streams.events(job_id, 1, ([], False)):
            pass

    reading = [asyncio.create_task(read(jobs[number % JOBS])) for number in range(STREAMS)]
    await asyncio.sleep(1.0)
    began, cpu = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    streams.close()
    return share


if __name__ == "__main__":
    sys.exit(main())
