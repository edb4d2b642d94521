"""Readers of the history benchmark that evaluate students themselves, with local evaluation of the client.

Such a reader follows one server process by polls. Its answers keep the promises of that process, with a
larger bound of the staleness: a version that a poll has confirmed may answer for `MAX_STALE` more seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lab.verification.consistency import ACCEPTED, REFUSED, Query
from stms_client import AsyncClient, Retry
from stms_client.aio.local import AsyncLocal
from stms_client.errors import NotAllowed, Stale, StmsError

POLL: Final = 0.2
"""Seconds between two polls."""
MAX_STALE: Final = 1.5
"""Seconds after the last answer of the server until calls fail."""

_ASK_PAUSE: Final = 0.01
_OPEN_PAUSE: Final = 0.1
_SECONDS: Final = 6.0
"""That a reader stays with a model and a key, on average."""


class LocalReader:
    """One program with local evaluation, beside one server process.

    address: of the process. number: of the reader, as that of a process in the history. keys: texts of the
    keys in use, by id. queries, counts: what is recorded of it is added to them. is_over: whether to end.
    """

    def __init__(
        self,
        address: str,
        number: int,
        keys: Mapping[str, str],
        queries: list[Query],
        counts: Counter[str],
        is_over: Callable[[], bool],
        seed: int,
    ) -> None:
        self._address = address
        self._number = number
        self._keys = keys
        self._queries = queries
        self._counts = counts
        self._is_over = is_over
        self._random = random.Random(f"{seed} {number}")

    async def run(self, models: Sequence[str], labels: Sequence[str]) -> None:
        """Follow one model after the other, each with one of the keys, to the end."""
        while not self._is_over():
            key_id = self._random.choice(list(self._keys))
            await self._follow(key_id, f"{self._random.choice(models)}@live", labels)

    async def _follow(self, key_id: str, model: str, labels: Sequence[str]) -> None:
        """Answer questions about a model until its key is refused, or for some seconds."""
        invoked = time.perf_counter()
        until = invoked + _SECONDS * self._random.uniform(0.2, 1.8)
        try:
            async with (
                AsyncClient(self._address, self._keys[key_id], retry=Retry(attempts=1)) as client,
                client.local(model, labels, poll=POLL, max_stale=MAX_STALE) as local,
            ):
                while not self._is_over() and key_id in self._keys and time.perf_counter() < until:
                    invoked = time.perf_counter()
                    await self._ask(local, key_id, model, self._random.choice(labels))
                    await asyncio.sleep(_ASK_PAUSE)
        except NotAllowed:
            self._record(key_id, REFUSED, invoked)
            await asyncio.sleep(_OPEN_PAUSE)
        except StmsError:
            self._counts["local readers without a server"] += 1
            await asyncio.sleep(_OPEN_PAUSE)

    async def _ask(self, local: AsyncLocal, key_id: str, model: str, label: str) -> None:
        """One question. Raises NotAllowed."""
        invoked = time.perf_counter()
        try:
            decision = await local.query(label, [1.0, 0.0])
        except Stale:
            self._counts["local answers that failed for max_stale"] += 1
            return
        self._record(key_id, ACCEPTED, invoked)
        self._record(model, decision.version, invoked)
        if decision.score != float(decision.version):
            self._counts["wrong answers"] += 1

    def _record(self, register: str, value: int, invoked: float) -> None:
        self._queries.append(Query(register, self._number, value, invoked, time.perf_counter()))
