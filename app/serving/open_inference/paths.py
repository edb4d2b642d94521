"""Paths of the Open Inference Protocol: the operation, and its model, version and class.

A model is named as everywhere, ``name``, ``name@alias`` or ``name@3``; with ``:class`` appended, it is one
student. Clients differ in the characters that they percent-encode (tritonclient leaves "/" as it is), so the
encoded path is split first, and its parts are decoded afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote_to_bytes

from app.domain.errors import NotFound
from app.domain.names import MODEL_PART, VERSION_PART, is_class_label, is_version, qualified

_SERVER: Final = {
    b"": "server",
    b"/": "server",
    b"/health/live": "live",
    b"/health/ready": "ready",
    b"/models/stats": "stats",
    b"/repository/index": "index",
}
_MODEL: Final = re.compile(rb"/models/(.+?)(?:/versions/([^/]+))?(/infer|/ready|/stats|/config)?", re.DOTALL)
_ELSEWHERE: Final = re.compile(
    rb"(?:/models/.+)?/(?:(trace/setting)|(logging)|(generate|generate_stream)"
    rb"|((?:system|cuda)sharedmemory(?:/.*)?))",
    re.DOTALL,
)
_LACKS: Final = ("settings of traces", "settings of its log", "generated text", "shared memory")
"""Extensions of other servers of the protocol, in the order of the groups of `_ELSEWHERE`."""
_REPOSITORY: Final = re.compile(rb"/repository/models/(.+)/(load|unload)", re.DOTALL)
_MODEL_OPERATIONS: Final = {
    None: "model",
    b"/infer": "infer",
    b"/ready": "model_ready",
    b"/stats": "model_stats",
    b"/config": "model_config",
}
_NAME: Final = re.compile(rf"({MODEL_PART})(?:@({VERSION_PART}))?(?::(.+))?", re.DOTALL)

METHODS: Final = {"infer": "POST", "index": "POST", "load": "POST", "unload": "POST"}
"""Methods of operations; GET for all others."""


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """operation: of the protocol. name: the model as the client wrote it, empty for the server.

    model: its name only. reference: with the version or alias, if one is named. label: the class, if any.
    tenant: the tenant in which the reference is resolved, empty while the caller is unknown.
    """

    operation: str
    name: str = ""
    model: str = ""
    reference: str = ""
    label: str | None = None
    tenant: str = ""

    def of_tenant(self, tenant: str) -> ParsedPath:
        """The same path for a caller of ``tenant``."""
        return replace(self, tenant=tenant)

    @property
    def cache_reference(self) -> str:
        """The reference as the model cache knows it."""
        return qualified(self.tenant, self.reference)

    @property
    def method(self) -> str:
        return METHODS.get(self.operation, "GET")


def parse_path(raw_path: bytes) -> ParsedPath:
    """Parse a path that begins with ``/v2``, percent-encoded as it arrived. Raises NotFound."""
    path = raw_path[3:]
    operation = _SERVER.get(path)
    if operation is not None:
        return ParsedPath(operation)
    match = _ELSEWHERE.fullmatch(path)
    if match is not None:
        lacks = next(text for text, found in zip(_LACKS, match.groups(), strict=True) if found)
        raise NotFound(f"This server has no {lacks}.", code="no_such_path")
    match = _MODEL.fullmatch(path)
    if match is not None:
        return _model_path(_MODEL_OPERATIONS[match[3]], match[1], match[2])
    match = _REPOSITORY.fullmatch(path)
    if match is not None:
        return _model_path(match[2].decode(), match[1], None)
    raise NotFound("There is nothing at this path.", code="no_such_path")


def check_label(model: str, label: str) -> str:
    """Return ``label`` if it can be the name of a class. Raises NotFound."""
    if not is_class_label(label):
        raise NotFound(f"Model {model!r} has no such class.", code="class_not_found")
    return label


def _model_path(operation: str, raw_name: bytes, raw_version: bytes | None) -> ParsedPath:
    version = None if raw_version is None else _decoded(raw_version)
    return model_path(operation, _decoded(raw_name), version)


def model_path(operation: str, name: str, version: str | None) -> ParsedPath:
    """An operation on a model, as its name and its version are written. Raises NotFound."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise NotFound("There is no such model.", code="model_not_found")
    model, suffix, label = match.groups()
    if label is not None:
        check_label(model, label)
    if version is not None:
        if suffix is not None or not is_version(version):
            raise NotFound(f"Model {model!r} has no such version.", code="version_not_found")
        suffix = version
    return ParsedPath(operation, name, model, model if suffix is None else f"{model}@{suffix}", label)


def _decoded(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotFound("The path is not UTF-8.", code="no_such_path") from error
