"""The console: ask one student about one row, and see the same question for programs."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, TypeAlias, cast

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Reader
from app.api.models import ModelName
from app.auth.authenticator import authorise
from app.domain.entities import ApiKey, Json, ModelVersion
from app.domain.errors import InputFault, InvalidRequest, ServiceError
from app.domain.names import MAX_CLASS_NAME, VERSION_PART, qualified
from app.http.json_body import parse_json
from app.services import datasets, models
from app.serving.columns.base import Columns
from app.serving.columns.decoders import Named
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.work import RequestLimits
from app.web.charts import SIDE
from app.web.forms import read_form
from app.web.record_form import (
    MOST_FIELDS,
    PREFIX,
    record_fields,
    record_of,
    record_tensors,
    texts_of,
    typical_texts,
)
from app.web.rendering import base_address, may, page, segment
from core.packed.encoded_columns import ColumnEncoder

router = APIRouter(route_class=BorderRoute)

_CLASSES: Final = 200
_SHOWN_COLUMNS: Final = 64
"""An example row of so many columns is filled in; longer ones are pasted."""
_MAX_ROW: Final = 200_000

Row: TypeAlias = list[Any] | dict[str, Any]

At = Annotated[str, Query(pattern=rf"^{VERSION_PART}$")]
Label = Annotated[str, Query(alias="class", max_length=MAX_CLASS_NAME)]


@dataclass(frozen=True, slots=True)
class Question:
    """What the page asks about. at: number of the version or an alias. asked: columns of the version.

    text: of the row, as JSON or numbers. texts: of the fields for a record, by column; a page has one of the
    two.
    """

    version: ModelVersion
    at: str
    label: str
    asked: Columns
    text: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> Named | None:
        """What reads records; None where the page asks about lists of numbers."""
        return None if self.asked.is_table else self.asked.named

    @property
    def columns(self) -> Sequence[ColumnEncoder]:
        """The columns that have fields; none where the row is written as a whole."""
        columns = () if self.records is None else self.records.encoder.columns
        return columns if len(columns) <= MOST_FIELDS else ()

    def row(self) -> Row:
        """The row. Raises InvalidRequest."""
        if not self.columns:
            return parsed_row(self.text)
        record = record_of(self.columns, self.texts)
        if len(json.dumps(record)) > _MAX_ROW:
            raise _wrong_row(f"The record is longer than {_MAX_ROW} characters.")
        return record

    def about(self, row: Row) -> Question:
        """The same question about another row."""
        if self.columns:
            return replace(self, texts=texts_of(cast(dict[str, Any], row)))
        return replace(self, text=json.dumps(row))

    def field_of(self, row: Row) -> str:
        """What a query calls the row."""
        return "record" if self.records is not None and isinstance(row, dict) else "x"


@router.get("/ui/models/{model}/ask")
async def ask_page(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Reader,
    at: At = models.DEFAULT_ALIAS,
    label: Label = "",
) -> Response:
    """The form for a question to a version, named by its number or an alias."""
    authorise(caller, "query", model)
    version = await run_in_threadpool(models.get_version, context.store_of(caller), model, at)
    question = Question(version, at, label, await context.cache.columns(version))
    question = replace(question, texts=typical_texts(question.columns))
    return await run_in_threadpool(_console, request, context, caller, question)


@router.post("/ui/ask")
async def ask(request: Request, context: Context, caller: Reader) -> Response:
    """Ask one student about one row; the answer is that of the API, with its explanation."""
    form = await read_form(request)
    model, at, label = form.text("model"), form.text("at") or models.DEFAULT_ALIAS, form.exact("class")
    authorise(caller, "query", model)
    version = await run_in_threadpool(models.get_version, context.store_of(caller), model, at)
    question = Question(version, at, label, await context.cache.columns(version), form.text("row"))
    texts = {
        column.name: form.exact(PREFIX + column.name).replace("\r\n", "\n") for column in question.columns
    }
    question, example = replace(question, texts=texts), form.text("example")
    answer: dict[str, Any] | None = None
    error: ServiceError | None = None
    try:
        if example:
            row = await run_in_threadpool(_example, context, caller, version, label, example)
            question = question.about(row)
        answer = await _answer(context, caller, question)
    except ServiceError as failure:
        error = failure
    return await run_in_threadpool(_console, request, context, caller, question, answer=answer, error=error)


def _example(context: AppContext, caller: ApiKey, version: ModelVersion, label: str, which: str) -> Row:
    """A row of the version's data set, of the class or of another one; raises as `example_row`."""
    authorise(caller, "train")
    store = context.store_of(caller)
    dataset = datasets.find_dataset(store, version.dataset_digest or "")
    if dataset is None:
        text = (
            "The data set of this version was deleted, or it was imported without one. Write a row instead."
        )
        raise InvalidRequest(text, faults=[InputFault("row", "no_dataset", text)])
    row = datasets.example_row(store, context.files, dataset, label, is_class=which == "class")
    x = row.x
    if version.encoder_digest is not None:
        # The kinds of a job make records of a data set of numbers, too.
        names = [column.get("name") for column in dataset.summary.get("features", ())]
        return dict(zip(names, x, strict=False)) if isinstance(x, list) else x
    if isinstance(x, dict) and not row.is_record and version.columns <= _SHOWN_COLUMNS:
        stored = dict(zip(x["indices"], x["values"], strict=True))
        x = [stored.get(column, 0.0) for column in range(version.columns)]
    return x


async def _answer(context: AppContext, caller: ApiKey, question: Question) -> dict[str, Any]:
    """The answer of the API, and how long it took in seconds. Raises ServiceError."""
    row, version = question.row(), question.version
    reference = qualified(caller.tenant, f"{version.model}@{version.version}")
    student = await context.cache.student(reference, question.label)
    settings = context.settings
    limits = RequestLimits(_MAX_ROW, 1, settings.max_query_work)
    explain = "columns" if student.columns.has_effects else True
    data = json.dumps({question.field_of(row): row, "explain": explain}).encode()
    started = time.perf_counter()
    body, rows, _ = await run_in_threadpool(answer_class, student, data, DEFAULT_FORMAT, limits)
    seconds = time.perf_counter() - started
    context.metrics.answered(student.metric_label, rows, seconds)
    answer: dict[str, Any] = json.loads(body)
    return answer | {"seconds": seconds, "bar": bar(answer["score"], answer["threshold"])}


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


def snippets(base: str, question: Question, row: Row) -> dict[str, str]:
    """The same question by curl, by the Python client, and in the Open Inference Protocol if that takes it.

    base: address of the server.
    """
    reference, label = f"{question.version.model}@{question.at}", question.label
    native = f"{base}/v1/models/{reference}/classes/{segment(label)}:query"
    body = json.dumps({question.field_of(row): row, "explain": True}, ensure_ascii=False)
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
    if tensors := _tensors(question, row):
        inference = json.dumps({"parameters": {"class": label}, "inputs": tensors}, ensure_ascii=False)
        address = shlex.quote(f"{base}/v2/models/{reference}/infer")
        shown["Open Inference Protocol"] = f"curl {address} \\\n  {header} -d {shlex.quote(inference)}"
    return shown


def _tensors(question: Question, row: Row) -> list[Json]:
    """A dense row as one input, and a record as one for each column; none for other rows."""
    if isinstance(row, list):
        return [{"name": "x", "shape": [1, len(row)], "datatype": "FP64", "data": row}]
    records = question.records
    return [] if records is None else record_tensors(records.encoder.columns, row)


def _console(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    question: Question,
    *,
    answer: dict[str, Any] | None = None,
    error: ServiceError | None = None,
) -> Response:
    version = question.version
    listed, _ = models.list_classes(context.store_of(caller), context.files, version, limit=_CLASSES)
    question = replace(question, label=question.label or (listed[0][1] if listed else ""))
    example: Row = [0.0] * version.columns if version.columns <= _SHOWN_COLUMNS else []
    if question.records is not None:
        example = {}
    try:
        row = question.row() if question.text or question.columns else example
    except InvalidRequest:
        row = example
    has_fields = bool(question.columns)
    faults = () if error is None else error.faults
    return page(
        request,
        "ask.html",
        200 if error is None else 400,
        version=version,
        has_examples=may(caller, "train") and version.dataset_digest is not None,
        at=question.at,
        label=question.label,
        labels=[name for _, name in listed],
        records=question.records,
        fields=record_fields(question.asked, question.texts) if has_fields else (),
        prefix=PREFIX,
        beside={fault.name: fault.message for fault in faults if fault.name is not None},
        text=question.text or (json.dumps(example) if example else ""),
        answer=answer,
        error=error,
        side=SIDE,
        snippets=snippets(base_address(request, context), question, row),
    )


def _wrong_row(message: str) -> InvalidRequest:
    return InvalidRequest(message, faults=[InputFault("row", "wrong_row", message)])
