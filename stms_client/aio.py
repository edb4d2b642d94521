"""The asyncio client, from which ``make client`` generates the blocking one in `stms_client/sync.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from stms_client import calls
from stms_client.calls import Call, Row, Rows
from stms_client.errors import JobNotSucceeded, Json, NotFound, StmsError, problem_of, unreachable
from stms_client.events import ENDED, EventCursor, EventReader
from stms_client.results import Decision, Decisions, JobEvent
from stms_client.retries import Retry
from stms_client.transport import (
    STREAM_TIMEOUT,
    UPLOAD_TIMEOUT,
    Progress,
    async_file_pieces,
    file_size,
    options,
)

T = TypeVar("T")


class AsyncClient:
    """Connects to a running service through a pool of connections. Every method raises StmsError.

    `Client` has the same methods without ``await``, and may be shared by threads.

    tenant: where an operator's calls act, except queries; by default in the key's own tenant.
    timeout: seconds to wait for one response. retry: when calls are repeated; `Retry(attempts=1)` for never.
    Raises ValueError when ``address`` is not the address of a server.
    """

    def __init__(
        self,
        address: str,
        api_key: str | None = None,
        *,
        tenant: str | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        user_agent: str = "stms-client",
    ) -> None:
        self._http = httpx.AsyncClient(**options(address, api_key, timeout, user_agent))
        self._tenant = tenant
        self._retry = retry or Retry()

    @property
    def address(self) -> str:
        """The address of the service."""
        return str(self._http.base_url).rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def is_class(self, model: str, label: str, x: Row) -> bool:
        """Whether one row belongs to the class. model: ``name``, ``name@alias`` or ``name@3``."""
        decision = await self.query(model, label, x)
        return decision.match

    async def query(self, model: str, label: str, x: Row, *, explain: bool = False) -> Decision:
        """The decision on one row. explain: include the gate, the rejection and its piece."""
        return await self.do(calls.query(model, label, x, explain))

    async def query_rows(self, model: str, label: str, rows: Rows, *, explain: bool = False) -> Decisions:
        """The decisions on many rows. An array (n, d) is sent, and its scores returned, as raw numbers."""
        return await self.do(calls.query_rows(model, label, rows, explain))

    async def query_classes(
        self, model: str, labels: Sequence[str], x: Row, *, explain: bool = False
    ) -> dict[str, Decision]:
        """The decision of each class on one row, all by the same version of the model."""
        return await self.do(calls.query_classes(model, labels, x, explain))

    async def predict(self, model: str, x: Row) -> str:
        """The class that the full teacher assigns to one row."""
        return await self.do(calls.predict(model, x))

    async def upload_dataset(
        self,
        file: str | Path,
        *,
        name: str | None = None,
        file_format: str | None = None,
        label_column: str | None = None,
        unlabelled: str | None = None,
        progress: Progress | None = None,
    ) -> Json:
        """Upload a file as a data set. progress: called with the bytes sent so far and in total.

        unlabelled: ``"accept"`` keeps training rows whose label is missing.
        """
        call = calls.upload(Path(file), name, file_format, label_column, unlabelled)
        return await self.do(call, progress)

    def datasets(self) -> AsyncIterator[Json]:
        """All data sets, newest first."""
        return self.pages("/v1/datasets")

    async def dataset(self, dataset_id: str) -> Json:
        """One data set."""
        return await self.do(calls.get(f"/v1/datasets/{calls.segment(dataset_id)}"))

    def dataset_rows(
        self, dataset_id: str, label: str | None = None, *, part: str = "train", page: int = 100
    ) -> AsyncIterator[Json]:
        """Rows of a data set, each with ``id``, ``label`` and ``x``, in a form that queries take.

        label: of one class. part: ``"train"`` or ``"test"``. page: rows in one response.
        """
        filters: dict[str, str | float | None] = {"class": label, "part": part, "limit": page}
        return self.pages(f"/v1/datasets/{calls.segment(dataset_id)}/rows", **filters)

    async def delete_dataset(self, dataset_id: str) -> None:
        """Delete a data set that no unfinished job uses."""
        await self.do(calls.delete(f"/v1/datasets/{calls.segment(dataset_id)}"))

    async def import_head(
        self,
        file: str | Path,
        model: str,
        *,
        kind: str = "head",
        alias: str = "latest",
        rivals: int = 0,
        row_norm: float | None = None,
    ) -> Json:
        """Upload a linear head (safetensors, .npz) as a version of a model. kind: `head` or `students`.

        rivals: a class of a head must also score higher than so many of its nearest rivals. row_norm: length
        of a typical row, from which a head without thresholds gets one.
        """
        return await self.do(calls.import_head(Path(file), model, kind, alias, rivals, row_norm))

    async def submit_job(
        self,
        dataset_id: str,
        model: str,
        hyperparameters: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Json:
        """Train a teacher and its students, and publish them as a version of ``model``."""
        return await self.do(calls.submit(dataset_id, model, hyperparameters, idempotency_key))

    def jobs(
        self,
        state: str | None = None,
        *,
        model: str | None = None,
        created_by: str | None = None,
        since: float | None = None,
    ) -> AsyncIterator[Json]:
        """Jobs, newest first. created_by: id of an API key. since: earliest submission, in Unix time."""
        filters = {"status": state, "model": model, "created_by": created_by, "since": since}
        return self.pages("/v1/training-jobs", **filters)

    async def job_counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        counts: dict[str, int] = (await self.do(calls.get("/v1/training-jobs/counts")))["counts"]
        return counts

    async def job(self, job_id: str) -> Json:
        """The current state of a job."""
        return await self.do(calls.get(calls.job_path(job_id)))

    def students(
        self,
        job_id: str,
        *,
        method: str | None = None,
        sort: str | None = None,
        label: str | None = None,
    ) -> AsyncIterator[Json]:
        """The students of a job, one entry for each class and method.

        sort: for example "-f1" for the best first; label: part of the label. With one of them, the trained
        students of one method, by default the served one.
        """
        path = f"{calls.job_path(job_id)}/students"
        return self.pages(path, method=method, sort=sort, label=label)

    async def cancel_job(self, job_id: str) -> Json:
        """Stop a job."""
        return await self.do(calls.act(f"{calls.job_path(job_id)}/cancel"))

    async def retry_job(self, job_id: str) -> Json:
        """Resume a failed, cancelled or partly successful job."""
        return await self.do(calls.act(f"{calls.job_path(job_id)}/retry"))

    async def delete_job(self, job_id: str) -> None:
        """Delete an ended job that published no version."""
        await self.do(calls.delete(calls.job_path(job_id)))

    async def follow_job(
        self, job_id: str, *, patience: float = 60.0, pause: float = 1.0
    ) -> AsyncIterator[JobEvent]:
        """The events of a job until it ends, over as many connections as necessary.

        patience: seconds without the server before its error is raised. pause: seconds between two attempts.
        """
        cursor = EventCursor(patience)
        path = calls.job_path(job_id)
        while True:
            reader = EventReader()
            try:
                async with self.streaming(f"{path}/events", cursor.headers) as response:
                    async for line in response.aiter_lines():
                        event = reader.feed(line)
                        if event is not None:
                            cursor.advance(event)
                            yield event
                job = await self._once(calls.get(path))
                if job["state"] in ENDED:
                    return
            except StmsError as error:
                cursor.connection_lost(error)
            await asyncio.sleep(pause)

    async def wait_for_job(
        self, job_id: str, *, progress: Callable[[JobEvent], None] | None = None, patience: float = 60.0
    ) -> Json:
        """The job once it has ended. progress: called with every event. Raises JobNotSucceeded."""
        async for event in self.follow_job(job_id, patience=patience):
            if progress is not None:
                progress(event)
        job = await self.job(job_id)
        if job["state"] != "succeeded":
            raise JobNotSucceeded(job)
        return job

    def models(self) -> AsyncIterator[Json]:
        """All models."""
        return self.pages("/v1/models")

    async def model(self, model: str) -> Json:
        """One model with its versions and aliases."""
        return await self.do(calls.get(calls.model_path(model)))

    async def point_alias(self, model: str, alias: str, version: int) -> Json:
        """Point an alias to a version. Raises Conflict when another client moved it at the same time."""
        try:
            current = await self.do(calls.get(calls.alias_path(model, alias)))
            revision = current["revision"]
        except NotFound:
            revision = None
        return await self.do(calls.point_alias(model, alias, version, revision))

    def alias_history(self, model: str, alias: str) -> AsyncIterator[Json]:
        """Where an alias has pointed, and who moved it, newest first."""
        return self.pages(f"{calls.alias_path(model, alias)}/history")

    async def delete_alias(self, model: str, alias: str) -> None:
        """Delete an alias; its version stays. Raises Conflict when it was moved at the same time."""
        current = await self.do(calls.get(calls.alias_path(model, alias)))
        await self.do(calls.delete_alias(model, alias, current["revision"]))

    async def delete_version(self, model: str, version: int) -> None:
        """Delete a version to which no alias points."""
        await self.do(calls.delete(calls.version_path(model, version)))

    async def rotate_key(self, key_id: str, *, overlap_seconds: float = 0.0) -> Json:
        """Replace the secret of an API key. The new one, ``key`` of the result, is shown only here."""
        return await self.do(calls.rotate_key(key_id, overlap_seconds))

    async def whoami(self) -> Json:
        """What the API key may do, and which server answers."""
        return await self.do(calls.get("/v1/whoami"))

    def servers(self) -> AsyncIterator[Json]:
        """Groups of server processes with their live figures, for operators."""
        return self.pages("/v1/servers")

    def workers(self) -> AsyncIterator[Json]:
        """Worker processes and what each does, for operators."""
        return self.pages("/v1/workers")

    def usage(self, tenant: str | None = None) -> AsyncIterator[Json]:
        """What tenants use and may use: the key's own; for operators another one, or all without a name."""
        return self.pages("/v1/usage", tenant=tenant)

    async def set_quotas(self, tenant: str, quotas: Mapping[str, int | None]) -> Json:
        """Change quotas of a tenant, for operators. None means the default of the server's settings."""
        return await self.do(calls.set_quotas(tenant, quotas))

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,  # noqa: A002 - the server's parameter name
        since: float | None = None,
        until: float | None = None,
    ) -> AsyncIterator[Json]:
        """Audit records, newest first. since, until: seconds since the epoch."""
        filters = {"actor": actor, "action": action, "object": object, "since": since, "until": until}
        return self.pages("/v1/audit", **filters)

    async def pages(self, path: str, **params: str | float | None) -> AsyncIterator[Json]:
        """Every item of a list, following the links between its pages."""
        page = await self.do(calls.page(path, **params))
        for item in page.items:
            yield item
        while page.next is not None:
            page = await self.do(calls.page(page.next))
            for item in page.items:
                yield item

    async def do(self, call: Call[T], progress: Progress | None = None) -> T:
        """Make a call, repeated as the retry policy allows. Raises StmsError."""
        attempt = 1
        while True:
            try:
                return await self._once(call, progress)
            except StmsError as error:
                pause = self._retry.pause(attempt, error, repeatable=call.repeatable)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    @asynccontextmanager
    async def streaming(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """A streaming response. Raises StmsError, also while it is read."""
        async with (
            self._connection_errors(),
            self._http.stream(
                "GET",
                path,
                params=None if self._tenant is None else {"tenant": self._tenant},
                headers=headers,
                timeout=STREAM_TIMEOUT,
            ) as response,
        ):
            if not response.is_success:
                await response.aread()
                raise problem_of(response)
            yield response

    async def _once(self, call: Call[T], progress: Progress | None = None) -> T:
        headers = dict(call.headers)
        content: bytes | AsyncIterator[bytes] | None = call.content
        if call.file is not None:
            size = file_size(call.file)
            headers["Content-Length"] = str(size)
            content = async_file_pieces(call.file, size, progress)
        async with self._connection_errors():
            response = await self._http.request(
                call.method,
                call.path,
                params=calls.params_of(call, self._tenant),
                headers=headers,
                content=content,
                timeout=httpx.USE_CLIENT_DEFAULT if call.file is None else UPLOAD_TIMEOUT,
            )
        if not response.is_success:
            raise problem_of(response)
        return call.read(response)

    @asynccontextmanager
    async def _connection_errors(self) -> AsyncIterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise unreachable(self.address, error) from error
