"""The API key that a program uses if it names none."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_TEXT: Final = re.compile(r"stms_key_[0-9a-f]{24}_[A-Za-z0-9_-]{43}")
_MAX_BYTES: Final = 200


def find_api_key(host: str | None) -> str | None:
    """The key in ``STMS_API_KEY``; for a server on this machine also the one in ``admin.key``.

    host: of the server. The file is in the data folder, which is ``STMS_DATA_DIR`` or ``stms-data``. It is
    never sent to another machine. Returns None if there is no key, or the file belongs to another user.
    """
    named = os.environ.get("STMS_API_KEY")
    if named or host not in LOOPBACK:
        return named or None
    path = Path(os.environ.get("STMS_DATA_DIR") or "stms-data") / "admin.key"
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("latin-1").strip()
    except OSError:
        return None
    return text if _TEXT.fullmatch(text) else None
