"""Every table of the pages as CSV or JSON: rows of the API's own lists, at most a thousand at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Operator, Trainer
from app.api.jobs import JobId
from app.api.models import ModelName
from app.auth.authenticator import authorise
from app.domain.entities import Json, StudentRow
from app.domain.errors import NotFound
from app.http.headers import attachment
from app.http.path_prefix import prefix_of
from app.http.types import Message
from app.services import comparison, models
from app.services.class_table import MAX_OFFSET, students_of_class
from app.services.workers import list_servers
from app.web.classes import ClassIndex
from app.web.rendering import HEADERS
from app.web.traffic import models_of

_PREFIX: Final = "/ui/tables/{form}"
_TYPES: Final = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_STUDENTS: Final = TypeAdapter(Sequence[StudentRow])
_OF_ROUTE: Final = {"fastapi", "route", "endpoint", "path_params"}
"""What the scope of a request says of its route."""


class Source(NamedTuple):
    """A list of the API. path: with parameters of the table's path.

    fields: that hold the rows; several are columns, of which the document's single values are further ones.
    query: what the address of the list says beside the parameters of the table. left_out: fields of a row.
    """

    path: str
    fields: Sequence[str] = ("data",)
    query: str = "limit=1000"
    left_out: Sequence[str] = ()


_JOB: Final = "/v1/training-jobs/{job_id}"
_STUDENT: Final = _JOB + "/students/{class_index}/{method}"
SOURCES: Final[Mapping[str, Source]] = {
    "/jobs": Source("/v1/training-jobs", left_out=("hyperparameters", "provenance", "labelling", "warnings")),
    "/jobs/{job_id}/classes": Source(_JOB + "/students"),
    "/jobs/{job_id}/classes/{class_index}/{method}/curve": Source(
        _STUDENT + "/curve", ("thresholds", "tp", "fp"), query=""
    ),
    "/jobs/{job_id}/classes/{class_index}/{method}/trace": Source(_STUDENT + "/trace", ("points",), query=""),
    "/datasets": Source("/v1/datasets"),
    "/datasets/{dataset_id}/classes": Source("/v1/datasets/{dataset_id}/classes"),
    "/models": Source("/v1/models"),
    "/models/{model}/versions": Source("/v1/models/{model}", ("versions",), left_out=("classes", "inputs")),
    "/models/{model}/aliases": Source("/v1/models/{model}", ("aliases",), query="limit=1"),
    "/models/{model}/aliases/{alias}/moves": Source("/v1/models/{model}/aliases/{alias}/history"),
    "/evaluations": Source("/v1/evaluations", left_out=("warnings",)),
    "/keys": Source("/v1/keys"),
    "/audit": Source("/v1/audit"),
    "/workers": Source("/v1/workers", query=""),
    "/servers": Source("/v1/servers", query="", left_out=("history", "buckets", "models")),
    "/checks": Source("/readyz", ("checks",), query="verbose="),
    "/quotas": Source("/v1/usage"),
}
"""The tables that are lists of the API, by path. Parameters, scopes and tenants are those of the list."""


def known_form(form: Annotated[str, Path(max_length=8)]) -> None:
    """Raise NotFound unless ``form`` is "csv" or "json"."""
    if form not in _TYPES:
        raise NotFound("Tables are CSV or JSON.", code="no_such_path")


router = APIRouter(prefix=_PREFIX, dependencies=[Depends(known_form)], route_class=BorderRoute)


def table(request: Request, rows: Iterable[Json], after: object = None) -> Response:
    """Rows as a file, in which a field of a field is a column. after: of the next rows, if more follow."""
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    listed = [{name: row.get(name) for name in names} for row in flat]
    form, *parts = map(str, request.path_params.values())
    filename = "-".join([*parts, request.url.path.rpartition("/")[2]])
    headers = HEADERS | {"content-disposition": attachment(f"{filename}.{form}")}
    more = None
    if after is not None:
        url = request.url.include_query_params(after=after)
        headers["link"] = f'<{url.path}?{url.query}>; rel="next"'
        more = f"{prefix_of(request.scope)}{url.path}?{url.query}"
    body = msgspec.json.encode({"data": listed, "next": more}) if form == "json" else as_csv(listed)
    return Response(body, headers=headers | {"content-type": _TYPES[form]})


def _flat(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a row; those of an object in it are named like ``metrics.f1``."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """CSV as in RFC 4180, in UTF-8. Text that a spreadsheet takes for a formula gets an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows[0] if rows else [])
    writer.writerows(map(_cell, row.values()) for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = msgspec.json.encode(value).decode()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


async def rows_of(request: Request) -> Response:
    """The rows of a list of the API, which also decides who may see them."""
    source = SOURCES[request.scope["route"].path.removeprefix(_PREFIX)]
    path = source.path.format_map(request.path_params)
    query = b"&".join(part for part in (request.scope["query_string"], source.query.encode()) if part)
    sent = await _asked(request, path, query)

    def answer() -> Response:
        document = msgspec.json.decode(b"".join(message.get("body", b"") for message in sent[1:]))
        rows = (
            {name: value for name, value in row.items() if name not in source.left_out}
            for row in _rows(document, source.fields)
        )
        link = dict(sent[0]["headers"]).get(b"link", b"").decode().partition(">")[0]
        after = parse_qs(urlsplit(link).query).get("after", [None])
        return table(request, rows, after[0])

    return await run_in_threadpool(answer)


for _path in SOURCES:
    router.add_api_route(_path, rows_of, methods=["GET"])


async def _asked(request: Request, path: str, query: bytes) -> Sequence[Message]:
    """What the API sends to the caller of this request from a path. Raises what the API raises."""
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    scope = {name: value for name, value in request.scope.items() if name not in _OF_ROUTE}
    scope |= {"path": path, "raw_path": quote(path).encode(), "query_string": query, "headers": []}
    # Without handlers of its own, so that an error is answered as one of this request.
    scope["starlette.exception_handlers"] = ({}, {})
    await request.app.router(scope, request.receive, keep)
    return sent


def _rows(document: Json, fields: Sequence[str]) -> Iterable[Json]:
    if len(fields) == 1:
        rows: Iterable[Json] = document[fields[0]]
        return rows
    single = {name: value for name, value in document.items() if name not in fields}
    values = zip(*(document[name] for name in fields), strict=True)
    return (single | dict(zip(fields, row, strict=True)) for row in values)


@router.get("/jobs/{job_id}/classes/{class_index}/students")
def students(
    job_id: JobId, class_index: ClassIndex, request: Request, context: Context, caller: Trainer
) -> Response:
    """The students of one class by method, with all their metrics."""
    rows = students_of_class(context.store_of(caller), job_id, class_index)
    return table(request, _STUDENTS.dump_python(rows, mode="json"))


@router.get("/models/{model}/changes")
def changes(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Trainer,
    a: Annotated[int, Query(ge=1, le=2**31 - 1)],
    b: Annotated[int, Query(ge=1, le=2**31 - 1)],
    metric: Annotated[str, Query(max_length=16)] = "f1",
    better: bool = False,
    after: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
) -> Response:
    """Classes that are worse, or better, in version ``b`` than in ``a``, the largest change first.

    after: number of rows to skip.
    """
    authorise(caller, "query", model)
    store = context.store_of(caller)
    pair = models.get_version(store, model, a), models.get_version(store, model, b)
    changed, has_more = comparison.changed_classes(store, *pair, metric, better=better, offset=after)
    names = ("label", "before", "after", "change")
    rows = [{name: getattr(one, name) for name in names} for one in changed]
    return table(request, rows, after + comparison.MAX_PAIRS if has_more else None)


@router.get("/traffic")
def traffic(request: Request, context: Context, _caller: Operator) -> Response:
    """The models with the most queries in the last minute."""
    servers, now = list_servers(context.store)
    asked = models_of([server for server in servers if server.is_alive(now)])
    return table(request, [{name: value for name, value in one.items() if name != "trend"} for one in asked])
