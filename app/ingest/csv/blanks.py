"""Tables whose cells are separated by blanks, often by several so that columns are aligned.

Arrow expects one separator between two cells, so the file is copied with one blank instead of each run of
blanks and tabs outside of quotes, and without blanks at the ends of lines. The lines stay the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.ingest.raw import disk_full_as_unavailable

_BLOCK_BYTES: Final = 1024**2


def with_single_blanks(text: bytes) -> bytes:
    """Complete lines with one blank between two cells."""
    parts = text.split(b'"')
    # Every second part is within quotes.
    parts[::2] = map(_shortened, parts[::2])
    return b'"'.join(parts).strip(b" ")


def _shortened(text: bytes) -> bytes:
    text = text.replace(b"\t", b" ")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text.replace(b" \r\n", b"\r\n").replace(b" \n", b"\n").replace(b"\n ", b"\n")


@contextmanager
def copy_with_single_blanks(path: Path, folder: Path | None) -> Iterator[Path]:
    """A copy of a file as `with_single_blanks` makes it, in ``folder``, for the duration of the block."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".csv") as copy:
        with disk_full_as_unavailable(), path.open("rb") as file:
            waiting = b""
            while block := file.read(_BLOCK_BYTES):
                waiting += block
                stop = waiting.rfind(b"\n") + 1
                # A quoted cell may continue in the next block.
                if stop and waiting.count(b'"', 0, stop) % 2 == 0:
                    copy.write(with_single_blanks(waiting[:stop]))
                    waiting = waiting[stop:]
            copy.write(with_single_blanks(waiting))
            copy.flush()
        yield Path(copy.name)
