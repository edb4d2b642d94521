"""The paths of packages: the student of a class, its map, the encoder of its version, several students."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from app.domain.errors import NotFound
from app.domain.names import is_class_label, is_reference
from app.http.types import Scope
from app.serving.query.paths import PREFIX

MEDIA_TYPES: Final = {
    "package": b"application/vnd.stms.student+safetensors",
    "map": b"application/vnd.stms.map+safetensors",
    "encoder": b"application/vnd.stms.encoder+safetensors",
}
"""Media types by the last part of the path."""
SEVERAL: Final = "packages"
"""The part of a path whose body names the classes."""

_MIDDLE: Final = b"/classes/"
_SUFFIXES: Final = tuple(f"/{part}".encode() for part in MEDIA_TYPES)
_OF_SEVERAL: Final = (b":packages", b"%3Apackages", b"%3apackages")
_CACHE_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class PackagePath:
    """reference: to the model: ``name``, ``name@alias`` or ``name@3``. model: its name. label: the class,
    empty if the body names the classes.

    part: ``package``, ``map``, ``encoder`` or ``packages``.
    """

    reference: str
    model: str
    label: str
    part: str

    @property
    def route(self) -> str:
        """The template of the path, for the metrics."""
        if self.part == SEVERAL:
            return "/v1/models/{model}:packages"
        return f"/v1/models/{{model}}/classes/{{class}}/{self.part}"


def is_package_request(scope: Scope) -> bool:
    """Whether a request is about a package, judged by its path only."""
    return scope["type"] == "http" and is_package_path(scope["raw_path"])


def is_package_path(path: bytes) -> bool:
    """Whether a path is that of a package."""
    if not path.startswith(PREFIX):
        return False
    return path.endswith(_SUFFIXES if _MIDDLE in path else _OF_SEVERAL)


@lru_cache(_CACHE_SIZE)
def parse_package_path(raw_path: bytes) -> PackagePath:
    """Parse a path of `is_package_request`. Raises NotFound.

    The class is everything between ``/classes/`` and the last slash, so it may contain slashes. The cache
    holds no errors, and valid paths are short, so its memory is bounded.
    """
    head, middle, tail = raw_path[len(PREFIX) :].partition(_MIDDLE)
    tail, _, part = tail.rpartition(b"/")
    if not middle:
        head, part = head[: -len(next(end for end in _OF_SEVERAL if head.endswith(end)))], SEVERAL.encode()
    try:
        reference = unquote_to_bytes(head).decode("ascii")
        label = unquote_to_bytes(tail).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotFound("The path of the package is not UTF-8.", code="class_not_found") from error
    if not is_reference(reference):
        message = "There is no such model: the path is not that of a package."
        raise NotFound(message, code="model_not_found")
    if middle and not is_class_label(label):
        raise NotFound(f"Model {reference!r} has no such class.", code="class_not_found")
    return PackagePath(reference, reference.partition("@")[0], label, part.decode("ascii"))
