"""The fast path of a started application, without a socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fast_answer(
    client: Any, target: str | bytes, headers: Mapping[str, str], body: bytes, peer: Any = None
) -> tuple[dict[str, str], bytes] | None:
    """Headers and body of the immediate response to a POST request; None where there is none."""
    prepared = prepare(client, target, headers, peer)
    if prepared is None or prepared.length != len(body):
        return None
    return as_response(prepared.answer(body))


def prepare(client: Any, target: str | bytes, headers: Mapping[str, str], peer: Any = None) -> Any:
    """What the head of a POST request means; None where it has no immediate response."""
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return client.app.fast_path.prepare(target.encode() if isinstance(target, str) else target, encoded, peer)


def as_response(answer: tuple[bytes, bytes] | None) -> tuple[dict[str, str], bytes] | None:
    """Headers and body of an answer of the fast path."""
    if answer is None:
        return None
    lines, content = answer
    named = [line.split(": ", 1) for line in lines.decode().split("\r\n")[:-1]]
    return {"content-length": str(len(content)), **dict(named)}, content
