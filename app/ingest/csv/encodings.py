"""CSV files in other encodings than UTF-8, which are copied to UTF-8. The lines stay the same."""

from __future__ import annotations

import codecs
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.ingest.raw import disk_full_as_unavailable, invalid_file

_BLOCK_BYTES: Final = 1024**2
_SAMPLE_BYTES: Final = 4096
_MARKS: Final = {
    # The mark of UTF-16 is the beginning of the mark of UTF-32.
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WITHOUT_MARK: Final = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")


def unicode_encoding(beginning: bytes) -> str | None:
    """UTF-16 or UTF-32 by the mark with which a file begins, or by its first letters; None for others."""
    for mark, encoding in _MARKS.items():
        if beginning.startswith(mark):
            return encoding
    if b"\0" not in beginning[:_SAMPLE_BYTES]:
        return None
    return next((one for one in _WITHOUT_MARK if _is_text(beginning[:_SAMPLE_BYTES], one)), None)


def _is_text(sample: bytes, encoding: str) -> bool:
    """Whether bytes are lines of letters, most of them ASCII, in an encoding without a mark."""
    try:
        text = sample[: len(sample) // 4 * 4 or len(sample)].decode(encoding)
    except UnicodeDecodeError:
        return False
    is_plain = all(letter.isprintable() or letter in "\r\n\t" for letter in text)
    return is_plain and "\n" in text and 2 * sum(map(str.isascii, text)) > len(text)


@contextmanager
def copy_in_utf8(path: Path, encoding: str, folder: Path | None) -> Iterator[Path]:
    """A copy of a file in UTF-8, in ``folder``, for the duration of the block.

    Raises InvalidRequest for bytes that are invalid in the ``encoding``.
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
