"""Errors as ``application/problem+json`` (RFC 9457), for the query path and the endpoints alike."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NotRequired, TypedDict

from app.domain import errors
from app.domain.errors import InputFault, ServiceError
from app.http.types import Header

CONTENT_TYPE: Final = "application/problem+json"
MAX_TEXT: Final = 2000
"""Largest number of characters of one text in a response."""
MAX_FAULTS: Final = 100
"""Largest number of faults in one response; the detail has their total."""
MAX_FAULT_BYTES: Final = 64 * 1024
"""Largest size of these faults as JSON."""

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
    errors.OnlyServes: 501,
    errors.Unavailable: 503,
    errors.OutcomeUnknown: 502,
}

NO_STORE: Final = (b"cache-control", b"no-store")
"""The Cache-Control of every response that sets no other."""


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

    status: of HTTP. code: stable word for programs. detail: sentence for people. faults: each invalid part of
    the input with its position. retry_after: seconds, if a retry can help. allow: methods of the resource,
    for status 405. quota: (requests, seconds) of the caller's rate limit.
    """

    status: int
    code: str
    detail: str
    faults: Sequence[InputFault] = ()
    retry_after: float | None = None
    allow: str | None = None
    quota: tuple[int, float] | None = None

    def body(self, request_id: str, instance: str) -> bytes:
        """The JSON document. instance: path of the request, percent-encoded as it arrived."""
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
            document["errors"] = list(_first_faults(self.faults))
        return _encoded(document)

    def headers(self) -> list[Header]:
        """The headers of the response, without Content-Length."""
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


class ProblemError(Exception):
    """Ends a request with a problem that is not an error of a use case, such as a wrong method."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem_of(error: ServiceError) -> Problem:
    """The problem that reports an error of a use case."""
    status = next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    retry_after = getattr(error, "retry_after", None)
    quota = (error.quota, error.window) if isinstance(error, errors.RateLimited) else None
    return Problem(status, error.reason, error.message, error.faults, retry_after, quota=quota)


def method_not_allowed(method: str, methods: Iterable[str]) -> Problem:
    """The problem of a resource that has ``methods`` but not ``method``; HEAD is wherever GET is."""
    known = set(methods)
    allow = ", ".join(sorted(known | {"HEAD"} if "GET" in known else known))
    return Problem(405, "method_not_allowed", f"{method} is not possible here, only {allow}.", allow=allow)


def internal_problem() -> Problem:
    """The problem of an unexpected error, without internal details."""
    return Problem(
        500, "internal_error", "Something went wrong inside the server; its log names the request."
    )


def short(text: str) -> str:
    """``text`` cut to `MAX_TEXT` characters, since it may quote the request."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _encoded(value: object) -> bytes:
    # ASCII only: a detail may quote a lone surrogate, which cannot be encoded as UTF-8.
    text = json.dumps(value, default=_described, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def _described(fault: InputFault) -> dict[str, object]:
    """A fault as JSON has it; its name is there only if it is of a column of a record."""
    described = dataclasses.asdict(fault)
    if fault.name is None:
        del described["name"]
    else:
        described["name"] = short(fault.name)
    return described


def faults_as_json(faults: Sequence[InputFault]) -> bytes:
    """All faults as the ``errors`` of a problem document."""
    return _encoded([*map(_shortened, faults)])


def _first_faults(faults: Sequence[InputFault]) -> Iterator[InputFault]:
    """The first faults, at most `MAX_FAULTS`, and as many as fit into `MAX_FAULT_BYTES`."""
    room = MAX_FAULT_BYTES
    for fault in map(_shortened, faults[:MAX_FAULTS]):
        room -= len(_encoded(fault))
        if room < 0:
            return
        yield fault


def _shortened(fault: InputFault) -> InputFault:
    return dataclasses.replace(fault, field=short(fault.field), message=short(fault.message))
