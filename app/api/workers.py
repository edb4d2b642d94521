"""``/v1/workers``: the training processes, for administrators."""

from __future__ import annotations

import time

from fastapi import APIRouter

from app.api.dependencies import Administrator, Context
from app.api.paging import Page
from app.api.schemas import UnitView, WorkerView

router = APIRouter(prefix="/v1/workers", tags=["operation"])


@router.get("")
def list_workers(context: Context, _caller: Administrator) -> Page[WorkerView]:
    """Worker processes with their last heartbeat and the units of work reported in it."""
    with context.store.read() as uow:
        workers = uow.workers.all()
    now = time.time()
    views = [
        WorkerView(
            id=worker.executor_id,
            host=worker.host,
            pid=worker.pid,
            started_at=worker.started_at,
            beat_at=worker.beat_at,
            alive=worker.is_alive(now, context.settings.takeover_seconds),
            slots=worker.slots,
            threads=worker.threads,
            units=[UnitView.model_validate(unit) for unit in worker.units],
        )
        for worker in workers
    ]
    return Page(data=views, has_more=False)
