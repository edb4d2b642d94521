"""CSV files in other encodings than UTF-8: they are copied. Lines stay where they are."""

from __future__ import annotations

import codecs
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.ingest.raw import disk_full_as_unavailable, invalid_file

_BLOCK_BYTES: Final = 1024**2


def has_utf_16_mark(path: Path) -> bool:
    """Whether a file begins with the byte order mark of UTF-16."""
    with path.open("rb") as file:
        return file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@contextmanager
def copy_in_utf8(path: Path, encoding: str, folder: Path | None) -> Iterator[Path]:
    """A copy of a file in UTF-8, in ``folder``, for the duration of the block.

    Raises InvalidRequest for bytes that stand for nothing in the ``encoding``.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".csv") as copy:
        with disk_full_as_unavailable(), path.open("rb") as file:
            try:
                while block := file.read(_BLOCK_BYTES):
                    copy.write(decoder.decode(block).encode())
                decoder.decode(b"", final=True)
            except UnicodeError as error:
                reason = error.reason if isinstance(error, UnicodeDecodeError) else str(error)
                message = f"The file is not in {encoding}: {reason}."
                raise invalid_file(message, code="bad_encoding") from error
            copy.flush()
        yield Path(copy.name)
