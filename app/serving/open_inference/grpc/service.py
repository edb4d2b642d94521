"""The Open Inference Protocol over gRPC: the same operations, callers and limits as over HTTP.

Every call is registered as receiving a stream of messages, because its handler then runs as soon as the
metadata has arrived: the caller is authenticated before the message is read. Meanwhile gRPC buffers only its
window. Nothing is read from a caller without a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
import msgspec
from grpc.aio import EOF, BaseError, ServicerContext

from app.auth.authenticator import authorise
from app.auth.places import without_key
from app.auth.shares import Admission
from app.domain.entities import ApiKey
from app.domain.errors import InvalidRequest, NotFound, Overloaded, TooLarge
from app.http.client_address import client_of_socket
from app.http.problem import Problem, internal_problem, problem_of
from app.http.types import Scope
from app.serving.open_inference.grpc.messages import (
    GrpcInference,
    metadata_message,
    parse,
    serialized,
    statistics_message,
    streamed,
    streamed_error,
)
from app.serving.open_inference.grpc.refusals import REQUEST_ID, detail_of, key_ended, refuse, shutting_down
from app.serving.open_inference.operations import CHANGES, InferenceExchange, Operations
from app.serving.open_inference.paths import ParsedPath, model_path
from app.serving.pipeline import WireFormat
from app.serving.servable import INLINE_BYTES
from app.serving.watch import SAMPLE_HEADER

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Context: TypeAlias = ServicerContext[bytes, bytes]

OF_INFERENCE: Final = "/inference.GRPCInferenceService/"
OF_HEALTH: Final = "/grpc.health.v1.Health/"
STREAM: Final = "ModelStreamInfer"

OVERHEAD: Final = 64 * 1024
"""Bytes of a message besides its rows, and the largest message of all calls except inferences."""
MESSAGE_SECONDS: Final = 60.0
"""How long a message may take to arrive."""
_SOON: Final = 0.1
"""Seconds after which a message that has not arrived is counted with the largest size."""
_LOOK_SECONDS: Final = 0.5
"""How often a waiting call checks whether the server is ready and the key valid."""
_SERVING, _NOT_SERVING = 1, 2
"""Of grpc.health.v1.HealthCheckResponse.ServingStatus."""

_OPERATIONS: Final = {
    "ServerMetadata": "server",
    "ServerLive": "live",
    "ServerReady": "ready",
    "ModelReady": "model_ready",
    "ModelMetadata": "model",
    "ModelInfer": "infer",
    "ModelStatistics": "model_stats",
    "RepositoryIndex": "index",
    "RepositoryModelLoad": "load",
    "RepositoryModelUnload": "unload",
}
"""The operations of the protocol by the name of their call."""
_PROBES: Final = frozenset({"ServerLive", "ServerReady", "Check"})
_WITHOUT_KEY: Final = _PROBES | {"ServerMetadata"}


class GrpcExchange(InferenceExchange):
    """A call, or one message of a stream, which is treated as a call of ModelInfer. name: of its method."""

    __slots__ = ("name",)

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.name = str(scope["path"]).rpartition("/")[2]
        self.path = ParsedPath(_OPERATIONS.get(self.name, "infer"))

    @property
    def is_probe(self) -> bool:
        return self.name in _PROBES


@dataclass(frozen=True, slots=True)
class Failure:
    """The response that is sent instead of an answer."""

    problem: Problem


Reply: TypeAlias = bytes | Failure
Source: TypeAlias = Context | bytes
"""A call, or a message that has arrived."""


class InferenceService(grpc.GenericRpcHandler, WireFormat[GrpcExchange, Source, Reply]):  # type: ignore[misc]
    """Answers calls. is_draining: whether the process is shutting down."""

    def __init__(self, operations: Operations, is_draining: Callable[[], bool]) -> None:
        self._operations = operations
        self._pipeline = operations.pipeline
        self._is_draining = is_draining
        self._largest = self._pipeline.max_bytes + OVERHEAD
        methods = [*(f"{OF_INFERENCE}{name}" for name in _OPERATIONS), f"{OF_HEALTH}Check"]
        self._handlers = {method: self._handler(method) for method in methods}
        stream = grpc.stream_stream_rpc_method_handler
        self._handlers[f"{OF_INFERENCE}{STREAM}"] = stream(self._stream)
        self._handlers[f"{OF_HEALTH}Watch"] = stream(self._watch)
        self._unknown = stream(self._refuse_unknown)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The handler of a call."""
        return self._handlers.get(handler_call_details.method, self._unknown)

    def _handler(self, method: str) -> grpc.RpcMethodHandler:
        async def call(_messages: object, context: Context) -> bytes:
            exchange = GrpcExchange(scope_of(context, method))
            return await _guarded(exchange, context, self._reply(exchange, context))

        return grpc.stream_unary_rpc_method_handler(call)

    async def _reply(self, exchange: GrpcExchange, context: Context) -> bytes:
        with self._counting_if_given_up(exchange):
            reply = await self._pipeline.respond(self, exchange, context)
        if not isinstance(reply, Failure):
            trailing = [(REQUEST_ID, exchange.request_id.decode())]
            if exchange.samples:
                trailing.append((SAMPLE_HEADER.decode(), exchange.samples.decode()))
            context.set_trailing_metadata(tuple(trailing))
            return reply
        await refuse(context, reply.problem, exchange.request_id)
        raise AssertionError("A refused call goes on.")

    @contextmanager
    def _counting_if_given_up(self, exchange: GrpcExchange) -> Iterator[None]:
        """Count the turn of a call without a valid key whose client leaves before the turn.

        Otherwise clients in its network could begin calls at no cost to their limit.
        """
        try:
            yield
        except asyncio.CancelledError:
            if exchange.admission is None:
                self._pipeline.budgets.give_up_without_key(self._address_of(exchange))
            raise

    async def _wait_without_key(self, exchange: GrpcExchange, *, is_probe: bool) -> None:
        with self._counting_if_given_up(exchange):
            await self._pipeline.budgets.wait_without_key(self._address_of(exchange), is_probe=is_probe)

    def _address_of(self, exchange: GrpcExchange) -> str:
        return self._pipeline.authenticator.address_of(exchange.scope)

    async def answer(self, exchange: GrpcExchange, source: Source) -> Reply:
        name, operation = exchange.name, exchange.path.operation
        if name in _WITHOUT_KEY:
            return self._answer_without_key(name)
        caller = self._pipeline.admit(exchange, _scope_for(operation), None)
        admission = exchange.admission
        assert admission is not None  # noqa: S101 - the caller was admitted
        if name == STREAM:
            # It may receive a message of the largest size at any time.
            admission.hold(self._largest)
            return b""
        if isinstance(source, bytes):
            data = source
        else:
            data = await self._message(source, admission)
        admission.enter()
        if operation == "infer":
            return await self._infer(exchange, caller, data)
        if len(data) > OVERHEAD:
            raise TooLarge(f"The message is larger than {OVERHEAD} bytes.", code="body_too_large")
        return await self._manage(exchange, caller, parse(f"{name}Request", data))

    def refuse(self, exchange: GrpcExchange, problem: Problem) -> Reply:
        self._operations.record_error(exchange, problem)
        return Failure(problem)

    def _answer_without_key(self, name: str) -> bytes:
        operations = self._operations
        if name == "ServerMetadata":
            return serialized("ServerMetadataResponse", **operations.server)
        if name == "ServerLive":
            return serialized("ServerLiveResponse", live=True)
        ready = operations.is_ready()
        if name == "ServerReady":
            return serialized("ServerReadyResponse", ready=ready)
        return _health(ready)

    async def _infer(self, exchange: GrpcExchange, caller: ApiKey, data: bytes) -> bytes:
        """The answer to a ModelInferRequest."""
        is_small = len(data) <= INLINE_BYTES
        form = await self._pipeline.run(exchange, is_small, GrpcInference.read, data)
        _find(exchange, caller, form.message.model_name, form.message.model_version)
        return await self._operations.infer(exchange, form)

    async def _manage(self, exchange: GrpcExchange, caller: ApiKey, request: Any) -> bytes:
        """The answer to a call about the model repository or the statistics."""
        name, body = exchange.name, b""
        if name in ("ModelReady", "ModelMetadata", "ModelStatistics"):
            _find(exchange, caller, request.name, request.version)
        elif name == "RepositoryIndex":
            exchange.path = exchange.path.of_tenant(caller.tenant)
        else:
            _find(exchange, caller, request.model_name, "")
            # Parameters of other servers, with which clients may still call an unload.
            body = msgspec.json.encode({"parameters": dict.fromkeys(request.parameters)})
        try:
            document = await self._operations.manage(caller, exchange, body)
        except NotFound:
            if name != "ModelReady":
                raise
            # Over HTTP clients take the status 404 for this answer.
            document = {"ready": False}
        match name:
            case "ModelReady":
                return serialized("ModelReadyResponse", ready=document["ready"])
            case "ModelMetadata":
                return metadata_message(document)
            case "ModelStatistics":
                return statistics_message(document)
            case "RepositoryIndex":
                return serialized("RepositoryIndexResponse", models=document)
        return serialized(f"{name}Response")

    async def _message(self, context: Context, admission: Admission) -> bytes:
        """The message of a call. Raises Overloaded and InvalidRequest.

        How large it is shows only when it is there. One that is not there soon counts in the budget of bytes
        as one of the largest size, until the call ends.
        """
        reading: asyncio.Future[Any] = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait({reading}, timeout=_SOON)
            if not reading.done():
                admission.hold(self._largest)
                await asyncio.wait({reading}, timeout=MESSAGE_SECONDS)
            if not reading.done():
                text = f"The message has not arrived within {MESSAGE_SECONDS:g} s."
                raise InvalidRequest(text, code="slow_body")
        finally:
            reading.cancel()
        data = reading.result()
        if data is EOF:
            raise InvalidRequest("The call has no message.", code="wrong_body")
        message: bytes = data
        if len(message) > OVERHEAD and not admission.held_bytes:
            admission.hold(len(message))
        return message

    async def _stream(self, _messages: object, context: Context) -> None:
        """Answer the messages of ModelStreamInfer one after the other.

        Each is a separate query, with its own place, charge and error; only a key that is no longer valid
        ends the stream.
        """
        exchange = GrpcExchange(scope_of(context, f"{OF_INFERENCE}{STREAM}"))
        await _guarded(exchange, context, self._answer_stream(exchange, context))

    async def _answer_stream(self, exchange: GrpcExchange, context: Context) -> None:
        await self._reply(exchange, context)
        while (data := await self._next(context, exchange)) is not None:
            message = GrpcExchange(scope_of(context, f"{OF_INFERENCE}ModelInfer"))
            await _guarded(message, context, self._answer_message(message, data, context))

    async def _next(self, context: Context, exchange: GrpcExchange) -> bytes | None:
        """The next message of a stream; None after the last one."""
        assert exchange.admission is not None  # noqa: S101 - the stream was admitted
        is_valid, caller = self._pipeline.authenticator.is_valid, exchange.admission.caller.key
        reading: asyncio.Future[Any] = asyncio.ensure_future(context.read())
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
                if not reading.done() and self._is_draining():
                    await refuse(context, shutting_down(), exchange.request_id)
                if not reading.done() and not is_valid(caller):
                    await refuse(context, key_ended(), exchange.request_id)
        finally:
            reading.cancel()
        data = reading.result()
        return None if data is EOF else data

    async def _answer_message(self, exchange: GrpcExchange, data: bytes, context: Context) -> None:
        reply = await self._pipeline.respond(self, exchange, data)
        if not isinstance(reply, Failure):
            await context.write(streamed(reply))
        elif reply.problem.status == HTTPStatus.UNAUTHORIZED:
            await refuse(context, reply.problem, exchange.request_id)
        else:
            await context.write(streamed_error(detail_of(reply.problem), reply.problem.code, data))

    async def _watch(self, _messages: object, context: Context) -> None:
        """Say whether the server is ready, and again when that changes, until it shuts down."""
        exchange = GrpcExchange(scope_of(context, f"{OF_HEALTH}Watch"))
        await _guarded(exchange, context, self._say_changes(exchange, context))

    async def _say_changes(self, exchange: GrpcExchange, context: Context) -> None:
        watches = self._pipeline.budgets.watches
        caller = without_key(self._address_of(exchange))
        await self._wait_without_key(exchange, is_probe=True)
        try:
            watches.take(caller)
        except Overloaded as error:
            await refuse(context, problem_of(error), exchange.request_id)
        try:
            said: bool | None = None
            while True:
                ready = self._operations.is_ready()
                if ready is not said:
                    await context.write(_health(ready))
                    said = ready
                if self._is_draining():
                    return
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            watches.release(caller)

    async def _refuse_unknown(self, _messages: object, context: Context) -> None:
        """Answer as gRPC does without a handler, but in turns."""
        exchange = GrpcExchange(scope_of(context, ""))
        await self._wait_without_key(exchange, is_probe=False)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "There is no such method.")


async def _guarded(exchange: GrpcExchange, context: Context, handler: Awaitable[Result]) -> Result:
    """The result of a handler; releases its resources.

    gRPC sends the text of a handler's exception to the client, so only gRPC's own exceptions leave it.
    """
    try:
        return await handler
    except BaseError:
        raise
    except Exception:
        request_id = exchange.request_id.decode()
        logger.exception("call %s failed unexpectedly", request_id, extra={"request_id": request_id})
        await refuse(context, internal_problem(), exchange.request_id)
        raise
    finally:
        if exchange.admission is not None:
            exchange.admission.close()


def scope_of(context: Context, method: str) -> Scope:
    """A call in the form in which ASGI describes a request. method: with the name of its service."""
    metadata: Any = context.invocation_metadata() or ()
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in metadata
    ]
    return {
        "type": "http",
        "method": "POST",
        "path": method,
        "raw_path": method.encode(),
        "query_string": b"",
        "headers": headers,
        # gRPC writes the address of a Unix socket as unix:/path.
        "client": client_of_socket(unquote(context.peer())),
        "http_version": "2",
    }


def _find(exchange: GrpcExchange, caller: ApiKey, name: str, version: str) -> None:
    """Set the path of a call about a model. Raises NotFound, and NotAuthorised for the models of others."""
    operation = exchange.path.operation
    if operation == "model_stats" and not name:
        path = ParsedPath("stats")
    else:
        path = model_path(operation, name, version or None)
        authorise(caller, _scope_for(operation), path.model)
    exchange.path = path.of_tenant(caller.tenant)


def _scope_for(operation: str) -> str:
    """The scope that the caller of an operation needs."""
    return "train" if operation in CHANGES else "query"


def _health(ready: bool) -> bytes:
    return serialized("HealthCheckResponse", status=_SERVING if ready else _NOT_SERVING)
