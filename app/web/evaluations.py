"""Pages of evaluations, and the gates of aliases."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Administrator, Context, Trainer
from app.api.evaluations import CreateEvaluation, EvaluationId
from app.api.gates import SetGate
from app.api.models import AliasText, ModelName
from app.domain.errors import InputFault, InvalidRequest
from app.domain.evaluation import Evaluation
from app.domain.strict_json import StrictModel
from app.services import datasets, evaluations, gates
from app.store.unit_of_work import Store
from app.web.forms import Form, read_form, see
from app.web.rendering import fragment, page, segment

router = APIRouter(route_class=BorderRoute)

_LISTED: Final = 100
_DATASETS: Final = 100

Name = Annotated[str, Query(max_length=201)]


@router.get("/ui/evaluations")
def evaluations_page(
    request: Request, context: Context, caller: Trainer, version: Name = "", after: Name = ""
) -> Response:
    """Evaluations, newest first, and the form for a new one. version: only of this one, letters@5."""
    store = context.listed_store(request, caller)
    listed, has_more = evaluations.list_evaluations(
        store, limit=_LISTED, after=after or None, version=version or None
    )
    own = context.store_of(caller)
    return page(
        request,
        "evaluations.html",
        evaluations=listed,
        version=version,
        datasets=datasets.list_datasets(own, limit=_DATASETS)[0],
        next=listed[-1].id if has_more else None,
    )


@router.post("/ui/evaluations")
async def create(request: Request, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Ask for an evaluation, and show it."""
    form = await read_form(request)
    wanted = _given(
        CreateEvaluation, form, ("version", "baseline", "dataset_id", "part", "tolerance", "alpha")
    )
    made = await run_in_threadpool(
        evaluations.create_evaluation,
        context.store_of(caller),
        context.queue,
        context.settings,
        **wanted,
        created_by=caller.id,
    )
    return see(f"/ui/evaluations/{made.id}", tenant=tenant)


@router.get("/ui/evaluations/{evaluation_id}")
def evaluation_page(
    evaluation_id: EvaluationId, request: Request, context: Context, caller: Trainer
) -> Response:
    """One evaluation: its verdict and its classes, the worst first."""
    return page(request, "evaluation.html", **_shown(context.store_of(caller), evaluation_id))


@router.get("/ui/fragments/evaluations/{evaluation_id}")
def evaluation_fragment(
    evaluation_id: EvaluationId, request: Request, context: Context, caller: Trainer
) -> Response:
    """The part of `evaluation_page` that changes."""
    return fragment(request, "evaluation_part.html", **_shown(context.store_of(caller), evaluation_id))


@router.post("/ui/evaluations/{evaluation_id}/cancel")
async def cancel(
    evaluation_id: EvaluationId, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Stop an evaluation."""
    store = context.store_of(caller)
    await run_in_threadpool(evaluations.cancel_evaluation, store, context.queue, evaluation_id)
    return see(f"/ui/evaluations/{evaluation_id}", tenant=tenant)


@router.post("/ui/models/{model}/aliases/{alias}/gate")
async def set_gate(
    model: ModelName,
    alias: AliasText,
    request: Request,
    context: Context,
    caller: Administrator,
    tenant: Name = "",
) -> Response:
    """Set or change the gate of an alias, unless another has changed it since the page was shown."""
    form = await read_form(request)
    wanted = _given(SetGate, form, ("rule", "dataset_id", "tolerance", "alpha", "least_rows"))
    store, revision = context.store_of(caller), form.whole("revision")
    await run_in_threadpool(gates.set_gate, store, model, alias, revision, **wanted)
    return see(f"/ui/models/{segment(model)}/aliases/{segment(alias)}", tenant=tenant)


@router.post("/ui/models/{model}/aliases/{alias}/gate/delete")
async def delete_gate(
    model: ModelName,
    alias: AliasText,
    request: Request,
    context: Context,
    caller: Administrator,
    tenant: Name = "",
) -> Response:
    """Delete the gate of an alias."""
    form = await read_form(request)
    store = context.store_of(caller)
    await run_in_threadpool(gates.delete_gate, store, model, alias, form.whole("revision"))
    return see(f"/ui/models/{segment(model)}/aliases/{segment(alias)}", tenant=tenant)


def _given(kind: type[StrictModel], form: Form, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a form as the body of the API checks them. Raises InvalidRequest."""
    from pydantic import ValidationError

    given: dict[str, Any] = {name: form.text(name) for name in names if form.text(name)}
    for name in ("tolerance", "alpha"):
        if name in given:
            given[name] = form.number(name)
    if "least_rows" in given:
        given["least_rows"] = form.whole("least_rows")
    try:
        return kind.model_validate(given).model_dump()
    except ValidationError as error:
        faults = [
            InputFault(".".join(map(str, one["loc"])), one["type"], f"{one['loc'][0]}: {one['msg']}.")
            for one in error.errors()
        ]
        raise InvalidRequest(faults[0].message, faults=faults) from error


def _shown(store: Store, evaluation_id: str) -> dict[str, Any]:
    found = evaluations.get_evaluation(store, evaluation_id)
    name = datasets.dataset_name(store, found.dataset_id)
    return {"evaluation": found, "dataset_name": name, "classes": _worst_first(found)}


def _worst_first(evaluation: Evaluation) -> list[dict[str, Any]]:
    order = {"worse": 0, "undecided": 1, "not_worse": 2}
    classes = list(evaluation.classes)
    if evaluation.baseline is None:
        return classes
    return sorted(classes, key=lambda one: order[one["comparison"]["verdict"]])
