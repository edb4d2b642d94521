"""Routes whose responses are encoded in the thread in which their endpoint ran, and in parts.

FastAPI encodes the results of endpoints in the event loop: a page of 4 MiB keeps all other requests waiting
for tens of milliseconds. Here the result of an endpoint that is no coroutine is encoded before it leaves its
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Response
from fastapi.exceptions import ResponseValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter

from app.domain.document import Document


class EncodedRoute(APIRoute):
    """A route that does so. A coroutine runs in the event loop, and must return nothing large."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if not iscoroutinefunction(endpoint):
            endpoint = self._encoding(endpoint)
        super().__init__(path, endpoint, **options)

    def _encoding(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        """The endpoint with its result as a response, if the route declares what it is.

        It raises ResponseValidationError for a result that is something else.
        """

        @wraps(endpoint)
        def encoded(**values: Any) -> Any:
            result = endpoint(**values)
            if self.response_field is None or isinstance(result, Response):
                return result
            value, errors = self.response_field.validate(result, {}, loc=("response",))
            if errors:
                raise ResponseValidationError(errors=errors, body=result)
            is_object = isinstance(value, BaseModel)
            body = _in_parts(value) if is_object else self.response_field.serialize_json(value)
            # What the endpoint has been given to set headers and status on.
            given = [value for value in values.values() if isinstance(value, Response)]
            status = next((each.status_code for each in given if each.status_code), self.status_code or 200)
            response = Response(body, status, media_type="application/json")
            for each in given:
                response.headers.raw.extend(each.headers.raw)
            return response

        return encoded


def _in_parts(value: BaseModel) -> bytes:
    """The JSON of an object, whose lists of objects are encoded one object at a time.

    While pydantic encodes, no other thread of the process runs Python.
    """
    return b"{" + b",".join(_member(value, name) for name in type(value).model_fields) + b"}"


def _member(value: BaseModel, name: str) -> bytes:
    """One field with its name."""
    listed = getattr(value, name)
    if not isinstance(listed, list) or not all(isinstance(one, BaseModel | Document) for one in listed):
        return value.model_dump_json(include={name})[1:-1].encode()
    return b'"%s":[%s]' % (name.encode("ascii"), b",".join(map(_object, listed)))


def _object(value: BaseModel | Document) -> bytes:
    if isinstance(value, BaseModel):
        return value.model_dump_json().encode()
    kind: Any = type(value)
    return _adapter(kind).dump_json(value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
