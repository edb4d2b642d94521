"""``/v1/workers``: the processes that train, for administrators."""

from __future__ import annotations

import time

from fastapi import APIRouter

from app.api.dependencies import Administrator, Context
from app.api.paging import Page
from app.api.schemas import UnitView, WorkerView

router = APIRouter(prefix="/v1/workers", tags=["operation"])


@router.get("")
def list_workers(context: Context, _caller: Administrator) -> Page[WorkerView]:
    """Worker processes, when each was last heard of, and what it was doing then."""
    with context.store.read() as uow:
        found = uow.workers.all()
    now = time.time()
    views = [
        WorkerView(
            id=worker.executor_id,
            host=worker.host,
            pid=worker.pid,
            started_at=worker.started_at,
            beat_at=worker.beat_at,
            alive=worker.lost_at is None and now - worker.beat_at <= context.settings.takeover_seconds,
            slots=worker.slots,
            threads=worker.threads,
            units=[UnitView.model_validate(unit) for unit in worker.units],
        )
        for worker in found
    ]
    return Page(data=views, has_more=False)
