"""Every call of the service as a value: the request, and how to read its response."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import tarfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx
import msgspec

from stms_client import cards
from stms_client.arrays import (
    ClassName,
    Frame,
    Rows,
    archive,
    class_name,
    is_array,
    numbers,
    raw_bytes,
    rows_body,
)
from stms_client.documents import (
    Dataset,
    ImportedBundle,
    ImportedVersion,
    Job,
    Key,
    Upload,
)
from stms_client.errors import InvalidInput, Json, StmsError
from stms_client.results import Decision, Decisions, Explain, FaultyRows, Package
from stms_client.tables import column_names, columns_of, number, parquet_of, records_of

T = TypeVar("T")

SAMPLE_HEADER = "x-sample-id"
"""Names the answer that people are asked about."""
_BINARY = "application/octet-stream"
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the function that reads its response.

    repeatable: whether executing it twice is harmless. file: sent as the body, in pieces. is_long: whether
    the response may take as long as that to a file.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, str | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    file: Path | None = None
    repeatable: bool = True
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list. next: path of the next page, None on the last one."""

    items: list[Json]
    next: str | None


def segment(name: str) -> str:
    """A name, percent-encoded as one segment of a path. Raises InvalidInput for what is not text."""
    try:
        return quote(name, safe="@")
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInput(f"{name!a:.80} is not a name: it must be valid text.") from error


def job_path(job_id: str) -> str:
    """Path of a job."""
    return f"/v1/training-jobs/{segment(job_id)}"


def model_path(model: str) -> str:
    """Path of a model."""
    return f"/v1/models/{segment(model)}"


def query(model: str, label: ClassName, asked: Json, explain: Explain) -> Call[Decision]:
    """Query of one row, text or picture, as `question` gives it, and one class."""

    def read(response: httpx.Response) -> Decision:
        answer = decoded(response)
        decision = Decision.of(answer, answer)
        sample_id = response.headers.get(SAMPLE_HEADER)
        return decision if sample_id is None else replace(decision, sample_id=sample_id)

    return _post(_query_path(model, label), asked | _explained(explain), read)


def query_classes(
    model: str, labels: Sequence[ClassName], asked: Json, explain: Explain
) -> Call[dict[str, Decision]]:
    """Query of one row, text or picture and several classes."""

    def read(response: httpx.Response) -> dict[str, Decision]:
        answer = decoded(response)
        return {result["class"]: Decision.of(result, answer) for result in answer["classes"]}

    body = {"classes": names_of(labels)} | asked | _explained(explain)
    return _post(f"{model_path(model)}:query", body, read)


def query_rows(
    model: str, label: ClassName, rows: Rows, explain: Explain, faulty_rows: FaultyRows
) -> Call[Decisions]:
    """Query of many rows and one class.

    An array is sent, and answered, as raw numbers, but for what only JSON has: an explanation by columns, and
    faulty rows beside others.
    """
    path = _query_path(model, label)
    if not is_array(rows):
        return _decisions(path, rows_body(rows), explain, faulty_rows)
    if explain not in (False, True) or faulty_rows == "report":
        return _decisions(path, {"rows": numbers(rows, 2).tolist()}, explain, faulty_rows)
    dtype, shape, content = raw_bytes(rows)
    headers = {
        "Content-Type": _BINARY,
        "Accept": _BINARY,
        "X-Tensor-Dtype": dtype,
        "X-Tensor-Shape": shape,
    }
    params = {"explain": "true"} if explain else {}
    return Call("POST", path, _read_numbers, params, headers, content)


def query_texts(
    model: str, label: ClassName, texts: Iterable[str], explain: Explain, faulty_rows: FaultyRows
) -> Call[Decisions]:
    """Query of many texts and one class."""
    return _decisions(_query_path(model, label), {"texts": list(texts)}, explain, faulty_rows)


def query_columns(
    model: str, label: ClassName, frame: Frame, explain: Explain, faulty_rows: FaultyRows
) -> Call[Decisions]:
    """Query of the rows of a data frame and one class. Its answer is raw numbers unless only JSON can be."""
    path, body = _query_path(model, label), {"columns": columns_of(frame)}
    if explain or faulty_rows == "report":
        return _decisions(path, body, explain, faulty_rows)
    return _post(path, body, _read_numbers, {"Accept": _BINARY})


def _decisions(path: str, body: dict[str, Any], explain: Explain, faulty_rows: FaultyRows) -> Call[Decisions]:
    said = {} if faulty_rows == "refuse" else {"faulty_rows": faulty_rows}
    return _post(path, body | _explained(explain) | said, lambda response: Decisions.of(decoded(response)))


def predict(model: str, asked: Json) -> Call[str]:
    """Prediction of one row, text or picture by the full teacher."""
    return _post(f"{model_path(model)}:predict", asked, lambda response: str(decoded(response)["label"]))


def package(model: str, label: ClassName, etag: str | None, report: str | None) -> Call[Package | None]:
    """Read of the student of a class; its result is None if the caller has it already, by its ETag."""

    def read(response: httpx.Response) -> Package | None:
        if response.status_code == httpx.codes.NOT_MODIFIED:
            return None
        return _package(response, response.content, response.headers.get("etag", ""))

    headers = without_none({"If-None-Match": etag, "X-STMS-Local": report})
    return Call("GET", f"{class_path(model, label)}/package", read, {}, headers)


def packages(model: str, labels: Sequence[ClassName]) -> Call[dict[str, Package]]:
    """Read of the students of several classes, all of one version."""

    def read(response: httpx.Response) -> dict[str, Package]:
        contents = _members(response.content)
        digests = [hashlib.sha256(content).hexdigest() for content in contents]
        version = response.headers.get("x-model-version", "")
        of_all = hashlib.sha256("".join(digests).encode("ascii")).hexdigest()
        if len(contents) != len(names) or response.headers.get("etag") != f'"{version}-{of_all}"':
            raise StmsError("The packages that were sent are not those that their ETag says.")
        return {
            label: _package(response, content, f'"{version}-{digest}"')
            for label, content, digest in zip(names, contents, digests, strict=True)
        }

    names = names_of(labels)
    return _post(f"{model_path(model)}:packages", {"classes": names}, read)


def _members(archived: bytes) -> list[bytes]:
    """The contents of an uncompressed tar file in order. Raises StmsError."""
    contents = []
    try:
        with tarfile.open(fileobj=io.BytesIO(archived), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member)
                contents.append(b"" if file is None else file.read())
    except tarfile.TarError as error:
        raise StmsError("The packages that were sent are no tar file.") from error
    return contents


def _package(response: httpx.Response, content: bytes, etag: str) -> Package:
    headers = response.headers
    base = headers.get("x-index-base")
    return Package(
        content,
        etag,
        headers.get("x-model", ""),
        int(headers.get("x-model-version", "0")),
        headers.get("x-encoder"),
        None if base is None else int(base),
    )


def map_of(model: str, label: ClassName) -> Call[bytes]:
    """Read of the map that the package of a class names."""
    return Call("GET", f"{class_path(model, label)}/map", lambda response: response.content)


def encoder(model: str, label: ClassName) -> Call[bytes]:
    """Read of the encoder of the version of a class."""
    return Call("GET", f"{class_path(model, label)}/encoder", lambda response: response.content)


def upload(
    file: Path,
    name: str | None,
    file_format: str | None,
    reading: Mapping[str, str | int | None],
) -> Call[Dataset]:
    """Upload of a data set. Uploading the same bytes again has no effect.

    reading: how the file is to be read, as `Client.upload_dataset` takes it.
    """
    params = {
        "name": name or file.stem,
        "filename": file.name,
        "format": file_format,
        **reading,
    }
    return Call(
        "POST", "/v1/datasets", dataset_of, without_none(params), {"Content-Type": _BINARY}, file=file
    )


def plan_upload(size: int, sha256: str) -> Call[Upload]:
    """Plan of an upload by way of the object store."""
    return post("/v1/uploads", {"bytes": size, "sha256": sha256}, Upload)


def of_planned(call: Call[Dataset], upload_id: str) -> Call[Dataset]:
    """The upload of a file that is in the object store already. The service takes it once."""
    params = {**call.params, "upload": upload_id}
    return replace(call, params=params, headers={}, file=None, is_long=True, repeatable=False)


def listed(texts: Iterable[str]) -> str | None:
    """Texts as one line with commas between them, quoted where they have some; None for no text."""
    out = io.StringIO()
    parts = list(texts)
    csv.writer(out, lineterminator="").writerow(parts)
    return out.getvalue() if parts else None


def kinds(columns: Mapping[str, str] | None) -> str | None:
    """Kinds of columns by name, as the service takes them; None for none."""
    return listed(f"{name}:{kind}" for name, kind in (columns or {}).items())


def upload_rows(
    X: Any, y: Any, name: str, test: tuple[Any, Any] | None, unlabelled: str | None
) -> Call[Dataset]:
    """Upload of rows and labels as a data set."""
    params = {"name": name, "filename": f"{name}.npz", "format": "npz", "unlabelled": unlabelled}
    content = archive(X, y, test)
    return Call("POST", "/v1/datasets", dataset_of, without_none(params), {"Content-Type": _BINARY}, content)


def upload_table(table: Frame, label: str, name: str, reading: Mapping[str, str | None]) -> Call[Dataset]:
    """Upload of a data frame as a data set. Raises InvalidInput where it has no column ``label``."""
    if label not in map(str, column_names(table)):
        raise InvalidInput(f"The table has no column {label!r:.80}; label names that of the classes.")
    content, ending = parquet_of(table), "parquet"
    if content is None:
        content, ending = b"\n".join(map(encoded, records_of(table))), "jsonl"
    params = {
        "name": name,
        "filename": f"{name}.{ending}",
        "format": ending,
        "label_column": label,
        **reading,
    }
    return Call("POST", "/v1/datasets", dataset_of, without_none(params), {"Content-Type": _BINARY}, content)


def import_head(
    file: Path,
    model: str,
    kind: str,
    alias: str,
    rivals: int = 0,
    row_norm: float | None = None,
    *,
    allow_schema_change: bool = False,
) -> Call[ImportedVersion]:
    """Upload of a linear head. Uploading the same head again has no effect."""
    params = {"model": model, "kind": kind, "alias": alias, "rivals": rivals or None, "row_norm": row_norm}
    params["allow_schema_change"] = true_or_none(allow_schema_change)
    return Call("POST", "/v1/teachers", decoded, without_none(params), {"Content-Type": _BINARY}, file=file)


def import_bundle(
    file: Path, model: str | None, alias: str, allow_older: bool, allow_schema_change: bool
) -> Call[ImportedBundle]:
    """Upload of a bundle. Uploading the same bundle again has no effect."""
    params = {"model": model, "alias": alias, "allow_older": true_or_none(allow_older)}
    params["allow_schema_change"] = true_or_none(allow_schema_change)
    return Call(
        "POST",
        "/v1/bundles",
        decoded,
        without_none(params),
        {"Content-Type": "application/x-tar"},
        file=file,
    )


def bundle_part(classes: Sequence[ClassName] | None, teacher: bool) -> dict[str, Any]:
    """Parameters that say what of a version is in its bundle. Raises InvalidInput for no class at all."""
    names = None if classes is None else names_of(classes)
    if names == []:
        raise InvalidInput("Name at least one class, or leave out `classes` for all.")
    return without_none({"class": names, "teacher": None if teacher else "false"})


def submit(
    dataset_id: str,
    model: str,
    hyperparameters: Mapping[str, Any] | None,
    key: str | None,
    priority: str | None = None,
) -> Call[Job]:
    """Submission of a training job, which its idempotency key makes repeatable."""
    body = {"dataset_id": dataset_id, "model": model, "hyperparameters": dict(hyperparameters or {})}
    if priority is not None:
        body["priority"] = priority
    return _post("/v1/training-jobs", body, decoded, {"Idempotency-Key": key or uuid.uuid4().hex})


def retrain(
    model: str,
    base: str,
    dataset_id: str | None,
    hyperparameters: Mapping[str, Any] | None,
    alias: str | None,
    key: str | None,
    classes: str | Sequence[str] = "all",
) -> Call[Job]:
    """Training of a version again, which its idempotency key makes repeatable."""
    body: dict[str, Any] = {"from": base, "hyperparameters": dict(hyperparameters or {})}
    some = None if classes == "all" else classes if isinstance(classes, str) else list(classes)
    body |= without_none({"dataset_id": dataset_id, "alias": alias, "classes": some})
    path = f"{model_path(model)}/retrain"
    return _post(path, body, decoded, {"Idempotency-Key": key or uuid.uuid4().hex})


def true_or_none(value: bool) -> str | None:
    """A parameter that is left out unless it is true."""
    return "true" if value else None


def condition(revision: int | None) -> dict[str, str]:
    """The header of a write of what was read at ``revision``, or of a creation if that is None."""
    return {"If-None-Match": "*"} if revision is None else {"If-Match": f'"{revision}"'}


def student_path(job_id: str, class_index: int, method: str) -> str:
    """Path of a student, to which ``/curve`` or ``/trace`` is added."""
    return f"{job_path(job_id)}/students/{class_index}/{segment(method)}"


def version_path(model: str, version: int | str) -> str:
    """Path of a version."""
    return f"{model_path(model)}/versions/{segment(str(version))}"


def alias_path(model: str, alias: str) -> str:
    """Path of an alias."""
    return f"{model_path(model)}/aliases/{segment(alias)}"


def revoke_key(key_id: str) -> Call[Key]:
    """Revocation of an API key."""
    return Call("DELETE", f"/v1/keys/{segment(key_id)}", decoded)


def webhook_path(webhook_id: str) -> str:
    """Path of a webhook."""
    return f"/v1/webhooks/{segment(webhook_id)}"


def get(path: str, kind: type[T], **params: str | float) -> Call[T]:
    """Read of the document at a path. kind: its type; it is not checked, since it may have further keys."""
    return Call("GET", path, _reader(kind), params)


def post(
    path: str, body: object, kind: type[T], *, repeatable: bool = True, is_long: bool = False
) -> Call[T]:
    """An action with a body, and the document of this kind that it returns."""
    return replace(_post(path, body, _reader(kind)), repeatable=repeatable, is_long=is_long)


def patch(
    path: str, body: object, _kind: type[T], *, repeatable: bool = True, **params: str | float
) -> Call[T]:
    """A change of a resource, and the document of this kind that it returns."""
    return Call("PATCH", path, decoded, params, _JSON, encoded(body), repeatable=repeatable)


def act(path: str, _kind: type[T]) -> Call[T]:
    """An action on a resource that is not repeatable, and the document of this kind that it returns."""
    return Call("POST", path, decoded, repeatable=False)


def delete(path: str) -> Call[None]:
    """Deletion of a resource."""
    return Call("DELETE", path, lambda _: None, repeatable=False)


def page(path: str, **params: str | float | None) -> Call[Page]:
    """Read of one page of a list."""

    def read(response: httpx.Response) -> Page:
        link = response.links.get("next", {}).get("url")
        return Page(decoded(response)["data"], link and link.removeprefix(_prefix(response, path)))

    return Call("GET", path, read, without_none(params))


def _prefix(response: httpx.Response, path: str) -> str:
    """What the address of the service has before its paths; links of answers have it, paths of calls not."""
    asked, _, _ = response.request.url.raw_path.decode("ascii").partition("?")
    path, _, _ = path.partition("?")
    return asked.removesuffix(path) if asked.endswith(path) else ""


def params_of(call: Call[T], tenant: str | None) -> Mapping[str, str | float] | None:
    """Query parameters of a call that acts in ``tenant``; queries always act in the tenant of their key."""
    # The link to the next page names the tenant already.
    if (
        tenant is None
        or "?" in call.path
        or call.path.endswith((":query", ":packages", "/package", "/encoder"))
    ):
        return call.params or None
    return {**call.params, "tenant": tenant}


def class_path(model: str, label: ClassName) -> str:
    """Path of a class of a model."""
    return f"{model_path(model)}/classes/{segment(class_name(label))}"


def names_of(labels: Iterable[ClassName]) -> list[str]:
    """The names of several classes. Raises InvalidInput."""
    return [class_name(label) for label in labels]


def _query_path(model: str, label: ClassName) -> str:
    return f"{class_path(model, label)}:query"


def _post(
    path: str,
    body: object,
    read: Callable[[httpx.Response], T],
    headers: Mapping[str, str] | None = None,
) -> Call[T]:
    return Call("POST", path, read, {}, {**_JSON, **(headers or {})}, encoded(body))


def encoded(body: object) -> bytes:
    """A body as JSON. Raises InvalidInput for NaN and infinite values, of which msgspec would make null, and
    for anything else that JSON does not have.
    """
    separators = (",", ":")
    try:
        text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=separators, default=_number)
        return text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(_complaint(body) or f"The values cannot be sent as JSON: {error}.") from error


def _complaint(value: object, place: str = "") -> str | None:
    """A sentence about the first part of a body that JSON does not have; None if no part is found.

    place: of the value within the body.
    """
    if isinstance(value, Mapping):
        parts = [(f"{place}.{key}" if place else str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{place}[{position}]", part) for position, part in enumerate(value)]
    elif isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value}, which is not a finite number and not JSON compliant."
    elif isinstance(value, str) and not _is_text(value):
        return f"{place} is {value!a:.80}, which is not valid text."
    elif value is None or isinstance(value, str | int | float) or hasattr(value, "item"):
        return None
    else:
        return f"{place} is {value!r:.80}, which is not a number."
    return next((text for name, part in parts if (text := _complaint(part, name)) is not None), None)


def _is_text(value: str) -> bool:
    """Whether a string has no halves of characters, as names in another encoding than UTF-8 have."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: object) -> object:
    """A number of NumPy or another library as one of Python. Raises InvalidInput and TypeError for others."""
    plain = number(value)
    if plain is value:
        raise TypeError(f"{value!r} is not a number.")
    return plain


def decoded(response: httpx.Response) -> Any:
    """The JSON of a response. Raises StmsError for anything else, which a service would not send."""
    try:
        return msgspec.json.decode(response.content)
    except msgspec.DecodeError as error:
        raise StmsError(f"{response.url} answered with something that is not JSON: {error}.") from error


def dataset_of(response: httpx.Response) -> Dataset:
    """The document of a data set, which notebooks show as a table. Raises StmsError as `decoded`."""
    return cast(Dataset, cards.Dataset(decoded(response)))


def _reader(kind: type[T]) -> Callable[[httpx.Response], T]:
    return cast(Callable[[httpx.Response], T], dataset_of if kind is Dataset else decoded)


def without_none(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters or parts of a body without those that are None."""
    return {name: value for name, value in params.items() if value is not None}


def _explained(explain: Explain) -> dict[str, Explain]:
    return {"explain": explain} if explain else {}


def _read_numbers(response: httpx.Response) -> Decisions:
    """Reads raw float64 scores (n,), or a table (n, columns) whose columns a header names."""
    import numpy as np

    headers = response.headers
    table = np.frombuffer(response.content, "<f8").reshape(
        [int(size) for size in headers["x-tensor-shape"].split(",")]
    )
    names = headers["x-tensor-columns"].split(",")
    columns = {name: table if table.ndim == 1 else table[:, place] for place, name in enumerate(names)}
    return Decisions(
        columns["score"],
        float(headers["x-threshold"]),
        headers["x-model"],
        int(headers["x-model-version"]),
        columns.get("probability"),
        columns.get("gate"),
        columns.get("rejection"),
        columns.get("piece"),
    )
