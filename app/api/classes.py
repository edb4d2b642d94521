"""``/v1/models/{model}/classes``: add a class from a few examples, rename and remove classes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool

from app.api import uploads
from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.jobs import accepted
from app.api.models import LABELS, BaseVersion, Label, ModelName
from app.api.schemas import Body, JobView, VersionView
from app.domain.entities import Caller
from app.domain.installation import require_training
from app.domain.names import USABLE, AliasName, DatasetRef
from app.ingest.orders import RevisionContent
from app.services import class_additions, class_changes, class_merging
from app.services.models import DEFAULT_ALIAS, LISTED_CLASSES
from app.serving.columns.base import Columns
from app.serving.query.bodies import Given

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=BorderRoute)

_FORMS = ("records", "rows", "texts", "dataset_id")


class AddClass(Body):
    """A class to add to a version, and its examples.

    name: of the class. base: number of the version, or an alias. records, rows, texts: the examples, in the
    form of queries to the version; dataset_id: a data set all rows of which are examples. alias: moved to
    the new version; null: none.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [form], "properties": {form: {"not": {"type": "null"}}}} for form in _FORMS
            ]
        }
    )

    name: Annotated[Label, Field(pattern=USABLE)]
    base: BaseVersion = DEFAULT_ALIAS
    records: list[dict[str, Any]] | None = Field(None, max_length=class_additions.MOST)
    rows: list[Any] | None = Field(None, max_length=class_additions.MOST)
    texts: list[str] | None = Field(None, max_length=class_additions.MOST)
    dataset_id: DatasetRef | None = None
    max_false_positive_rate: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="The largest false-positive rate to be expected, by the training rows of the version.",
    )
    confidence: float | None = Field(
        None,
        ge=0.5,
        lt=1,
        description="The probability with which the rate of this student is within the budget; null: it is on"
        " average over training parts.",
    )
    alias: AliasName | None = None

    @model_validator(mode="after")
    def _one_form(self) -> AddClass:
        if sum(getattr(self, form) is not None for form in _FORMS) != 1:
            raise ValueError(f"give the examples in one of {', '.join(_FORMS)}")
        return self


@router.post("/{model}/classes", status_code=202)
async def add_class(
    model: ModelName, body: AddClass, response: Response, context: Context, caller: Trainer
) -> JobView:
    """Add a class to a version from 5 to 10 000 examples: a job trains its student in seconds, and publishes
    a version that has all students of the earlier one as they are, and this one.

    ``provenance.addition`` of the job says how many of the examples it accepts when they are left out, how
    many rows of other classes, and whose students accept the examples.
    """
    store = context.store_of(caller)
    version = await run_in_threadpool(
        class_additions.base_of_addition, store, context.files, model, body.base, body.name
    )
    examples: NDArray[np.float64] | str
    if body.dataset_id is not None:
        examples = body.dataset_id
    else:
        columns = await context.cache.columns(version)
        examples = await run_in_threadpool(_numbers, body, columns)
    job = await run_in_threadpool(
        class_additions.submit_addition,
        store,
        context.queue,
        context.settings,
        version,
        body.name,
        examples,
        budget=body.max_false_positive_rate,
        confidence=body.confidence,
        alias=body.alias,
        created_by=caller.id,
    )
    return accepted(job, response)


def _numbers(body: AddClass, columns: Columns) -> NDArray[np.float64]:
    """The examples as numbers (q, d). Raises InvalidRequest naming rows and columns."""
    form = next(form for form in _FORMS if getattr(body, form) is not None)
    raws = [msgspec.Raw(msgspec.json.encode(row)) for row in getattr(body, form)]
    if not raws:
        return np.empty((0, columns.n_columns))
    rows = Given(form, raws).of(columns, class_additions.MOST)
    return np.concatenate([table for _, table in rows.blocks()]).astype(np.float64)


class ChangeClasses(Body):
    """Classes of a version to publish: those of an earlier one with other names, and without some.

    base: number of the version, or an alias. rename: new names by the present ones. remove: classes that the
    new version does not have.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["rename"], "properties": {"rename": {"minProperties": 1}}},
                {"required": ["remove"], "properties": {"remove": {"minItems": 1}}},
            ]
        }
    )

    base: BaseVersion = DEFAULT_ALIAS
    rename: dict[Label, Annotated[Label, Field(pattern=USABLE)]] = Field(
        {}, max_length=LISTED_CLASSES, json_schema_extra=LABELS
    )
    remove: list[Annotated[Label, Field(pattern=USABLE)]] = Field([], max_length=LISTED_CLASSES)

    @model_validator(mode="after")
    def _something(self) -> ChangeClasses:
        if not self.rename and not self.remove:
            raise ValueError("give rename or remove")
        return self


@router.patch("/{model}/classes", status_code=201)
async def change_classes(
    model: ModelName, body: ChangeClasses, response: Response, context: Context, caller: Trainer
) -> VersionView:
    """Publish an earlier version with other names of classes, or without some, as a new version. No alias is
    moved.

    Nothing is trained: the students are those of the earlier version, with their thresholds and metrics.
    """
    version = await run_in_threadpool(
        class_changes.change_classes,
        context.store_of(caller),
        context.files,
        context.settings,
        model,
        body.base,
        rename=body.rename,
        remove=body.remove,
        created_by=caller.id,
    )
    await context.refresher.refresh(version.qualified_model)
    response.headers["location"] = f"/v1/models/{model}/versions/{version.version}"
    return VersionView.of(version)


class MergeClasses(Body):
    """Classes of a version that become one.

    name: of the new class, which may be that of one of them. base: number of the version, or an alias. alias:
    moved to the new version; null: none.
    """

    name: Annotated[Label, Field(pattern=USABLE)]
    classes: list[Annotated[Label, Field(pattern=USABLE)]] = Field(
        min_length=2, max_length=LISTED_CLASSES, json_schema_extra={"uniqueItems": True}
    )
    base: BaseVersion = DEFAULT_ALIAS
    alias: AliasName | None = None

    @model_validator(mode="after")
    def _once(self) -> MergeClasses:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("name each class once")
        return self


@router.post("/{model}/classes:merge", status_code=202)
async def merge_classes(
    model: ModelName,
    body: MergeClasses,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
) -> JobView:
    """Make one class of some: a job trains its student with the rows of all of them, and publishes a version
    that has the students of all other classes as they are.

    The data set of the version gets a revision in which these rows have the new name.
    """
    require_training()
    context.reader.check_queue(caller.tenant)
    job = await uploads.while_connected(
        request,
        lambda gone: class_merging.merge_classes(
            context.store_of(caller),
            context.files,
            context.queue,
            context.settings,
            model,
            body.base,
            name=body.name,
            classes=body.classes,
            alias=body.alias,
            created_by=caller.id,
            read=lambda order: context.reader.read(order, RevisionContent, gone, Caller.of(caller)),
        ),
    )
    return accepted(job, response)
