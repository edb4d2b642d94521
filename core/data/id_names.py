"""Names of columns that identify rows: a word such as id at their end, or one that numbers things."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+|#")
_IDS: Final = frozenset({"id", "ids", "uid", "uuid", "guid", "oid", "pk", "key", "identifier", "rowid"})
_NUMBERS: Final = frozenset({"number", "num", "no", "nr", "index", "idx", "serial", "seq", "#"})
"""Words of ids that may also be of what was counted or measured."""
_GLUED: Final = re.compile(
    r".*(row|user|customer|client|case|record|sample|patient|order|item|product|student|employee|person"
    r"|passenger|obj|object|event|transaction|session|account|image|doc|document|line|subject|member|post)id"
)
_UNNAMED: Final = re.compile(r"(Unnamed: ?[0-9]+(_level_[0-9]+)?)?")


def is_id_name(name: str) -> bool:
    """Whether the name of a column says that it identifies rows: Id, customer_id, PassengerId, index, key."""
    words = _words(name)
    return (
        _UNNAMED.fullmatch(name.strip()) is not None
        or words[-1:] == ["index"] == words
        or (
            bool(words) and (words[-1] in _IDS or words[0] == "id" or _GLUED.fullmatch(words[-1]) is not None)
        )
    )


def is_number_name(name: str) -> bool:
    """Whether the name of a column says that it numbers something, which may be the rows: ticket_no."""
    return any(word in _NUMBERS for word in _words(name)[-1:])


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]
