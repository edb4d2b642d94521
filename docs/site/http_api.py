"""The page of the HTTP API, written from the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from app.main import create_app
from app.settings import Settings
from docs.site.markdown import cell, escaped, table

Json = dict[str, Any]

_BODY_OF_ERRORS = "Problem"


def openapi_json() -> str:
    """The OpenAPI document itself, from which clients can be generated."""
    return json.dumps(create_app(Settings()).openapi(), indent=1, ensure_ascii=False) + "\n"


def page(document: Json | None = None) -> str:
    """Every operation with parameters, bodies and responses, then every schema with its fields.

    document: by default that of a server with default settings.
    """
    document = document or create_app(Settings()).openapi()
    lines = ["# HTTP API", "", escaped(document["info"]["description"]), ""]
    lines += [
        "A running server shows the same at `/docs`, where requests can be tried out, and as OpenAPI at"
    ]
    lines += ["`/openapi.json`, which is [here](openapi.json), too, and which `stms openapi` prints."]
    lines += ["Requests have the header `Authorization: Bearer stms_…`; an error is a"]
    lines += [f"[{_BODY_OF_ERRORS}]({_anchor(_BODY_OF_ERRORS)}) (`application/problem+json`)."]
    for tag in dict.fromkeys(tag for _, _, operation in _operations(document) for tag in operation["tags"]):
        lines += ["", f"## {tag.capitalize()}"]
        for method, path, operation in _operations(document):
            if tag in operation["tags"]:
                lines += _operation(method, path, operation)
    lines += ["", "## Schemas"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines) + "\n"


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def _operation(method: str, path: str, operation: Json) -> list[str]:
    text = operation.get("description") or operation.get("summary", "")
    lines = ["", f"### `{method} {path}`", "", escaped(text)]
    rows = [
        (f"`{one['name']}`", one["in"], _type(one["schema"]), cell(one.get("description", "")))
        for one in operation.get("parameters", [])
    ]
    lines += table(["parameter", "in", "type", "meaning"], rows)
    body = operation.get("requestBody", {}).get("content", {})
    if body:
        lines += ["", f"Body: {_contents(body)}."]
    for status, response in operation["responses"].items():
        if status != "default":
            content = _contents(response.get("content", {}))
            said = response.get("description", "")
            # FastAPI's own words for a response that has no description.
            said = "" if said == "Successful Response" else f": {escaped(said).rstrip('.')}"
            lines += ["", f"Response {status}{said}{': ' if content else ''}{content}."]
    return lines


def _contents(content: Json) -> str:
    """Media types, each with its schema if it has one."""
    return "; ".join(
        f"`{kind}`{' ' + shown if (shown := _type(media.get('schema', {}), binary='')) else ''}"
        for kind, media in content.items()
    )


def _type(schema: Json, *, binary: str = "bytes") -> str:
    """The type of a value in a few words, schemas as links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({_anchor(name)})"
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(filter(None, (_type(one) for one in schema[word]))))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {})) or 'values'}"
    if schema.get("format") == "binary":
        return binary
    return str(kind)


def _anchor(name: str) -> str:
    return f"#schema-{name.lower().replace('_', '-').strip('-')}"


def _schema(name: str, schema: Json) -> list[str]:
    lines = ["", f"### {name.rstrip('_')} {{ {_anchor(name)} }}", "", escaped(schema.get("description", ""))]
    required = schema.get("required", [])
    rows = [
        (
            f"`{field}`" + (" (required)" if field in required else ""),
            _type(value),
            f"`{value['default']}`" if value.get("default") is not None else "",
            cell(value.get("description", "")),
        )
        for field, value in schema.get("properties", {}).items()
    ]
    if not rows:
        lines += ["", f"Type: {_type(schema) or 'any value'}."]
    return lines + table(["field", "type", "default", "meaning"], rows)
