"""The ASGI handler of packages: students, and the encoders of records, for programs that evaluate them.

    GET /v1/models/{model}/classes/{class}/package    the student, as `PackedStudent.to_bytes` writes it
    GET /v1/models/{model}/classes/{class}/map        the map that this package names, if it names one
    GET /v1/models/{model}/classes/{class}/encoder    the encoder of its version, where it has one
    POST /v1/models/{model}:packages                  several students, which the body names, as a tar file

The parts are of one version, whose number is in X-Model-Version. Programs poll packages with If-None-Match;
for a loaded student this reads neither the database nor a file.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from app.auth.audit_writer import AuditWriter
from app.domain.entities import ApiKey
from app.domain.errors import (
    InvalidRequest,
    NotFound,
    ServiceError,
    TooLarge,
    Unavailable,
    UnsupportedFormat,
)
from app.http.path_prefix import path_as_sent
from app.http.problem import Problem, ProblemError, method_not_allowed
from app.http.responses import Response, problem_response
from app.http.types import Body, Header, HeaderList, Receive, Scope, Send
from app.serving.packages.paths import MEDIA_TYPES, SEVERAL, PackagePath, is_package_path, parse_package_path
from app.serving.pipeline import Exchange, QueryPipeline, WireFormat
from app.serving.prepared import Computed, PreparedRequest, header_lines
from app.serving.query.negotiation import negotiate
from app.serving.query.requests import check_classes, check_named
from app.serving.servable import ServableStudent
from core.packed import PackedStudent

AUDIT_SECONDS: Final = 3600.0
"""Seconds in which a process writes no further audit record for the same key, version and part."""
REPORT: Final = b"x-stms-local"

_CACHING: Final = (b"cache-control", b"private, no-cache")
_REPORTED: Final = re.compile(rb"[0-9]{1,9}:([0-9]{1,9})")
_MAX_AUDITED: Final = 4096
_BLOCK: Final = tarfile.BLOCKSIZE


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for several packages."""

    classes: list[str]


_NAMED: Final = msgspec.json.Decoder(_Named).decode


class PackageHandler(WireFormat[Exchange, Receive, Response]):
    """Answers requests for packages of at most ``most_bytes``."""

    def __init__(self, pipeline: QueryPipeline, audit_writer: AuditWriter, most_bytes: int) -> None:
        self.pipeline = pipeline
        self._audit_writer = audit_writer
        self._most_bytes = most_bytes
        self._digests: WeakKeyDictionary[PackedStudent, str] = WeakKeyDictionary()
        self._audited: dict[tuple[str, str, int, str], float] = {}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Handle one request, as an ASGI application."""
        return self.pipeline.handle(self, Exchange(scope), receive, send)

    def prepare(
        self, target: bytes, headers: HeaderList, client: tuple[str, int] | None = None
    ) -> PreparedPoll | None:
        """The prepared form of a GET request whose sender may have the package; None for other requests."""
        if not is_package_path(target) or b"?" in target or b"#" in target or not target.isascii():
            return None
        try:
            return PreparedPoll(self, headers, client, parse_package_path(target))
        except ServiceError:
            return None

    async def answer(self, exchange: Exchange, receive: Receive) -> Response:
        scope = exchange.scope
        path = parse_package_path(scope["raw_path"])
        allowed = "POST" if path.part == SEVERAL else "GET"
        if scope["method"] != allowed:
            raise ProblemError(method_not_allowed(scope["method"], [allowed]))
        if path.part == SEVERAL:
            return await self._several(exchange, path, receive)
        key = self.pipeline.admit(exchange, "download", path.model)
        reported = _reported(exchange.headers)
        reference, cache = f"{key.tenant}/{path.reference}", self.pipeline.cache
        served = cache.get(reference, path.label) or await cache.student(reference, path.label)
        if reported:
            self.pipeline.metrics.asked_locally(served.metric_label, reported)
        response = await self._of_student(exchange, key, path, served)
        self.pipeline.metrics.responded("GET", path.route, response.status, exchange.seconds)
        return response

    def refuse(self, exchange: Exchange, problem: Problem) -> Response:
        self.pipeline.record_error(exchange, problem, is_query=False)
        return problem_response(problem, exchange.request_id, path_as_sent(exchange.scope))

    async def _of_student(
        self, exchange: Exchange, key: ApiKey, path: PackagePath, served: ServableStudent
    ) -> Response:
        digest = self.digest_of(path, served)
        wanted = exchange.headers.get(b"if-none-match")
        if digest is not None and _has(wanted, served, digest):
            return Response(b"", _headers(served, digest), 304)
        data = await self.pipeline.run(exchange, False, partial(self._bytes, path, served))
        if digest is None:
            digest = hashlib.sha256(data).hexdigest()
            self._digests[served.student] = digest
        headers = _headers(served, digest)
        if _has(wanted, served, digest):
            return Response(b"", headers, 304)
        await self._audit(exchange, key, path, served)
        return Response(data, [(b"content-type", MEDIA_TYPES[path.part]), *headers])

    async def _several(self, exchange: Exchange, path: PackagePath, receive: Receive) -> Response:
        """The packages of the classes that the body names, all of one version."""
        key = self.pipeline.admit(exchange, "download", path.model)
        labels = await self._named(exchange, receive)
        served = await self.pipeline.cache.students(f"{key.tenant}/{path.reference}", labels)
        known = [self._digests[one.student] for one in served if one.student in self._digests]
        wanted, digest, data = exchange.headers.get(b"if-none-match"), digest_of_several(known), b""
        if len(known) < len(served) or not _has(wanted, served[0], digest):
            data, digests = await self.pipeline.run(exchange, False, self._archive, path, served)
            self._digests.update(zip((one.student for one in served), digests, strict=True))
            digest = digest_of_several(digests)
        headers = _headers(served[0], digest)
        if _has(wanted, served[0], digest):
            response = Response(b"", headers, 304)
        else:
            await self._audit(exchange, key, path, served[0])
            response = Response(data, [(b"content-type", b"application/x-tar"), *headers])
        self.pipeline.metrics.responded("POST", path.route, response.status, exchange.seconds)
        return response

    async def _named(self, exchange: Exchange, receive: Receive) -> list[str]:
        """The classes that the body names. Raises ServiceError."""
        if negotiate(exchange.headers, exchange.scope["query_string"], ()).encoding is not None:
            raise UnsupportedFormat("Send the names of the classes as they are.", code="bad_encoding")
        data = await self.pipeline.read_body(exchange, receive, compressed=False)
        try:
            labels = _NAMED(data).classes
        except msgspec.DecodeError as error:
            message = 'Name the classes: {"classes": ["A", "B"]}.'
            raise InvalidRequest(message, code="bad_body") from error
        check_classes(labels)
        check_named(labels)
        return labels

    def _archive(self, path: PackagePath, served: Sequence[ServableStudent]) -> tuple[bytes, list[str]]:
        """The packages as a tar file, in order, and the digest of each. Raises TooLarge."""
        expected = sum(_package_bytes(one.student) for one in served)
        self._check_size(path, expected)
        parts: list[bytes] = []
        digests = []
        for place, one in enumerate(served):
            data = one.student.to_bytes()
            member = tarfile.TarInfo(f"{place}.safetensors")
            member.size = len(data)
            parts += (member.tobuf(tarfile.USTAR_FORMAT), data, bytes(-len(data) % _BLOCK))
            digests.append(hashlib.sha256(data).hexdigest())
        archive = b"".join([*parts, bytes(2 * _BLOCK)])
        self._check_size(path, len(archive))
        return archive, digests

    def digest_of(self, path: PackagePath, served: ServableStudent) -> str | None:
        """SHA-256 of a package; None if it was not asked for yet, or is not there."""
        if path.part == "encoder":
            return served.columns.encoder_digest
        if path.part == "map":
            return served.student.map.digest if served.student.shares_map else None
        return self._digests.get(served.student)

    def _bytes(self, path: PackagePath, served: ServableStudent) -> bytes:
        """The requested package. Raises NotFound and TooLarge."""
        student = served.student
        if path.part == "package":
            self._check_size(path, _package_bytes(student))
            data = student.to_bytes()
        elif path.part == "map":
            if not student.shares_map:
                message = "The package of this class holds its map: it names no other."
                raise NotFound(message, code="map_not_found")
            self._check_size(path, student.map.nbytes)
            data = student.map.to_bytes()
        else:
            package = served.columns.package()
            if package is None:
                message = "The rows of this version are numbers: it has no encoder."
                raise NotFound(message, code="encoder_not_found")
            data = package
        self._check_size(path, len(data))
        return data

    def _check_size(self, path: PackagePath, size: int) -> None:
        if size > self._most_bytes:
            what, verb = ("packages together", "have") if path.part == SEVERAL else (path.part, "has")
            message = f"The {what} {verb} {size} bytes; at most {self._most_bytes} are sent."
            raise TooLarge(message, code="package_too_large")

    async def _audit(
        self, exchange: Exchange, key: ApiKey, path: PackagePath, served: ServableStudent
    ) -> None:
        """Write an audit record before a package leaves, once an hour for each key and version.

        Raises Unavailable if it cannot be written.
        """
        subject = key.id, f"{key.tenant}/{served.model}", served.version, path.part
        now = time.monotonic()
        if now < self._audited.get(subject, 0.0):
            return
        write = partial(
            self._audit_writer.record_action,
            exchange.scope,
            exchange.request_id.decode("ascii"),
            key,
            "model.download",
            f"{served.model}@{served.version}",
        )
        if not await self.pipeline.run(exchange, False, write):
            raise Unavailable("The download cannot be written into the audit log now.")
        if len(self._audited) >= _MAX_AUDITED:
            self._audited.clear()
        self._audited[subject] = now + AUDIT_SECONDS


class PreparedPoll(PreparedRequest):
    """A request for a package that the caller usually has already. Raises ServiceError."""

    status = b"304 Not Modified"
    scope = "download"
    has_body = False

    def __init__(
        self,
        handler: PackageHandler,
        headers: HeaderList,
        client: tuple[str, int] | None,
        path: PackagePath,
    ) -> None:
        super().__init__(handler.pipeline, headers, client, path.model)
        self._wanted = self.by_name.get(b"if-none-match")
        if self._wanted is None or self.length:
            raise InvalidRequest("The request is not for a package that the caller has.")
        self._digest_of, self._path = handler.digest_of, path
        self._reported = _reported(self.by_name)
        self._student = partial(handler.pipeline.cache.get, f"{self.tenant}/{path.reference}", path.label)

    def compute(self, body: Body) -> Computed | None:  # noqa: ARG002 - it is empty
        served = self._student()
        digest = None if served is None else self._digest_of(self._path, served)
        if served is None or digest is None or not _has(self._wanted, served, digest):
            return None
        return b"", header_lines(_headers(served, digest)), served.metric_label, 0

    def count(self, model: str, rows: int, seconds: float) -> None:  # noqa: ARG002 - it decides no rows
        metrics = self.pipeline.metrics
        if self._reported:
            metrics.asked_locally(model, self._reported)
        metrics.responded("GET", self._path.route, 304, seconds)


def _package_bytes(student: PackedStudent) -> int:
    """About how many bytes the package of a student has."""
    return student.form.nbytes + (0 if student.shares_map else student.map.nbytes)


def digest_of_several(digests: Sequence[str]) -> str:
    """The digest of several packages: SHA-256 of their digests, one after the other."""
    return hashlib.sha256("".join(digests).encode("ascii")).hexdigest()


def _reported(headers: Mapping[bytes, bytes]) -> int:
    """How many local queries the caller reports. Raises InvalidRequest."""
    text = headers.get(REPORT)
    if text is None:
        return 0
    found = _REPORTED.fullmatch(text)
    if found is None:
        message = "X-STMS-Local must be the number of a version and a count of queries, such as 3:1200."
        raise InvalidRequest(message, code="bad_header")
    return int(found[1])


def _tag(served: ServableStudent, digest: str) -> bytes:
    return b'"%d-%s"' % (served.version, digest.encode("ascii"))


def _has(wanted: bytes | None, served: ServableStudent, digest: str) -> bool:
    """Whether If-None-Match shows that the caller has the package already."""
    return wanted is not None and (wanted == b"*" or _tag(served, digest) in wanted)


def _headers(served: ServableStudent, digest: str) -> list[Header]:
    headers = [
        (b"etag", _tag(served, digest)),
        _CACHING,
        (b"x-model", served.model.encode("ascii")),
        (b"x-model-version", b"%d" % served.version),
    ]
    columns = served.columns
    if columns.encoder_digest is not None:
        headers.append((b"x-encoder", columns.encoder_digest.encode("ascii")))
    if columns.index_base is not None:
        headers.append((b"x-index-base", b"%d" % columns.index_base))
    return headers
