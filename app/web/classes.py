"""The page of one class of a job: how good its students are, and how well calibrated."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.jobs import JobId
from app.services import training
from app.services.class_table import served_method, students_of_class
from app.services.curves import find_curve
from app.web.charts import SIDE, calibration_marks, path_of
from app.web.curves import MAX_RATIO, drawn
from app.web.rendering import page
from app.web.tuning import drawn_search, find_trace, in_words

router = APIRouter(route_class=BorderRoute)

ClassIndex = Annotated[int, Path(ge=0, le=2**31 - 1)]
Number = Annotated[float | None, Query(allow_inf_nan=False)]
Method = Annotated[str, Query(max_length=16)]


@router.get("/ui/jobs/{job_id}/classes/{class_index}")
def class_page(
    job_id: JobId,
    class_index: ClassIndex,
    request: Request,
    context: Context,
    caller: Trainer,
    method: Method = "",
    t: Number = None,
    cost: Annotated[float, Query(gt=0, le=MAX_RATIO, allow_inf_nan=False)] = 1.0,
    most: Annotated[float | None, Query(ge=0, le=100, allow_inf_nan=False)] = None,
) -> Response:
    """Metrics, curves, certificate and calibration of the students of one class.

    t: threshold to look at; by default the one in use. cost: of a missed row, in false positives. most:
    percent of the other rows that may be accepted, in place of ``t``.
    """
    store = context.store_of(caller)
    job = training.get_job(store, job_id)
    rows = {row.method: row for row in students_of_class(store, job_id, class_index)}
    default = served_method(job, sorted(rows))
    row = rows.get(method) or rows.get(default) or next(iter(rows.values()))
    bins = row.metrics.get("reliability") or []
    marks = calibration_marks(bins)
    curve = find_curve(store, job_id, class_index, row.method)
    return page(
        request,
        "class.html",
        plots=None if curve is None else drawn(curve, (row.threshold or 0.0) if t is None else t, cost, most),
        other_methods=[name for name in rows if name != row.method],
        search=drawn_search(find_trace(store, job_id, class_index, row.method)),
        chosen=None if row.chosen is None else in_words(row.chosen),
        job=job,
        row=row,
        rows=rows,
        served=default,
        marks=marks,
        line=path_of(marks),
        side=SIDE,
    )
