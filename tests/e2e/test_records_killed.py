"""A job on records and texts whose worker is killed: it goes on, and the models have the same bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from app.domain.entities import Job, JobState
from app.services.datasets import register_dataset
from app.settings import Settings
from app.store.blob_cache import BlobCache
from tests.e2e.test_kill_and_cancel import SLOW, House, open_house, solvers
from tests.system.processes import is_alive, wait_for

CLASSES = ("delivery", "payment", "refund")
WORDS = {
    "delivery": "parcel courier door late street",
    "payment": "card bank charge paid twice",
    "refund": "money back return never came",
}
SPEC: dict[str, Any] = SLOW | {"inputs": {"columns": {"tier": {"kind": "category"}}}}


def table() -> bytes:
    """Numbers and categories with gaps, dates, and texts, as a CSV file."""
    choose = random.Random(0)
    lines = ["amount,tier,since,text,label"]
    for k in range(360):
        label = CLASSES[k % 3]
        amount = "" if k % 9 == 0 else f"{choose.gauss(10 * (k % 3), 8):.2f}"
        tier = "" if k % 11 == 0 else str(choose.randrange(4))
        words = WORDS[choose.choice(CLASSES) if choose.random() < 0.2 else label].split()
        text = " ".join(choose.choices([*words, "my", "the", "order"], k=9))
        lines.append(f"{amount},{tier},2024-{1 + k % 12:02}-{1 + k % 28:02},{text},{label}")
    return "\n".join(lines).encode()


@pytest.fixture
def house(database_address: str, tmp_path: Path):
    settings = Settings.model_validate({"data_dir": tmp_path, "database_url": database_address})
    with open_house(settings) as opened:
        files = BlobCache.of(settings)
        with files.writing("rows.tmp") as upload:
            upload.write(table())
            options: dict[str, Any] = {"created_by": "me", "limits": settings, "filename": "orders.csv"}
            opened.dataset_id = register_dataset(opened.store, files, upload, **options)[0].id
        yield opened


def stored(house: House, job: Job) -> dict[Any, str | None]:
    """Digests of all that the job has made."""
    with house.store.read() as uow:
        found: dict[Any, str | None] = {
            (row.class_index, row.method): row.digest for row in uow.students.of_job(job.id)
        }
        version = uow.models.of_job(job.id)
        assert version is not None
        return found | {"encoder": version.encoder_digest, "teacher": version.teacher_digest}


@pytest.mark.long
def test_a_killed_worker_takes_up_the_encoder_and_trains_the_same_models(house: House):
    with house.worker():
        whole = house.submit(**SPEC)
        wait_for(lambda: house.state(whole).ended)
    assert house.state(whole) is JobState.SUCCEEDED
    with house.worker() as worker:
        job = house.submit(**SPEC)
        [solver] = wait_for(lambda: solvers(worker.pid))
        wait_for(lambda: house.is_stopped_after_first(solver, job))
        worker.kill()
        wait_for(lambda: not is_alive(solver))
    assert house.state(job) is JobState.RUNNING
    kept = house.trained(job)
    assert 0 < len(kept) < 2 * len(CLASSES)
    with house.worker():
        wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.SUCCEEDED
    assert house.trained(job) == dict.fromkeys(
        ((index, method) for index in range(len(CLASSES)) for method in ("gsvm", "svm")), 1
    )
    assert stored(house, job) == stored(house, whole)
    assert stored(house, job)["encoder"] is not None
