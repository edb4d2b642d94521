"""Names: of models and aliases, which stand in URLs, and display names, which are free texts."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from pydantic import StringConstraints

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Name: TypeAlias = Annotated[str, StringConstraints(pattern=NAME)]
ALIAS: Final = r"^[A-Za-z][A-Za-z0-9._-]{0,99}$"
AliasName: TypeAlias = Annotated[str, StringConstraints(pattern=ALIAS)]
"""Begins with a letter: ``model@3`` is always version 3."""
Reference: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[A-Za-z0-9._-]{1,100})?$")
]
"""A model: ``name``, ``name@alias`` or ``name@3``."""

_UNSEEN: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
)
DISPLAY_NAME: Final = rf"^[^{_UNSEEN}]*[^\s{_UNSEEN}][^{_UNSEEN}]*$"
"""Pattern of a display name: no control, direction or invisible characters, and not only blanks."""

MAX_DISPLAY_NAME: Final = 200
"""Characters in the name of a data set."""

_PATTERN: Final = re.compile(DISPLAY_NAME)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def is_display_name(text: str, max_length: int) -> bool:
    """Whether ``text`` matches `DISPLAY_NAME` and has at most ``max_length`` characters."""
    # Lone surrogates cannot be encoded as UTF-8, and JSON Schema patterns cannot exclude them.
    return len(text) <= max_length and _PATTERN.fullmatch(text) is not None and not _SURROGATE.search(text)
