"""Errors that the clients raise.

StmsError
├── Unreachable        no response: connection refused or broken, or a timeout
├── UnprovenServer     it did not show that it knows the key found in a file, which was not sent
├── JobNotSucceeded    a job that was waited for failed, was cancelled or succeeded in part
├── Stale              a local evaluator has had no answer of the service for too long
├── InvalidInput       values that cannot be sent; also a ValueError and TypeError
├── MissingPackage     an optional package is not installed; also an ImportError
└── Problem            the server responded with an error
    ├── InvalidRequest   400, 413, 415, 422: the input is invalid; `faults` name the fields
    ├── NotAllowed       401, 403: the API key is invalid or lacks a scope
    ├── NotFound         404
    ├── Conflict         409, 412, 428: not possible in the current state
    ├── TooBusy          429: load was shed; see `retry_after`
    ├── Unavailable      502, 503, 504: temporary
    └── ServerFault      any other 5xx
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, TypeAlias

import httpx

Json: TypeAlias = dict[str, Any]

_SHOWN_FAULTS = 3


class StmsError(Exception):
    """Base of all errors; the message is a sentence for people."""


class Unreachable(StmsError):
    """No response. connected: whether a connection existed, so that the request may have arrived."""

    def __init__(self, message: str, *, connected: bool) -> None:
        super().__init__(message)
        self.connected = connected


class UnprovenServer(StmsError):
    """The server did not show that it knows the key found in a file, so the key was not sent to it."""


class JobNotSucceeded(StmsError):
    """A job ended failed, cancelled or partially succeeded. job: its last document."""

    def __init__(self, job: Json) -> None:
        reason = (job.get("error") or {}).get("message")
        super().__init__(f"Job {job['id']} ended {job['state']}{': ' + reason if reason else ''}")
        self.job = job


class EvaluationNotSucceeded(StmsError):
    """An evaluation ended failed or cancelled. evaluation: its last document."""

    def __init__(self, evaluation: Json) -> None:
        reason = evaluation.get("error_message")
        super().__init__(
            f"Evaluation {evaluation['id']} ended {evaluation['state']}{': ' + reason if reason else ''}"
        )
        self.evaluation = evaluation


class Stale(StmsError):
    """A local evaluator has had no answer of the service for longer than its ``max_stale``."""


class InvalidInput(StmsError, ValueError, TypeError):
    """Values that cannot be sent: NaN, infinite numbers, what is not a number, a row of another shape.

    code: the word by which the service would refuse them, where it is known.
    """

    def __init__(self, message: str, *, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.code = code


class MissingPackage(StmsError, ImportError):
    """An optional package that this method needs is not installed."""


class Problem(StmsError):
    """An error response (RFC 9457).

    status: HTTP status. code: a stable word for programs. detail: a sentence for people. request_id:
    id of the request in the server's log. faults: each with field, row, column, code and message.
    retry_after: seconds to wait, if the server named any. document: the whole response body. summary: detail,
    status, code and request; the text of the error also has the first faults, a line each.
    """

    def __init__(self, status: int, document: Json, retry_after: float | None = None) -> None:
        self.status = status
        self.document = document
        self.code = str(document.get("code", "error"))
        self.detail = str(document.get("detail") or document.get("title") or "The server gave no reason.")
        self.request_id: str | None = document.get("request_id")
        self.faults: list[Json] = document.get("errors", [])
        self.retry_after = retry_after
        origin = f"HTTP {status}, {self.code}" + (f", request {self.request_id}" if self.request_id else "")
        self.summary = f"{self.detail} ({origin})"
        super().__init__("\n".join([self.summary, *self._first_faults()]))

    @property
    def further_faults(self) -> list[Json]:
        """The faults that the detail does not state."""
        return [fault for fault in self.faults if str(fault.get("message")) not in self.detail]

    def _first_faults(self) -> Iterator[str]:
        """Lines of the first faults that the detail does not state."""
        further = self.further_faults
        yield from (f"  {fault_line(fault)}" for fault in further[:_SHOWN_FAULTS])
        if len(further) > _SHOWN_FAULTS:
            yield f"  and {len(further) - _SHOWN_FAULTS} more, see `faults`"


def fault_line(fault: Json) -> str:
    """A fault of an answer as one line: where it is, and what is wrong."""
    field = str(fault.get("field") or "")
    place = [field] if field and not str(fault.get("message", "")).startswith(f"{field}:") else []
    # A message that names the line of a file counts from 1; the row beside it would count from 0.
    if not re.search(r"\b[Ll]ine [0-9]", str(fault.get("message", ""))):
        place += [f"{axis} {fault[axis]}" for axis in ("row", "column") if fault.get(axis) is not None]
    return f"{', '.join(place)}: {fault.get('message', '')}" if place else str(fault.get("message", ""))


class InvalidRequest(Problem):
    """400, 413, 415, 422."""


class NotAllowed(Problem):
    """401, 403."""


class NotFound(Problem):
    """404."""


class Conflict(Problem):
    """409, 412, 428."""


class TooBusy(Problem):
    """429."""


class Unavailable(Problem):
    """502, 503, 504."""


class ServerFault(Problem):
    """Any other 5xx."""


_KINDS: dict[int, type[Problem]] = {
    **dict.fromkeys((400, 413, 415, 422), InvalidRequest),
    **dict.fromkeys((401, 403), NotAllowed),
    **dict.fromkeys((409, 412, 428), Conflict),
    **dict.fromkeys((502, 503, 504), Unavailable),
    404: NotFound,
    429: TooBusy,
}


def problem_of(response: httpx.Response) -> Problem:
    """The error of a response whose body has been read."""
    status = response.status_code
    try:
        document = response.json()
    except ValueError:
        document = {"detail": f"{response.reason_phrase or 'The server answered'}: {response.text[:200]!r}"}
    if not isinstance(document, dict):
        document = {"detail": str(document)}
    kind = _KINDS.get(status, ServerFault if status >= 500 else Problem)
    return kind(status, document, _retry_after(response.headers.get("retry-after")))


def unreachable(address: str, error: httpx.TransportError) -> Unreachable:
    """The error of a request without a response."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return Unreachable(f"No server answers at {address} ({error}).", connected=False)
    if isinstance(error, httpx.PoolTimeout):
        return Unreachable(f"All connections to {address} are busy.", connected=False)
    reason = str(error) or type(error).__name__
    return Unreachable(f"The connection to {address} broke off: {reason}.", connected=True)


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which may be a number or a date; None if missing or invalid."""
    if value is None:
        return None
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None
