"""``/v1/models/{model}/aliases/{alias}/gate``: what a version must have passed before the alias is moved."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.api.border import BorderRoute
from app.api.dependencies import Administrator, Context, Reader
from app.api.etags import CONDITIONS, etag, expected_revision, unless_known
from app.api.evaluations import Alpha, Tolerance
from app.api.models import AliasText, ModelName
from app.api.schemas import Body
from app.auth.authenticator import authorise
from app.domain.evaluation import ALPHA, LEAST_ROWS, TOLERANCE, Gate, Rule
from app.domain.names import DatasetRef
from app.services import gates

router = APIRouter(prefix="/v1/models/{model}/aliases/{alias}/gate", tags=["models"], route_class=BorderRoute)


class SetGate(Body):
    """A gate to set.

    rule: ``not_worse`` wants every class proved not worse, ``no_class_worse`` that none is proved worse.
    dataset_id: on which versions are evaluated. tolerance, alpha: of the evaluation. least_rows: that it must
    have used.
    """

    rule: Rule = "not_worse"
    dataset_id: DatasetRef
    tolerance: Tolerance = TOLERANCE
    alpha: Alpha = ALPHA
    least_rows: Annotated[int, Field(ge=LEAST_ROWS, le=2**31 - 1)] = LEAST_ROWS


@router.get("", response_model=Gate)
def get_gate(
    model: ModelName, alias: AliasText, request: Request, response: Response, context: Context, caller: Reader
) -> Any:
    """The gate of an alias; changing it requires its ETag."""
    authorise(caller, "query", model)
    found = gates.get_gate(context.store_of(caller), model, alias)
    return unless_known(request, response, etag(found.revision), lambda: found)


@router.put("", openapi_extra={"parameters": CONDITIONS})
def set_gate(
    model: ModelName,
    alias: AliasText,
    body: SetGate,
    request: Request,
    response: Response,
    context: Context,
    caller: Administrator,
) -> Gate:
    """Set the gate of an alias: without an evaluation that passes it, the alias is moved by nothing.

    If-Match names the revision that was read: without it an existing gate gives 428, and a revision that is
    not the current one 412. A move to a version without an evaluation gives 409 ``gate_not_passed``, to one
    that failed 409 ``gate_failed``. A move back to a version that the alias had always passes.
    """
    stored = gates.set_gate(
        context.store_of(caller), model, alias, expected_revision(request), **body.model_dump()
    )
    response.headers["etag"] = etag(stored.revision)
    return stored


@router.delete("", status_code=204, openapi_extra={"parameters": [{**CONDITIONS[0], "required": True}]})
def delete_gate(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Administrator
) -> None:
    """Delete the gate of an alias; If-Match names the revision that was read."""
    gates.delete_gate(context.store_of(caller), model, alias, expected_revision(request))
