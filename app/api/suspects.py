"""``/v1/training-jobs/{job_id}/suspects``: rows whose labels are probably wrong, and their corrections."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from app.api.border import BorderRoute
from app.api.datasets import RowNumber, dataset_view
from app.api.dependencies import Context, Trainer
from app.api.jobs import JobId
from app.api.paging import AfterNumber, Page, page_of
from app.api.schemas import Body, DatasetView, SparseValues, View
from app.domain.entities import Json
from app.domain.names import DISPLAY_NAME, MAX_CLASS_NAME, USABLE
from app.services import suspects
from core.monitoring.suspects import MOST

router = APIRouter(prefix="/v1/training-jobs", tags=["training jobs"], route_class=BorderRoute)


class SuspectView(View):
    """A row whose label is probably wrong.

    row: its number in the training part of the data set, from 0. suggested: the class that it probably is of.
    The probabilities of both are those of a teacher that has not seen the row. part: ``test`` if the job has
    held the row out and measured its students on it. x: its values, as the rows of the data set have them.
    """

    row: int
    label: str
    suggested: str
    probability_of_label: float
    probability_of_suggested: float
    part: Literal["training", "test"]
    x: list[float] | SparseValues | Json


@router.get("/{job_id}/suspects")
def list_job_suspects(
    job_id: JobId,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    label: Annotated[
        str | None,
        Query(
            alias="class",
            max_length=MAX_CLASS_NAME,
            pattern=USABLE,
            description="Only rows that have this label.",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of rows.")] = 100,
    after: AfterNumber = None,
) -> Page[SuspectView]:
    """Rows whose labels are probably wrong, the most suspect first; fewer at once if they are long.

    after: number of rows to skip.
    """
    skip = max(after or 0, 0)
    page = suspects.job_suspects(
        context.store_of(caller), context.files, job_id, label=label, skip=skip, limit=limit
    )
    rows = [SuspectView.model_validate(facts | {"x": row.x}) for facts, row in page.rows]
    return page_of(request, response, rows, page.has_more, lambda _: skip + len(rows))


# Not a `Body`, as `app.api.datasets.Correction`.
@dataclass(
    config=ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [
                {"required": ["label"], "properties": {"label": {"type": "string"}}},
                {"required": ["keep"], "properties": {"keep": {"const": True}}},
            ]
        },
    ),
    slots=True,
)
class SuspectCorrection:
    """The right label of a row, or ``"keep": true`` where the label that it has is right."""

    row: RowNumber
    label: Annotated[str, Field(min_length=1, max_length=MAX_CLASS_NAME, pattern=USABLE)] | None = None
    keep: Literal[True] | None = None

    @model_validator(mode="after")
    def _label_or_keep(self) -> SuspectCorrection:
        if (self.label is None) == (self.keep is None):
            raise ValueError("give either label or keep")
        return self


class CorrectSuspects(Body):
    """What people say of suspect rows. name: of the data set."""

    corrections: list[SuspectCorrection] = Field(min_length=1, max_length=MOST)
    name: str | None = Field(None, max_length=100, json_schema_extra={"pattern": DISPLAY_NAME})


@router.post(
    "/{job_id}/suspects",
    status_code=201,
    responses={200: {"description": "The same labels are a data set already.", "model": DatasetView}},
)
def correct_job_suspects(
    job_id: JobId, body: CorrectSuspects, response: Response, context: Context, caller: Trainer
) -> DatasetView:
    """Store the job's rows with corrected labels as a data set, on which a job trains with them.

    Rows that keep their labels are not named again by jobs on the new data set.
    """
    store = context.store_of(caller)
    dataset, created = suspects.corrected_suspects(
        store,
        context.files,
        job_id,
        corrections={one.row: one.label for one in body.corrections if one.label is not None},
        confirmed={one.row for one in body.corrections if one.keep},
        name=body.name,
        created_by=caller.id,
        limits=context.settings,
    )
    if not created:
        response.status_code = 200
    response.headers["location"] = f"/v1/datasets/{dataset.id}"
    return dataset_view(store, dataset)
