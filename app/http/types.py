"""Types of ASGI and of HTTP, without a web framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

Header: TypeAlias = tuple[bytes, bytes]
"""Name in lower case, and value."""
HeaderList: TypeAlias = Sequence[Header]
Body: TypeAlias = bytes | bytearray | memoryview
