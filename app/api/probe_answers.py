"""Repeats the answers of health probes and metrics that are asked for many times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from app.http.types import Message, Scope, Send

MADE_PER_SECOND: Final = 10
"""Answers that are made in a second; further requests of that second get the newest answer again."""
OLDEST_SECONDS: Final = 1.0

_REPEATED: Final = frozenset(
    {("/livez", b""), ("/readyz", b""), ("/readyz", b"verbose"), ("/readyz/queries", b""), ("/metrics", b"")}
)
"""(path, query string) of requests whose answer depends on nothing else."""


class ProbeAnswers:
    """The newest answers, by path and query string. For the thread of the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: dict[tuple[str, bytes], tuple[float, list[Message]]] = {}
        self._second, self._made = -1e9, 0

    async def repeat(self, scope: Scope, send: Send) -> bool:
        """Send the newest answer again, if enough were made in this second; returns whether it was sent."""
        known = self._answers.get((scope["path"], scope["query_string"]))
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
        key = scope["path"], scope["query_string"]
        if key not in _REPEATED or scope["method"] != "GET":
            return send
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            # A copy, because the headers of each response are completed on the way.
            messages.append(dict(message))
            if len(messages) == 2 and not message.get("more_body", False):
                self._answers[key] = self._clock(), messages
            await send(message)

        return keep
