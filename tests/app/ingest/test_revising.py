"""The order of a revision: what it writes is a stored data set, and limits are checked before it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.domain.errors import TooLarge
from app.ingest.dataset_format import decode, encode
from app.ingest.orders import RevisionOrder
from app.ingest.reading import carry_out
from core.data.dataset import LabelledData
from tests.refusals import refused_as


@pytest.fixture
def order(tmp_path: Path) -> RevisionOrder:
    """Appends four rows to four others."""
    for name, start in (("source", 0.0), ("added", 10.0)):
        X = np.arange(start, start + 4)[:, None].astype(np.float32)
        data = LabelledData.from_arrays(X, ["a", "b", "a", "b"])
        (tmp_path / name).write_bytes(b"".join(encode(data, None)))
    paths = {name: str(tmp_path / name) for name in ("source", "rows", "added")}
    values: dict[str, Any] = {"deleted": (), "kind": "csv", "label_column": "y", "reading": ()}
    limits = {"max_rows": 8, "max_columns": 1, "max_bytes": 2**20}
    return RevisionOrder(**paths, **values, min_per_class=2, **limits)


def test_the_rows_are_written_as_those_of_any_data_set(order: RevisionOrder) -> None:
    content = carry_out(order)
    train, test = decode(Path(order.rows).read_bytes())  # type: ignore[arg-type]
    assert isinstance(train, LabelledData)
    assert test is None
    assert np.asarray(train.X).dtype == np.float32
    assert np.asarray(train.X).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert msgspec.to_builtins(content)["content"]["summary"]["label_column"] == "y"


@pytest.mark.parametrize(
    ("limit", "code"),
    [({"max_rows": 7}, "too_many_rows"), ({"max_bytes": 300}, "table_too_large")],
)
def test_limits_are_those_of_uploads(order: RevisionOrder, limit: dict[str, int], code: str) -> None:
    with refused_as(TooLarge, code):
        carry_out(msgspec.structs.replace(order, **limit))
    assert not Path(order.rows).exists()
