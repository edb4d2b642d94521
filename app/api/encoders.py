"""``/v1/encoders``: own encoders of a tenant, which make vectors of pictures."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api import uploads
from app.api.border import BorderRoute
from app.api.dependencies import Administrator, Context, Trainer
from app.api.etags import etag
from app.api.paging import After, Limit, Page, page_of
from app.domain.names import MODEL_NAME
from app.domain.own_encoder import MAX_LICENCE, OwnEncoder
from app.encoders.picture_input import PATTERN
from app.services import own_encoders

router = APIRouter(prefix="/v1/encoders", tags=["encoders"], route_class=BorderRoute)

EncoderName = Annotated[str, Path(pattern=MODEL_NAME, max_length=100)]


@router.post(
    "",
    status_code=201,
    openapi_extra={"requestBody": uploads.ENCODER_BODY},
    responses={200: {"description": "The same file is known under this name already.", "model": OwnEncoder}},
)
async def add_own_encoder(
    request: Request,
    response: Response,
    context: Context,
    caller: Administrator,
    name: Annotated[str, Query(pattern=MODEL_NAME, max_length=100, description="Name of the encoder.")],
    input: Annotated[  # noqa: A002 - it is the name of the parameter
        str,
        Query(
            max_length=100,
            json_schema_extra={"pattern": PATTERN},
            description="What it expects: image:SIDExSIDE:rgb|bgr:SCALING, with :crop for the centre.",
        ),
    ],
    output: Annotated[
        str, Query(max_length=200, description="Name of the output with the vector; empty: the only one.")
    ] = "",
    licence: Annotated[
        str, Query(max_length=MAX_LICENCE, description="Licence of the file, for those who read of it.")
    ] = "",
) -> OwnEncoder:
    """Add an encoder: an ONNX file (opset 11 to 21), checked and tried in a process without rights.

    Its operators must end and give the same numbers each time: no loops, no branches, no random numbers, no
    other files. It must answer small pictures twice with the same bits, within a second each.
    """
    own_encoders.require_own_encoders(context.settings)
    limit = context.settings.max_encoder_bytes
    async with uploads.receive_upload(request, context, caller, "encoders", limit) as sent:
        encoder, is_new = await run_in_threadpool(
            own_encoders.add_encoder,
            context.store_of(caller),
            context.settings,
            name=name,
            input_form=input,
            output=output,
            licence=licence,
            digest=sent.file.digest,
            path=sent.file.path,
            size=sent.file.size,
            trial=context.pictures.pool.trial,
            created_by=caller.id,
        )
    if not is_new:
        response.status_code = 200
    response.headers["location"] = f"/v1/encoders/{encoder.name}"
    response.headers["etag"] = etag(encoder.digest)
    return encoder


@router.get("")
def list_own_encoders(
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    limit: Limit = 100,
    after: After = None,
) -> Page[OwnEncoder]:
    """The own encoders, by name."""
    page, has_more = own_encoders.list_encoders(context.store_of(caller), limit=limit, after=after)
    return page_of(request, response, page, has_more, attrgetter("name"))


@router.get("/{encoder}")
def get_own_encoder(encoder: EncoderName, context: Context, caller: Trainer) -> OwnEncoder:
    """One own encoder."""
    return own_encoders.get_encoder(context.store_of(caller), encoder)


@router.delete("/{encoder}", status_code=204)
def delete_own_encoder(encoder: EncoderName, context: Context, caller: Administrator) -> None:
    """Delete an own encoder that neither a version nor an unfinished job uses."""
    own_encoders.delete_encoder(context.store_of(caller), encoder)
