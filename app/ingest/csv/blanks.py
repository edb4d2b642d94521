"""Tables whose cells are separated by blanks, often by several so that columns are aligned.

Arrow takes one separator between two cells, so the file is copied with one blank in place of each run of
blanks and tabs outside of quotes, and none at the ends of lines. Lines stay where they are.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.ingest.raw import disk_full_as_unavailable

_BLOCK_BYTES: Final = 1024**2
_RUN: Final = re.compile(rb"[ \t]+")
_RUN_OR_QUOTED: Final = re.compile(rb'"[^"]*"?|[ \t]+')
_AT_ENDS: Final = re.compile(rb"^ | (?=\r?$)", re.MULTILINE)


def with_single_blanks(text: bytes) -> bytes:
    """Complete lines with one blank between two cells."""
    if b'"' not in text:
        return _AT_ENDS.sub(b"", _RUN.sub(b" ", text))
    # A blank within quotes may stand at the end of a line, too: it is put out of reach meanwhile.
    quoted: list[bytes] = []

    def shortened(match: re.Match[bytes]) -> bytes:
        if match[0][:1] != b'"':
            return b" "
        quoted.append(match[0])
        return b'"'

    parts = iter(_AT_ENDS.sub(b"", _RUN_OR_QUOTED.sub(shortened, text)).split(b'"'))
    return next(parts) + b"".join(cell + part for cell, part in zip(quoted, parts, strict=True))


@contextmanager
def copy_with_single_blanks(path: Path, folder: Path | None) -> Iterator[Path]:
    """A copy of a file as `with_single_blanks` makes it, in ``folder``, for the duration of the block."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".csv") as copy:
        with disk_full_as_unavailable(), path.open("rb") as file:
            waiting = b""
            while block := file.read(_BLOCK_BYTES):
                waiting += block
                stop = waiting.rfind(b"\n") + 1
                # A quoted cell may go on in the next block.
                if stop and waiting.count(b'"', 0, stop) % 2 == 0:
                    copy.write(with_single_blanks(waiting[:stop]))
                    waiting = waiting[stop:]
            copy.write(with_single_blanks(waiting))
            copy.flush()
        yield Path(copy.name)
