"""A data set in the database that nobody has uploaded: for what looks at its record, and not at its rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from app.domain.entities import Dataset, new_id
from app.store.unit_of_work import UnitOfWork


def add_dataset(uow: UnitOfWork, classes: Sequence[str], **values: Any) -> Dataset:
    """Store a data set with a blob of its own, which holds no rows. values: fields of `Dataset`."""
    identifier = new_id("ds")
    blob, _ = uow.blobs.put([identifier.encode()])
    defaults: dict[str, Any] = {
        "id": identifier,
        "digest": identifier,
        "name": "set",
        "source_format": "csv",
        "size_bytes": 100,
        "blob_digest": blob,
        "rows": 100,
        "test_rows": 0,
        "columns": 4,
        "class_count": len(classes),
        "summary": {},
        "created_at": time.time(),
        "created_by": "tests",
    }
    dataset = Dataset(**defaults | values)
    if not uow.datasets.add(dataset, classes):
        raise ValueError(f"there is a data set of the digest {dataset.digest}")
    return dataset
