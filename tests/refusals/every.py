"""Every table of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.refusals import (
    bodies,
    borders,
    containers,
    endpoints,
    evaluations,
    feedback,
    quotas,
    records,
    revisions,
    tables,
    tenants,
    tensors,
)
from tests.refusals.refusal import Refusal

GROUPS: Final[tuple[Callable[[], list[Refusal]], ...]] = (
    *(bodies.syntax, bodies.types, bodies.questions, bodies.jobs, bodies.hyperparameters, bodies.keys),
    *(bodies.class_changes, bodies.retraining),
    *(tensors.raw_tensors, tensors.npy_headers, tensors.bombs, tensors.v2, tensors.v2_requests),
    *(tables.csv, tables.tables, tables.kinds, tables.svmlight, tables.columns, tables.records),
    *(containers.archives, containers.heads, containers.labels, containers.forms),
    *(endpoints.paths, endpoints.aliases, endpoints.pagination, endpoints.idempotency),
    *(endpoints.authentication, endpoints.authorization, endpoints.uploads),
    *(tenants.objects, tenants.names, tenants.keys, quotas.quotas),
    *(revisions.revisions, revisions.subjects, revisions.schedules),
    *(evaluations.evaluations, evaluations.gates),
    *(feedback.monitors, feedback.feedback),
    *borders.GROUPS,
    *records.GROUPS,
)


def every() -> list[Refusal]:
    """All refusals in order."""
    return [refusal for group in GROUPS for refusal in group()]
