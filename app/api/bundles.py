"""What takes models out of the house and brings them in: bundles of versions, and students as ONNX."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Collection, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api import uploads
from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Downloader, Trainer
from app.api.etags import etag, not_modified
from app.api.models import AllowSchemaChange, ImportAlias, ModelName, VersionName
from app.api.schemas import VersionView
from app.auth.authenticator import authorise
from app.domain.entities import ApiKey, Caller, Json
from app.domain.errors import InvalidRequest
from app.domain.names import MAX_CLASS_NAME, MODEL_NAME
from app.ingest.orders import BundleContent
from app.services import models
from app.services.bundle_export import BundleFile, Part, open_bundle, students_of
from app.services.bundle_import import ImportedBundle, import_bundle
from app.services.models import DEFAULT_ALIAS
from app.services.onnx_export import export_onnx

router = APIRouter(tags=["models"], route_class=BorderRoute)

PREFIX: Final = "/v1/bundles"
TAR: Final = "application/x-tar"
ONNX: Final = "application/vnd.onnx"
MAX_CLASSES: Final = 256
"""Most classes that an export can name."""
_RANGE: Final = re.compile(r"bytes=(\d{1,15})-")


class _BundleResponse(StreamingResponse):
    """A bundle from byte ``start`` on, whose temporary file is closed when the response ends in any way."""

    def __init__(self, pieces: Iterator[bytes], opened: ExitStack, **options: Any) -> None:
        super().__init__(pieces, media_type=TAR, **options)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened.close()


@router.get(
    "/v1/models/{model}/versions/{version}/bundle",
    response_class=Response,
    responses={200: {"content": {TAR: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def export_bundle(
    model: ModelName,
    version: VersionName,
    request: Request,
    context: Context,
    caller: Downloader,
    labels: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_CLASS_NAME)]] | None,
        Query(alias="class", max_length=MAX_CLASSES, description="Only these classes; by default all."),
    ] = None,
    teacher: Annotated[bool, Query(description="Whether the bundle has the teacher of the version.")] = True,
) -> Response:
    """One version as a bundle, a tar file; the same version always gives the same bytes.

    With ``class`` it has only the students of these classes, and with ``teacher=false`` no teacher: the
    version that it is imported as does not answer ``:predict``. A head is exported as a whole only.

    ``Range: bytes=N-`` goes on with a download that was interrupted; with ``If-Range`` only if the bundle is
    the same. The ETag is the digest of its manifest.
    """
    authorise(caller, "download", model)
    return await run_in_threadpool(
        bundle_response, request, context, caller, model, version, labels, teacher=teacher
    )


def bundle_response(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    model: str,
    version: str,
    labels: list[str] | None = None,
    *,
    teacher: bool = True,
) -> Response:
    """The bundle of a version, for a caller that may download it; its download is audited.

    labels: only these classes. teacher: whether it has the teacher.
    """
    store = context.store_of(caller)
    row = models.get_version(store, model, version)
    students = None if labels is None else students_of(store, context.files, row, labels)
    with ExitStack() as stack:
        file = stack.enter_context(open_bundle(store, row, Part(students, teacher)))
        headers = {"etag": etag(file.digest), "cache-control": "private, no-cache", "accept-ranges": "bytes"}
        if not_modified(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        start = _start(request, headers["etag"], file)
        name = f"{row.model}-{row.version}.stms.tar"
        headers |= {
            "content-length": str(file.size - start),
            "content-disposition": f'attachment; filename="{name}"',
        }
        if start:
            headers["content-range"] = f"bytes {start}-{file.size - 1}/{file.size}"
        with store.begin() as uow:
            details: Json = {"bundle": file.digest, "bytes": file.size - start}
            details |= {} if students is None else {"classes": len(students)}
            uow.audit.append("model.export", f"{row.model}@{row.version}", details=details)
        opened = stack.pop_all()
    pieces = file.pieces(store, start)
    return _BundleResponse(pieces, opened, status_code=206 if start else 200, headers=headers)


def _start(request: Request, tag: str, file: BundleFile) -> int:
    """The first byte that is requested; other ranges than the rest of the file mean all of it."""
    wanted = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if wanted is None or request.headers.get("if-range", tag).strip() != tag:
        return 0
    start = int(wanted[1])
    if start >= file.size:
        text = f"The bundle has {file.size} bytes; the range begins behind them."
        raise InvalidRequest(text, code="bad_range")
    return start


@router.get(
    "/v1/models/{model}/versions/{version}/onnx",
    response_class=Response,
    responses={200: {"content": {ONNX: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_onnx(
    model: ModelName,
    version: VersionName,
    request: Request,
    context: Context,
    caller: Downloader,
    label: Annotated[
        str,
        Query(alias="class", min_length=1, max_length=MAX_CLASS_NAME, description="Class of the student."),
    ],
) -> Response:
    """The student of one class as an ONNX model (opset 18, float64), which other runtimes evaluate.

    What ONNX cannot say is refused with 422: dates, texts and vectors of records.
    """
    authorise(caller, "download", model)
    return await run_in_threadpool(_onnx, request, context, caller, model, version, label)


def _onnx(
    request: Request, context: AppContext, caller: ApiKey, model: str, version: str, label: str
) -> Response:
    store = context.store_of(caller)
    row = models.get_version(store, model, version)
    onnx = export_onnx(store, context.files, row, label)
    sha = hashlib.sha256()
    for piece in onnx.pieces():
        sha.update(piece)
    digest = sha.hexdigest()
    headers = {"etag": etag(digest), "cache-control": "private, no-cache"}
    if not_modified(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    with store.begin() as uow:
        details = {"class": label, "onnx": digest, "bytes": onnx.size}
        uow.audit.append("model.export", f"{row.model}@{row.version}", details=details)
    headers |= {
        "content-length": str(onnx.size),
        "content-disposition": f'attachment; filename="{row.model}-{row.version}.onnx"',
    }
    return StreamingResponse(onnx.pieces(), media_type=ONNX, headers=headers)


class ImportedBundleView(VersionView):
    """A version that was imported. alias: the alias that was moved to it; null if none was."""

    alias: str | None


@router.post(
    PREFIX,
    status_code=201,
    openapi_extra={"requestBody": uploads.BUNDLE_BODY},
    responses={200: {"description": "The same bundle is published already.", "model": ImportedBundleView}},
)
async def post_bundle(
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    model: Annotated[
        str | None,
        Query(pattern=MODEL_NAME, description="Model to publish the version under; by default its own name."),
    ] = None,
    alias: ImportAlias = DEFAULT_ALIAS,
    allow_older: Annotated[
        bool, Query(description="Also import an older version than one that came from the same model.")
    ] = False,
    allow_schema_change: AllowSchemaChange = False,
) -> ImportedBundleView:
    """Publish the version in a bundle as the next version of a model.

    The whole file is checked first: every digest, every package, and that they fit each other. The same
    bundle gives the existing version. An older version of the same origin than the model has is refused
    unless ``allow_older`` is true. A server with trusted keys refuses what none of them has signed. An alias
    that an operator moves while the file is checked, or, if the model is named, during the upload, stays
    where it is. Where the version refuses questions which the present one of the alias answers, nothing is
    imported unless ``allow_schema_change`` is true: 409 ``schema_change``.
    """
    store, wanted = context.store_of(caller), alias or None
    seen = None
    if model is not None:
        seen = await run_in_threadpool(models.alias_revision, store, model, wanted)
    async with receive_bundle(request, context, caller) as sent:
        imported = await import_sent(
            request,
            context,
            caller,
            sent,
            model=model,
            alias=wanted,
            seen=seen,
            allow_older=allow_older,
            allow_schema_change=allow_schema_change,
        )
    version = imported.version
    if not imported.is_new:
        response.status_code = 200
    response.headers["location"] = f"/v1/models/{version.model}/versions/{version.version}"
    shown = dataclasses.asdict(version) | {"inputs": version.inputs, "alias": imported.alias}
    return ImportedBundleView.model_validate(shown)


def receive_bundle(
    request: Request, context: AppContext, caller: ApiKey, fields: Collection[str] = ()
) -> AbstractAsyncContextManager[uploads.Upload]:
    """The bundle in a request; raises as `uploads.receive_upload`, and Overloaded where too many files wait.

    fields: those that a form may have besides it.
    """
    context.reader.check_queue(caller.tenant)
    limit = context.settings.max_bundle_bytes
    return uploads.receive_upload(request, context, caller, "versions", limit, fields)


async def import_sent(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    sent: uploads.Upload,
    *,
    model: str | None,
    alias: str | None,
    allow_older: bool,
    allow_schema_change: bool = False,
    seen: int | None = None,
) -> ImportedBundle:
    """Import a bundle that was received; errors as `import_bundle`. seen: revision of the alias, if known."""
    imported = await uploads.while_connected(
        request,
        lambda gone: import_bundle(
            context.store_of(caller),
            sent.file.path,
            model=model,
            alias=alias,
            alias_revision=seen,
            allow_older=allow_older,
            allow_schema_change=allow_schema_change,
            created_by=caller.id,
            limits=context.settings,
            read=lambda order: context.reader.read(order, BundleContent, gone, Caller.of(caller)),
        ),
    )
    if imported.is_new:
        await context.refresher.refresh(imported.version.qualified_model)
    return imported
