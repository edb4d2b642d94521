"""What every route does before its endpoint: the address, the scope of the key, the body.

In this order: text in the address that nothing can store is refused; then keys without the scope of the
route, before a byte of the body is read; then bodies beyond the limit of the route; and JSON is parsed and
validated, in a thread if it is large. No endpoint does this itself, so none can forget it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Set
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from app.api.dependencies import RequiresScope
from app.api.encoded_route import EncodedRoute
from app.api.errors import methods_at
from app.domain.entities import Caller
from app.domain.errors import InputFault, InvalidRequest, NotFound
from app.domain.fault_fields import sent_field
from app.domain.names import find_unusable
from app.http.body import declared_length, too_large, truncated
from app.http.decompression import decompress
from app.http.headers import content_coding
from app.http.json_body import parse_json
from app.http.parameters import check_known
from app.http.types import Body, Message, Receive, Scope

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

BODY_BYTES: Final = 64 * 1024
"""Largest body of most routes; settings may lower it."""
INLINE_BYTES: Final = 16 * 1024
"""Larger bodies are parsed and validated in a thread. Routes that need no key accept no larger ones."""

_SPECIFICATION_BYTES: Final = 256 * 1024
LARGE_BODIES: Final[Mapping[str, int | None]] = {
    # A job may name the classes to train, in at most 64 KiB of JSON, which a client may escape or indent.
    "/v1/training-jobs": _SPECIFICATION_BYTES,
    "/ui/datasets/{dataset_id}/train": _SPECIFICATION_BYTES,
    # Up to 1000 classes have thresholds.
    "/v1/models/{model}/versions": _SPECIFICATION_BYTES,
    "/ui/models/{model}/thresholds": _SPECIFICATION_BYTES,
    # Up to 1000 classes have promises, and up to 1000 answers feedback.
    "/v1/models/{model}/aliases/{alias}/monitor": _SPECIFICATION_BYTES,
    "/v1/feedback": 4 * _SPECIFICATION_BYTES,
    # Up to 100 000 rows are deleted by their numbers, or have new labels.
    "/v1/datasets/{dataset_id}/revisions": None,
    # Tens of thousands of labels may be corrected at once, and a row may have 200 000 characters.
    "/v1/training-jobs/{job_id}/labels": None,
    "/v1/training-jobs/{job_id}/suspects": None,
    # Names of 1000 classes, or the examples of one.
    "/v1/models/{model}/classes": None,
    # Decisions on 100 rows.
    "/ui/jobs/{job_id}/suspects": _SPECIFICATION_BYTES,
    "/ui/ask": None,
}
"""Largest bodies of other routes, as far as ``STMS_MAX_BODY_BYTES`` permits; None: as large as that.

While the parser of JSON reads a body, no other thread of the process runs Python, so that these are no larger
than they need to be.
"""

_REST: Final = 3.0
"""After a large body no other one is read for this many times as long as it took."""

OWN_LIMITS: Final = frozenset(
    {
        "/v1/bundles",
        "/v1/datasets",
        "/v1/teachers",
        "/v1/models/{model}:predict",
        "/ui/bundles",
        "/ui/datasets",
    }
)
"""Paths whose endpoints bound their bodies themselves: files, which are streamed, and rows."""

_OF_PAGES: Final = {"tenant", "done"}
"""Query parameters that every page shows."""


class BorderRoute(EncodedRoute):
    """A route whose requests are checked as this module says."""

    def get_route_handler(self) -> Handler:
        """The function that answers a request."""
        respond = super().get_route_handler()
        required = list(required_scopes(self.dependant))
        known = set(parameters_of(self.dependant)) | (_OF_PAGES if self.path.startswith("/ui") else set())
        field = self.body_field
        annotation: Any = None if field is None else field.field_info.annotation
        body_type: TypeAdapter[Any] | None = None if field is None else TypeAdapter(annotation)

        async def handle(request: Request) -> Response:
            check_address(request.scope)
            for requires in required:
                requires.check(request)
            if required and request.scope["query_string"]:
                check_parameters(request, known)
            if self.path in OWN_LIMITS:
                return await respond(request)
            limit = self._limit(request) if required else INLINE_BYTES
            bounded = Request(request.scope, _bounded(request, limit))
            return await respond(
                bounded if body_type is None else await _with_json(bounded, body_type, limit)
            )

        return handle

    def _limit(self, request: Request) -> int:
        """The largest body in bytes."""
        most: int = request.app.settings.max_body_bytes
        return min(most, LARGE_BODIES.get(self.path, BODY_BYTES) or most)


class JsonRequest(Request):
    """A request whose body was read and validated already.

    It was read as JSON under any Content-Type, as queries are: programs send defaults of their libraries.
    """

    def __init__(self, request: Request, body: bytes, value: object) -> None:
        headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._read, self._value = body, value

    async def body(self) -> bytes:
        """The bytes of the body."""
        return self._read

    async def json(self) -> object:
        """The validated value, which FastAPI accepts as it is."""
        return self._value


def required_scopes(dependant: Dependant) -> Iterator[RequiresScope]:
    """The scopes that the dependencies of an endpoint require."""
    if isinstance(dependant.call, RequiresScope):
        yield dependant.call
    for part in dependant.dependencies:
        yield from required_scopes(part)


def parameters_of(dependant: Dependant) -> Iterator[str]:
    """The names of the query parameters of an endpoint and its dependencies."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for part in dependant.dependencies:
        yield from parameters_of(part)


def check_parameters(request: Request, known: Set[str]) -> None:
    """Raise InvalidRequest for query parameters that are not ``known``."""
    try:
        check_known(request.query_params.keys(), known)
    except InvalidRequest:
        allowed = methods_at(request)
        if allowed and request.method not in allowed:
            # The path of another resource has matched, whose pattern would refuse it later.
            raise HTTPException(405) from None
        raise


def check_address(scope: Scope) -> None:
    """Raise for text in the path (NotFound) or the query string (InvalidRequest) that cannot be stored."""
    if b"%" in scope["raw_path"] and _unusable(scope["raw_path"]) is not None:
        raise NotFound("There is nothing at this path.", code="not_found")
    query: bytes = scope["query_string"]
    if b"%" in query and _unusable(query) is not None:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        for pair in pairs:
            for part in pair:
                if (found := _unusable(part.encode("latin-1"), encoded=False)) is not None:
                    name = _shown(pair[0])
                    message = f"{name}: Text cannot hold {found}."
                    raise InvalidRequest(
                        message, code="invalid_parameter", faults=[InputFault(name, "bad_text", message)]
                    )


def _unusable(data: bytes, *, encoded: bool = True) -> str | None:
    """What text in UTF-8 holds that cannot be stored. encoded: whether it is percent-encoded."""
    try:
        return find_unusable((unquote_to_bytes(data) if encoded else data).decode("utf-8"))
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"


def _shown(name: str) -> str:
    return name.encode("latin-1").decode("utf-8", "replace").replace("\0", "\ufffd")


def _bounded(request: Request, limit: int) -> Receive:
    """``receive`` of a request whose body has at most ``limit`` bytes.

    Raises TooLarge as soon as the body is known to be larger, at once if its length is declared, and
    InvalidRequest if the client has left.
    """
    length = request.headers.get("content-length")
    declared_length(None if length is None else length.encode("latin-1"), limit)
    receive, size = request.receive, 0

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        if message["type"] == "http.disconnect":
            raise truncated("The client disconnected before the body was complete.")
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(limit)
        return message

    return bounded


async def _with_json(request: Request, body_type: TypeAdapter[Any], limit: int) -> Request:
    """The request with its body as a validated value. limit: of the body in bytes, also decompressed.

    Raises InvalidRequest, TooLarge, UnsupportedFormat and RequestValidationError.
    """
    coding = content_coding(request.headers.get("content-encoding", "").encode("latin-1"))
    body = await request.body()
    if not body:
        return request
    if coding is None and len(body) <= INLINE_BYTES:
        return JsonRequest(request, body, validated(body, body_type))

    def read() -> object:
        return validated(body if coding is None else decompress(body, limit), body_type)

    # One at a time, by turns, and with rests: threads that compute keep the event loop waiting.
    loop, turns = asyncio.get_running_loop(), request.app.state.context.budgets.large_bodies
    caller = Caller.of(request.state.caller)
    await turns.acquire(caller)
    began = loop.time()
    try:
        return JsonRequest(request, body, await run_in_threadpool(read))
    finally:
        loop.call_later(_REST * (loop.time() - began), turns.release, caller)


def validated(body: Body, body_type: TypeAdapter[Any]) -> object:
    """The value in a body of JSON. Raises as `parse_json`, and RequestValidationError with its faults."""
    value = parse_json(body)
    try:
        return body_type.validate_python(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        located = [{**one, "loc": ("body", *sent_field(one["loc"], one["type"], value))} for one in faults]
        raise RequestValidationError(located) from error
    except RecursionError as error:
        raise InvalidRequest("The body is not JSON: it is too deep.", code="malformed_json") from error
