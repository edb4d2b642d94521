"""Repositories of one tenant: rows of another tenant do not exist for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import Dataset, Job, JobState
from app.domain.errors import NotFound
from app.store.unit_of_work import Store, UnitOfWork


def _job_with_data(uow: UnitOfWork, add_job: Any) -> Job:
    job: Job = add_job(uow)
    blob, _ = uow.blobs.put([b"rows"])
    numbers = {"size_bytes": 4, "rows": 2, "test_rows": 0, "columns": 1, "created_at": 0.0}
    texts = {"name": "payroll", "source_format": "csv", "created_by": "key_1", "digest": "1" * 64}
    row = Dataset(id=job.dataset_id, blob_digest=blob, class_count=2, summary={}, **texts, **numbers)  # type: ignore[arg-type]
    assert uow.datasets.add(row, ("a", "b"))
    return job


def test_what_another_tenant_has_does_not_exist(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = _job_with_data(uow, add_job)
        uow.jobs.add_idempotency_key("key_1", "again", "0" * 64, job.id)
        uow.audit.append("job.submit", job.id)
    asks: list[Callable[[UnitOfWork], object]] = [
        lambda uow: uow.datasets.get(job.dataset_id),
        lambda uow: uow.datasets.lock(job.dataset_id, exclusive=True),
        lambda uow: uow.jobs.get(job.id),
        lambda uow: uow.jobs.lock(job.id),
        lambda uow: uow.jobs.change(job.id, stage="mine"),
        lambda uow: uow.jobs.advance(job.id),
        lambda uow: uow.jobs.move(job.id, JobState.FAILED),
    ]
    for ask in asks:
        with pytest.raises(NotFound), store.of_tenant("acme").begin() as uow:
            ask(uow)
    with store.of_tenant("acme").begin() as uow:
        uow.datasets.delete(job.dataset_id)
        assert not uow.retention.delete_job(job.id)
        assert uow.jobs.find_idempotency_key("key_1", "again") is None
        assert not any(uow.jobs.count_by_state().values())
        lists = (uow.datasets.page(limit=9), uow.jobs.page(limit=9), uow.audit.page(limit=9))
        assert [list(page) for page, _ in lists] == [[], [], []]
    with store.read() as uow:
        assert uow.jobs.get(job.id) == job
        assert uow.datasets.get(job.dataset_id)
    with store.of_all_tenants().read() as uow:
        assert uow.jobs.get(job.id) == job


def test_names_digests_and_numbers_are_unique_within_a_tenant_only(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        dataset = uow.datasets.get(_job_with_data(uow, add_job).dataset_id)
    acme = store.of_tenant("acme")
    with acme.begin() as uow:
        assert uow.datasets.by_digest(dataset.digest) is None
        assert uow.datasets.add(dataclasses.replace(dataset, id="ds_acme", tenant="acme"), "ab")
        assert not uow.datasets.add(dataclasses.replace(dataset, id="ds_more", tenant="acme"), "ab")
    with store.of_all_tenants().read() as uow:
        assert {row.tenant for row in uow.datasets.page(limit=9)[0]} == {"default", "acme"}
    with pytest.raises(RuntimeError, match="cannot be stored"), acme.begin() as uow:
        uow.datasets.add(dataset, "ab")


def test_a_name_needs_a_tenant(store: Store) -> None:
    with store.of_all_tenants().read() as uow:
        for ask in (
            lambda: uow.models.version("m", 1),
            lambda: uow.models.aliases_of("m"),
            lambda: uow.datasets.by_digest("0" * 64),
        ):
            with pytest.raises(RuntimeError, match="of_tenant"):
                ask()
    with pytest.raises(RuntimeError, match="of_tenant"):
        assert store.of_all_tenants().tenant
