"""The metadata of the whole database, whose tables stand in several modules."""

from __future__ import annotations

import app.store.encoder_tables
import app.store.evaluation_tables
import app.store.live_tables
import app.store.monitor_tables  # noqa: F401 - importing them adds their tables
from app.store.tables import metadata

__all__ = ["metadata"]
