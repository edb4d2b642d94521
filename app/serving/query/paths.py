"""What the path of a query asks for: one class of a model, or the model, whose classes the body names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from app.domain.errors import NotFound

PREFIX: Final = b"/v1/models/"
SUFFIXES: Final = (b":query", b"%3Aquery", b"%3aquery")
MAX_LABEL: Final = 400
"""Characters in the name of a class."""

_MIDDLE: Final = b"/classes/"
_SUFFIX: Final = b":query"
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[A-Za-z0-9._-]{1,100})?")
_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """A path, understood.

    reference: of the model: ``name``, ``name@alias`` or ``name@3``. model: its name.
    label: the class; None where the body names the classes.
    """

    reference: str
    model: str
    label: str | None


@lru_cache(_REMEMBERED)
def parse_query_path(raw_path: bytes) -> ParsedPath:
    """The route of a path that begins with `PREFIX` and ends with one of `SUFFIXES`. Raises NotFound.

    The class is everything between ``/classes/`` and ``:query``, so it may hold slashes and colons, encoded
    or not. Errors are not remembered, and a path that is none is short: so the memory is bounded.
    """
    # The model has no slash, so the first "/classes/" of the path as it came ends it.
    head, middle, tail = raw_path[len(PREFIX) :].partition(_MIDDLE)
    if b"%" in raw_path:
        head, tail = unquote_to_bytes(head), unquote_to_bytes(tail)
    named = tail if middle else head
    try:
        reference = (head if middle else named[: -len(_SUFFIX)]).decode("ascii")
        label = named[: -len(_SUFFIX)].decode("utf-8") if middle else None
    except UnicodeDecodeError as error:
        raise NotFound("The path of the query is not UTF-8.", code="class_not_found") from error
    if not _REFERENCE.fullmatch(reference):
        raise NotFound("There is no such model: the path is not that of a query.", code="model_not_found")
    if label is not None and not is_label(label):
        raise NotFound(f"Model {reference!r} has no such class.", code="class_not_found")
    return ParsedPath(reference, reference.partition("@")[0], label)


def is_label(label: str) -> bool:
    """Whether a class may have this name."""
    return 0 < len(label) <= MAX_LABEL and "\0" not in label
