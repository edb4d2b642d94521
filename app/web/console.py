"""The console: ask one student about one row, and see the same question for programs."""

from __future__ import annotations

import json
import shlex
import time
from typing import Annotated, Any, Final, TypeAlias, cast

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Reader
from app.api.models import ModelName
from app.auth.authenticator import authorise
from app.domain.entities import ApiKey, ModelVersion
from app.domain.errors import InputFault, InvalidRequest, ServiceError
from app.domain.names import MAX_CLASS_NAME, VERSION_PART, qualified
from app.http.json_body import parse_json
from app.services import datasets, models
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.query.requests import RequestLimits
from app.web.charts import SIDE
from app.web.forms import read_form
from app.web.rendering import base_address, may, page, segment

router = APIRouter(route_class=BorderRoute)

_CLASSES: Final = 200
_SHOWN_COLUMNS: Final = 64
"""An example row of so many columns is filled in; longer ones are pasted."""
_MAX_ROW: Final = 200_000

Row: TypeAlias = list[Any] | dict[str, Any]

At = Annotated[str, Query(pattern=rf"^{VERSION_PART}$")]
Label = Annotated[str, Query(alias="class", max_length=MAX_CLASS_NAME)]


@router.get("/ui/models/{model}/ask")
def ask_page(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Reader,
    at: At = models.DEFAULT_ALIAS,
    label: Label = "",
) -> Response:
    """The form for a question to a version, named by its number or an alias."""
    authorise(caller, "query", model)
    version = models.get_version(context.store_of(caller), model, at)
    return _console(request, context, caller, version, at, label, "")


@router.post("/ui/ask")
async def ask(request: Request, context: Context, caller: Reader) -> Response:
    """Ask one student about one row; the answer is that of the API, with its explanation."""
    form = await read_form(request)
    model, at, label = form.text("model"), form.text("at") or models.DEFAULT_ALIAS, form.exact("class")
    authorise(caller, "query", model)
    version = await run_in_threadpool(models.get_version, context.store_of(caller), model, at)
    text, example = form.text("row"), form.text("example")
    answer: dict[str, Any] | None = None
    error: ServiceError | None = None
    try:
        if example:
            text = await run_in_threadpool(_example, context, caller, version, label, example)
        row = parsed_row(text)
        answer = await _answer(context, caller, version, label, row)
    except ServiceError as failure:
        error = failure
    return await run_in_threadpool(
        _console, request, context, caller, version, at, label, text, answer=answer, error=error
    )


def _example(context: AppContext, caller: ApiKey, version: ModelVersion, label: str, which: str) -> str:
    """A row of the version's data set as text, of the class or of another one; raises as `example_row`."""
    authorise(caller, "train")
    store = context.store_of(caller)
    dataset = datasets.find_dataset(store, version.dataset_digest or "")
    if dataset is None:
        text = (
            "The data set of this version was deleted, or it was imported without one. Paste a row instead."
        )
        raise InvalidRequest(text, faults=[InputFault("row", "no_dataset", text)])
    row = datasets.example_row(store, context.files, dataset, label, is_class=which == "class")
    x = row.x
    if isinstance(x, dict) and not row.is_record and version.columns <= _SHOWN_COLUMNS:
        stored = dict(zip(x["indices"], x["values"], strict=True))
        x = [stored.get(column, 0.0) for column in range(version.columns)]
    return json.dumps(x)


async def _answer(
    context: AppContext, caller: ApiKey, version: ModelVersion, label: str, row: Row
) -> dict[str, Any]:
    reference = qualified(caller.tenant, f"{version.model}@{version.version}")
    student = await context.cache.student(reference, label)
    settings = context.settings
    limits = RequestLimits(_MAX_ROW, 1, settings.max_query_work)
    data = json.dumps({_field(version, row): row, "explain": True}).encode()
    started = time.perf_counter()
    body, rows, _ = await run_in_threadpool(answer_class, student, data, DEFAULT_FORMAT, limits)
    seconds = time.perf_counter() - started
    context.metrics.answered(student.metric_label, rows, seconds)
    answer: dict[str, Any] = json.loads(body)
    return answer | {"seconds": seconds, "bar": bar(answer["score"], answer["threshold"])}


def _field(version: ModelVersion, row: Row) -> str:
    """What a query calls the row: a version with an encoder takes records."""
    return "record" if version.encoder_digest is not None and isinstance(row, dict) else "x"


def parsed_row(text: str) -> Row:
    """A row of numbers from JSON or from numbers with commas, blanks or line breaks between them.

    JSON may also be a row by names, and a sparse row as queries take it. Raises InvalidRequest.
    """
    if len(text) > _MAX_ROW:
        raise _wrong_row(f"The row is longer than {_MAX_ROW} characters.")
    if text.startswith(("[", "{")):
        try:
            value = parse_json(text.encode())
            json.dumps(value)
        except InvalidRequest as error:
            raise _wrong_row(error.message.replace("body", "row", 1)) from error
        except ValueError as error:
            raise _wrong_row("A number of the row has too many digits.") from error
        is_body = isinstance(value, dict) and isinstance(value.get("x"), list | dict)
        return cast(Row, value["x"] if is_body else value)
    parts = text.replace(",", " ").replace(";", " ").split()
    try:
        return [float(part) for part in parts]
    except ValueError as error:
        raise _wrong_row(f"The row holds something that is no number: {error}.") from error


def bar(score: float, threshold: float) -> dict[str, float]:
    """Positions of a score and its threshold on a line of length `SIDE`."""
    reach = max(abs(score - threshold) * 1.4, abs(threshold) * 0.5, 1e-9)
    return {
        "threshold": SIDE / 2,
        "score": round(SIDE * (0.5 + 0.5 * (score - threshold) / reach), 1),
    }


def snippets(base: str, reference: str, label: str, row: Row, field: str = "x") -> dict[str, str]:
    """The same question by curl, by the Python client, and of a dense row in the Open Inference Protocol.

    field: what a query calls the row.
    """
    native = f"{base}/v1/models/{reference}/classes/{segment(label)}:query"
    body = json.dumps({field: row, "explain": True}, ensure_ascii=False)
    values = row if isinstance(row, list) else []
    tensor = {"name": "x", "shape": [1, len(values)], "datatype": "FP64", "data": values}
    inference = json.dumps({"parameters": {"class": label}, "inputs": [tensor]}, ensure_ascii=False)
    header = '-H "Authorization: Bearer $STMS_API_KEY"'
    shown = {
        "curl": f"curl {shlex.quote(native)} \\\n  {header} -d {shlex.quote(body)}",
        "Python": "\n".join(
            (
                "import os",
                "from stms_client import Client",
                "",
                f"with Client({base!r}, api_key=os.environ['STMS_API_KEY']) as stms:",
                f"    decision = stms.query({reference!r}, {label!r}, {row!r}, explain=True)",
                "    print(decision.match, decision.score)",
            )
        ),
    }
    if isinstance(row, list):
        address = shlex.quote(f"{base}/v2/models/{reference}/infer")
        shown["Open Inference Protocol"] = f"curl {address} \\\n  {header} -d {shlex.quote(inference)}"
    return shown


def _console(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    version: ModelVersion,
    at: str,
    label: str,
    text: str,
    *,
    answer: dict[str, Any] | None = None,
    error: ServiceError | None = None,
) -> Response:
    listed, _ = models.list_classes(context.store_of(caller), context.files, version, limit=_CLASSES)
    label = label or (listed[0][1] if listed else "")
    example: Row = [0.0] * version.columns if version.columns <= _SHOWN_COLUMNS else []
    if version.encoder_digest is not None:
        example = cast(Row, {})
    try:
        row = parsed_row(text) if text else example
    except InvalidRequest:
        row = example
    return page(
        request,
        "ask.html",
        200 if error is None else 400,
        version=version,
        has_examples=may(caller, "train") and version.dataset_digest is not None,
        at=at,
        label=label,
        labels=[name for _, name in listed],
        text=text or (json.dumps(example) if example else ""),
        answer=answer,
        error=error,
        side=SIDE,
        snippets=snippets(
            base_address(request, context), f"{version.model}@{at}", label, row, _field(version, row)
        ),
    )


def _wrong_row(message: str) -> InvalidRequest:
    return InvalidRequest(message, faults=[InputFault("row", "wrong_row", message)])
