"""Bundles from the browser: the form for a file, and what it holds before it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api import uploads
from app.api.border import BorderRoute
from app.api.bundles import import_sent, receive_bundle
from app.api.dependencies import AppContext, Context, Trainer
from app.domain.entities import ApiKey, Caller
from app.domain.errors import Conflict, InvalidRequest, TooLarge, Unprocessable
from app.ingest.orders import BundleContent
from app.services.bundle_import import SeenBundle, inspect_bundle
from app.services.models import DEFAULT_ALIAS
from app.web.forms import see
from app.web.rendering import page, refused_form, segment

router = APIRouter(route_class=BorderRoute)
streamed = APIRouter(include_in_schema=False, route_class=BorderRoute)
"""As `app.web.uploads.streamed`."""

PATH = "/ui/bundles"
_FIELDS: Final = ("model", "alias", "allow_older", "allow_schema_change")
_CLASSES: Final = 100

Name = Annotated[str, Query(max_length=100)]


@router.get(PATH)
def form_page(request: Request, context: Context, _caller: Trainer) -> Response:
    """The form for a bundle."""
    return page(request, "bundle.html", seen=None, **_form(context, {"alias": DEFAULT_ALIAS}))


@streamed.post(PATH)
async def upload(
    request: Request, context: Context, caller: Trainer, tenant: Name = "", dry_run: bool = False
) -> Response:
    """Import the bundle in the form as the API does, and show its version.

    dry_run: show what it holds, or what is wrong with it, beside the form; nothing is stored.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest("The form holds no file.", code="no_file")
    async with receive_bundle(request, context, caller, _FIELDS) as sent:
        if dry_run:
            return await _look(request, context, caller, sent)
        fields = sent.fields
        imported = await import_sent(
            request,
            context,
            caller,
            sent,
            model=fields.get("model") or None,
            alias=fields.get("alias") or None,
            allow_older="allow_older" in fields,
            allow_schema_change="allow_schema_change" in fields,
        )
    version, done = imported.version, "import" if imported.is_new else "import-known"
    return see(f"/ui/models/{segment(version.model)}/versions/{version.version}", tenant=tenant, done=done)


async def _look(request: Request, context: AppContext, caller: ApiKey, sent: uploads.Upload) -> Response:
    """The form as it was sent, with what the bundle holds or with why it would not be imported."""
    try:
        seen = await uploads.while_connected(
            request,
            lambda gone: inspect_bundle(
                context.store_of(caller),
                sent.file.path,
                model=sent.fields.get("model") or None,
                allow_older="allow_older" in sent.fields,
                limits=context.settings,
                read=lambda order: context.reader.read(order, BundleContent, gone, Caller.of(caller)),
            ),
        )
    except (InvalidRequest, TooLarge, Unprocessable, Conflict) as error:
        form = _form(context, sent.fields)
        return await run_in_threadpool(refused_form, request, "bundle.html", error, seen=None, **form)
    return await run_in_threadpool(_shown, request, context, sent, seen)


def _shown(request: Request, context: AppContext, sent: uploads.Upload, seen: SeenBundle) -> Response:
    shown: dict[str, Any] = {"size": sent.file.size, "classes": seen.manifest.classes[:_CLASSES]}
    return page(request, "bundle.html", seen=seen, **shown, **_form(context, sent.fields))


def _form(context: AppContext, sent: Mapping[str, str]) -> dict[str, Any]:
    """What the form shows. sent: its fields, to be shown again."""
    settings = context.settings
    return {"sent": sent, "max_bytes": settings.max_bundle_bytes, "signed": settings.bundle_keys is not None}
