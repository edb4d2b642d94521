"""Batches of a remote teacher's scores, on both databases."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.entities import Job
from app.store.unit_of_work import Store


def test_batches_are_kept_by_part_until_they_are_forgotten(store: Store, add_job: Callable[..., Job]) -> None:
    with store.begin() as uow:
        job, other = add_job(uow).id, add_job(uow).id
        for first in (10, 0, 5):
            uow.remote_scores.save(job, 0, first, b"%d" % first)
        uow.remote_scores.save(job, 1, 0, b"test")
        uow.remote_scores.save(other, 0, 0, b"other")
        uow.remote_scores.save(job, 0, 5, b"again")
    with store.read() as uow:
        assert list(uow.remote_scores.of_part(job, 0)) == [(0, b"0"), (5, b"again"), (10, b"10")]
        assert list(uow.remote_scores.of_part(job, 1)) == [(0, b"test")]
    with store.begin() as uow:
        uow.remote_scores.forget(job)
    with store.read() as uow:
        assert list(uow.remote_scores.of_part(job, 0)) == []
        assert list(uow.remote_scores.of_part(other, 0)) == [(0, b"other")]
