"""Every table of the pages as CSV or JSON, at most a thousand rows at a time."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from app.api import health
from app.api.border import BorderRoute
from app.api.datasets import DatasetId
from app.api.dependencies import Administrator, Context, Operator, Reader, Trainer
from app.api.jobs import JobId
from app.api.models import AliasText, ModelName
from app.auth.authenticator import authorise
from app.domain.entities import Json, StudentRow
from app.domain.errors import NotFound
from app.domain.names import qualified
from app.http.headers import attachment
from app.http.path_prefix import prefix_of
from app.services import audit, comparison, datasets, keys, models, quotas, training
from app.services.class_table import MAX_ROWS, students_of_class
from app.services.curves import student_curve
from app.services.workers import list_servers, list_workers
from app.web.classes import ClassIndex
from app.web.formats import exact_time
from app.web.jobs import Filters, View
from app.web.models import MEASURES, means_of
from app.web.rendering import HEADERS, link
from app.web.traffic import models_of

_TYPES: Final = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
_SERIES: Final = ("history", "buckets", "models")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def known_form(form: Annotated[str, Path(max_length=8)]) -> None:
    """Raise NotFound unless ``form`` is "csv" or "json"."""
    if form not in _TYPES:
        raise NotFound("Tables are CSV or JSON.", code="no_such_path")


router = APIRouter(prefix="/ui/tables/{form}", dependencies=[Depends(known_form)], route_class=BorderRoute)

Name = Annotated[str, Query(max_length=100)]
Text = Annotated[str, Query(max_length=500)]
Version = Annotated[int, Query(ge=1, le=2**31 - 1)]
Number = Annotated[int, Query(ge=1, le=100_000)]
Method = Annotated[str, Query(max_length=16)]


def table(
    request: Request,
    name: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    following: Mapping[str, Any] | None = None,
) -> Response:
    """Rows as a file. following: parameters of the address of the next rows, if more follow."""
    listed = [{key: _plain(key, value) for key, value in row.items()} for row in rows]
    headers = HEADERS | {"content-disposition": attachment(f"{name}.{request.path_params['form']}")}
    more = None
    if following is not None:
        following_rows = link(request.url.path, dict(request.query_params.multi_items()) | dict(following))
        headers["link"] = f'<{following_rows}>; rel="next"'
        more = prefix_of(request.scope) + following_rows
    form = request.path_params["form"]
    body = msgspec.json.encode({"data": listed, "next": more}) if form == "json" else as_csv(listed)
    return Response(body, headers=headers | {"content-type": _TYPES[form]})


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """CSV as in RFC 4180, in UTF-8. Text that a spreadsheet takes for a formula gets an apostrophe."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _plain(name: str, value: Any) -> Any:
    if (name == "at" or name.endswith("_at")) and value is not None:
        return exact_time(value)
    return sorted(value) if isinstance(value, frozenset) else value


def _fields(entity: Any, *names: str) -> Json:
    return {name: getattr(entity, name) for name in names}


@router.get("/jobs")
def jobs(
    request: Request,
    context: Context,
    caller: Trainer,
    filters: Filters,
) -> Response:
    """Jobs, newest first, with the filters of their page."""
    listed, has_more = filters.listed(context.listed_store(request, caller), MAX_ROWS)
    names = ["id", "model", "version", "state", "progress_done", "progress_total", "created_at", "started_at"]
    names += ["finished_at", "created_by", "dataset_id", "attempt", "error_code", "error_message", "tenant"]
    rows = [_fields(job, *names) for job in listed]
    return table(request, "jobs", rows, following={"after": listed[-1].id} if has_more else None)


@router.get("/jobs/{job_id}/classes")
def classes(
    job_id: JobId,
    request: Request,
    context: Context,
    caller: Trainer,
    view: View,
) -> Response:
    """The classes of a job, sorted and searched as on its page."""
    store = context.store_of(caller)
    found = view.table(store, training.get_job(store, job_id), MAX_ROWS)
    more = {"page": view.page + 1} if view.page * MAX_ROWS < found.total else None
    return table(request, f"{job_id}-classes", map(_student, found.rows), following=more)


@router.get("/jobs/{job_id}/classes/{class_index}/students")
def students(
    job_id: JobId, class_index: ClassIndex, request: Request, context: Context, caller: Trainer
) -> Response:
    """The students of one class by method, with all their metrics."""
    rows = students_of_class(context.store_of(caller), job_id, class_index)
    full = [_student(row) | row.metrics | {"chosen": row.chosen} for row in rows]
    return table(request, f"{job_id}-{class_index}-students", full)


@router.get("/jobs/{job_id}/classes/{class_index}/curve")
def curve(
    job_id: JobId,
    class_index: ClassIndex,
    request: Request,
    context: Context,
    caller: Trainer,
    method: Method,
) -> Response:
    """The points of the curve of a student, with the counts and shares at each threshold."""
    found = student_curve(context.store_of(caller), job_id, class_index, method)
    rows = []
    for point, threshold in enumerate(found.thresholds):
        at = found.confusion(point)
        shares = _fields(at, "precision", "recall", "false_positive_rate")
        rows.append({"threshold": threshold} | at.metrics() | shares)
    return table(request, f"{job_id}-{class_index}-curve", rows)


@router.get("/jobs/{job_id}/classes/{class_index}/trace")
def trace(
    job_id: JobId,
    class_index: ClassIndex,
    request: Request,
    context: Context,
    caller: Trainer,
    method: Method,
) -> Response:
    """Every point of the search for a student."""
    found = training.student_trace(context.store_of(caller), job_id, class_index, method)
    return table(request, f"{job_id}-{class_index}-trace", found["points"])


@router.get("/datasets")
def all_datasets(request: Request, context: Context, caller: Trainer, after: Name = "") -> Response:
    """Data sets, newest first."""
    store = context.listed_store(request, caller)
    listed, has_more = datasets.list_datasets(store, limit=MAX_ROWS, after=after or None)
    names = ["id", "name", "rows", "test_rows", "columns", "size_bytes", "source_format", "digest"]
    names += ["created_at", "created_by", "tenant"]
    rows = [_fields(one, *names) | {"classes": one.class_count} for one in listed]
    return table(request, "datasets", rows, following={"after": listed[-1].id} if has_more else None)


@router.get("/datasets/{dataset_id}/classes")
def dataset_classes(
    dataset_id: DatasetId, request: Request, context: Context, caller: Trainer, page: Number = 1
) -> Response:
    """The classes of a data set with the number of their training rows."""
    store = context.store_of(caller)
    dataset = datasets.get_dataset(store, dataset_id)
    counts, first = dataset.summary.get("class_counts", {}), (page - 1) * MAX_ROWS
    shown = datasets.dataset_classes(store, dataset_id, limit=MAX_ROWS, after=first - 1)
    rows = [{"label": label, "rows": counts.get(label)} for label in shown]
    more = {"page": page + 1} if first + MAX_ROWS < dataset.class_count else None
    return table(request, f"{dataset_id}-classes", rows, following=more)


@router.get("/models")
def all_models(request: Request, context: Context, caller: Reader, after: Text = "") -> Response:
    """Models by name, with where their aliases point."""
    tenant, slash, name = after.rpartition("/")
    start = (tenant if slash else caller.tenant, name) if after else None
    store = context.listed_store(request, caller)
    listed, has_more = models.list_models(store, limit=MAX_ROWS, after=start, among=caller.models)
    rows = [
        _fields(one, "tenant", "model", "versions", "newest_version", "updated_at")
        | {"aliases": {alias.alias: alias.version for alias in one.aliases}}
        for one in listed
    ]
    more = {"after": qualified(listed[-1].tenant, listed[-1].model)} if has_more else None
    return table(request, "models", rows, following=more)


@router.get("/models/{model}/versions")
def versions(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Reader,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """The versions of a model, newest first, with their mean metrics."""
    authorise(caller, "query", model)
    found = models.get_model(context.store_of(caller), model, limit=MAX_ROWS, before=before)
    names = ["version", "method", "class_count", "columns", "created_at", "job_id", "dataset_digest"]
    rows = [
        _fields(one, *names) | {metric: means_of(one).get(metric) for metric, _ in MEASURES}
        for one in found.versions
    ]
    more = {"before": found.versions[-1].version} if found.has_more else None
    return table(request, f"{model}-versions", rows, following=more)


@router.get("/models/{model}/aliases")
def aliases(model: ModelName, request: Request, context: Context, caller: Reader) -> Response:
    """The aliases of a model."""
    authorise(caller, "query", model)
    found = models.get_model(context.store_of(caller), model, limit=1).aliases
    return table(
        request, f"{model}-aliases", [_fields(one, "alias", "version", "updated_at") for one in found]
    )


@router.get("/models/{model}/aliases/{alias}/moves")
def moves(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Reader, after: Name = ""
) -> Response:
    """Where an alias has pointed, newest first."""
    authorise(caller, "query", model)
    found, has_more = models.alias_moves(
        context.store_of(caller), model, alias, limit=MAX_ROWS, after=after or None
    )
    rows = [_fields(one, "at", "previous", "version", "actor", "actor_name") for one in found]
    more = {"after": found[-1].id} if has_more else None
    return table(request, f"{model}-{alias}-moves", rows, following=more)


@router.get("/models/{model}/changes")
def changes(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Trainer,
    a: Version,
    b: Version,
    metric: Method = "f1",
    better: bool = False,
    page: Number = 1,
) -> Response:
    """Classes that are worse, or better, in version ``b`` than in ``a``, the largest change first."""
    authorise(caller, "query", model)
    store = context.store_of(caller)
    pair = models.get_version(store, model, a), models.get_version(store, model, b)
    offset = (page - 1) * comparison.MAX_PAIRS
    found, has_more = comparison.changed_classes(store, *pair, metric, better=better, offset=offset)
    rows = [_fields(one, "label", "before", "after", "change") for one in found]
    return table(request, f"{model}-changes", rows, following={"page": page + 1} if has_more else None)


@router.get("/keys")
def all_keys(request: Request, context: Context, caller: Administrator, after: Name = "") -> Response:
    """API keys without their secrets, oldest first."""
    store = context.listed_store(request, caller)
    listed, has_more = keys.list_keys(store, limit=MAX_ROWS, after=after or None)
    names = ["id", "name", "tenant", "scopes", "models", "created_at", "expires_at", "revoked_at"]
    names += ["last_used_at", "rate_limit"]
    rows = [_fields(key, *names) for key in listed]
    return table(request, "keys", rows, following={"after": listed[-1].id} if has_more else None)


@router.get("/audit")
def records(
    request: Request,
    context: Context,
    caller: Administrator,
    actor: Name = "",
    action: Name = "",
    object: Text = "",  # noqa: A002 - the name of the parameter
    after: Name = "",
) -> Response:
    """Audit records, newest first, with the filters of their page."""
    listed, has_more = audit.list_records(
        context.listed_store(request, caller),
        limit=MAX_ROWS,
        after=after or None,
        actor=actor or None,
        action=action or None,
        object=object or None,
    )
    names = ["at", "actor", "actor_name", "scope", "address", "action", "object", "outcome", "details"]
    rows = [_fields(record, *names, "request_id") for record in listed]
    return table(request, "audit", rows, following={"after": listed[-1].id} if has_more else None)


@router.get("/workers")
def workers(request: Request, context: Context, _caller: Operator) -> Response:
    """Worker processes."""
    listed, now = list_workers(context.store)
    names = ["executor_id", "host", "pid", "slots", "threads", "started_at", "beat_at"]
    limit = context.settings.takeover_seconds
    rows = [
        _fields(one, *names) | {"alive": one.is_alive(now, limit), "units": len(one.units)} for one in listed
    ]
    return table(request, "workers", rows)


@router.get("/servers")
def servers(request: Request, context: Context, _caller: Operator) -> Response:
    """Groups of server processes with their live figures."""
    listed, _ = list_servers(context.store)
    rows = [
        _fields(one, "id", "host", "pid", "program", "started_at", "beat_at")
        | {name: value for name, value in one.figures.items() if name not in _SERIES}
        for one in listed
    ]
    return table(request, "servers", rows)


@router.get("/traffic")
def traffic(request: Request, context: Context, _caller: Operator) -> Response:
    """The models with the most queries in the last minute."""
    listed, now = list_servers(context.store)
    models = models_of([server for server in listed if server.is_alive(now)])
    rows = [{name: value for name, value in one.items() if name != "trend"} for one in models]
    return table(request, "traffic", rows)


@router.get("/checks")
async def checks(request: Request, context: Context, _caller: Reader) -> Response:
    """The checks of this server."""
    found = await health.run_checks(context)
    return table(request, "checks", [_fields(one, "name", "ok", "needed", "detail") for one in found])


@router.get("/quotas")
def used_quotas(request: Request, context: Context, caller: Trainer) -> Response:
    """What the caller's tenant uses, and may use."""
    usage = quotas.get_usage(context.store, context.settings, caller.tenant)
    rows = [
        {"resource": name, "used": used, "allowed": getattr(usage.allowed, name)}
        for name, used in dataclasses.asdict(usage.used).items()
    ]
    return table(request, "quotas", rows)


def _student(row: StudentRow) -> Json:
    names = ["class_index", "label", "method", "state", "threshold", "gap", "iterations", "seconds", "error"]
    scores = {
        name: row.metrics.get(name) for name in ("f1", "auc", "accuracy", "brier", "tp", "fp", "tn", "fn")
    }
    return _fields(row, *names) | scores
