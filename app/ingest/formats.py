"""Detects the format of an upload from the declared format, the file name and the first bytes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from app.domain.errors import UnsupportedFormat
from app.domain.file_formats import ENDINGS, MAGIC, TRAITS, FileFormat
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits, RawData
from app.ingest.safetensors import LENGTH_BYTES, MAX_HEADER_BYTES

_OTHER_MAGIC: Mapping[bytes, str] = {
    b"\x1f\x8b": "compressed by gzip; send it uncompressed",
    b"BZh": "compressed by bzip2; send it uncompressed",
    b"\xfd7zXZ": "compressed by xz; send it uncompressed",
    b"\x80\x02": "a Python pickle, which is never read",
    b"\x80\x03": "a Python pickle, which is never read",
    b"\x80\x04": "a Python pickle, which is never read",
    b"\x80\x05": "a Python pickle, which is never read",
    b"\x89HDF": "an HDF5 file",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
}
_SVMLIGHT_LINE = re.compile(rb"\S+(?:[ \t]+[0-9]+:[^\s:]+)+\s*(?:#.*)?")
_SAMPLE_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"


def detect(path: Path, *, declared: str | None, filename: str | None) -> FileFormat:
    """Detect the format of a file.

    declared: format that the sender names; without it, the suffix of ``filename`` is used. Raises
    UnsupportedFormat for an unknown format, and for content that contradicts the expected format.
    """
    with path.open("rb") as file:
        beginning = file.read(_SAMPLE_BYTES)
    expected = _expected(declared, filename)
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # A spreadsheet program has written it as "Unicode text".
        if expected not in (None, FileFormat.CSV):
            raise UnsupportedFormat(
                f"The file was declared as {expected}, but its content is UTF-16 text.", code="wrong_format"
            )
        return FileFormat.CSV
    detected = FileFormat.SAFETENSORS if is_safetensors(beginning) else by_magic(beginning)
    if detected is None:
        if expected is not None and TRAITS[expected].is_text:
            return expected
        return _text(beginning, expected)
    if expected not in (None, detected):
        raise UnsupportedFormat(
            f"The file was declared as {expected}, but its content is {detected}.", code="wrong_format"
        )
    return detected


def read(
    path: Path,
    file_format: FileFormat,
    limits: DatasetLimits,
    options: ReadingOptions | None = None,
) -> RawData:
    """Read a file of a known format. options: what its sender says of it.

    Raises InvalidRequest, also for options that say nothing of this format, TooLarge, UnsupportedFormat.
    """
    options = options or ReadingOptions()
    # Imported here because a process that only loads stored data sets needs none of the readers.
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


def by_magic(beginning: bytes) -> FileFormat | None:
    """The binary format identified by its magic number; None for text.

    Raises UnsupportedFormat for other binary files.
    """
    for magic, file_format in MAGIC.items():
        if beginning.startswith(magic):
            return file_format
    for magic, description in _OTHER_MAGIC.items():
        if beginning.startswith(magic):
            raise UnsupportedFormat(f"The file is {description}.", code="wrong_format")
    if b"\0" in beginning:
        raise UnsupportedFormat("The file is binary, in a format that is not supported.", code="wrong_format")
    return None


def _text(beginning: bytes, expected: FileFormat | None) -> FileFormat:
    if expected is not None:
        raise UnsupportedFormat(
            f"The file was declared as {expected}, but its content is text.", code="wrong_format"
        )
    lines = (line.rstrip() for line in beginning.removeprefix(_BOM).splitlines())
    first = next((line for line in lines if line and not line.startswith((b"#", b"%"))), b"")
    if first.lstrip().startswith(b"{"):
        return FileFormat.JSONL
    if first.lower().startswith(b"@relation"):
        return FileFormat.ARFF
    return FileFormat.SVMLIGHT if _SVMLIGHT_LINE.fullmatch(first) else FileFormat.CSV
