"""``/v1/models/{model}/retrain``: train a version again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.jobs import IdempotencyKey, accepted, body_digest
from app.api.models import BaseVersion, ModelName
from app.api.schemas import Body, JobView
from app.domain.monitors import Label
from app.domain.names import AliasName, DatasetRef
from app.services import retraining
from app.services.models import DEFAULT_ALIAS

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=BorderRoute)

_MOST_FIELDS = 100


class Retrain(Body):
    """A version to train again.

    from: its number, or an alias. dataset_id: what to train on; null: the data set of the version's job.
    alias: moved to the new version; null: none. hyperparameters: those in which the job differs from the one
    that trained the version, merged group by group. classes: whose students are trained; ``changed``: of
    classes whose rows differ from those that the version was trained on. The others keep their students.
    """

    base: BaseVersion | Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(DEFAULT_ALIAS, alias="from")
    dataset_id: DatasetRef | None = None
    alias: AliasName | None = None
    hyperparameters: dict[str, Any] = Field({}, max_length=_MOST_FIELDS)
    classes: Literal["all", "changed"] | Annotated[list[Label], Field(min_length=1, max_length=1000)] = "all"


@router.post("/{model}/retrain", status_code=202)
def retrain(
    model: ModelName,
    body: Retrain,
    response: Response,
    context: Context,
    caller: Trainer,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Train a version again, on another data set or with other hyper-parameters: a job with the specification
    of the one that trained it. The new version keeps its columns and their kinds.

    ``provenance.retrained_from`` of the job names the version, and the classes that are trained if not all
    are. Its warnings say what is not repeated of a version with other thresholds or classes.
    """
    job, created = retraining.retrain(
        context.store_of(caller),
        context.queue,
        context.settings,
        model,
        body.base,
        dataset_id=body.dataset_id,
        alias=body.alias,
        hyperparameters=body.hyperparameters,
        created_by=caller.id,
        idempotency_key=idempotency_key,
        body_digest=body_digest(body, model),
        classes=body.classes,
    )
    if not created:
        response.headers["idempotency-replayed"] = "true"
    return accepted(job, response)
