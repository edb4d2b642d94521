"""Hooks for schemathesis that make generated requests valid where the OpenAPI document cannot express it.

The document describes every model and every file. Here it is narrowed to the one model that is asked: rows
have its columns, classes are its classes, and tensors are as long as their shape. Files are real ones. And in
requests that shall be accepted, what stands in one part of a request is made to fit what stands in another:
the headers of a tensor its bytes, the packing of a body its Content-Encoding, If-Match the alias.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import uuid
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urljoin

import httpx
import numpy as np
import pyarrow as pa
import schemathesis
from hypothesis import strategies as st
from pyarrow import ipc, parquet
from safetensors.numpy import save

from core.data.schema import Kind
from tests.app.encoders.onnx_files import SIDE, network
from tests.made_pictures import members, packed
from verification.isolation_probes import WEBHOOK_URL, bundle_bytes

COLUMNS = 3
NAMES = ["a", "b", "c"]
CLASSES = ["cat", "dog", "größe/1:x", "日本"]
PATH_CLASS = "/v2/models/{model}/infer"
"""Asked for a class named in the path; with a version, the class is named in the body."""

Json = dict[str, Any]

_OF_OTHERS = {"text", "texts", "image", "images", "embedding", "embeddings"}
"""Forms of queries that models of numbers refuse."""


# The document, for the one model.


def _apply_rules(part: Any) -> None:
    """Put the rules that the document keeps in extensions back to where a validator reads them."""
    for value in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _apply_rules(value)
    if isinstance(part, dict):
        part |= part.pop("x-rules", {})
        absent = dict.fromkeys(part.pop("x-absent", []), False)
        part.setdefault("properties", {}).update(absent) if absent else None
        for name in part.pop("x-null", []):
            part["properties"][name] = {"type": "null"}
        if "x-content" in part:
            part["content"] |= part.pop("x-content")


@schemathesis.hook
def before_load_schema(context: schemathesis.HookContext, raw_schema: Json) -> None:
    _apply_rules(raw_schema)
    schemas = raw_schema["components"]["schemas"]
    schemas["DenseRow"] |= {"minItems": COLUMNS, "maxItems": COLUMNS}
    schemas["NamedRow"] |= {
        "properties": dict.fromkeys(NAMES, schemas["NamedRow"].pop("additionalProperties")),
        "required": NAMES,
        "additionalProperties": False,
    }
    # The columns of this model are numbers, and it has no encoder.
    schemas["Record"] = schemas["NamedRow"]
    for name in ("QueryRequest", "ClassesQueryRequest", "PredictRequest"):
        taken = [one for one in schemas[name]["oneOf"] if not _OF_OTHERS & {*one["required"]}]
        schemas[name]["oneOf"] = [one for one in taken if one["required"] != ["columns"]]
    examples = raw_schema["paths"]["/v1/models/{model}/classes/{class}:query"]["post"]["requestBody"]
    for name in ("record", "columns", "text"):
        del examples["content"]["application/json"]["examples"][name]
    # Not every text behind date: is a pattern of dates.
    schemas["ColumnParameters"]["properties"]["kind"] = {"enum": [*Kind, "date:%d.%m.%Y", None]}
    # The service allows one origin, and an address cannot be made from it by its pattern alone.
    schemas["CreateWebhook"]["properties"]["url"] = {"type": "string", "enum": [WEBHOOK_URL]}
    schemas["ChangeWebhook"]["properties"]["url"] = {"enum": [WEBHOOK_URL, None]}
    schemas["SparseRow"] = {"oneOf": [_sparse_row(schemas["SparseRow"], count) for count in range(4)]}
    for request in schemas["ClassesQueryRequest"]["oneOf"]:
        # Without them the query string would have to name the classes.
        request["required"].append("classes")
        request["properties"]["classes"] = {**_classes_of(request), "items": {"enum": CLASSES}}
    schemas["InferenceRows"] = {"oneOf": _rows_of_model(schemas["InferenceRows"]["oneOf"])}
    in_path, by_parameter, by_input = schemas["InferenceRequest"]["anyOf"]
    for request in (in_path, by_parameter, by_input):
        # The students of this model are not calibrated.
        request["properties"]["outputs"]["items"]["properties"]["name"]["enum"].remove("probability")
    by_parameter["properties"]["parameters"]["properties"]["class"] = {"enum": CLASSES}
    schemas["InferenceTarget"]["properties"] |= {
        "shape": {"const": [1]},
        "data": {"type": "array", "items": {"enum": CLASSES}, "minItems": 1, "maxItems": 1},
    }
    schemas["InferenceRequest"] = {"anyOf": [by_parameter, by_input]}
    infer = raw_schema["paths"][PATH_CLASS]["post"]["requestBody"]["content"]
    infer["application/json"]["schema"] = in_path
    for path in ("/v1/datasets", "/v1/teachers"):
        for content in raw_schema["paths"][path]["post"]["requestBody"]["content"].values():
            if "example" in content:
                # A file is bytes.
                content["example"] = content["example"].encode()
    # The content of a part of a form cannot be made to fit afterwards: one kind of file for each.
    upload = raw_schema["paths"]["/v1/datasets"]["post"]["requestBody"]["content"]["multipart/form-data"]
    upload["encoding"]["file"]["contentType"] = "text/csv"
    upload["schema"]["properties"] |= {
        "format": {"type": "string", "enum": ["", "csv"]},
        "label_column": {"type": "string", "enum": ["", "0", "kind"]},
        "header": {"type": "string", "enum": ["", "auto", "yes"]},
        "separator": {"type": "string", "enum": ["", "auto", "comma", ","]},
        "decimal": {"type": "string", "enum": ["", "auto", "point", "."]},
        "index_column": {"type": "string", "enum": ["", "none"]},
        "index_base": {"type": "string", "enum": ["", "auto"]},
        "columns": {"type": "string", "enum": ["", "second:number"]},
        "null_values": {"type": "string", "enum": ["", "missing"]},
        "skip_lines": {"type": "string", "enum": ["", "0"]},
        "column_names": {"type": "string", "enum": [""]},
    }
    head = raw_schema["paths"]["/v1/teachers"]["post"]["requestBody"]["content"]["multipart/form-data"]
    head["encoding"]["file"]["contentType"] = "application/x-safetensors"
    tar = raw_schema["paths"]["/v1/bundles"]["post"]["requestBody"]["content"]["multipart/form-data"]
    tar["encoding"]["file"]["contentType"] = "application/x-tar"
    del raw_schema["paths"]["/v1/encoders"]["post"]["requestBody"]["content"]["multipart/form-data"]


def _classes_of(request: Json) -> Json:
    return request["properties"]["classes"]["anyOf"][0]


def _sparse_row(schema: Json, count: int) -> Json:
    row = copy.deepcopy(schema)
    row["properties"]["indices"] |= {"minItems": count, "maxItems": count}
    row["properties"]["indices"]["items"]["maximum"] = COLUMNS - 1
    row["properties"]["values"] |= {"minItems": count, "maxItems": count}
    # With 1 the least and the largest index would be others.
    row["properties"]["index_base"] = {"const": 0}
    return row


def _rows_of_model(inputs: list[Json]) -> list[Json]:
    """Each input in the three shapes that are tried."""
    found = []
    for given in inputs:
        for shape in ([COLUMNS], [1, COLUMNS], [2, COLUMNS]):
            one = copy.deepcopy(given)
            size = int(np.prod(shape))
            flat, nested = one["properties"]["data"]["oneOf"]
            flat |= {"minItems": size, "maxItems": size}
            nested |= {"minItems": shape[0], "maxItems": shape[0]}
            nested["items"] |= {"minItems": COLUMNS, "maxItems": COLUMNS}
            one["properties"]["shape"] = {"const": shape}
            one["properties"]["data"] = {"oneOf": [flat, nested]} if len(shape) == 2 else flat
            found.append(one)
    return found


# Real files.

_table = st.integers(2, 6).flatmap(
    lambda pairs: st.lists(
        st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2), min_size=2 * pairs, max_size=2 * pairs
    )
)


def _csv(rows: list[tuple[float, float]], separator: str = ",") -> bytes:
    lines = ["first", "second", "kind"], *([str(a), str(b), str(i % 2)] for i, (a, b) in enumerate(rows))
    # The first column may serve as labels, too: each of its values stands in two rows.
    body = [[str(i // 2), *cells[1:]] for i, cells in enumerate(lines[1:])]
    return "\n".join(separator.join(cells) for cells in [lines[0], *body]).encode()


def _tsv(rows: list[tuple[float, float]]) -> bytes:
    return _csv(rows, "\t")


def _svmlight(rows: list[tuple[float, float]]) -> bytes:
    return "\n".join(f"{i % 2} 1:{a} 3:{b}" for i, (a, b) in enumerate(rows)).encode()


def _npz(rows: list[tuple[float, float]]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, X=np.array(rows), y=np.arange(len(rows)) % 2)
    return file.getvalue()


def _npy(rows: list[tuple[float, float]]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.column_stack([np.array(rows), np.arange(len(rows)) % 2]))
    return file.getvalue()


def _parquet(rows: list[tuple[float, float]]) -> bytes:
    file = io.BytesIO()
    kinds = ["ab"[i % 2] for i in range(len(rows))]
    table = pa.table({"first": [row[0] for row in rows], "second": [row[1] for row in rows], "kind": kinds})
    parquet.write_table(table, file)
    return file.getvalue()


def _arrow(rows: list[tuple[float, float]], *, is_stream: bool = False) -> bytes:
    out = io.BytesIO()
    table = parquet.read_table(io.BytesIO(_parquet(rows)))
    with (ipc.new_stream if is_stream else ipc.new_file)(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _jsonl(rows: list[tuple[float, float]]) -> bytes:
    lines = [{"first": a, "second": b, "kind": "ab"[i % 2]} for i, (a, b) in enumerate(rows)]
    return "\n".join(map(json.dumps, lines)).encode()


def _arff(rows: list[tuple[float, float]]) -> bytes:
    head = "@relation r\n@attribute a real\n@attribute b real\n@attribute kind {a,b}\n@data\n"
    return (head + "\n".join(f"{a},{b},{'ab'[i % 2]}" for i, (a, b) in enumerate(rows))).encode()


def _head(rows: list[tuple[float, float]]) -> bytes:
    labels = json.dumps([f"class {i}" for i in range(len(rows))])
    return save({"weights": np.array(rows, dtype=np.float32)}, metadata={"labels": labels})


def _rows_safetensors(rows: list[tuple[float, float]]) -> bytes:
    return save({"X": np.repeat(np.array(rows), 2, axis=0), "y": np.arange(2 * len(rows)) % 2})


def _head_npz(rows: list[tuple[float, float]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, weights=np.array(rows), labels=np.array([f"class {i}" for i in range(len(rows))]))
    return file.getvalue()


_DATASETS: dict[str, Callable[[list[tuple[float, float]]], bytes]] = {
    "text/csv": _csv,
    "text/tab-separated-values": _tsv,
    "application/x-svmlight": _svmlight,
    "application/x-npz": _npz,
    "application/vnd.apache.parquet": _parquet,
    "application/vnd.apache.arrow.file": _arrow,
    "application/vnd.apache.arrow.stream": partial(_arrow, is_stream=True),
    "application/x-ndjson": _jsonl,
    "application/jsonl": _jsonl,
    "text/x-arff": _arff,
}
for _media_type, _write in {
    **_DATASETS,
    "application/x-safetensors": _head,
    "application/x-npy": _npy,
}.items():
    schemathesis.openapi.media_type(_media_type, _table.map(_write))
schemathesis.openapi.media_type("application/x-tar", st.just(bundle_bytes()))
schemathesis.openapi.media_type("application/zip", st.just(packed(members(2))))
schemathesis.openapi.media_type(
    "application/octet-stream", st.one_of(*(_table.map(write) for write in (*_DATASETS.values(), _npy)))
)


# What one part of a request says of another.


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: Json) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    path = case.operation.path
    if path.endswith((":query", ":predict")):
        _fit_query(case, kwargs)
    elif path.endswith("/infer"):
        _fit_inference(case, kwargs)
    elif path in _OF_FILES and case.method == "POST":
        _OF_FILES[path](case, kwargs)
    elif path.endswith("/aliases/{alias}") and case.method in ("PUT", "DELETE"):
        _fit_alias(case)
    elif path.endswith("/aliases/{alias}/monitor"):
        case.headers.pop("If-None-Match", None)
    elif path.endswith(("/gate", "/schedule")) and case.method in ("PUT", "DELETE"):
        _fit_gate(case)
    elif path.endswith(("/training-jobs", "/retrain")) and case.method == "POST":
        _fit_job(case)
    elif path.endswith(("/package", "/map", "/encoder")) and ":" not in case.headers.get("X-STMS-Local", ":"):
        # The value was made without the pattern of the header.
        del case.headers["X-STMS-Local"]


def _numbers(case: schemathesis.Case) -> list[tuple[float, float]]:
    """Numbers of one's own for a body."""
    seed = zlib.crc32(case.body if isinstance(case.body, bytes) else repr(case.body).encode())
    return [tuple(row) for row in np.random.default_rng(seed).normal(size=(seed % 3 + 2, 2)).tolist()]


def _fit_query(case: schemathesis.Case, kwargs: Json) -> None:
    if isinstance(case.body, dict):
        rows = [case.body.get("x"), *(case.body.get("rows") or [])]
        if case.body.get("columns") is not None:
            # They name the numbers of lists.
            case.body["columns"] = None if any(isinstance(row, dict) for row in rows) else NAMES[::-1]
        for row in rows:
            if isinstance(row, dict) and "values" in row:
                # Values of the same column add up; the sum is within the bounds, too.
                row["values"] = [value / len(row["values"]) for value in row["values"]]
    rows = np.random.default_rng(len(_numbers(case))).normal(size=(len(_numbers(case)), COLUMNS))
    data = None
    if case.media_type == "application/octet-stream":
        data = rows.astype(np.float32).tobytes()
        case.headers["X-Tensor-Shape"] = f"{len(rows)},{COLUMNS}"
        case.headers["X-Tensor-Dtype"] = "float32"
    elif case.media_type == "application/x-npy":
        file = io.BytesIO()
        np.save(file, rows)
        data = file.getvalue()
    encoding = (case.headers or {}).get("Content-Encoding", "identity")
    if encoding != "identity":
        data = json.dumps(case.body).encode() if data is None else data
        data = gzip.compress(data) if encoding == "gzip" else zlib.compress(data)
    if data is not None:
        kwargs["data"] = data
    if case.operation.path.endswith("{model}:query") and "json" not in str(case.media_type):
        case.query["class"] = CLASSES[: len(rows)]


def _fit_inference(case: schemathesis.Case, kwargs: Json) -> None:
    header = "Inference-Header-Content-Length"
    if case.headers:
        case.headers.pop(header, None)
    if case.media_type != "application/octet-stream":
        # Which outputs are asked for is a set.
        wishes = case.body.get("outputs") or [] if isinstance(case.body, dict) else []
        if len({wish["name"] for wish in wishes}) != len(wishes):
            case.body["outputs"] = list({wish["name"]: wish for wish in wishes}.values())
        return
    rows = np.ones((len(_numbers(case)), COLUMNS)).tobytes()
    head = b""
    if case.operation.path != PATH_CLASS:
        given = {"name": "x", "datatype": "FP64", "shape": [len(rows) // 8 // COLUMNS, COLUMNS]}
        given["parameters"] = {"binary_data_size": len(rows)}
        head = json.dumps({"parameters": {"class": "cat"}, "inputs": [given]}).encode()
    case.headers[header] = str(len(head))
    kwargs["data"] = head + rows


def _fit_head(case: schemathesis.Case, kwargs: Json) -> None:
    """A head, of another model than the one that is asked."""
    if case.query.get("model") == "pets":
        case.query["model"] = "heads"
    if case.query.get("kind") == "students":
        # These are options of heads.
        for name in ("rivals", "row_norm"):
            case.query.pop(name, None)
    if case.media_type in ("application/octet-stream", "application/x-npz"):
        kwargs["data"] = (_head if case.media_type.endswith("stream") else _head_npz)(_numbers(case))


def _fit_bundle(case: schemathesis.Case, kwargs: Json) -> None:
    """As of a head."""
    if case.query.get("model") == "pets":
        case.query["model"] = "bundles"
    if case.media_type == "application/octet-stream":
        kwargs["data"] = bundle_bytes()


def _fit_encoder(case: schemathesis.Case, kwargs: Json) -> None:
    """A network, with its input."""
    case.query |= {"name": "own", "input": f"image:{SIDE}x{SIDE}:rgb:unit"}
    case.query.pop("output", None)
    kwargs["data"] = network()


def _fit_dataset(case: schemathesis.Case, kwargs: Json) -> None:
    """The query string says nothing of the file that it does not hold."""
    of_reading = ("label_column", "header", "separator", "decimal", "index_column", "index_base", "columns")
    of_tables = ("null_values", "skip_lines", "column_names", "encoding", "rare_classes")
    for name in ("format", "filename", *of_reading, *of_tables):
        case.query.pop(name, None)
    if case.media_type == "application/x-safetensors":
        # Heads are files of this type, too.
        kwargs["data"] = _rows_safetensors(_numbers(case))


_OF_FILES = {
    "/v1/datasets": _fit_dataset,
    "/v1/teachers": _fit_head,
    "/v1/bundles": _fit_bundle,
    "/v1/encoders": _fit_encoder,
}


def _fit_job(case: schemathesis.Case) -> None:
    """A data set that is there, and a key that no other request has."""
    if case.headers and "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = uuid.uuid4().hex
    if case.operation.path.endswith("/retrain"):
        # Which hyper-parameters there may be depends on the job of the version.
        case.body["hyperparameters"] = {}
        return
    found = _get(case, "/v1/datasets?limit=1").json()
    for dataset in found.get("data", []):
        case.body["dataset_id"] = dataset["id"]
        wishes = case.body.get("hyperparameters", {})
        if wishes.get("classes"):
            wishes["classes"] = _get(case, f"/v1/datasets/{dataset['id']}").json()["classes"]
        if wishes.get("evaluation", {}).get("test_fraction"):
            # A few rows can be cut in halves only.
            wishes["evaluation"]["test_fraction"] = 0.5
        if wishes.get("teacher", {}).get("method") == "remote":
            # An operator would have to allow the address.
            wishes["teacher"] = {}
        if "model" in wishes.get("teacher", {}):
            # A head from outside would have to know these classes.
            wishes["teacher"]["model"] = None


def _get(case: schemathesis.Case, path: str) -> httpx.Response:
    return httpx.get(urljoin(case.operation.schema.get_base_url(), path), trust_env=False)


def _fit_gate(case: schemathesis.Case) -> None:
    """The state of the gate or schedule that is there now, if there is one."""
    case.headers.pop("If-None-Match", None)
    case.headers.pop("If-Match", None)
    now = _get(case, case.formatted_path)
    if now.is_success:
        case.headers["If-Match"] = now.headers["etag"]


def _fit_alias(case: schemathesis.Case) -> None:
    """The state of the alias that is there now, if there is one; to be deleted it has to be."""
    case.headers.pop("If-None-Match", None)
    case.headers.pop("If-Match", None)
    if case.method == "DELETE" and case.path_parameters["alias"] == "latest":
        # Others ask for it.
        case.path_parameters["alias"] = "older"
    now = _get(case, case.formatted_path)
    if case.method == "DELETE" and now.status_code == 404:
        url = urljoin(case.operation.schema.get_base_url(), case.formatted_path)
        now = httpx.put(url, json={"version": 1}, headers={"If-None-Match": "*"}, trust_env=False)
    if now.is_success:
        case.headers["If-Match"] = now.headers["etag"]
