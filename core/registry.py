"""Classes by name: which teachers and which students there are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from core.errors import Fault, InvalidProblem

T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9][a-z0-9+_-]{0,15}")


class Registry(Mapping[str, type[T]], Generic[T]):
    """Specification classes by their ``name``, in the order of registration.

    kind: what they are, for messages, e.g. ``"student"``.
    """

    def __init__(self, kind: str, *classes: type[T]) -> None:
        self._kind = kind
        self._classes: dict[str, type[T]] = {}
        for one in classes:
            self.register(one)

    def register(self, spec_class: type[T]) -> type[T]:
        """Add a class, also as a decorator. Raises InvalidProblem if its name is taken or unusable."""
        name: str = spec_class.name  # type: ignore[attr-defined]
        if not _NAME.fullmatch(name):
            message = (
                f"{name!r} must be 1 to 16 small letters, digits, +, - or _, beginning with a letter or digit"
            )
            raise InvalidProblem(Fault(self._kind, "bad_name", message))
        if name in self._classes:
            message = f"there is a {self._kind} named {name!r} already"
            raise InvalidProblem(Fault(self._kind, "duplicate", message))
        self._classes[name] = spec_class
        return spec_class

    @contextmanager
    def registered(self, spec_class: type[T]) -> Iterator[None]:
        """Have a class in the registry within the block, as tests want it."""
        self.register(spec_class)
        try:
            yield
        finally:
            del self._classes[spec_class.name]  # type: ignore[attr-defined]

    def __getitem__(self, name: str) -> type[T]:
        """The class of that name. Raises KeyError; ``named`` raises InvalidProblem."""
        return self._classes[name]

    def named(self, name: str, field: str) -> type[T]:
        """The class of that name. Raises InvalidProblem at ``field`` if there is none."""
        if name not in self._classes:
            message = f"{field} must be one of {', '.join(self._classes)}, got {name!r}"
            raise InvalidProblem(Fault(field, "unknown_choice", message))
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)
