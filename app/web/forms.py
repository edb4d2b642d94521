"""The fields of forms, and the way back to a page after a form has done its work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request, Response

from app.domain.errors import InputFault, InvalidRequest
from app.web.rendering import HEADERS, link

_MAX_FIELDS: Final = 1000


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
            return float(text) if text else None
        except ValueError as error:
            message = f"{name} must be a number."
            raise InvalidRequest(message, faults=[InputFault(name, "not_a_number", message)]) from error

    def whole(self, name: str) -> int | None:
        """A field as a whole number; None if it is empty. Raises InvalidRequest."""
        value = self.number(name)
        if value is not None and not value.is_integer():
            message = f"{name} must be a whole number."
            raise InvalidRequest(message, faults=[InputFault(name, "not_a_number", message)])
        return None if value is None else int(value)


async def read_form(request: Request) -> Form:
    """The fields of a form that was sent as ``application/x-www-form-urlencoded``. Raises InvalidRequest."""
    body = await request.body()
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise InvalidRequest("The form cannot be read.", code="malformed_form") from error
    return Form(fields)


def see(path: str, parameters: Mapping[str, object] | None = None, **more: object) -> Response:
    """Lead the browser to a page, with a GET."""
    return Response(status_code=303, headers=HEADERS | {"location": link(path, parameters, **more)})


def page_of(address: str) -> str:
    """An address within the dashboard, to return to after signing in; any other becomes its first page."""
    parts = urlsplit(address)
    is_ours = not parts.scheme and not parts.netloc and parts.path.startswith("/ui/")
    is_plain = address.isascii() and address.isprintable() and "\\" not in address
    return address if is_ours and is_plain and not parts.path.startswith("/ui/sign") else "/ui/"
