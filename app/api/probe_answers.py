"""Repeats the answers of health probes and metrics that are asked for many times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

from app.api.metrics_format import prefers_open_metrics
from app.http.types import Message, Scope, Send

MADE_PER_SECOND: Final = 10
"""Answers that are made in a second; further requests of that second get the newest answer again."""
OLDEST_SECONDS: Final = 1.0

_REPEATED: Final = frozenset(
    {("/livez", b""), ("/readyz", b""), ("/readyz", b"verbose"), ("/readyz/queries", b""), ("/metrics", b"")}
)
"""(path, query string) of requests whose answer depends on nothing else but the format of metrics."""


_Key: TypeAlias = tuple[str, bytes, bool]
"""Path, query string, and whether metrics are asked for in the OpenMetrics format."""


class ProbeAnswers:
    """The newest answers by `_Key`. For the thread of the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: dict[_Key, tuple[float, list[Message]]] = {}
        self._second, self._made = -1e9, 0

    async def repeat(self, scope: Scope, send: Send) -> bool:
        """Send the newest answer again, if enough were made in this second; returns whether it was sent."""
        known = self._answers.get(_key(scope))
        if known is None or scope["method"] != "GET":
            return False
        now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._made = now, 0
        made_at, messages = known
        if self._made < MADE_PER_SECOND or now - made_at >= OLDEST_SECONDS:
            self._made += 1
            return False
        for message in messages:
            await send(dict(message))
        return True

    def keeping(self, scope: Scope, send: Send) -> Send:
        """``send``, which also keeps a complete answer in two messages if it may be repeated."""
        key = _key(scope)
        if key[:2] not in _REPEATED or scope["method"] != "GET":
            return send
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            # A copy, because the headers of each response are completed on the way.
            messages.append(dict(message))
            if len(messages) == 2 and not message.get("more_body", False):
                self._answers[key] = self._clock(), messages
            await send(message)

        return keep


def _key(scope: Scope) -> _Key:
    accept = b""
    if scope["path"] == "/metrics":
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return scope["path"], scope["query_string"], prefers_open_metrics(accept)
