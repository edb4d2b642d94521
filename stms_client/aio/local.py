"""Students that are evaluated in this program, and follow their model."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from stms_client import calls
from stms_client.arrays import ClassName, Row, Rows
from stms_client.cards import Facts, Shown
from stms_client.errors import (
    InvalidInput,
    InvalidRequest,
    MissingPackage,
    NotAllowed,
    NotFound,
    Stale,
    StmsError,
    TooBusy,
)
from stms_client.repeated import AsyncRepeated
from stms_client.results import Decision, Decisions, Package

if TYPE_CHECKING:
    from stms_client.aio.queries import Queries
    from stms_client.evaluator import Evaluator

OnStale: TypeAlias = Literal["raise", "ask"]
"""What happens once the service has not answered for too long: calls raise Stale, or ask the service."""

_REFUSED_SECONDS = 60.0
"""Between two polls after the service has refused one."""
_SPREAD = 0.2
_MOST_CLASSES = 256
"""Of one request."""
_WRONG_KEYS = "too_many_failures"
_MOST_REPORTED = 999_999_999


class AsyncLocal(Shown):
    """Answers questions about some classes of a model without asking the service, see `AsyncClient.local`.

    It is a context manager: entering it fetches the students. Rows, records and texts are as those of
    `AsyncClient.query`, and the answers have the same bits. Names of columns are known only of models of
    records: for others a row is a list or an array in the order of the columns.

    Answers of one call are of one version. When the service refuses a poll because the key was revoked, lacks
    a scope, or the model or a class is gone, all students are dropped at once, and calls raise that error
    until a later poll succeeds.

    It may be entered before a fork: a child polls by itself from its first call on.

    model: as in `AsyncClient.query`. labels: the classes.
    """

    def __init__(
        self,
        client: Queries,
        model: str,
        labels: Sequence[ClassName],
        *,
        poll: float,
        max_stale: float,
        on_stale: OnStale,
    ) -> None:
        if isinstance(labels, str) or len(labels) == 0:
            raise InvalidInput("Name the classes in a list, at least one.")
        if not 0.0 < poll < max_stale:
            raise ValueError(f"poll ({poll}) must be positive and less than max_stale ({max_stale}).")
        self.model, self.labels = model, tuple(calls.names_of(labels))
        self._client, self._interval, self._max_stale, self._on_stale = client, poll, max_stale, on_stale
        self._held: Evaluator | None = None
        self._refusal: StmsError | None = None
        self._answered = self._expires = 0.0
        self._repeated: AsyncRepeated | None = None
        # Threads share the counter: `next` is atomic.
        self._calls = count()
        self._polls = self._reported = 0
        self._process = os.getpid()

    def _facts(self) -> Facts:
        return {"model": self.model, "classes": len(self.labels)}

    async def __aenter__(self) -> Self:
        await self._follow()
        self._repeated = AsyncRepeated(self._poll_once, self._pause)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._repeated is not None:
            await self._repeated.close()
        self._held = self._repeated = None

    @property
    def version(self) -> int:
        """The version that answers. Raises as the calls do."""
        return self._known().version

    @property
    def age(self) -> float:
        """Seconds since the last answer of the service that confirmed or changed the version."""
        return time.monotonic() - self._answered

    async def is_class(self, label: ClassName, x: Row | None = None, *, text: str | None = None) -> bool:
        """Whether one row or text belongs to the class."""
        held = await self._usable()
        if held is None:
            return await self._client.is_class(self.model, label, x, text=text)
        return held.match(label, x, text)

    async def query(self, label: ClassName, x: Row | None = None, *, text: str | None = None) -> Decision:
        """The decision on one row or text."""
        held = await self._usable()
        if held is None:
            return await self._client.query(self.model, label, x, text=text)
        return held.decision(label, x, text)

    async def query_rows(
        self, label: ClassName, rows: Rows | None = None, *, texts: Sequence[str] | None = None
    ) -> Decisions:
        """The decisions on many rows or texts."""
        held = await self._usable()
        if held is None:
            return await self._client.query_rows(self.model, label, rows, texts=texts)
        return held.decisions(label, rows, texts)

    async def query_classes(
        self, labels: Sequence[ClassName], x: Row | None = None, *, text: str | None = None
    ) -> dict[str, Decision]:
        """The decision of each class on one row or text, all by the same version of the model."""
        held = await self._usable()
        if held is None:
            return await self._client.query_classes(self.model, labels, x, text=text)
        return {name: held.decision(name, x, text) for name in calls.names_of(labels)}

    async def _usable(self) -> Evaluator | None:
        """What answers a call; None if the service is to be asked."""
        if self._repeated is not None and not self._repeated.is_here():
            await self._begin_here(self._repeated)
        held = self._held
        if held is not None and time.monotonic() <= self._expires:
            next(self._calls)
            return held
        if self._on_stale == "ask" and self._refusal is None and held is not None:
            return None
        return self._known()

    async def _begin_here(self, repeated: AsyncRepeated) -> None:
        """Poll in this child of a fork, or in this event loop: nothing polls for it any more."""
        if self._process != os.getpid():
            # The parent reports the calls that it has counted.
            self._process, self._calls = os.getpid(), count()
            self._polls = self._reported = 0
        if time.monotonic() > self._expires:
            await self._poll_once()
        repeated.begin()

    def _known(self) -> Evaluator:
        held, refusal = self._held, self._refusal
        if refusal is not None:
            raise refusal.with_traceback(None)
        if held is None:
            raise StmsError("Local evaluation has not begun or has ended: use it as a context manager.")
        if time.monotonic() > self._expires:
            text = f"The service has not answered for {self.age:.0f} seconds, more than max_stale."
            raise Stale(text)
        return held

    def _pause(self) -> float:
        seconds = self._interval if self._refusal is None else max(self._interval, _REFUSED_SECONDS)
        return seconds * random.uniform(1.0 - _SPREAD, 1.0 + _SPREAD)  # noqa: S311

    async def _poll_once(self) -> None:
        """Look for another version, or a refusal. Other errors are no answer."""
        try:
            await self._follow()
        except StmsError as error:
            # Of many wrong keys from one address, only the first are answered with 401.
            is_wrong_key = isinstance(error, TooBusy) and error.code == _WRONG_KEYS
            if is_wrong_key or isinstance(error, NotAllowed | NotFound):
                self._refusal, self._held = error, None

    async def _follow(self) -> None:
        """Fetch what is new. Raises StmsError."""
        # What the answer says held when the service gave it, at the earliest now.
        started = time.monotonic()
        held = self._held
        if held is None:
            held = await self._evaluator(await self._packages(self.model, self.labels), None)
        else:
            first = await self._poll_of(held)
            if first is not None:
                others = await self._packages(self._pinned(first), self.labels[1:])
                held = await self._evaluator({self.labels[0]: first} | others, held)
        self._answered, self._expires = started, started + self._max_stale
        self._held, self._refusal = held, None

    async def _poll_of(self, held: Evaluator) -> Package | None:
        """The package of the first class, None if it is held; says how many calls were answered."""
        # Each poll takes a number of the counter, too.
        answered = next(self._calls) - self._polls
        self._polls += 1
        number = min(answered - self._reported, _MOST_REPORTED)
        report = f"{held.version}:{number}" if number else None
        # Not repeated at once: the next poll comes soon. A connection that a partition of the network has cut
        # may stay silent for ever, so that answers come back only when the poll on it is given up.
        call = calls.package(self.model, self.labels[0], held.etag, report)
        package = await self._client.once(call, timeout=self._max_stale / 2)
        self._reported += number
        return package

    async def _packages(self, model: str, labels: Sequence[str]) -> dict[str, Package]:
        """The packages of classes, all of one version; more requests where one answer is too large."""
        found: dict[str, Package] = {}
        pending = [labels[start : start + _MOST_CLASSES] for start in range(0, len(labels), _MOST_CLASSES)]
        while pending:
            part = pending.pop(0)
            try:
                found |= await self._packages_of_one_answer(model, part)
            except InvalidRequest as error:
                if error.code != "package_too_large" or len(part) == 1:
                    raise
                half = len(part) // 2
                pending[:0] = [part[:half], part[half:]]
            else:
                model = self._pinned(found[part[0]])
        return found

    async def _packages_of_one_answer(self, model: str, labels: Sequence[str]) -> dict[str, Package]:
        if len(labels) > 1:
            return await self._client.packages(model, labels)
        package = await self._client.package(model, labels[0])
        if package is None:
            raise StmsError("The service sent no package where none was held.")
        return {labels[0]: package}

    def _pinned(self, package: Package) -> str:
        """The model at the version of a package."""
        return f"{self.model.partition('@')[0]}@{package.version}"

    async def _evaluator(self, packages: dict[str, Package], held: Evaluator | None) -> Evaluator:
        """What evaluates packages; encoder and maps are fetched unless ``held`` has the same."""
        try:
            from stms_client.evaluator import Evaluator, named_maps
        except ImportError as error:
            raise MissingPackage(
                "Local evaluation needs NumPy and safetensors: stms-client[local]."
            ) from error
        first = packages[self.labels[0]]
        encoder = None
        if first.encoder is not None and held is not None and held.encoder_digest == first.encoder:
            encoder = held.encoder_bytes
        elif first.encoder is not None:
            encoder = await self._client.encoder(self._pinned(first), self.labels[0])
        maps = {}
        for digest, label in named_maps({label: one.content for label, one in packages.items()}).items():
            content = None if held is None else held.maps.get(digest)
            maps[digest] = content or await self._client.map(self._pinned(first), label)
        return Evaluator(packages, encoder, maps)
