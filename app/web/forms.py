"""The fields of forms, and the way back to a page after a form has done its work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import INLINE_BYTES
from app.domain.entities import Caller
from app.domain.errors import InputFault, InvalidRequest
from app.domain.names import find_unusable
from app.web.rendering import HEADERS, link

_MAX_FIELDS: Final = 1000
_MAX_WHOLE: Final = 2**31 - 1
"""Largest whole number of a form: those of the database are versions and revisions."""


class Form:
    """The fields of a form, as a browser has sent them; a field may occur several times."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """The last value of a field without surrounding blanks; empty without the field."""
        return next((value.strip() for key, value in reversed(self._fields) if key == name), "")

    def exact(self, name: str) -> str:
        """The last value of a field as it was sent: blanks may belong to a label."""
        return next((value for key, value in reversed(self._fields) if key == name), "")

    def all(self, name: str) -> list[str]:
        """All values of a field that are not empty."""
        return [value.strip() for key, value in self._fields if key == name and value.strip()]

    def number(self, name: str) -> float | None:
        """A field as a number; None if it is empty. Raises InvalidRequest."""
        text = self.text(name)
        try:
            value = float(text) if text else None
        except ValueError as error:
            raise _not_a_number(f"{name} must be a number.", name) from error
        if value is not None and not math.isfinite(value):
            raise _not_a_number(f"{name} must be a finite number.", name)
        return value

    def whole(self, name: str) -> int | None:
        """A field as a whole number; None if it is empty. Raises InvalidRequest."""
        value = self.number(name)
        if value is not None and not (value.is_integer() and abs(value) <= _MAX_WHOLE):
            raise _not_a_number(f"{name} must be a whole number of at most {_MAX_WHOLE}.", name)
        return None if value is None else int(value)


async def read_form(request: Request) -> Form:
    """The fields of a form that was sent as ``application/x-www-form-urlencoded``. Raises InvalidRequest."""
    body = await request.body()
    if len(body) <= INLINE_BYTES:
        return parse_form(body)
    turns = request.app.state.context.budgets.large_bodies
    async with turns.turn(Caller.of(request.state.caller)):
        return await run_in_threadpool(parse_form, body)


def parse_form(body: bytes) -> Form:
    """The fields of a form. Raises InvalidRequest."""
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise InvalidRequest("The form cannot be read.", code="malformed_form") from error
    for name, value in fields:
        if (found := find_unusable(name) or find_unusable(value)) is not None:
            message = f"A field of the form holds {found}."
            raise InvalidRequest(message, faults=[InputFault(name, "bad_text", message)])
    return Form(fields)


def _not_a_number(message: str, name: str) -> InvalidRequest:
    return InvalidRequest(message, faults=[InputFault(name, "not_a_number", message)])


def see(path: str, parameters: Mapping[str, object] | None = None, **more: object) -> Response:
    """Lead the browser to a page, with a GET."""
    return Response(status_code=303, headers=HEADERS | {"location": link(path, parameters, **more)})


def page_of(address: str) -> str:
    """An address within the dashboard, to return to after signing in; any other becomes its first page."""
    parts = urlsplit(address)
    is_ours = not parts.scheme and not parts.netloc and parts.path.startswith("/ui/")
    is_plain = address.isascii() and address.isprintable() and "\\" not in address
    return address if is_ours and is_plain and not parts.path.startswith("/ui/sign") else "/ui/"
