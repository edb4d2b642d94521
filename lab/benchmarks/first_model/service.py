"""What `stms serve` costs before the first job: its start, and its time and memory while nobody asks."""

from __future__ import annotations

import time
from typing import Final

from tests.system.deployment import Deployment
from tests.system.processes import core_seconds, core_seconds_since, proportional_bytes

_SETTLE_SECONDS: Final = 15.0
"""Between the start and the idle time: by then what is loaded in the background is loaded."""


def service(seconds: float) -> dict[str, float]:
    """Figures of a new service on SQLite: of its start, and of ``seconds`` in which nobody asks.

    ready_s, ready_cpu_s: seconds, and processor seconds of all its processes, until every check succeeds.
    idle_share: part of one core that they take together. idle_mb: memory, shared pages counted once (PSS).
    """
    deployment = Deployment(serve=True, is_new=False)
    began = time.monotonic()
    with deployment:
        ready = time.monotonic() - began
        at_ready = core_seconds(deployment.pids)
        time.sleep(_SETTLE_SECONDS)
        before, began = core_seconds(deployment.pids), time.monotonic()
        time.sleep(seconds)
        spent = core_seconds_since(before, deployment.pids) / (time.monotonic() - began)
        memory = sum(map(proportional_bytes, deployment.pids))
    return {
        "ready_s": round(ready, 2),
        "ready_cpu_s": round(sum(at_ready.values()), 2),
        "idle_share": round(spent, 4),
        "idle_mb": round(memory / 1e6, 1),
    }
