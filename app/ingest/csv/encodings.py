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
            except UnicodeDecodeError as error:
                message = f"The file is not in {encoding}: {error.reason}."
                raise invalid_file(message, code="bad_encoding") from error
            copy.flush()
        yield Path(copy.name)
