"""The page of one class of a job: how good its students are, and how well calibrated."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from app.api.dependencies import Context, Trainer
from app.api.jobs import JobId
from app.services import training
from app.services.class_table import served_method, students_of_class
from app.web.charts import SIDE, calibration_marks, path_of
from app.web.rendering import page

router = APIRouter()

ClassIndex = Annotated[int, Path(ge=0, le=2**31 - 1)]
Method = Annotated[str, Query(max_length=16)]


@router.get("/ui/jobs/{job_id}/classes/{class_index}")
def class_page(
    job_id: JobId,
    class_index: ClassIndex,
    request: Request,
    context: Context,
    caller: Trainer,
    method: Method = "",
) -> Response:
    """Metrics, certificate and calibration of the students of one class."""
    store = context.store_of(caller)
    job = training.get_job(store, job_id)
    rows = {row.method: row for row in students_of_class(store, job_id, class_index)}
    default = served_method(job, sorted(rows))
    row = rows.get(method) or rows.get(default) or next(iter(rows.values()))
    bins = (row.metrics.get("reliability") or {}).get("bins", [])
    marks = calibration_marks(bins)
    return page(
        request,
        "class.html",
        job=job,
        row=row,
        rows=rows,
        served=default,
        marks=marks,
        line=path_of(marks),
        side=SIDE,
    )
