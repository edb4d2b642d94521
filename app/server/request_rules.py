"""Rules for the head of a request: its size, and unambiguous framing.

httptools checks the syntax strictly, but it has no limits, and a server needs further rules: a request that a
proxy in front of it could frame differently is refused (request smuggling, RFC 9112 section 11.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.http.problem import Problem, ProblemError

HEAD_BYTES: Final = 64 * 1024
"""Longest request line with headers, and the most bytes of chunk framing and trailers around a body."""
TARGET_BYTES: Final = 16 * 1024
"""Longest request target."""
MAX_HEADERS: Final = 100
RELAYED_BYTES: Final = 4096
RELAYED_HEADERS: Final = 4
"""How much more a head may have that another process has checked by these rules, and has added headers to."""

_SINGLE: Final = {b"authorization": "Authorization", b"host": "Host", b"x-api-key": "X-API-Key"}
"""Headers that a request may have only once, as two readers could take different ones."""
_CHECKED: Final = frozenset({*_SINGLE, b"transfer-encoding"})
_FRAMING_PER_BYTE: Final = 16
"""Bytes of framing allowed for each byte of a chunked body; one chunk per byte needs fewer."""


class BadRequest(ProblemError):
    """The request breaks a rule and is answered with ``problem``."""

    @classmethod
    def malformed(cls, message: str) -> BadRequest:
        """Create the error for a request that is not valid HTTP/1.1."""
        return cls(Problem(400, "malformed_request", message))


class RequestRules:
    """The rules for the requests of one connection; the only state is the size of an unfinished head.

    relayed: whether they come from another process of this service, see `app.gate.relay`.
    """

    def __init__(self, *, relayed: bool = False) -> None:
        self._head_bytes: int | None = None
        self._most_bytes = HEAD_BYTES + RELAYED_BYTES if relayed else HEAD_BYTES
        self._most_headers = MAX_HEADERS + RELAYED_HEADERS if relayed else MAX_HEADERS

    def check_head(self, target: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> bool:
        """Check a complete head; header names are in lower case. Returns whether the body is chunked.

        Raises BadRequest.
        """
        if self._head_bytes is not None:
            # Only a head that arrived in several pieces can be too large.
            self._head_bytes = None
            if len(target) + sum(len(name) + len(value) for name, value in headers) > self._most_bytes:
                raise BadRequest(_head_too_large("The head of the request is too large."))
        is_chunked, seen = False, set[bytes]()
        for name, value in headers:
            if name in _CHECKED:
                if name != b"transfer-encoding":
                    if name in seen:
                        raise BadRequest.malformed(f"The request has more than one {_SINGLE[name]} header.")
                    seen.add(name)
                elif is_chunked or value.strip().lower() != b"chunked":
                    raise BadRequest.malformed("The only supported Transfer-Encoding is chunked, given once.")
                else:
                    is_chunked = True
        if len(target) > TARGET_BYTES:
            text = f"The target of the request is longer than {TARGET_BYTES} bytes."
            raise BadRequest(Problem(414, "target_too_long", text))
        if len(headers) > self._most_headers:
            raise BadRequest(_head_too_large(f"The request has more than {MAX_HEADERS} headers."))
        if b"host" not in seen and version != "1.0":
            raise BadRequest.malformed("The request has no Host header.")
        if version not in ("1.1", "1.0"):
            raise BadRequest.malformed("Only HTTP/1.1 and HTTP/1.0 are supported.")
        return is_chunked

    def check_head_progress(self, size: int) -> None:
        """Check the size of a head that is still unfinished after ``size`` more bytes. Raises BadRequest."""
        if self._head_bytes is None:
            # The head began somewhere in these bytes, which may also contain the end of another request.
            self._head_bytes = 0
        else:
            self._head_bytes += size
            if self._head_bytes > self._most_bytes:
                raise BadRequest(_head_too_large("The head of the request is too large."))

    def check_body_framing(self, received: int, body: int) -> None:
        """Check an unfinished message of ``received`` bytes after its head, ``body`` of them content.

        Chunk extensions, tiny chunks and trailers must not be used to send without end. Raises BadRequest.
        """
        if received - body > HEAD_BYTES + _FRAMING_PER_BYTE * body:
            raise BadRequest.malformed("The body consists of chunk framing almost entirely.")


def _head_too_large(message: str) -> Problem:
    return Problem(431, "head_too_large", message)
