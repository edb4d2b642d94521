"""Names of requests, so that an answer, a log line and a caller's own records can be put together."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from itertools import count

HEADER = b"x-request-id"
_USABLE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_PREFIX = secrets.token_hex(6).encode()
_NUMBERS = count(1)


def new_request_id() -> str:
    """A name that no other request of any process has: random per process, counted within it."""
    return request_id_for(None).decode("ascii")


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's name for the request where it is usable (short, no spaces or quotes), else a new one."""
    given = next((value for name, value in headers if name == HEADER), None)
    return request_id_for(given).decode("ascii")


def request_id_for(given: bytes | None) -> bytes:
    """The same from the value of the header, None where there is none."""
    if given is not None and _USABLE.fullmatch(given):
        return given
    return b"%s-%x" % (_PREFIX, next(_NUMBERS))
