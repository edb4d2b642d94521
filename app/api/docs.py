"""``/docs``: the OpenAPI document as a page for browsers."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from typing import Final

from fastapi import APIRouter, Response
from fastapi.openapi.docs import get_swagger_ui_html

router = APIRouter()

_SCRIPTS: Final = "https://cdn.jsdelivr.net"
_INLINE: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The page. Its policy allows its own scripts, and requests to this server only."""
    page, policy = _page()
    headers = {"content-security-policy": policy, "x-frame-options": "DENY"}
    return Response(page, media_type="text/html", headers=headers)


@cache
def _page() -> tuple[bytes, str]:
    """The page and its Content-Security-Policy."""
    page = bytes(
        get_swagger_ui_html(
            openapi_url="/openapi.json", title="STMS", oauth2_redirect_url=None, swagger_favicon_url="data:,"
        ).body
    )
    hashes = [hashlib.sha256(script.encode()).digest() for script in _INLINE.findall(page.decode())]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    rules = {
        "default-src": "'none'",
        "script-src": f"{_SCRIPTS} {allowed}",
        # Swagger UI sets inline styles.
        "style-src": f"{_SCRIPTS} 'unsafe-inline'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page, "; ".join(f"{name} {value}" for name, value in rules.items())
