"""The paths of queries: one class of a model, or a model whose classes the body names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from app.domain.errors import NotFound
from app.domain.names import is_class_label, is_reference

PREFIX: Final = b"/v1/models/"
SUFFIXES: Final = (b":query", b"%3Aquery", b"%3aquery")

_MIDDLE: Final = b"/classes/"
_SUFFIX: Final = b":query"
_CACHE_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """reference: to the model: ``name``, ``name@alias`` or ``name@3``. model: its name.

    label: the class; None if the body names the classes.
    """

    reference: str
    model: str
    label: str | None


@lru_cache(_CACHE_SIZE)
def parse_query_path(raw_path: bytes) -> ParsedPath:
    """Parse a path that begins with `PREFIX` and ends with one of `SUFFIXES`. Raises NotFound.

    The class is everything between ``/classes/`` and ``:query``, so it may contain slashes and colons,
    encoded or not. The cache holds no errors, and valid paths are short, so its memory is bounded.
    """
    # A model name has no slash, so the first "/classes/" of the encoded path ends it.
    head, middle, tail = raw_path[len(PREFIX) :].partition(_MIDDLE)
    if b"%" in raw_path:
        head, tail = unquote_to_bytes(head), unquote_to_bytes(tail)
    last = tail if middle else head
    try:
        reference = (head if middle else last[: -len(_SUFFIX)]).decode("ascii")
        label = last[: -len(_SUFFIX)].decode("utf-8") if middle else None
    except UnicodeDecodeError as error:
        raise NotFound("The path of the query is not UTF-8.", code="class_not_found") from error
    if not is_reference(reference):
        raise NotFound("There is no such model: the path is not that of a query.", code="model_not_found")
    if label is not None and not is_class_label(label):
        raise NotFound(f"Model {reference!r} has no such class.", code="class_not_found")
    return ParsedPath(reference, reference.partition("@")[0], label)
