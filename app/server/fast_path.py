"""The synchronous fast path: a response without a task, for requests that can be answered immediately.

An ASGI request costs a task, an iteration of the event loop, an event, two messages and two system calls,
which is more than a warm query. The protocol therefore offers an eligible request, once all of it has
arrived, to a `FastPath` first. If that returns a response, it is written in one piece; otherwise ASGI handles
the request as usual.

The heads of a client's requests repeat byte for byte. The result of parser, checks and application for a head
depends on its bytes only, and is cached for heads that were seen before: such a request is neither parsed nor
authenticated again. The cache is cleared when keys change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from app.auth.authenticator import Authenticator
from app.domain.entities import ApiKey
from app.http.types import Body, HeaderList

Client: TypeAlias = tuple[str, int] | None

POLL_SUFFIX: Final = b"/package"
TARGET_SUFFIXES: Final = (b":query", b"/infer", b":predict", POLL_SUFFIX)
"""Only requests whose target ends with one of these are offered: GET for the last one, and POST."""

_MAX_HEAD: Final = 2048
_MAX_OF_KEY: Final = 64
_MAX_HEADS: Final = 4096
"""Heads that are kept: their bytes, their number for one API key, and their number in all."""


class Answerer(Protocol):
    """Answers a body. status: code and phrase of its responses."""

    @property
    def status(self) -> bytes: ...

    def answer(self, body: Body) -> tuple[bytes, bytes] | None:
        """Header lines, each with its line end, and body of a response.

        None, without a side effect, if the response has another status or takes longer to compute than a
        few microseconds. The lines do not include Content-Length and the headers of all responses. Must
        not raise.
        """
        ...


class Arriving(Answerer, Protocol):
    """A request whose body is worked on while it arrives."""

    def progress(self, filled: int) -> None:
        """Process the body's first ``filled`` bytes, which have arrived. Must not raise."""
        ...


class Prepared(Answerer, Protocol):
    """A request whose head has been processed.

    length: of its body, as declared in the head. caller: id of the API key; None if the meaning of the head
    depends on the connection.
    """

    @property
    def length(self) -> int: ...

    @property
    def caller(self) -> str | None: ...

    def reserve(self) -> bool:
        """Reserve the bytes of a large body if it is answered when it arrives; returns whether it is."""
        ...

    def release(self) -> None:
        """Release the resources that `reserve` has reserved."""
        ...

    def arriving(self, body: memoryview) -> Arriving | None:
        """Begin to answer a reserved body, whose memory fills from its start; None if it is needed whole."""
        ...


Prepare: TypeAlias = Callable[[bytes, HeaderList, Client], Prepared | None]
"""A function from (target, headers with names in lower case, client) of a request to its prepared form.

None for a request that is left to ASGI. Must not raise.
"""


class FastPath:
    """Answers requests; shared by all connections of a process.

    prepare: None until the application has started; ASGI then handles every request. caller_of:
    returns the API key in headers, None without a valid key. has_tenants: whether keys of several tenants
    exist. known: cached prepared requests, by the bytes of their heads up to the empty line.
    """

    def __init__(self, prepare: Prepare | None = None) -> None:
        self.prepare = prepare
        self.caller_of: Callable[[HeaderList], ApiKey | None] = lambda _headers: None
        self.has_tenants: Callable[[], bool] = lambda: False
        self.known: dict[bytes, Prepared] = {}
        self._of_keys: Counter[str] = Counter()
        self._seen: set[int] = set()
        self._common_headers: object = None
        self._starts: dict[bytes, bytes] = {}

    def connect(self, authenticator: Authenticator, *prepares: Prepare) -> None:
        """Start to answer: each request is prepared by the first of these that knows its target."""
        authenticator.on_change = self.forget
        self.caller_of = authenticator.caller_of
        self.has_tenants = lambda: authenticator.has_tenants

        def prepare(target: bytes, headers: HeaderList, client: Client) -> Prepared | None:
            found = (prepare(target, headers, client) for prepare in prepares)
            return next((prepared for prepared in found if prepared is not None), None)

        self.prepare = prepare

    def __call__(
        self,
        target: bytes,
        headers: HeaderList,
        body: bytes,
        client: Client,
        common_headers: HeaderList,
        head: bytes = b"",
    ) -> bytes | None:
        """Return the complete HTTP/1.1 response in bytes, or None for a request that is left to ASGI.

        common_headers: headers of all responses; the caller replaces the list when they change. head: the
        bytes of the request's head, if it may be kept.
        """
        prepared = None if self.prepare is None else self.prepare(target, headers, client)
        if prepared is None or prepared.length != len(body):
            return None
        response = self.respond(prepared, body, common_headers)
        if response is not None and head:
            self._keep(head, prepared)
        return response

    def respond(self, prepared: Answerer, body: Body, common_headers: HeaderList) -> bytes | None:
        """Like a call, for a request whose head has been processed and whose body is complete."""
        answer = prepared.answer(body)
        if answer is None:
            return None
        if common_headers is not self._common_headers:
            self._starts = {}
            self._common_headers = common_headers
        status = prepared.status
        start = self._starts.get(status)
        if start is None:
            start = self._starts[status] = _status_line_and_headers(status, common_headers)
        lines, content = answer
        return b"%scontent-length: %d\r\n%s\r\n%s" % (start, len(content), lines, content)

    def learn(self, target: bytes, headers: HeaderList, client: Client, head: bytes) -> None:
        """Cache the head of a large request, so that the next such request need not be parsed."""
        prepared = None if self.prepare is None or not head else self.prepare(target, headers, client)
        if prepared is not None:
            self._keep(head, prepared)

    def forget(self) -> None:
        """Forget all heads, because their meaning may have changed."""
        self.known = {}
        self._of_keys.clear()
        self._seen.clear()

    def _keep(self, head: bytes, prepared: Prepared) -> None:
        """Cache a prepared request when its head appears for the second time."""
        caller = prepared.caller
        if caller is None or len(head) > _MAX_HEAD:
            return
        if head not in self.known:
            if self._of_keys[caller] >= _MAX_OF_KEY or len(self.known) >= _MAX_HEADS:
                return
            seen = hash(head)
            if seen not in self._seen:
                if len(self._seen) >= _MAX_HEADS:
                    self._seen.clear()
                self._seen.add(seen)
                return
            self._of_keys[caller] += 1
        self.known[head] = prepared


def _status_line_and_headers(status: bytes, headers: HeaderList) -> bytes:
    return b"HTTP/1.1 %s\r\n" % status + b"".join(b"%s: %s\r\n" % header for header in headers)


def headers_in(head: bytes) -> HeaderList:
    """The headers in the bytes of a head, their names in lower case."""
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:] if line]
    return [(name.lower(), value.strip()) for name, _, value in lines]
