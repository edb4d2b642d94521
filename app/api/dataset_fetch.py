"""``/v1/datasets:fetch``: data sets from addresses, which the service fetches itself."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, Request, Response
from pydantic import Field, StringConstraints

from app.api import uploads
from app.api.border import BorderRoute
from app.api.datasets import READING, register_file, registered_view
from app.api.dependencies import AppContext, Context, Trainer
from app.api.schemas import Body, DatasetView
from app.domain.errors import InputFault, InvalidRequest
from app.domain.installation import require_training
from app.domain.names import MAX_DISPLAY_NAME
from app.domain.origins import AllowedServers
from app.remote.download import MAX_URL, split_url

router = APIRouter(tags=["data sets"], route_class=BorderRoute)

PATH: Final = "/v1/datasets:fetch"

_Parameter: TypeAlias = Annotated[str, StringConstraints(pattern=f"^({'|'.join(READING)})$")]
_TEXT: Final = r"^[^\x00]*$"
_Said: TypeAlias = Annotated[str, StringConstraints(max_length=uploads.MAX_LIST, pattern=_TEXT)]


class Fetch(Body):
    """Where a data set is, and how it is read.

    url: its origin is one of STMS_DATASET_SOURCES; it may be presigned, and is neither stored nor logged.
    sha256: that the file must have. name, filename, format, and in reading the others: as those of an upload.
    """

    url: Annotated[str, StringConstraints(max_length=MAX_URL)]
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None = None
    name: Annotated[str, StringConstraints(max_length=MAX_DISPLAY_NAME, pattern=_TEXT)] | None = None
    filename: Annotated[str, StringConstraints(max_length=400, pattern=_TEXT)] | None = None
    format: Annotated[str, StringConstraints(max_length=20, pattern=_TEXT)] | None = None
    reading: dict[_Parameter, _Said] = Field(
        {}, max_length=len(READING), json_schema_extra={"additionalProperties": False}
    )


@router.post(
    PATH,
    status_code=201,
    responses={
        200: {"description": "The same bytes are registered already.", "model": DatasetView},
    },
)
async def fetch_dataset(
    body: Fetch, request: Request, response: Response, context: Context, caller: Trainer
) -> DatasetView:
    """Fetch a data set from an address, such as a presigned one of a bucket, instead of uploading it.

    The answer comes when the file was fetched, validated and stored, as that of an upload. An interrupted
    transfer goes on where it broke off. Asking again for the same file changes nothing.
    """
    require_training()
    _check_source(context, body.url)
    context.reader.check_queue(caller.tenant)
    said = {"name": body.name, "filename": body.filename, "format": body.format, **body.reading}
    limit = context.settings.max_upload_bytes
    fetched = uploads.fetch_upload(request, context, caller, "datasets", limit, body.url, body.sha256)
    async with fetched as sent:
        dataset, created = await register_file(request, context, caller, sent, said)
    return await registered_view(response, context.store_of(caller), dataset, created=created)


def _check_source(context: AppContext, url: str) -> None:
    """Raise InvalidRequest for an address from which no data set is fetched."""
    try:
        origin, _ = split_url(url)
    except ValueError as error:
        raise InvalidRequest(str(error), faults=[InputFault("url", "bad_url", str(error))]) from None
    if not AllowedServers.of(context.settings.dataset_sources).allow(origin):
        text = (
            f"This installation does not fetch data sets from {origin}. An operator can list the address in"
            " STMS_DATASET_SOURCES."
        )
        raise InvalidRequest(text, faults=[InputFault("url", "source_not_allowed", text)])
