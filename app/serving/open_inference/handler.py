"""The ASGI handler of the Open Inference Protocol, in front of the web framework like native queries.

Both share `QueryPipeline`. Errors are ``{"error": "…"}``; every JSON response has exactly the content type
``application/json``, as clients of the protocol compare it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from app.domain.errors import ServiceError
from app.http.decompression import decompress
from app.http.headers import MIN_COMPRESSED_BYTES, compress, content_coding, preferred_coding
from app.http.parameters import check_known
from app.http.problem import NO_STORE, Problem, ProblemError, method_not_allowed, short
from app.http.responses import Response
from app.http.types import Body, HeaderList, Receive, Scope, Send
from app.serving.open_inference.evaluate import Outputs, encode
from app.serving.open_inference.operations import CHANGES, InferenceExchange, InferenceForm, Operations
from app.serving.open_inference.paths import ParsedPath, parse_path
from app.serving.open_inference.prepared import JSON, JSON_LENGTH, PreparedInference, answer_headers
from app.serving.open_inference.requests import Inference, RequestedOutput, parse_inference
from app.serving.pipeline import WireFormat
from app.serving.servable import ServableStudent
from app.serving.watch import SAMPLE_HEADER


class InferenceHandler(WireFormat[InferenceExchange, Receive, Response]):
    """Parses requests of the protocol over HTTP and encodes their responses."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._pipeline = operations.pipeline

    PREFIX: Final = b"/v2/"

    @staticmethod
    def matches(scope: Scope) -> bool:
        """Whether this handler is responsible for a request, judged by its path only."""
        return scope["type"] == "http" and scope["raw_path"][:4] in (b"/v2", b"/v2/")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Handle one request, as an ASGI application."""
        return self._pipeline.handle(self, InferenceExchange(scope), receive, send)

    def prepare(
        self, target: bytes, headers: HeaderList, client: tuple[str, int] | None = None
    ) -> PreparedInference | None:
        """The prepared request for the head of an inference; None for others. See `QueryHandler.prepare`."""
        if not target.startswith(self.PREFIX) or b"?" in target or b"#" in target or not target.isascii():
            return None
        try:
            path = parse_path(target)
            if (
                path.operation != "infer"
                or content_coding(dict(headers).get(b"content-encoding")) is not None
            ):
                return None
            return PreparedInference(self._pipeline, headers, client, path, self._operations.statistics)
        except ServiceError:
            return None

    async def answer(self, exchange: InferenceExchange, receive: Receive) -> Response:
        path = exchange.path = parse_path(exchange.scope["raw_path"])
        operations = self._operations
        if exchange.scope["method"] != path.method:
            raise ProblemError(method_not_allowed(exchange.scope["method"], [path.method]))
        if path.operation in ("server", "live"):
            return _json(operations.server if path.operation == "server" else {"live": True})
        if path.operation == "ready":
            ready = operations.is_ready()
            return _json({"ready": ready, "live": True}, 200 if ready else 503)
        required_scope = "train" if path.operation in CHANGES else "query"
        caller = self._pipeline.admit(exchange, required_scope, path.model or None)
        if exchange.scope["query_string"]:
            names = parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
            check_known(names, ())
        path = exchange.path = path.of_tenant(caller.tenant)
        if path.operation == "infer":
            body = await self._read_body(exchange, receive)
            response = await operations.infer(exchange, _HttpForm(body, exchange))
            if exchange.samples:
                response.headers = (*response.headers, (SAMPLE_HEADER, exchange.samples))
            return response
        content = b""
        if path.operation in ("index", *CHANGES):
            content = bytes(await self._read_body(exchange, receive))
        else:
            assert exchange.admission is not None  # noqa: S101 - the caller was admitted
            exchange.admission.enter()
        return _json(await operations.manage(caller, exchange, content))

    def refuse(self, exchange: InferenceExchange, problem: Problem) -> Response:
        self._operations.record_error(exchange, problem)
        headers = [header for header in problem.headers() if header[0] != b"content-type"]
        body = msgspec.json.encode({"error": short(problem.detail)})
        return Response(body, [JSON, *headers], problem.status)

    async def _read_body(self, exchange: InferenceExchange, receive: Receive) -> Body:
        """The whole body, decompressed."""
        coding = content_coding(exchange.headers.get(b"content-encoding"))
        body = await self._pipeline.read_body(exchange, receive, compressed=coding is not None)
        if coding is None:
            return body
        # Always in a thread: a small body may decompress to hundreds of times as much.
        return await self._pipeline.run(exchange, False, decompress, body, self._pipeline.max_bytes)


class _HttpForm(InferenceForm[Response]):
    """The body of an inference, decompressed."""

    def __init__(self, body: Body, exchange: InferenceExchange) -> None:
        self._body, self.size = body, len(body)
        self._json_length = exchange.headers.get(JSON_LENGTH)
        self._accepted = exchange.headers.get(b"accept-encoding")

    def parse(self, path: ParsedPath) -> Inference:
        return parse_inference(self._body, self._json_length, path)

    def encode(
        self,
        inference: Inference,
        outputs: Outputs,
        requested_outputs: Sequence[RequestedOutput],
        path: ParsedPath,
        student: ServableStudent,
    ) -> Response:
        """The response, compressed if the client accepts that and its size is worth it."""
        model_fields = {"model_name": path.name, "model_version": str(student.version)}
        body, json_length = encode(inference, outputs, requested_outputs, model_fields)
        headers = answer_headers(json_length)
        coding = preferred_coding(self._accepted)
        if coding is not None and len(body) >= MIN_COMPRESSED_BYTES:
            body = compress(body, coding)
            headers.append((b"content-encoding", coding))
        return Response(body, headers)


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), [JSON, NO_STORE], status)
