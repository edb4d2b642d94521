"""What a path of the protocol asks for, and of which model, version and class.

A model is named as everywhere, ``name``, ``name@alias`` or ``name@3``; with ``:class`` behind it, it is one
student. Clients differ in what of a name they encode for the path (tritonclient leaves "/" as it is), so the
path is cut as it came and its parts are decoded afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from app.domain.errors import NotFound
from app.serving.query.paths import is_label

_SERVER: Final = {
    b"": "server",
    b"/": "server",
    b"/health/live": "live",
    b"/health/ready": "ready",
    b"/models/stats": "stats",
    b"/repository/index": "index",
}
_MODEL: Final = re.compile(rb"/models/(.+?)(?:/versions/([^/]+))?(/infer|/ready|/stats)?", re.DOTALL)
_REPOSITORY: Final = re.compile(rb"/repository/models/(.+)/(load|unload)", re.DOTALL)
_MODEL_OPERATIONS: Final = {
    None: "model",
    b"/infer": "infer",
    b"/ready": "model_ready",
    b"/stats": "model_stats",
}
_NAME: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})(?:@([A-Za-z0-9._-]{1,100}))?(?::(.+))?", re.DOTALL
)
_SUFFIX: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")

METHODS: Final = {"infer": "POST", "index": "POST", "load": "POST", "unload": "POST"}
"""The method of each operation; GET for those that are not named."""


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """operation: what is asked. name: the model as the client wrote it, empty for the server.

    model: its bare name. reference: with the version or alias, if one is named. label: the class, if one is.
    """

    operation: str
    name: str = ""
    model: str = ""
    reference: str = ""
    label: str | None = None

    @property
    def method(self) -> str:
        return METHODS.get(self.operation, "GET")


def parse_path(raw_path: bytes) -> ParsedPath:
    """The meaning of a path that begins with ``/v2``, percent-encoded as it came. Raises NotFound."""
    path = raw_path[3:]
    operation = _SERVER.get(path)
    if operation is not None:
        return ParsedPath(operation)
    found = _MODEL.fullmatch(path)
    if found is not None:
        return _place(_MODEL_OPERATIONS[found[3]], found[1], found[2])
    found = _REPOSITORY.fullmatch(path)
    if found is not None:
        return _place(found[2].decode(), found[1], None)
    raise NotFound("There is nothing at this path.", code="no_such_path")


def check_label(model: str, label: str) -> str:
    """``label`` if a class could have it as its name. Raises NotFound."""
    if not is_label(label):
        raise NotFound(f"Model {model!r} has no such class.", code="class_not_found")
    return label


def _place(operation: str, raw_name: bytes, raw_version: bytes | None) -> ParsedPath:
    name = _decoded(raw_name)
    found = _NAME.fullmatch(name)
    if found is None:
        raise NotFound("There is no such model.", code="model_not_found")
    model, suffix, label = found.groups()
    if label is not None:
        check_label(model, label)
    if raw_version is not None:
        version = _decoded(raw_version)
        if suffix is not None or not _SUFFIX.fullmatch(version):
            raise NotFound(f"Model {model!r} has no such version.", code="version_not_found")
        suffix = version
    return ParsedPath(operation, name, model, model if suffix is None else f"{model}@{suffix}", label)


def _decoded(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotFound("The path is not UTF-8.", code="no_such_path") from error
