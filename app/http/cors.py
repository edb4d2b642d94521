"""Which pages of other origins may ask this server, with an API key of their own (CORS, Fetch standard).

A browser lets a page read an answer of another origin only if the answer names the page's origin, and asks
before a request with a key (preflight). Queries, the descriptions of models and the Open Inference Protocol
are open to the origins of ``STMS_CORS_ORIGINS``; everything else, the dashboard above all, is to none. These
paths know callers by API keys only, and no answer permits credentials, so that no cookie plays a part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Final

from app.domain.origins import Origin, allowed_pages
from app.http.request_id import HEADER, request_id_for
from app.http.types import Application, Header, Message, Receive, Scope, Send

_ORIGIN: Final = b"origin"
_REQUESTED_METHOD: Final = b"access-control-request-method"
_VARY: Final = (b"vary", b"origin")
_SHOWN: Final = (
    b"content-length, etag, inference-header-content-length, link, ratelimit, ratelimit-policy, retry-after,"
    b" x-encoder, x-index-base, x-model, x-model-version, x-request-id, x-sample-id, x-tensor-columns,"
    b" x-tensor-dtype, x-tensor-shape, x-threshold"
)
"""Headers of answers that a page may read."""
_SENT: Final = (
    b"accept, authorization, content-encoding, content-type, if-none-match,"
    b" inference-header-content-length,"
    b" traceparent, tracestate, x-api-key, x-request-id, x-sample, x-stms-local, x-tensor-dtype,"
    b" x-tensor-shape"
)
"""Headers that a page may send."""
_EXPOSED: Final = (b"access-control-expose-headers", _SHOWN)
_PREFLIGHT: Final = (
    (b"access-control-allow-headers", _SENT),
    (b"access-control-max-age", b"3600"),
    (b"cache-control", b"no-store"),
)
_MODELS: Final = b"/v1/models"
_QUESTIONS: Final = (b"query", b"predict")
_SEPARATORS: Final = (b":", b"%3A", b"%3a")
_CHANGES: Final = (b"/load", b"/unload")
_MAX_ORIGIN: Final = 300


class CrossOrigin:
    """The origins whose pages may ask. text: of the setting. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self._allowed = allowed_pages(text)
        self._is_allowed = lru_cache(256)(self._find)

    def headers(self, origin: bytes | None) -> list[Header]:
        """The headers of an answer to a request with this Origin."""
        if origin is None or not self._is_allowed(origin[: _MAX_ORIGIN + 1]):
            return [_VARY]
        return [_VARY, (b"access-control-allow-origin", origin), _EXPOSED]

    async def respond(
        self,
        application: Application,
        scope: Scope,
        receive: Receive,
        send: Send,
        wait_for_turn: Callable[[], Awaitable[None]],
    ) -> None:
        """Answer a request to one of the paths that `covers` names.

        wait_for_turn: called before the answer to a preflight, which comes without a key.
        """
        asked = dict(scope["headers"])
        headers = self.headers(asked.get(_ORIGIN))
        if scope["method"] == "OPTIONS" and _REQUESTED_METHOD in asked and len(headers) > 1:
            await wait_for_turn()
            methods = b", ".join(_methods(scope["raw_path"]))
            allowed = (b"access-control-allow-methods", methods)
            request_id = (HEADER, request_id_for(asked.get(HEADER)))
            headers = [*headers[:2], allowed, *_PREFLIGHT, request_id]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await application(scope, receive, send_with_headers)

    def _find(self, origin: bytes) -> bool:
        """Whether an Origin, as a browser writes it, is allowed."""
        try:
            text = origin.decode("ascii")
            parsed = Origin.of(text)
        except ValueError:
            return False
        return str(parsed) == text and self._allowed.allow(parsed)


def covers(raw_path: bytes) -> bool:
    """Whether pages of other origins may ask at a path at all."""
    return bool(_methods(raw_path))


def _methods(raw_path: bytes) -> tuple[bytes, ...]:
    """The methods with which pages of other origins may ask at a path."""
    if raw_path == _MODELS or raw_path.startswith(_MODELS + b"/"):
        return (b"POST",) if _is_question(raw_path) else (b"GET", b"HEAD")
    if raw_path == b"/v2" or raw_path.startswith(b"/v2/"):
        return () if raw_path.endswith(_CHANGES) else (b"GET", b"HEAD", b"POST")
    return ()


def _is_question(raw_path: bytes) -> bool:
    return any(raw_path.endswith(separator + verb) for separator in _SEPARATORS for verb in _QUESTIONS)
