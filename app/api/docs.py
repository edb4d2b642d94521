"""``/docs``: the OpenAPI document as a page for browsers, with Swagger UI from this server."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response

from app.api.border import BorderRoute

router = APIRouter(route_class=BorderRoute)

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>STMS</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
# Without `validatorUrl: null`, Swagger UI sends the address of the document to a public server.
_START: Final = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The page. Its policy allows scripts, styles and requests of this server only."""
    headers = {"content-security-policy": _POLICY, "x-frame-options": "DENY"}
    return Response(_PAGE, media_type="text/html", headers=headers)


@router.get("/docs/start.js", include_in_schema=False)
async def start() -> Response:
    """The script that starts Swagger UI. It is a file since the page's policy allows no inline scripts."""
    return _cacheable(_START.encode(), "text/javascript")


@router.get("/docs/swagger-ui-bundle.js", include_in_schema=False)
def script() -> Response:
    """Swagger UI."""
    return _cacheable(_swagger_ui("swagger-ui-bundle.js"), "text/javascript")


@router.get("/docs/swagger-ui.css", include_in_schema=False)
def styles() -> Response:
    """The styles of Swagger UI."""
    return _cacheable(_swagger_ui("swagger-ui.css"), "text/css")


def _cacheable(content: bytes, media_type: str) -> Response:
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=3600"})


@cache
def _swagger_ui(name: str) -> bytes:
    """A file of the package fastapi-offline, of which only the files are used."""
    path = metadata.distribution("fastapi-offline").locate_file(f"fastapi_offline/static/{name}")
    return Path(str(path)).read_bytes()
