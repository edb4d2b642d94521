"""Errors as ``application/problem+json`` (RFC 9457): the one renderer of the program.

Knows no web framework, so that the query path and the endpoints share it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NotRequired, TypedDict

from app.domain import errors
from app.domain.errors import InputFault, ServiceError

CONTENT_TYPE: Final = "application/problem+json"
MAX_TEXT: Final = 2000
"""Characters of one text in an answer."""
MAX_FAULTS: Final = 100
"""Faults named in one answer; their whole number is in the detail."""

STATUS_OF: Final[dict[type[ServiceError], int]] = {
    errors.InvalidRequest: 400,
    errors.NotAuthenticated: 401,
    errors.NotAuthorised: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.TooLarge: 413,
    errors.UnsupportedFormat: 415,
    errors.Unprocessable: 422,
    errors.PreconditionRequired: 428,
    errors.Overloaded: 429,
    errors.RateLimited: 429,
    errors.Unavailable: 503,
}

Headers = list[tuple[bytes, bytes]]

NO_STORE: Final = (b"cache-control", b"no-store")
"""On whatever is for the one who asked only, and says nothing else."""


class ProblemDocument(TypedDict):
    """An error (RFC 9457). code: a stable word for programs. errors: the faults of the input, if any."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    errors: NotRequired[list[InputFault]]


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as the client sees it.

    status: of HTTP. code: stable word for programs. detail: a sentence for people.
    faults: what is wrong with the input, place by place. retry_after: seconds to wait, if waiting helps.
    allow: the methods a resource has, when another was asked for.
    quota: how often the caller may ask: so many times in a window of so many seconds.
    """

    status: int
    code: str
    detail: str
    faults: Sequence[InputFault] = ()
    retry_after: float | None = None
    allow: str | None = None
    quota: tuple[int, float] | None = None

    def body(self, request_id: str, instance: str) -> bytes:
        """The document. instance: path of the request, percent-encoded as it came."""
        document: ProblemDocument = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": short(self.detail),
            "instance": instance,
            "code": self.code,
            "request_id": request_id,
        }
        if self.faults:
            document["errors"] = [_shortened(fault) for fault in self.faults[:MAX_FAULTS]]
        # ASCII only: a detail may quote a lone surrogate, which cannot be encoded as UTF-8.
        text = json.dumps(document, default=dataclasses.asdict, allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")

    def headers(self) -> Headers:
        """Headers that belong to the problem, its content type among them."""
        headers = [(b"content-type", CONTENT_TYPE.encode()), NO_STORE]
        if self.retry_after is not None:
            wait = max(1, math.ceil(self.retry_after))
            headers.append((b"retry-after", b"%d" % wait))
            if self.quota is not None:
                # draft-ietf-httpapi-ratelimit-headers, sections 3 and 4
                quota, window = self.quota
                headers.append((b"ratelimit-policy", b'"default";q=%d;w=%d' % (quota, math.ceil(window))))
                headers.append((b"ratelimit", b'"default";r=0;t=%d' % wait))
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b'Bearer realm="stms"'))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode("latin-1")))
        return headers


def problem_of(error: ServiceError) -> Problem:
    """How an error of a use case looks over HTTP."""
    status = next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    retry_after = getattr(error, "retry_after", None)
    quota = (error.quota, error.window) if isinstance(error, errors.RateLimited) else None
    return Problem(status, error.reason, error.message, error.faults, retry_after, quota=quota)


def method_not_allowed(method: str, allow: str) -> Problem:
    """The resource exists, but has no such method."""
    return Problem(405, "method_not_allowed", f"{method} is not possible here, only {allow}.", allow=allow)


def internal_problem() -> Problem:
    """An unexpected error: nothing of the inside is shown."""
    return Problem(
        500, "internal_error", "Something went wrong inside the server; its log names the request."
    )


def short(text: str) -> str:
    """A text that may quote what was sent: some of it is enough."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _shortened(fault: InputFault) -> InputFault:
    return dataclasses.replace(fault, field=short(fault.field), message=short(fault.message))
