"""Request ids, which relate a response, log lines and a client's own records."""

from __future__ import annotations

import re
import secrets
from itertools import count

HEADER = b"x-request-id"
_USABLE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_PREFIX = secrets.token_hex(6).encode()
_NUMBERS = count(1)


def request_id_for(requested: bytes | None) -> bytes:
    """The client's own id if it is short and without spaces or quotes, otherwise a new unique one.

    requested: value of the header X-Request-ID. A new id is random per process and counted within it.
    """
    if requested is not None and _USABLE.fullmatch(requested):
        return requested
    return b"%s-%x" % (_PREFIX, next(_NUMBERS))
