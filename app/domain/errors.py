"""Errors of the use cases, independent of HTTP.

ServiceError
├── InvalidRequest      the input is invalid; lists every InputFault
├── NotFound            no such data set, job, model, version, class, alias or key
├── Conflict            the request does not fit the present state (in use, already ended, name taken)
├── PreconditionFailed  the resource changed since the caller read it
├── PreconditionRequired  the caller must name the revision it read
├── TooLarge            a body, file or batch over its limit
├── UnsupportedFormat   a file in an unsupported format
├── Unprocessable       a well-formed request that contradicts an earlier one
├── NotAuthenticated / NotAuthorised
├── OnlyServes          this installation has no packages for training
├── Overloaded          load was shed; has retry_after in seconds
│   └── RateLimited     the caller exceeded its rate limit; has its quota
└── Unavailable         a component that the service needs cannot be reached; nothing was changed
    └── OutcomeUnknown  the database was lost while it committed: the change may have been made
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class InputFault:
    """A fault of the input: its field, the reason, and the zero-based row and column if known.

    name: of the column of a record.
    """

    field: str
    code: str
    message: str
    row: int | None = None
    column: int | None = None
    name: str | None = None


class SetupError(Exception):
    """The service cannot run as it was set up; the text tells the operator what to change.

    Subclasses stand where they are raised: files with secrets, keys, bundles and certificates, the schema of
    the database, addresses, plug-ins.
    """


class ServiceError(Exception):
    """Base of all errors. code: a stable word for programs. message: a sentence for people."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, faults: Sequence[InputFault] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.reason = code or self.code
        self.faults = tuple(faults)


class InvalidRequest(ServiceError):
    code = "invalid_request"


class NotFound(ServiceError):
    code = "not_found"


class Conflict(ServiceError):
    code = "conflict"


class PreconditionFailed(ServiceError):
    code = "precondition_failed"


class PreconditionRequired(ServiceError):
    code = "precondition_required"


class TooLarge(ServiceError):
    code = "too_large"


class UnsupportedFormat(ServiceError):
    code = "unsupported_format"


class Unprocessable(ServiceError):
    code = "unprocessable"


class NotAuthenticated(ServiceError):
    code = "not_authenticated"


class NotAuthorised(ServiceError):
    code = "not_authorised"


class OnlyServes(ServiceError):
    """An installation that only answers queries has been asked for something else."""

    code = "only_serves"


class Overloaded(ServiceError):
    code = "overloaded"

    def __init__(self, message: str, *, code: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    """quota: requests allowed at once. window: seconds until the whole quota is available again."""

    code = "rate_limited"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after: float = 1.0,
        quota: int = 1,
        window: float = 1.0,
    ) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.quota = quota
        self.window = window


class Unavailable(ServiceError):
    """retry_after: seconds after which the same request may succeed; None where it may have had an effect."""

    code = "unavailable"

    def __init__(self, message: str, *, code: str | None = None, retry_after: float | None = 2.0) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class OutcomeUnknown(Unavailable):
    code = "outcome_unknown"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code, retry_after=None)
