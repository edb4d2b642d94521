"""``/docs``: the OpenAPI document as a page for browsers, with Swagger UI from this server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.http.path_prefix import prefix_of

router = APIRouter(route_class=BorderRoute)

_CACHEABLE: Final = {"cache-control": "public, max-age=3600"}

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Relative addresses hold below any prefix of a proxy.
_PAGE: Final = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>STMS</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# Without `validatorUrl: null`, Swagger UI sends the address of the document to a public server.
_START: Final = b"""SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The page. Its policy allows scripts, styles and requests of this server only."""
    headers = {"content-security-policy": _POLICY, "x-frame-options": "DENY"}
    return unchanging(request, _PAGE, "text/html", headers)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """The OpenAPI document, which is made and encoded once."""
    document = await run_in_threadpool(request.app.encoded_openapi, prefix_of(request.scope))
    return unchanging(request, document, "application/json", {"cache-control": "no-cache"})


@router.get("/docs/start.js", include_in_schema=False)
async def start(request: Request) -> Response:
    """The script that starts Swagger UI. It is a file since the page's policy allows no inline scripts."""
    return unchanging(request, _START, "text/javascript", _CACHEABLE)


@router.get("/docs/swagger-ui-bundle.js", include_in_schema=False)
async def script(request: Request) -> Response:
    """Swagger UI."""
    return unchanging(request, _swagger_ui("swagger-ui-bundle.js"), "text/javascript", _CACHEABLE)


@router.get("/docs/swagger-ui.css", include_in_schema=False)
async def styles(request: Request) -> Response:
    """The styles of Swagger UI."""
    return unchanging(request, _swagger_ui("swagger-ui.css"), "text/css", _CACHEABLE)


def unchanging(request: Request, content: bytes, media_type: str, headers: Mapping[str, str]) -> Response:
    """A response with an ETag, without ``content`` if the client has it already."""
    tag = _entity_tag(content)
    known = request.headers.get("if-none-match", "")
    headers = {**headers, "etag": tag}
    if known.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


@lru_cache(64)
def _entity_tag(content: bytes) -> str:
    return f'"{blake2b(content, digest_size=12).hexdigest()}"'


@cache
def _swagger_ui(name: str) -> bytes:
    """A file of the package fastapi-offline, of which only the files are used."""
    path = metadata.distribution("fastapi-offline").locate_file(f"fastapi_offline/static/{name}")
    return Path(str(path)).read_bytes()
