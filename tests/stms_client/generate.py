"""Generates ``stms_client/sync.py`` from ``stms_client/aio.py`` by replacing tokens: ``make client``."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "stms_client"
DOCSTRING = '"""The blocking client, generated from `stms_client/aio.py` by ``make client``: do not edit."""'
REPLACED = {
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "async_file_pieces": "file_pieces",
    "asynccontextmanager": "contextmanager",
    "asyncio": "time",
}


def generate(source: str) -> str:
    """The source of the blocking client, made from that of the asyncio client."""
    lines = source.splitlines(keepends=True)
    # Backwards, so that the positions of earlier tokens remain valid.
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        row, start, end = token.start[0] - 1, token.start[1], token.end[1]
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            lines[row] = lines[row][:start] + lines[row][end:].lstrip(" ")
        elif token.type == tokenize.NAME and token.string in REPLACED:
            lines[row] = lines[row][:start] + REPLACED[token.string] + lines[row][end:]
    text = re.sub(r'^""".*?"""', DOCSTRING, "".join(lines), count=1, flags=re.DOTALL)
    text = text.replace(
        "`Client` has the same methods without ``await``, and may be shared by threads.",
        "Threads may share it. `AsyncClient` has the same methods for asyncio.",
    )
    for command in (["check", "--select=I", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FOLDER / "sync.py"), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    (FOLDER / "sync.py").write_text(generate((FOLDER / "aio.py").read_text("utf-8")), "utf-8")
