"""Converts the errors of endpoints and of the framework to problem+json responses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, compile_path

from app.domain.errors import InputFault, ServiceError
from app.domain.fault_fields import UNKNOWN_FIELD
from app.domain.names import NAME_RULES
from app.domain.near_names import near_name
from app.domain.parameter_faults import unknown_parameter
from app.http import responses
from app.http.pages import error_response
from app.http.problem import Problem, method_not_allowed, problem_of

_PARAMETERS: Final = "hyperparameters."
_NOT_SHOWN: Final = ("body", "query", "header", "path")
_NOTHING: Final = "There is nothing at this path."
_ANY_PATH: Final = "{path:path}"
"""End of the path of a route for all addresses without another one."""


def install_error_handlers(app: FastAPI) -> None:
    """Make the application respond to every error with problem+json."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _framework_error)


def problem_response(problem: Problem, request: Request) -> Response:
    """The problem as a response to ``request``."""
    request.state.problem = problem
    request_id = request.state.request_id.encode("ascii")
    encoded = error_response(problem, request.scope, request_id)
    response = Response(encoded.body, encoded.status)
    response.raw_headers = responses.headers_of(encoded, request_id)
    return response


def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)  # noqa: S101 - by registration
    return problem_response(problem_of(error), request)


def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - by registration
    problem = validation_problem(error.errors())
    if problem.status == 404 and (allowed := methods_at(request)) and request.method not in allowed:
        # The framework matched the path to a route of another resource, whose pattern rejects it.
        problem = method_not_allowed(request.method, allowed)
    return problem_response(problem, request)


def _framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - by registration
    if error.status_code == 404:
        problem = _no_such_path(request)
    elif error.status_code == 405:
        allowed = methods_at(request)
        # Without a method only the page for unknown addresses has matched.
        problem = method_not_allowed(request.method, allowed) if allowed else _no_such_path(request)
    else:
        problem = Problem(error.status_code, "bad_request", str(error.detail))
    return problem_response(problem, request)


def _no_such_path(request: Request) -> Problem:
    """The problem of an unknown path, with the resource that may be meant: ``/v1/jobs``."""
    parts: list[str] = [*request.scope["path"].split("/"), "", ""]
    version, name = parts[1], parts[2]
    paths = (route.path or "" for route in iter_route_contexts(request.app.routes))
    known = sorted({path.split("/")[2] for path in paths if path.startswith("/v1/")})
    near = near_name(name, known) or next((one for one in known if name and one.endswith(f"-{name}")), None)
    meant = f" Is /v1/{near} meant?" if version == "v1" and near not in (None, name) else ""
    return Problem(404, "no_such_path", _NOTHING + meant)


def validation_problem(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem of validation errors in a request's body (422), path (404) or parameters (400)."""
    first = errors[0]
    part = first["loc"][0]
    faults = [_fault(error) for error in errors]
    if part == "path":
        return Problem(404, "not_found", _NOTHING, faults)
    status = 422 if part == "body" else 400
    code = "invalid_body" if part == "body" else "invalid_parameter"
    count = "One value" if len(faults) == 1 else f"{len(faults)} values"
    return Problem(status, code, f"{count} cannot be used: {faults[0].message}", faults)


def _fault(error: Mapping[str, Any]) -> InputFault:
    path = error["loc"][1:] if error["loc"][0] in _NOT_SHOWN else error["loc"]
    field = ".".join(str(part) for part in path) or str(error["loc"][0])
    return InputFault(field, error["type"], f"{field}: {_message(field, error)}")


def _message(field: str, error: Mapping[str, Any]) -> str:
    """What is wrong, as a sentence: own words for unknown fields and for names, else those of pydantic."""
    _, is_parameter, name = field.partition(_PARAMETERS)
    if error["type"] == UNKNOWN_FIELD:
        return unknown_parameter(name) if is_parameter else "There is no such field."
    rule = NAME_RULES.get(error.get("ctx", {}).get("pattern"))
    return rule or str(error["msg"]).removeprefix("Value error, ") + "."


def methods_at(request: Request) -> list[str]:
    """The methods of the resource; the framework would name only those of its first route.

    HEAD is left out, since the application sees GET in its place.
    """
    path, state = request.scope["path"], request.app.state
    if not hasattr(state, "templates"):
        state.templates = list(_templates(request.app.routes))
    matches = [(literal, methods) for literal, pattern, methods in state.templates if pattern.fullmatch(path)]
    # "{model}" matches "name:predict", too; the template with the most literal text applies.
    longest = max((literal for literal, _ in matches), default=0)
    return sorted({method for literal, methods in matches if literal == longest for method in methods})


def _templates(routes: Sequence[BaseRoute]) -> Iterator[tuple[int, re.Pattern[str], set[str]]]:
    """The number of literal characters, the pattern and the methods of the path template of each route."""
    for route in iter_route_contexts(routes):
        if route.path is not None and not route.path.endswith(_ANY_PATH):
            yield _literal(route.path), compile_path(route.path)[0], set(route.methods or ())


def _literal(template: str) -> int:
    """The number of literal characters in a path template."""
    return len(re.sub(r"\{[^}]*\}", "", template))
