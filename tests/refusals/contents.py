"""What a server has that refuses: its models, keys, quotas and limits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.domain.names import DEFAULT_TENANT
from app.services.keys import create_key, revoke_key
from app.store.unit_of_work import Store
from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.encoding.fit import fit_encoder
from core.packed.encoder import Encoder
from tests.system.published import linear_student, linear_teacher, publish

MODEL_CLASSES = ("cat", "dog", "größe/1:x", "日本")
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0]])
UPLOAD_BYTES = 24 * 1024**2
"""Largest file. The limit is low, so that attacks on it need not send gigabytes."""
DATASET_BYTES = 32 * 1024**2
ROWS = 100_000
COLUMNS = 200_000

LIMITS = {
    "STMS_MAX_UPLOAD_BYTES": str(UPLOAD_BYTES),
    "STMS_MAX_HEAD_BYTES": str(UPLOAD_BYTES),
    "STMS_MAX_DATASET_BYTES": str(DATASET_BYTES),
    "STMS_MAX_ROWS": str(ROWS),
    "STMS_MAX_COLUMNS": str(COLUMNS),
    "STMS_MAX_CLASSES": "100000",
    "STMS_AUTH_FAILURE_RATE": "40",
}
QUOTAS = {
    "few-datasets": {"datasets": 2},
    "few-bytes": {"stored_bytes": 20_000},
    "few-versions": {"versions": 2},
    "few-jobs": {"unfinished_jobs": 2},
    "one-dataset": {"datasets": 1},
    "one-version": {"versions": 1},
}
"""Quotas of tenants with a train key each."""
KEYS: dict[str, tuple[str, str, frozenset[str]]] = {
    "operator": (DEFAULT_TENANT, "operator", frozenset()),
    "admin": (DEFAULT_TENANT, "admin", frozenset()),
    "train": (DEFAULT_TENANT, "train", frozenset()),
    "other": (DEFAULT_TENANT, "train", frozenset()),
    "query": (DEFAULT_TENANT, "query", frozenset()),
    "limited": (DEFAULT_TENANT, "query", frozenset({"pets"})),
    "revoked": (DEFAULT_TENANT, "query", frozenset()),
    "rival": ("rival", "admin", frozenset()),
    "rival query": ("rival", "query", frozenset()),
    **{tenant.replace("-", " "): (tenant, "train", frozenset()) for tenant in QUOTAS},
}
"""Tenant, scope and models of the keys by name."""
_ROWS: Final = 60


def fill(store: Store) -> dict[str, str]:
    """Publish the models, and make `KEYS`, whose texts are returned, and `QUOTAS`."""
    publish_models(store)
    keys = {}
    for name, (tenant, scope, models) in KEYS.items():
        key, keys[name] = create_key(store.of_tenant(tenant), name, {scope}, models)
        if name == "revoked":
            revoke_key(store, key.id)
    with store.begin() as uow:
        for tenant, quotas in QUOTAS.items():
            uow.quotas.set_quotas(tenant, quotas)
    return keys


def publish_models(store: Store) -> None:
    """Two models of numbers, one of records with columns of all kinds but texts, and one of texts."""
    students = {
        label: linear_student(label, row, threshold=0.5)
        for label, row in zip(MODEL_CLASSES, WEIGHTS, strict=True)
    }
    for model in ("pets", "private"):
        publish(store, model, students, linear_teacher(MODEL_CLASSES, WEIGHTS))
    _publish(store, "customers", _customers())
    _publish(store, "notes", _notes())


def _publish(store: Store, name: str, encoder: Encoder) -> None:
    weights = np.random.default_rng(0).normal(size=(2, encoder.layout.columns))
    students = {label: linear_student(label, row) for label, row in zip(("yes", "no"), weights, strict=True)}
    publish(store, name, students, linear_teacher(list(students), weights), encoder=encoder)


def _customers() -> Encoder:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "age": NumberCells(rng.normal(40.0, 10.0, _ROWS)),
        "job": TextCells.of(
            [None if k % 4 == 0 else ("clerk", "cook", "nurse")[k % 3] for k in range(_ROWS)]
        ),
        "since": TextCells.of([f"2021-05-{1 + k % 28:02}" for k in range(_ROWS)]),
        "member": NumberCells(np.arange(_ROWS) % 2.0, is_truth=True),
        "place": VectorCells(rng.normal(size=(_ROWS, 2))),
    }
    table = Table(tuple(columns), tuple(columns.values()))
    return fit_encoder(table, infer_schema(table), ignored=["id"])


def _notes() -> Encoder:
    texts = [f"my card number {k % 9} is lost again" for k in range(_ROWS)]
    table = Table(("note",), (TextCells.of(texts),))
    return fit_encoder(table, infer_schema(table, {"note": KindSpec(Kind.TEXT)}))
