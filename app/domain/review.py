"""The review of samples: what people should look at next, and a data set of what they said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from app.domain.document import Document
from app.domain.monitors import SampleView

MAX_REVIEWED: Final = 100
"""Most samples that are shown at once."""
MAX_DATASET_ROWS: Final = 20_000
"""Most reviewed rows of a data set that is made of them."""
MAX_DATASET_BYTES: Final = 256 * 1024**2
"""Most bytes of such rows."""


@dataclass(frozen=True, slots=True)
class ReviewItem(Document):
    """A sample to look at. row: the body of a query that asks about the row alone; null if it is not kept."""

    sample: SampleView
    row: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Review(Document):
    """What to look at next, in this order. waiting: samples that nobody has answered or skipped."""

    model: str
    alias: str
    version: int
    waiting: int
    items: list[ReviewItem]


@dataclass(frozen=True, slots=True)
class ReviewedRow:
    """A row of which somebody said the class. content: see `app.domain.monitors.Sample`."""

    label: str
    content: bytes
