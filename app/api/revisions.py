"""``/v1/datasets/{dataset_id}/revisions``: data sets with other labels, without some rows and with more."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.dataclasses import dataclass

from app.api import uploads
from app.api.border import BorderRoute
from app.api.datasets import DatasetId, RowNumber, registered_view, whole
from app.api.dependencies import Context, Trainer
from app.api.schemas import Body, DatasetView
from app.domain.entities import Caller
from app.domain.installation import require_training
from app.domain.names import DISPLAY_NAME, MAX_CLASS_NAME, USABLE, DatasetRef
from app.ingest.orders import NewLabel, RevisionContent
from app.services import revisions
from app.services.subject_keys import MAX_SUBJECT

router = APIRouter(prefix="/v1/datasets", tags=["data sets"], route_class=BorderRoute)

Subject = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SUBJECT, pattern=USABLE)]


class DeleteRows(Body):
    """Rows of a data set to delete: training rows by their numbers, counted from 0, and all rows about some
    subjects.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["rows"], "properties": {"rows": {"minItems": 1}}},
                {"required": ["subjects"], "properties": {"subjects": {"minItems": 1}}},
            ]
        }
    )

    rows: list[RowNumber] = Field([], max_length=revisions.MAX_DELETED)
    subjects: list[Subject] = Field([], max_length=revisions.MAX_SUBJECTS)

    @model_validator(mode="after")
    def _something(self) -> DeleteRows:
        if not (self.rows or self.subjects):
            raise ValueError("name rows or subjects")
        return self


RowId = Annotated[int, Field(strict=True, ge=0, le=2**53), BeforeValidator(whole)]


# Not a `Body`, as `Correction`.
@dataclass(
    config=ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [
                {"required": ["row"], "properties": {"row": {"type": "number"}}},
                {"required": ["id"], "properties": {"id": {"type": "number"}}},
            ]
        },
    ),
    slots=True,
)
class NewRowLabel:
    """The right label of a training row, by its number or by its id; null takes its label away."""

    label: Annotated[str, Field(min_length=1, max_length=MAX_CLASS_NAME, pattern=USABLE)] | None
    row: RowNumber | None = None
    id: RowId | None = None

    @model_validator(mode="after")
    def _row_or_id(self) -> NewRowLabel:
        if (self.row is None) == (self.id is None):
            raise ValueError("give either row or id")
        return self

    @property
    def order(self) -> NewLabel:
        """The same for the order of a revision."""
        if self.id is not None:
            return NewLabel(self.id, self.label, is_id=True)
        return NewLabel(self.row or 0, self.label)


class ReviseDataset(Body):
    """What to change of a data set: labels first, then rows are deleted, then those of another data set are
    appended.

    append_dataset_id: a data set of the same columns, whose training rows are taken, but for those that the
    data set has already. note: why, for the people who read it.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["append_dataset_id"], "properties": {"append_dataset_id": {"type": "string"}}},
                {"required": ["delete"], "properties": {"delete": {"type": "object"}}},
                {"required": ["relabel"], "properties": {"relabel": {"minItems": 1}}},
            ]
        }
    )

    append_dataset_id: DatasetRef | None = None
    delete: DeleteRows | None = None
    relabel: list[NewRowLabel] = Field([], max_length=revisions.MAX_RELABELLED)
    note: Annotated[str, StringConstraints(pattern=DISPLAY_NAME, max_length=revisions.MAX_NOTE)] | None = None


@router.post(
    "/{dataset_id}/revisions",
    status_code=201,
    responses={200: {"description": "The same changes are a data set already.", "model": DatasetView}},
)
async def revise_dataset(
    dataset_id: DatasetId,
    body: ReviseDataset,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
) -> DatasetView:
    """Make a data set of another one with other labels, and rows appended or deleted; the other one stays.

    ``change`` in the answer tells what changed; rows keep their order, those appended come last. The rows
    that jobs have held out stay test rows, of which no job on a revision learns.
    """
    require_training()
    context.reader.check_queue(caller.tenant)
    store = context.store_of(caller)
    delete = DeleteRows.model_construct(rows=[], subjects=[]) if body.delete is None else body.delete
    changes = revisions.Changes(
        append=body.append_dataset_id,
        delete=delete.rows,
        relabel=[one.order for one in body.relabel],
        subjects=delete.subjects,
        note=body.note,
    )
    dataset, created = await uploads.while_connected(
        request,
        lambda gone: revisions.revised_dataset(
            store,
            context.files,
            dataset_id,
            changes,
            created_by=caller.id,
            limits=context.settings,
            read=lambda order: context.reader.read(order, RevisionContent, gone, Caller.of(caller)),
        ),
    )
    return await registered_view(response, store, dataset, created=created)
