"""The connections to a service: calls with retries, lists of several pages, and streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.request import getproxies

import httpx

from stms_client import calls
from stms_client.calls import Call
from stms_client.cards import Facts, Shown
from stms_client.errors import Json, StmsError, problem_of, unreachable
from stms_client.retries import Retry
from stms_client.transport import (
    STREAM_TIMEOUT,
    UPLOAD_TIMEOUT,
    AsyncOwnStream,
    OfLoop,
    Parameters,
    Progress,
    async_file_pieces,
    file_size,
    of_stores,
    options,
    url_of,
)

T = TypeVar("T")

_URLS = 256
"""Addresses of requests that are kept."""


class DirectClient(httpx.AsyncClient):
    """A client whose plain requests go straight to the connections, which saves a quarter of their time.

    What httpx does besides is not needed: redirects, cookies and hooks. It sends by itself streams, requests
    with the key of a file (the option ``auth``), and all requests where the environment names a proxy.
    """

    def __init__(self, **options: Any) -> None:
        options["verify"] = options["verify"]()
        self._direct: httpx.AsyncHTTPTransport | None = None
        if options["auth"] is None and not (options["trust_env"] and getproxies()):
            of_connections = {name: options[name] for name in ("verify", "trust_env", "limits")}
            self._direct = httpx.AsyncHTTPTransport(**of_connections)
        super().__init__(**options, transport=self._direct)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request, and read the response. Raises httpx.TransportError."""
        if self._direct is None or options:
            response = await super().send(request, **options)
            if not response.is_closed:
                response.stream = AsyncOwnStream(cast(httpx.AsyncByteStream, response.stream))
            return response
        response = await self._direct.handle_async_request(request)
        response.request = request
        try:
            await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


class Connection(Shown):
    """The connections to a service: a pool for each process, and with asyncio for each event loop."""

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
        used = options(address, api_key, timeout, user_agent, ca)
        self._pools = OfLoop(partial(DirectClient, **used))
        self._stores = OfLoop(partial(DirectClient, **of_stores(used, ca)))
        self._is_closed = False
        self._address = str(httpx.URL(address)).rstrip("/")
        self._url = lru_cache(_URLS)(partial(url_of, self._address))
        self._tenant = tenant
        self._retry = retry or Retry()

    @property
    def address(self) -> str:
        """The address of the service."""
        return self._address

    def _facts(self) -> Facts:
        return {"address": self.address, "tenant": self._tenant}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the calls, and close the connections of this process, and with asyncio of this event loop.

        Those of other event loops are closed when these end, and those of other processes are left alone.
        """
        self._is_closed = True
        await self._pools.aclose()
        await self._stores.aclose()

    async def _http(self) -> httpx.AsyncClient:
        """The client of this process and event loop. Raises StmsError after `close`."""
        if self._is_closed:
            raise StmsError("The client is closed: make another one.")
        return await self._pools.here()

    async def pages(self, path: str, **params: str | float | None) -> AsyncIterator[Json]:
        """Every item of a list, following the links between its pages."""
        page = await self.do(calls.page(path, **params))
        for item in page.items:
            yield item
        while page.next is not None:
            page = await self.do(calls.page(page.next))
            for item in page.items:
                yield item

    def _listed(self, path: str, _kind: type[T], **params: str | float | None) -> AsyncIterator[T]:
        """As `pages`. _kind: the type of the items; it is not checked, since they may have further keys."""
        return cast(AsyncIterator[T], self.pages(path, **params))

    async def do(self, call: Call[T], progress: Progress | None = None) -> T:
        """Make a call, repeated as the retry policy allows. Raises StmsError."""
        attempt = 1
        while True:
            try:
                return await self.once(call, progress)
            except StmsError as error:
                pause = self._retry.pause(attempt, error, repeatable=call.repeatable)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    async def _put_file(self, url: str, file: Path, progress: Progress | None = None) -> None:
        """Put a file at a presigned address of an object store, which gets no API key. Raises StmsError."""
        attempt = 1
        while True:
            try:
                return await self._put_once(url, file, progress)
            except StmsError as error:
                pause = self._retry.pause(attempt, error, repeatable=True)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    async def _put_once(self, url: str, file: Path, progress: Progress | None) -> None:
        store, size = await self._stores.here(), file_size(file)
        request = httpx.Request(
            "PUT",
            url,
            headers={**store.headers, "Content-Length": str(size)},
            content=async_file_pieces(file, size, progress),
            extensions={"timeout": UPLOAD_TIMEOUT.as_dict()},
        )
        try:
            response = await store.send(request)
        except httpx.TransportError as error:
            raise unreachable(f"{request.url.scheme}://{request.url.netloc.decode()}", error) from error
        if not response.is_success:
            raise problem_of(response)

    @asynccontextmanager
    async def streaming(
        self, path: str, headers: Mapping[str, str], params: Parameters | None = None
    ) -> AsyncIterator[httpx.Response]:
        """A streaming response. Raises StmsError, also while it is read."""
        of_tenant = {} if self._tenant is None else {"tenant": self._tenant}
        http = await self._http()
        async with (
            self._connection_errors(),
            http.stream(
                "GET",
                path,
                params={**(params or {}), **of_tenant} or None,
                headers=headers,
                timeout=STREAM_TIMEOUT,
            ) as response,
        ):
            if not response.is_success:
                await response.aread()
                raise problem_of(response)
            yield response

    async def save(
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
            async with self.streaming(path, {}, params) as response:
                total = int(response.headers.get("content-length", 0))
                with part.open("wb") as output:
                    async for piece in response.aiter_bytes():
                        output.write(piece)
                        received += len(piece)
                        if progress is not None:
                            progress(received, total)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
        return received

    async def once(
        self, call: Call[T], progress: Progress | None = None, *, timeout: float | None = None
    ) -> T:
        """Make a call, and do not repeat it. timeout: as that of the client. Raises StmsError."""
        http = await self._http()
        headers = http.headers.copy()
        headers.update(call.headers)
        content: bytes | AsyncIterator[bytes] | None = call.content
        if call.file is not None:
            size = file_size(call.file)
            headers["Content-Length"] = str(size)
            content = async_file_pieces(call.file, size, progress)
        usual = http.timeout if timeout is None else httpx.Timeout(timeout)
        seconds = UPLOAD_TIMEOUT if call.is_long or call.file else usual
        # What httpx makes of the arguments of its `request` takes five times as long.
        request = httpx.Request(
            call.method,
            self._url(call.path),
            params=calls.params_of(call, self._tenant),
            headers=headers,
            content=content,
            extensions={"timeout": seconds.as_dict()},
        )
        async with self._connection_errors():
            response = await http.send(request)
        if not response.is_success and response.status_code != httpx.codes.NOT_MODIFIED:
            raise problem_of(response)
        return call.read(response)

    @asynccontextmanager
    async def _connection_errors(self) -> AsyncIterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise unreachable(self.address, error) from error
