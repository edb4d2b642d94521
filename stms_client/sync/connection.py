"""Generated from `stms_client/aio/connection.py` by ``make client``: do not edit."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import httpx

from stms_client import calls
from stms_client.calls import Call
from stms_client.errors import Json, StmsError, problem_of, unreachable
from stms_client.retries import Retry
from stms_client.transport import (
    STREAM_TIMEOUT,
    UPLOAD_TIMEOUT,
    Parameters,
    Progress,
    file_pieces,
    file_size,
    options,
)

T = TypeVar("T")


class Connection:
    """A pool of connections to a service."""

    def __init__(
        self,
        address: str,
        api_key: str | None = None,
        *,
        tenant: str | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        user_agent: str = "stms-client",
        ca: str | Path | ssl.SSLContext | None = None,
    ) -> None:
        self._http = httpx.Client(**options(address, api_key, timeout, user_agent, ca))
        self._tenant = tenant
        self._retry = retry or Retry()

    @property
    def address(self) -> str:
        """The address of the service."""
        return str(self._http.base_url).rstrip("/")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def pages(self, path: str, **params: str | float | None) -> Iterator[Json]:
        """Every item of a list, following the links between its pages."""
        page = self.do(calls.page(path, **params))
        for item in page.items:
            yield item
        while page.next is not None:
            page = self.do(calls.page(page.next))
            for item in page.items:
                yield item

    def _listed(self, path: str, _kind: type[T], **params: str | float | None) -> Iterator[T]:
        """As `pages`. _kind: the type of the items; it is not checked, since they may have further keys."""
        return cast(Iterator[T], self.pages(path, **params))

    def do(self, call: Call[T], progress: Progress | None = None) -> T:
        """Make a call, repeated as the retry policy allows. Raises StmsError."""
        attempt = 1
        while True:
            try:
                return self.once(call, progress)
            except StmsError as error:
                pause = self._retry.pause(attempt, error, repeatable=call.repeatable)
                if pause is None:
                    raise
            time.sleep(pause)
            attempt += 1

    @contextmanager
    def streaming(
        self, path: str, headers: Mapping[str, str], params: Parameters | None = None
    ) -> Iterator[httpx.Response]:
        """A streaming response. Raises StmsError, also while it is read."""
        of_tenant = {} if self._tenant is None else {"tenant": self._tenant}
        with (
            self._connection_errors(),
            self._http.stream(
                "GET",
                path,
                params={**(params or {}), **of_tenant} or None,
                headers=headers,
                timeout=STREAM_TIMEOUT,
            ) as response,
        ):
            if not response.is_success:
                response.read()
                raise problem_of(response)
            yield response

    def save(
        self,
        path: str,
        file: Path,
        progress: Progress | None = None,
        params: Parameters | None = None,
    ) -> int:
        """Write what is at a path to a file; returns its bytes. Raises StmsError and OSError."""
        part = file.with_name(f"{file.name}.part")
        received = 0
        try:
            with self.streaming(path, {}, params) as response:
                total = int(response.headers.get("content-length", 0))
                with part.open("wb") as output:
                    for piece in response.iter_bytes():
                        output.write(piece)
                        received += len(piece)
                        if progress is not None:
                            progress(received, total)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
        return received

    def once(self, call: Call[T], progress: Progress | None = None, *, timeout: float | None = None) -> T:
        """Make a call, and do not repeat it. timeout: as that of the client. Raises StmsError."""
        if self._http.is_closed:
            raise StmsError("The client is closed.")
        headers = dict(call.headers)
        content: bytes | Iterator[bytes] | None = call.content
        if call.file is not None:
            size = file_size(call.file)
            headers["Content-Length"] = str(size)
            content = file_pieces(call.file, size, progress)
        usual: Any = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        with self._connection_errors():
            response = self._http.request(
                call.method,
                call.path,
                params=calls.params_of(call, self._tenant),
                headers=headers,
                content=content,
                timeout=UPLOAD_TIMEOUT if call.is_long or call.file else usual,
            )
        if not response.is_success and response.status_code != httpx.codes.NOT_MODIFIED:
            raise problem_of(response)
        return call.read(response)

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise unreachable(self.address, error) from error
