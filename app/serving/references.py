"""The versions that references such as ``pets`` and ``pets@latest`` resolve to, in one server process."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from app.domain.entities import ModelVersion

UNUSED_SECONDS: Final = 3600.0
"""A reference that was not used for this long is forgotten, after twice this time at the latest."""

MAX_RECENT: Final = 200_000
"""References used since the last eviction, beyond which it is time for the next one."""


class References:
    """A bounded dictionary of references with an index by model. Belongs to the event loop.

    recent: versions by reference, for those used since the last eviction. Readers may look here first. `get`
    moves an older reference back here, so that look-ups need no bookkeeping.
    """

    def __init__(self) -> None:
        self.recent: dict[str, ModelVersion] = {}
        self._older: dict[str, ModelVersion] = {}
        self._by_model: dict[str, set[str]] = {}
        self._evict_at = time.monotonic() + UNUSED_SECONDS

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def get(self, reference: str) -> ModelVersion | None:
        """The version that a reference resolves to; None if it is unknown."""
        version = self.recent.get(reference)
        if version is None:
            version = self._older.pop(reference, None)
            if version is not None:
                self.recent[reference] = version
        return version

    def put(self, reference: str, version: ModelVersion) -> None:
        """Add a reference."""
        if len(self.recent) >= MAX_RECENT:
            self._evict()
        self._older.pop(reference, None)
        self.recent[reference] = version
        self._by_model.setdefault(version.qualified_model, set()).add(reference)

    def replace(self, reference: str, version: ModelVersion) -> None:
        """Set the version of a reference if it is present; that does not count as a use."""
        for versions in (self.recent, self._older):
            if reference in versions:
                versions[reference] = version

    def remove(self, reference: str) -> None:
        """Remove a reference if it is present."""
        for versions in (self.recent, self._older):
            version = versions.pop(reference, None)
            if version is not None:
                self._unindex(reference, version.qualified_model)

    def of_models(self, models: Collection[str] | None) -> list[str]:
        """The references to some models, each after its tenant (see `qualified`); None for all."""
        if models is None:
            return [*self.recent, *self._older]
        return [reference for model in models for reference in self._by_model.get(model, ())]

    def peek(self, reference: str) -> ModelVersion | None:
        """As `get`, but not a use of the reference."""
        return self.recent.get(reference) or self._older.get(reference)

    def evict_unused(self) -> None:
        """Forget references that were not used for a while; call it regularly."""
        if time.monotonic() >= self._evict_at:
            self._evict()

    def _evict(self) -> None:
        self._evict_at = time.monotonic() + UNUSED_SECONDS
        for reference, version in self._older.items():
            self._unindex(reference, version.qualified_model)
        self._older = self.recent.copy()
        self.recent.clear()

    def _unindex(self, reference: str, model: str) -> None:
        references = self._by_model[model]
        references.discard(reference)
        if not references:
            del self._by_model[model]
