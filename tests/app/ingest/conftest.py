"""A reader of bytes, as registering a data set reads a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.ingest.formats import detect, read
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits
from app.ingest.validate import summarise, validate
from core.data.dataset import LabelledData

LIMITS = DatasetLimits(max_rows=10_000, max_columns=2_000, max_bytes=50_000_000)
Ingest = Callable[..., tuple[LabelledData, LabelledData | None, dict[str, object]]]


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    """``ingest(bytes, …)``: training part, test part and summary of a file."""

    def run(
        content: bytes,
        *,
        declared: str | None = None,
        filename: str | None = None,
        limits: DatasetLimits = LIMITS,
        unlabelled: bool = False,
        **said: str | None,
    ) -> tuple[LabelledData, LabelledData | None, dict[str, object]]:
        path = tmp_path / "upload"
        path.write_bytes(content)
        kind = detect(path, declared=declared, filename=filename)
        raw = read(path, kind, limits, ReadingOptions.parse(unlabelled=unlabelled, **said))
        train, test = validate(raw, unlabelled=unlabelled, rare=said.get("rare_classes"))
        return train, test, summarise(raw, train, test)

    return run
