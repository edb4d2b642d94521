"""Texts that people read: names of data sets and of keys."""

from __future__ import annotations

import re
from typing import Final

_UNSEEN: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
)
TITLE: Final = rf"^[^{_UNSEEN}]*[^\s{_UNSEEN}][^{_UNSEEN}]*$"
"""Pattern of such a text: no control, direction or invisible characters, and not only blanks."""

MAX_TITLE: Final = 200
"""Characters in the name of a data set."""

_TITLE: Final = re.compile(TITLE)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def is_title(text: str, longest: int) -> bool:
    """Whether ``text`` is a `TITLE` of at most ``longest`` characters."""
    # Half of a surrogate pair has no place in UTF-8, nor in the patterns of JSON schemas.
    return len(text) <= longest and _TITLE.fullmatch(text) is not None and not _SURROGATE.search(text)
