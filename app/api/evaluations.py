"""``/v1/evaluations``: versions on labelled data sets, alone or beside another version."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.etags import etag, unless_known
from app.api.paging import After, Limit, Page, page_of
from app.api.schemas import Body
from app.domain.evaluation import ALPHA, TOLERANCE, Evaluation, ListedEvaluation, Part, UnknownClasses
from app.domain.names import REFERENCE, DatasetRef, Reference
from app.services import evaluations

router = APIRouter(prefix="/v1/evaluations", tags=["evaluations"], route_class=BorderRoute)

EvaluationId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Tolerance = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Alpha = Annotated[float, Field(gt=0.0, le=0.5, allow_inf_nan=False)]
_ById = Annotated[
    str | None, Query(max_length=201, pattern=REFERENCE, description="By model and number: letters@5.")
]
POLL_AFTER = "1"
"""Retry-After of unfinished evaluations, in seconds."""


class CreateEvaluation(Body):
    """A version to evaluate.

    version, baseline: ``model``, ``model@alias`` or ``model@5``. part: of the data set. tolerance: the loss
    of a share that does not matter. alpha: the probability that any verdict of all classes is wrong.
    unknown_classes: what becomes of rows of classes that not all versions have: left out, kept as rows of
    none of the classes, or the evaluation fails.
    """

    version: Reference
    dataset_id: DatasetRef
    part: Part = "all"
    baseline: Reference | None = None
    tolerance: Tolerance = TOLERANCE
    alpha: Alpha = ALPHA
    unknown_classes: UnknownClasses = "drop"


@router.post("", status_code=202)
def create_evaluation(
    body: CreateEvaluation, response: Response, context: Context, caller: Trainer
) -> Evaluation:
    """Evaluate a version on a labelled data set, and compare it with another version on the same rows.

    A worker computes it. Rows that either version was trained on do not count, wherever they stand.
    """
    made = evaluations.create_evaluation(
        context.store_of(caller),
        context.queue,
        context.settings,
        **body.model_dump(),
        created_by=caller.id,
    )
    return _accepted(made, response)


@router.get("")
def list_evaluations(
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    version: _ById = None,
    baseline: _ById = None,
    dataset_id: Annotated[str | None, Query(max_length=64, pattern=r"^[A-Za-z0-9_-]+$")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[ListedEvaluation]:
    """All evaluations, newest first, without their classes."""
    page, has_more = evaluations.list_evaluations(
        context.listed_store(request, caller),
        limit=limit,
        after=after,
        version=version,
        baseline=baseline,
        dataset_id=dataset_id,
    )
    return page_of(request, response, page, has_more)


@router.get("/{evaluation_id}", response_model=Evaluation)
def get_evaluation(
    evaluation_id: EvaluationId, request: Request, response: Response, context: Context, caller: Trainer
) -> Any:
    """One evaluation, with its classes when it has ended."""
    found = evaluations.get_evaluation(context.store_of(caller), evaluation_id)
    again = {} if found.state.ended else {"retry_after": POLL_AFTER}
    return unless_known(request, response, etag(found.state, found.progress_done), lambda: found, **again)


@router.delete("/{evaluation_id}", status_code=204)
def delete_evaluation(evaluation_id: EvaluationId, context: Context, caller: Trainer) -> None:
    """Delete an evaluation that has ended."""
    evaluations.delete_evaluation(context.store_of(caller), evaluation_id)


@router.post("/{evaluation_id}/cancel", status_code=202)
def cancel_evaluation(
    evaluation_id: EvaluationId, response: Response, context: Context, caller: Trainer
) -> Evaluation:
    """Stop an evaluation. Nothing of it is kept."""
    found = evaluations.cancel_evaluation(context.store_of(caller), context.queue, evaluation_id)
    return _accepted(found, response)


def _accepted(evaluation: Evaluation, response: Response) -> Evaluation:
    response.headers["location"] = f"/v1/evaluations/{evaluation.id}"
    if not evaluation.state.ended:
        response.headers["retry-after"] = POLL_AFTER
    return evaluation
