"""Records the files of ``app/`` whose functions run below a given function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_PREFIX = f"{Path(__file__).parents[1] / 'app'}/"


@contextmanager
def files_below(function: str) -> Iterator[set[str]]:
    """The files of ``app/``, relative to it, that run in this thread within calls of ``function``.

    function: bare name of a function of ``app/``; its own file counts.
    """
    files: set[str] = set()
    depth = 0

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(_PREFIX):
            return
        if code.co_name == function:
            depth += 1 if event == "call" else -1
        if depth or code.co_name == function:
            files.add(code.co_filename.removeprefix(_PREFIX))

    sys.setprofile(profile)
    try:
        yield files
    finally:
        sys.setprofile(None)
