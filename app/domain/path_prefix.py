"""The path below which a reverse proxy publishes the service, such as ``/stms``."""

from __future__ import annotations

import re
from typing import Final

MAX_CHARACTERS: Final = 200
_PREFIX: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+)+")
_OWN: Final = frozenset(
    {"v1", "v2", "ui", "docs", "openapi.json", "livez", "readyz", "metrics", "version", "identity"}
)
"""First segments of the service's own paths: below them it would not be clear what a path means."""


def path_prefix(text: str) -> str:
    """The prefix without a slash at its end; empty for the root. Raises ValueError.

    Only characters that no one encodes, so that a prefix can neither name another host nor leave its header.
    """
    prefix = text.strip().removesuffix("/")
    if not prefix:
        return ""
    if len(prefix) > MAX_CHARACTERS or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"{text!r:.300} is not a path such as /stms, of letters, digits and ._~-")
    if prefix.split("/")[1] in _OWN:
        raise ValueError(f"{text!r:.300} begins as the paths of the service itself do")
    return prefix
