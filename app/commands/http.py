"""Talking to a running server: one small client on httpx, problems told as sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from app.commands.output import CommandFailed, Json

DEFAULT_SERVER = "http://127.0.0.1:8000"
_TIMEOUT = httpx.Timeout(60, connect=10)
_STREAM_TIMEOUT = httpx.Timeout(60, connect=10, read=None)

ServerOption = Annotated[str, typer.Option("--server", envvar="STMS_URL", help="Address of the server.")]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", envvar="STMS_API_KEY", help="API key, if the server asks for one.")
]


class ServerProblem(CommandFailed):
    """The server refused; ``code`` is its stable word for the reason."""

    def __init__(self, status: int, problem: Json) -> None:
        self.status = status
        self.code = str(problem.get("code", "error"))
        sentence = problem.get("detail") or problem.get("title") or "The server gave no reason."
        origin = f"HTTP {status}, {self.code}"
        if problem.get("request_id"):
            origin += f", request {problem['request_id']}"
        super().__init__(f"{sentence} ({origin})", [_fault(fault) for fault in problem.get("errors", [])])


def _fault(fault: Json) -> str:
    place = [str(fault["field"])] if fault.get("field") else []
    place += [f"{axis} {fault[axis]}" for axis in ("row", "column") if fault.get(axis) is not None]
    return f"{', '.join(place)}: {fault.get('message', '')}" if place else str(fault.get("message", ""))


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event; ``id`` is the number to go on from."""

    id: str
    type: str
    data: Json


class Server:
    """A running server. Every method raises CommandFailed with a sentence for people."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    @property
    def address(self) -> str:
        """Where it is."""
        return str(self._client.base_url).rstrip("/")

    def get(self, path: str, **params: str | int | None) -> Any:
        """The JSON at ``path``; parameters that are None are left out."""
        return self.request("GET", path, params=_given(params))

    def post(self, path: str, body: object = None, *, headers: dict[str, str] | None = None) -> Any:
        """The answer to a JSON body."""
        return self.request("POST", path, json=body, headers=headers)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """The decoded answer; None when it has no content."""
        response = self.response(method, path, **options)
        return response.json() if response.content else None

    def response(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer itself, for its headers. Raises ServerProblem unless it succeeded."""
        with self._reaching():
            response = self._client.request(method, path, **options)
        _raise_for_problem(response)
        return response

    def pages(self, path: str, **params: str | int | None) -> Iterator[Json]:
        """Every item of a list, page after page as the server links them."""
        response = self.response("GET", path, params=_given(params))
        yield from response.json()["data"]
        while "next" in response.links:
            response = self.response("GET", response.links["next"]["url"])
            yield from response.json()["data"]

    def events(self, path: str, last_id: str = "") -> Iterator[ServerEvent]:
        """Events from a stream, after ``last_id``, until the server closes it."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        with (
            self._reaching(),
            self._client.stream("GET", path, headers=headers, timeout=_STREAM_TIMEOUT) as response,
        ):
            if response.is_error:
                response.read()
            _raise_for_problem(response)
            yield from parse_events(response.iter_lines())

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise CommandFailed(
                f"No server answers at {self.address} ({error}).",
                ["Start one with `stms serve`, or name another with --server or STMS_URL."],
            ) from error
        except httpx.TransportError as error:
            raise CommandFailed(
                f"The connection to {self.address} broke off: {str(error) or type(error).__name__}."
            ) from error


@contextmanager
def connect(address: str, api_key: str | None) -> Iterator[Server]:
    """The server at ``address``, asked with the key if there is one."""
    headers = {"User-Agent": "stms-cli"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        client = httpx.Client(
            base_url=address, headers=headers, timeout=_TIMEOUT, trust_env=not _is_local(address)
        )
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise CommandFailed(f"{address!r} is not an address of a server: {error}.") from error
    with client:
        yield Server(client)


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="@")


def parse_events(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """Server-sent events out of their lines; comments (heartbeats) are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                event_id, kind = fields.get("id", ""), fields.get("event", "message")
                yield ServerEvent(event_id, kind, json.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value


def _is_local(address: str) -> bool:
    # A proxy from the environment cannot reach this machine's loopback.
    return httpx.URL(address).host in {"127.0.0.1", "::1", "localhost"}


def _given(params: dict[str, str | int | None]) -> dict[str, str | int]:
    return {name: value for name, value in params.items() if value is not None}


def _raise_for_problem(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        problem = response.json()
    except ValueError:
        problem = {"detail": f"{response.reason_phrase or 'The server answered'}: {response.text[:200]!r}"}
    raise ServerProblem(
        response.status_code, problem if isinstance(problem, dict) else {"detail": str(problem)}
    )
