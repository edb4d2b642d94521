"""The keys by which subjects get their pseudonyms, and what is stored of the answers about subjects."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from typing import Final

import sqlalchemy as sa

from app.domain.entities import Job, ModelVersion
from app.store.dialect import batched, insert_once
from app.store.monitor_tables import feedback, monitors, samples
from app.store.repositories.jobs import Jobs
from app.store.repositories.models import Models
from app.store.repositories.scoped import Scoped
from app.store.tables import jobs, model_versions, subject_keys

_KEY_BYTES: Final = 32
_MOST_VERSIONS: Final = 1000


class Subjects(Scoped):
    """Queries on the key of a tenant, and on its samples by subject."""

    def key(self) -> bytes | None:
        """The key of the tenant; None where none is made yet."""
        query = sa.select(subject_keys.c.key).where(subject_keys.c.tenant == self.tenant)
        key: bytes | None = self._connection.execute(query).scalar()
        return None if key is None else bytes(key)

    def make_key(self) -> bytes:
        """The key of the tenant, a new one if there is none."""
        values = {"tenant": self.tenant, "key": secrets.token_bytes(_KEY_BYTES), "created_at": time.time()}
        insert_once(self._connection, subject_keys, values)
        key = self.key()
        if key is None:
            raise RuntimeError("the key was not stored")
        return key

    def versions_of(self, dataset_ids: Collection[str]) -> list[tuple[ModelVersion, Job, str]]:
        """The versions whose jobs were trained or tested on some data sets, with job and data set."""
        found: list[tuple[ModelVersion, Job, str]] = []
        models, registry = Models(self._connection, self._tenant), Jobs(self._connection, self._tenant)
        for some in batched(sorted(dataset_ids)):
            on_it = sa.or_(jobs.c.dataset_id.in_(some), jobs.c.test_dataset_id.in_(some))
            query = sa.select(model_versions.c.model, model_versions.c.version, jobs.c.id)
            query = query.join(jobs, jobs.c.id == model_versions.c.job_id).where(self._owns(jobs), on_it)
            query = query.order_by(model_versions.c.model, model_versions.c.version)
            for row in self._connection.execute(query.limit(_MOST_VERSIONS)).all():
                job = registry.get(row.id)
                own = job.dataset_id if job.dataset_id in some else job.spec["evaluation"]["dataset_id"]
                found.append((models.version(row.model, row.version), job, own))
        return found

    def delete_samples(self, subjects: Collection[str]) -> tuple[int, int]:
        """Delete the samples about some subjects, hexadecimal pseudonyms, with their feedback.

        Returns how many samples and how much feedback. Numbers that were counted stay.
        """
        found: list[tuple[str, str]] = []
        for some in batched(sorted(subjects)):
            query = sa.select(samples.c.id, samples.c.monitor_id)
            query = query.where(self._owns(samples), samples.c.subject.in_(some))
            found += [(row.id, row.monitor_id) for row in self._connection.execute(query)]
        # Reports about answers that were not sampled are about a subject themselves.
        mine = sa.select(monitors.c.id).where(self._owns(monitors))
        reports = sa.delete(feedback).where(feedback.c.subject.in_(subjects), feedback.c.monitor_id.in_(mine))
        said = int(self._connection.execute(reports).rowcount)
        for some in batched([sample for sample, _ in found]):
            about = feedback.c.sample_id.in_(some)
            said += int(self._connection.execute(sa.delete(feedback).where(about)).rowcount)
            self._connection.execute(sa.delete(samples).where(samples.c.id.in_(some)))
        for monitor_id in {monitor for _, monitor in found}:
            touched = sa.update(monitors).where(monitors.c.id == monitor_id)
            self._connection.execute(touched.values(feedback_at=time.time()))
        return len(found), said
