"""Detects the format of an upload from the declared format, the file name and the first bytes."""

from __future__ import annotations

import codecs
import re
from pathlib import Path, PurePath

from app.domain.errors import UnsupportedFormat
from app.domain.file_formats import ENDINGS, LABELS, MAGIC, TRAITS, FileFormat, in_words
from app.ingest.csv.encodings import unicode_encoding
from app.ingest.options import ReadingOptions
from app.ingest.other_files import is_picture_archive, refuse_other
from app.ingest.raw import DatasetLimits, RawData, invalid_file
from app.ingest.safetensors import LENGTH_BYTES, MAX_HEADER_BYTES

_SVMLIGHT_LINE = re.compile(rb"\S+(?:[ \t]+[0-9]+:[^\s:]+)+\s*(?:#.*)?")
_SAMPLE_BYTES = 64 * 1024


def detect(path: Path, *, declared: str | None, filename: str | None) -> FileFormat:
    """Detect the format of a file.

    declared: format that the sender names; without it, the suffix of ``filename`` is used. Raises
    UnsupportedFormat for an unknown format, for files that are no data (`app.ingest.other_files`), and for
    content that contradicts the expected format; InvalidRequest for an empty file.
    """
    expected = _expected(declared, filename)
    beginning = beginning_of(path)
    if not beginning:
        raise invalid_file("The file is empty.", code="empty_file")
    encoding = unicode_encoding(beginning)
    if encoding is not None:
        # A spreadsheet program or PowerShell has written it.
        beginning = beginning.decode(encoding, errors="ignore").encode()
    detected = binary_format(path, beginning)
    if detected is None:
        return _text(beginning, expected, encoding)
    if expected not in (None, detected):
        raise _contradiction(expected, detected.value, detected)
    return detected


def read(
    path: Path,
    file_format: FileFormat,
    limits: DatasetLimits,
    options: ReadingOptions | None = None,
) -> RawData:
    """Read a file of a known format. options: given by its sender.

    Raises InvalidRequest, also for options that do not apply to this format, TooLarge, UnsupportedFormat.
    """
    options = options or ReadingOptions()
    # Imported here, because a process that only loads stored data sets needs no readers.
    match file_format:
        case FileFormat.CSV:
            from app.ingest.csv import reader

            options.only("a CSV file", reader.OPTIONS)
            return reader.read_csv(path, limits, options)
        case FileFormat.SVMLIGHT:
            from app.ingest import svmlight

            options.only("an svmlight file", svmlight.OPTIONS)
            return svmlight.read_svmlight(path, limits, options)
        case FileFormat.NPZ:
            from app.ingest.npz import read_npz

            options.only("an .npz archive, whose arrays have names", ())
            return read_npz(path, limits)
        case FileFormat.NPY:
            from app.ingest import npz

            options.only("a table of numbers in an .npy file", npz.OPTIONS_OF_TABLES)
            return npz.read_npy(path, limits, options)
        case FileFormat.SAFETENSORS:
            from app.ingest.named_arrays import read_safetensors

            options.only("a safetensors file, whose arrays have names", ())
            return read_safetensors(path, limits)
        case FileFormat.PARQUET:
            from app.ingest import parquet

            options.only("a Parquet file", parquet.OPTIONS)
            return parquet.read_parquet(path, limits, options)
        case FileFormat.ARROW:
            from app.ingest import arrow_file

            options.only("an Arrow file", arrow_file.OPTIONS)
            return arrow_file.read_arrow(path, limits, options)
        case FileFormat.JSONL:
            from app.ingest import jsonl

            options.only("a file of JSON lines", jsonl.OPTIONS)
            return jsonl.read_jsonl(path, limits, options)
        case FileFormat.ARFF:
            from app.ingest import arff

            options.only("an ARFF file", arff.OPTIONS)
            return arff.read_arff(path, limits, options)
        case FileFormat.ZIP:
            from app.ingest import picture_archive

            options.only("a ZIP of pictures", picture_archive.OPTIONS)
            return picture_archive.read_pictures(path, limits, options)


def named(declared: str | None) -> FileFormat | None:
    """Parse a format name; None stays None. Raises UnsupportedFormat."""
    try:
        return None if declared is None else FileFormat(declared.lower())
    except ValueError as error:
        known = ", ".join(FileFormat)
        raise UnsupportedFormat(f"Format {declared!r:.80} is not supported; use one of {known}.") from error


def _expected(declared: str | None, filename: str | None) -> FileFormat | None:
    if declared is not None:
        return named(declared)
    return None if filename is None else ENDINGS.get(PurePath(filename).suffix.lower())


def is_safetensors(beginning: bytes) -> bool:
    """Whether a file begins with a plausible header length and a JSON object."""
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little")
    return length <= MAX_HEADER_BYTES and beginning[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def beginning_of(path: Path) -> bytes:
    """The first bytes of a file, which identify its format."""
    with path.open("rb") as file:
        return file.read(_SAMPLE_BYTES)


def binary_format(path: Path, beginning: bytes) -> FileFormat | None:
    """The binary format of a file with this beginning; None for text.

    Raises UnsupportedFormat for files that are no data, see `app.ingest.other_files`.
    """
    if is_safetensors(beginning):
        return FileFormat.SAFETENSORS
    refuse_other(path, beginning)
    for magic, file_format in MAGIC.items():
        if beginning.startswith(magic):
            is_pictures = file_format is FileFormat.NPZ and is_picture_archive(path, beginning)
            return FileFormat.ZIP if is_pictures else file_format
    if b"\0" in beginning:
        text = (
            f"The file is binary, in a format that is not supported. Those that are read: {in_words(LABELS)}."
        )
        raise UnsupportedFormat(text, code="wrong_format")
    return None


def _text(beginning: bytes, expected: FileFormat | None, encoding: str | None) -> FileFormat:
    """The format of text. encoding: UTF-16 or UTF-32, which is accepted for CSV only."""
    found = _format_of_text(beginning)
    if expected is not None and not TRAITS[expected].is_text:
        raise _contradiction(expected, f"{encoding.upper()} text" if encoding else "text", found)
    if expected is FileFormat.CSV and found in (FileFormat.JSONL, FileFormat.ARFF):
        raise _contradiction(expected, found.value, found)
    taken = expected or found
    if encoding is not None and taken is not FileFormat.CSV:
        name = encoding.upper()
        text = f"The file is {name} text, of which only CSV is read. Save it as UTF-8."
        raise UnsupportedFormat(text, code="wrong_format")
    return taken


def _contradiction(expected: FileFormat | None, content: str, detected: FileFormat) -> UnsupportedFormat:
    """The error for a file whose format is not the declared one."""
    text = (
        f"The file was declared as {expected}, but its content is {content}. If that is what you mean, say"
        f" format={detected} (--format {detected}), or give the file's name that ending."
    )
    return UnsupportedFormat(text, code="wrong_format")


def _format_of_text(beginning: bytes) -> FileFormat:
    lines = (line.rstrip() for line in beginning.removeprefix(codecs.BOM_UTF8).splitlines())
    first = next((line for line in lines if line and not line.startswith((b"#", b"%"))), b"")
    if first.lstrip().startswith(b'{"'):
        return FileFormat.JSONL
    if first.lower().startswith(b"@relation"):
        return FileFormat.ARFF
    return FileFormat.SVMLIGHT if _SVMLIGHT_LINE.fullmatch(first) else FileFormat.CSV
