"""The style sheet, scripts and icon of the pages, under an address that changes with their content."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.border import BorderRoute
from app.api.docs import unchanging
from app.domain.errors import NotFound

router = APIRouter(route_class=BorderRoute)

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def _files() -> dict[str, bytes]:
    folder = resources.files("app.web") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@cache
def _digest() -> str:
    digest = blake2b(digest_size=8)
    for name, content in sorted(_files().items()):
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()


def address_of(name: str) -> str:
    """The path of a file. Raises KeyError for an unknown name."""
    if name not in _files():
        raise KeyError(name)
    return f"/ui/static/{_digest()}/{name}"


@router.get("/ui/static/{digest}/{name}", include_in_schema=False)
async def static_file(request: Request, digest: str, name: str) -> Response:
    """A file. Browsers keep it for good, unless another release of the program has made the page."""
    content = _files().get(name)
    if content is None:
        raise NotFound("There is no such file.", code="no_such_path")
    lifetime = "public, max-age=31536000, immutable" if digest == _digest() else "no-cache"
    media_type = _TYPES[name[name.rindex(".") :]]
    headers = {"cache-control": lifetime, "x-content-type-options": "nosniff"}
    return unchanging(request, content, media_type, headers)
