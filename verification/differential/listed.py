"""The differences to the server of before known heads and query processes that are meant, with reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from verification.differential.comparison import Kind
from verification.differential.conversation import Outcome, Response
from verification.differential.requests import Case

_REQUEST_ID: Final = b"x-request-id"


def _equal_but_for(change: Callable[[Response], Response]) -> Callable[[Case, Outcome, Outcome], bool]:
    """Whether two outcomes are equal once their responses are changed."""

    def changed(outcome: Outcome) -> Outcome:
        return replace(outcome, responses=tuple(map(change, outcome.responses)))

    return lambda _case, one, other: changed(one) == changed(other)


def _without_repeated_headers(response: Response) -> Response:
    return replace(response, headers=tuple(sorted(set(response.headers))))


def _without_request_id(response: Response) -> Response:
    known = response.header(_REQUEST_ID)
    body = response.body
    if known:
        body = body.replace(b'"request_id":"%s"' % known, b"")
    left_out = (_REQUEST_ID, b"content-length") if body != response.body else (_REQUEST_ID,)
    return replace(response, headers=tuple(h for h in response.headers if h[0] not in left_out), body=body)


_same_without_request_ids: Final = _equal_but_for(_without_request_id)


def _has_several_request_ids(case: Case, one: Outcome, other: Outcome) -> bool:
    return case.data.lower().count(_REQUEST_ID) > 1 and _same_without_request_ids(case, one, other)


_NAMES: Final = (b"access-control-expose-headers", b"access-control-allow-headers")
_OF_PACKAGES: Final = {b"x-encoder", b"x-index-base", b"x-stms-local"}


def _without_headers_of_packages(response: Response) -> Response:
    def kept(name: bytes, value: bytes) -> bytes:
        names = (one.strip() for one in value.split(b","))
        return b", ".join(one for one in names if one not in _OF_PACKAGES) if name in _NAMES else value

    return replace(response, headers=tuple((name, kept(name, value)) for name, value in response.headers))


def _is_malformed(response: Response) -> bool:
    return response.status == 400 and b'"code":"malformed_request"' in response.body


def _has_two_faults(case: Case, one: Outcome, other: Outcome) -> bool:
    """Whether the last responses of the outcomes tell two faults, and one of them that of a malformed input.

    A chunked body behind a head that is refused may be malformed; whether it has arrived by then depends on
    the time.
    """
    if b"chunked" not in case.data.lower() or not (one.responses and other.responses):
        return False
    (*before, last), (*others, other_last) = (
        map(_without_headers_of_packages, outcome.responses) for outcome in (one, other)
    )
    return (
        before == others
        and (one.is_closed, other.is_closed) == (True, True)
        and _is_malformed(last) != _is_malformed(other_last)
        and min(last.status, other_last.status) >= 400
    )


KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        "repeated_header",
        "A page has X-Content-Type-Options: nosniff, as every response has; it is sent once now.",
        _equal_but_for(_without_repeated_headers),
    ),
    Kind(
        "headers_of_packages",
        "Pages of other origins may use the headers of packages for local evaluation.",
        _equal_but_for(_without_headers_of_packages),
    ),
    Kind(
        "two_faults",
        "Of a head that is refused and a malformed body behind it, the one that is known first is told.",
        _has_two_faults,
    ),
    Kind(
        "several_request_ids",
        "Predictions are queries now, and of several X-Request-ID they take the last, as queries always did.",
        _has_several_request_ids,
    ),
)
