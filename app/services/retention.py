"""Use cases of retention: deleting old jobs, idempotency keys, API keys, audit records and unused blobs.

Old counts of queries, deliveries to webhooks and evaluations are deleted, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final

from app.domain.errors import Conflict, ServiceError, Unavailable
from app.domain.figures import HOUR, KEPT_INPUTS_DAYS
from app.domain.webhook import KEPT_DAYS
from app.services.uploads import clean_uploads
from app.settings import Settings
from app.store.large_blobs import delete_large
from app.store.repositories.keys import KEPT_SECONDS
from app.store.unit_of_work import Store, UnitOfWork

logger = logging.getLogger(__name__)

BLOBS_OF_A_REQUEST: Final = 1000
"""Up to this many students' blobs are deleted together with their job; otherwise `clean` deletes them."""
GRACE_SECONDS = 3600.0
"""Unreferenced blobs may belong to an upload or a job in progress; younger ones are not deleted."""
STRAY_SECONDS = 24 * 3600.0
"""Objects without a row may belong to a transaction in progress; younger ones are not checked."""

_DAY = 86_400.0
_SMALL_BYTES = 16 * 1024**2
_PAGE = 200
_BLOBS_AT_ONCE = 5000
"""Number of blobs that one query reads, so that it stays short with many millions of them."""
_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Numbers of deleted rows, or of rows that would be deleted. bytes: of the blobs. inputs: hourly counts
    of the inputs and answers of queries. deliveries: to webhooks. evaluations: of versions, as old as
    deleted jobs.
    """

    jobs: int = 0
    requests: int = 0
    keys: int = 0
    audit: int = 0
    blobs: int = 0
    bytes: int = 0
    inputs: int = 0
    deliveries: int = 0
    evaluations: int = 0


def delete_job(store: Store, job_id: str) -> None:
    """Delete an ended job with its students, events and traces.

    Blobs that nothing else refers to go with it. Raises NotFound, and Conflict if it has not ended or a
    version has its students.
    """
    with store.begin() as uow:
        job = uow.jobs.lock(job_id)
        unused = uow.retention.blobs_of_job(job_id, BLOBS_OF_A_REQUEST)
        if not job.state.ended:
            text = f"Job {job_id} is {job.state}; only a job that has ended can be deleted. Cancel it first."
            raise Conflict(text, code="job_not_ended")
        if not uow.retention.delete_job(job_id):
            text = f"Job {job_id} published version {job.version} of model {job.model!r}. Delete that first."
            if job.version is None:
                text = f"A version of {job.model!r} has the students of job {job_id}. Delete that first."
            raise Conflict(text, code="job_has_version")
        uow.audit.append("job.delete", job_id, details={"model": job.model, "state": job.state.value})
    delete_unused(store, unused)


def delete_unused(store: Store, digests: Collection[str]) -> None:
    """Delete those of ``digests`` to which no row refers any more. Raises Unavailable.

    Objects that a tenant has deleted then take no space, as in its quota. `clean` deletes other unused blobs
    after `GRACE_SECONDS`.
    """
    now = time.time()
    with store.read() as uow:
        unused = uow.blobs.unused(now, among=digests)
    _delete_page(store, unused, now)


def clean(store: Store, settings: Settings) -> Cleaned:
    """Delete everything older than the settings retain, in small transactions. Raises Unavailable.

    This includes the blobs of deleted rows, of failed jobs and of unfinished uploads. Foreign keys protect
    blobs in use, and `GRACE_SECONDS` protects those of work in progress.
    """
    store = store.of_all_tenants()
    now = time.time()
    jobs = _delete_jobs(store, _since(now, settings.retain_jobs_days))
    with store.begin() as uow:
        requests = uow.retention.delete_idempotency_keys(_since(now, settings.retain_requests_days))
        uow.keys.release_cells()
        uow.token_revocations.delete_expired()
        hour = _inputs_before(now)
        inputs = uow.inputs.delete_before(hour) + uow.answers.delete_before(hour)
        deliveries = uow.webhooks.delete_before(now - KEPT_DAYS * _DAY)
        evaluations = uow.evaluations.delete_before(_since(now, settings.retain_jobs_days))
    keys = _until_none(store, lambda uow: uow.keys.delete_ended(_keys_before(now, settings)))
    audit = _until_none(store, lambda uow: uow.audit.delete_before(_since(now, settings.retain_audit_days)))
    audit += sum(_delete_audit(store, *one) for one in _too_many_records(store, settings))
    clean_uploads(store, now)
    _bury_strays(store, now - STRAY_SECONDS)
    blobs, size = _delete_blobs(store, now - GRACE_SECONDS)
    cleaned = Cleaned(jobs, requests, keys, audit, blobs, size, inputs, deliveries, evaluations)
    if cleaned != Cleaned():
        logger.info(
            "deleted %d old jobs, %d idempotency keys, %d ended API keys, %d audit records, %d unused blobs"
            " of %d bytes, %d counts of queries, %d deliveries to webhooks, %d evaluations",
            jobs, requests, keys, audit, blobs, size, inputs, deliveries, evaluations,
        )  # fmt: skip
    return cleaned


@contextmanager
def discarding_if_refused(store: Store, digests: Collection[str]) -> Iterator[None]:
    """Delete the blobs that a request has stored if it is refused; an interrupted one may be repeated."""
    try:
        yield
    except ServiceError as error:
        if not isinstance(error, Unavailable):
            with suppress(ServiceError):
                delete_unused(store, digests)
        raise


class Cleaner:
    """Runs `clean` in a background thread when called, one run at a time; failures are logged."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._busy = threading.Lock()

    def __call__(self) -> None:
        if self._busy.acquire(blocking=False):
            threading.Thread(target=self._clean, name="cleaner", daemon=True).start()

    def _clean(self) -> None:
        try:
            clean(self._store, self._settings)
        except ServiceError as error:
            logger.warning("cleaning: %s", error)
        except Exception:
            logger.exception("cleaning failed")
        finally:
            self._busy.release()


def what_to_clean(store: Store, settings: Settings) -> Cleaned:
    """Numbers that `clean` would delete now, without the blobs of jobs that are not deleted yet."""
    store = store.of_all_tenants()
    now = time.time()
    with store.read() as uow:
        old = uow.retention.count(
            jobs_before=_since(now, settings.retain_jobs_days),
            requests_before=_since(now, settings.retain_requests_days),
            audit_before=_since(now, settings.retain_audit_days),
        )
        keys = uow.keys.count_ended(_keys_before(now, settings))
        hour = _inputs_before(now)
        inputs = uow.inputs.count_before(hour) + uow.answers.count_before(hour)
        deliveries = uow.webhooks.count_before(now - KEPT_DAYS * _DAY)
        evaluations = uow.evaluations.count_before(_since(now, settings.retain_jobs_days))
    audit = max(old.audit, sum(surplus for _, surplus in _too_many_records(store, settings)))
    sizes = [size for page in _unused(store, now - GRACE_SECONDS) for _, size in page]
    return Cleaned(
        old.jobs, old.requests, keys, audit, len(sizes), sum(sizes), inputs, deliveries, evaluations
    )


def _inputs_before(now: float) -> int:
    """The first hour whose counts of inputs and answers are kept."""
    return int((now - KEPT_INPUTS_DAYS * _DAY) // HOUR)


def _since(now: float, days: float) -> float:
    """The time ``days`` before ``now``; before all times for 0 days, which means to retain everything."""
    return now - days * _DAY if days else -inf


def _keys_before(now: float, settings: Settings) -> float:
    """Like `_since`, for API keys, which servers and the daily limit of keys need for a while."""
    return min(_since(now, settings.retain_keys_days), now - KEPT_SECONDS)


def _too_many_records(store: Store, settings: Settings) -> Sequence[tuple[str, int]]:
    """Tenants with more audit records than may be kept, and how many more."""
    most = settings.retain_audit_records
    if not most:
        return []
    with store.read() as uow:
        return [(tenant, count - most) for tenant, count in uow.audit.counts_above(most).items()]


def _delete_audit(store: Store, tenant: str, count: int) -> int:
    """Delete the oldest ``count`` audit records of a tenant; returns how many were deleted."""
    for start in range(0, count, _RECORDS):
        with store.of_tenant(tenant).begin() as uow:
            uow.audit.delete_oldest(min(_RECORDS, count - start))
    return count


def _delete_jobs(store: Store, before: float) -> int:
    deleted, after = 0, ""
    while True:
        with store.read() as uow:
            old = uow.retention.old_jobs(before, limit=_PAGE, after=after)
        if not old:
            return deleted
        for job_id in old:
            # One transaction each: a job may have tens of thousands of rows.
            with store.begin() as uow:
                deleted += uow.retention.delete_job(job_id, before)
        after = old[-1]


def _delete_blobs(store: Store, before: float) -> tuple[int, int]:
    count = total = 0
    for page in _unused(store, before):
        deleted = _delete_page(store, page, before)
        count += len(deleted)
        total += sum(deleted)
    return count, total


def _delete_page(store: Store, page: Sequence[tuple[str, int]], before: float) -> list[int]:
    """Delete blobs (digest, size) that are unreferenced and were not used since; returns their sizes.

    Those in the object store are hidden at first, and deleted `GRACE_SECONDS` later: some may be read.
    """
    objects, removed = set[str](), set[str]()
    if store.objects is not None:
        with store.begin() as uow:
            objects = uow.blobs.among_objects([digest for digest, _ in page])
            uow.blobs.hide_objects(objects, before)
            removed = uow.blobs.remove_hidden(objects, min(before, time.time() - GRACE_SECONDS))
    rest = [(digest, size) for digest, size in page if digest not in objects]
    with store.begin() as uow:
        deleted = [size for digest, size in rest if size <= _SMALL_BYTES and uow.blobs.delete(digest, before)]
    deleted += [size for digest, size in page if digest in removed]
    return deleted + [
        size for digest, size in rest if size > _SMALL_BYTES and delete_large(store, digest, before=before)
    ]


def _bury_strays(store: Store, before: float) -> None:
    """Hide objects without a row, which exist for example after a crash or the restoration of a database."""
    if store.objects is None:
        return

    def named(digests: Collection[str]) -> Collection[str]:
        with store.read() as uow:
            return uow.blobs.among_objects(digests)

    strays = store.objects.strays(named, before)
    while page := list(islice(strays, _PAGE)):
        with store.begin() as uow:
            uow.blobs.bury_strays(page)


def _unused(store: Store, before: float) -> Iterator[Sequence[tuple[str, int]]]:
    after: str | None = ""
    while after is not None:
        with store.read() as uow:
            until = uow.blobs.digest_after(after, _BLOBS_AT_ONCE)
            found = uow.blobs.unused(before, after=after, until=until)
        yield from (found[first : first + _PAGE] for first in range(0, len(found), _PAGE))
        after = until


def _until_none(store: Store, delete: Callable[[UnitOfWork], int]) -> int:
    total = 0
    while True:
        with store.begin() as uow:
            deleted = delete(uow)
        if not deleted:
            return total
        total += deleted
