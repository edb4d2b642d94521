"""What a server spends every two seconds on the row that the page of live traffic reads."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.domain.figures import ServerRow
from app.processes.exposition import BUCKETS, ModelCounts
from app.serving.model_figures import HISTORY
from app.serving.server_beats import BEAT_SECONDS, Figures
from app.settings import Settings
from app.store.migrate import upgrade
from lab.benchmarks.dashboard.content import open_store

MODELS: Final = 100
"""Models that are asked in every step."""


def measure(quick: bool) -> dict[str, Any]:
    """Processor time of making and storing the row when two minutes of history are full, and its bytes."""
    random = np.random.default_rng(0)
    figures, totals = Figures(), np.zeros((MODELS, len(BUCKETS) + 1))
    times: list[float] = []
    with tempfile.TemporaryDirectory(prefix="stms-beats-") as folder:
        upgrade(Settings(data_dir=Path(folder)).app_database_url)
        store = open_store(Path(folder))
        try:
            for number in range(HISTORY + (20 if quick else 200)):
                totals += random.integers(0, 50, totals.shape)
                models = {f"model {k:03d}": _counts(row) for k, row in enumerate(totals)}
                started = time.process_time()
                made = figures.step(1e9 + number * BEAT_SECONDS, models, list(models.values()))
                row = ServerRow("srv_benchmark", "machine", 1, "0", 0.0, 0.0, made)
                with store.single() as uow:
                    uow.servers.beat(row)
                if number >= HISTORY:
                    times.append(time.process_time() - started)
        finally:
            store.dispose()
    milliseconds = 1000 * statistics.median(times)
    return {
        "beat_ms": round(milliseconds, 2),
        "beat_share": round(milliseconds / (1000 * BEAT_SECONDS), 5),
        "beat_bytes": len(json.dumps(made)),
    }


def _counts(buckets: Any) -> ModelCounts:
    number = float(buckets.sum())
    return ModelCounts({"200": number, "404": number / 10}, number, 0.0, number / 1000, buckets.tolist())
