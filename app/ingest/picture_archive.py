"""A ZIP archive of pictures: folders named by their classes, or a table of file names and labels.

    cats/1.jpg, dogs/7.png                        the class is the last folder
    train/cats/1.jpg, test/cats/2.jpg             two parts
    metadata.csv or metadata.jsonl, 1.jpg, 7.png  ``file_name`` and a column of labels

One folder around everything is looked through. Hidden files are left out. Nothing is decoded here: pictures
are checked by their heads, and kept as they were sent.
"""

from __future__ import annotations

import csv
import io
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import numpy as np

from app.domain.errors import InputFault, TooLarge
from app.encoders.faults import require_images
from app.ingest import mapped_arrays
from app.ingest.options import Decision, ReadingOptions
from app.ingest.other_files import PICTURES
from app.ingest.picture_cells import COLUMN, MAX_PICTURE_FAULTS, PictureCollector, check_picture_cell
from app.ingest.raw import DatasetLimits, RawData, RawPart, RawTable, invalid_file, invalid_rows
from core.data.schema import Kind, KindSpec
from core.data.table import Table

OPTIONS: Final = ("label_column",)
"""What can be said of a ZIP of pictures."""
MAX_ENTRIES: Final = 200_000
MAX_RATIO: Final = 200
"""Bytes of a member for each of its bytes in the archive, of members that are not small."""
MAX_NAME_BYTES: Final = 1000
MAX_METADATA_BYTES: Final = 64 * 1024**2
_SMALL: Final = 64 * 1024
_MAX_DIRECTORY: Final = 128 * 1024**2
_END_BYTES: Final = 66_000
_ENCRYPTED: Final = 0x1
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ARCHIVES: Final = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_LEFT_OUT: Final = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir"})
_METADATA: Final = ("metadata.csv", "metadata.jsonl")
_FILE_NAMES: Final = ("file_name", "filename", "file", "path", "image")
_LABELS: Final = ("label", "class", "target", "category", "y")
_PARTS: Final = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "test",
    "valid": "test",
    "validation": "test",
}
_LAYOUTS: Final = (
    "Put the pictures of each class into a folder of its name (cats/1.jpg, dogs/7.png); or such folders into"
    " train/ and test/; or beside the pictures a metadata.csv or metadata.jsonl with the columns file_name"
    " and label."
)


@dataclass(frozen=True, slots=True)
class _Member:
    """One picture. name: in the archive. label: its class. part: train or test."""

    name: str
    label: str
    part: str


def read_pictures(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read a ZIP of pictures as a table with one column of pictures.

    Raises InvalidRequest that names members and why they are refused, or that the libraries of pictures are
    missing, and TooLarge.
    """
    require_images()
    _check_directory(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, limits, options)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise invalid_file(f"The ZIP archive is damaged: {error}.", code="broken_archive") from error


def _check_directory(path: Path) -> None:
    """Raise TooLarge for a list of members that would take too much memory."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END_BYTES))
        end = file.read()
    place = end.rfind(b"PK\x05\x06")
    if place >= 0 and _MAX_DIRECTORY < int.from_bytes(end[place + 12 : place + 16], "little") < 2**32 - 1:
        raise _too_many_entries()
    locator = end.rfind(b"PK\x06\x06")
    if locator >= 0 and int.from_bytes(end[locator + 40 : locator + 48], "little") > _MAX_DIRECTORY:
        raise _too_many_entries()


def _too_many_entries() -> TooLarge:
    return TooLarge(f"A ZIP archive may have {MAX_ENTRIES} members at most.", code="too_many_entries")


def _read(archive: zipfile.ZipFile, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    infos, left_out = _checked_members(archive.infolist())
    around = _folder_around(list(infos))
    names = {name.removeprefix(around): info for name, info in infos.items()}
    metadata = next((name for name in _METADATA if name in names), None)
    others: list[str] = []
    if metadata is not None:
        members, decision = _of_metadata(archive, names, metadata, options)
    else:
        members, others, decision = _of_folders(names)
    limits.check_shape(len(members), 1)
    raw = _data(archive, names, members, limits)
    warnings = []
    if left_out:
        text = f"{left_out} hidden files and files of operating systems are left out."
        warnings.append(("hidden_files", text))
    if others:
        shown = ", ".join(f"{name!r:.80}" for name in others[:5])
        warnings.append(("other_files", f"{len(others)} files that are no pictures are left out: {shown}."))
    decisions = [decision]
    if around:
        reason = "one folder is around everything, and is looked through"
        decisions.append(Decision("folder", around, reason))
    train, test = raw
    return RawData(train, test, label_column="label", decisions=tuple(decisions), warnings=tuple(warnings))


def _checked_members(
    infos: Sequence[zipfile.ZipInfo],
) -> tuple[dict[str, zipfile.ZipInfo], int]:
    """The files of an archive by their names, and how many are left out. Raises InvalidRequest, TooLarge."""
    if len(infos) > MAX_ENTRIES:
        raise _too_many_entries()
    faults: list[InputFault] = []
    kept: dict[str, zipfile.ZipInfo] = {}
    left_out = 0
    for info in infos:
        found = _fault_of(info, kept)
        if found is not None:
            faults.append(InputFault("file", found[0], f"{info.filename!r:.200}: {found[1]}"))
            if len(faults) == MAX_PICTURE_FAULTS:
                break
        elif info.is_dir():
            continue
        elif _is_hidden(info.filename):
            left_out += 1
        else:
            kept[info.filename] = info
    if faults:
        more = f" ({len(faults)} members are listed.)" if len(faults) > 1 else ""
        raise invalid_file(faults[0].message + more, code=faults[0].code, faults=faults)
    if not kept:
        raise invalid_file("The ZIP archive has no files.", code="no_rows")
    return kept, left_out


def _fault_of(info: zipfile.ZipInfo, kept: Mapping[str, Any]) -> tuple[str, str] | None:
    """Code and reason why a member is refused; None for one that is not."""
    name = info.filename
    parts = name.split("/")
    if info.flag_bits & _ENCRYPTED:
        return "encrypted_member", "the member is encrypted; make the archive without a password."
    if stat.S_ISLNK(info.external_attr >> 16):
        return "link_in_archive", "the member is a link; put the file itself into the archive."
    is_outside = name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]
    if is_outside or "\0" in name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return "bad_member_name", "the name of the member leads out of the archive, or is too long."
    if name in kept:
        return "duplicate_member", "two members have this name."
    if name.lower().endswith(_ARCHIVES):
        return "nested_archive", "an archive in the archive is not read; unpack it first."
    if info.compress_type not in _METHODS:
        return "unsupported_compression", "members are read that are stored or deflated, and no others."
    if info.file_size > max(_SMALL, MAX_RATIO * max(info.compress_size, 1)):
        return "suspicious_ratio", f"the member is more than {MAX_RATIO} times as large as it is compressed."
    return None


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part.lower() in _LEFT_OUT for part in name.split("/"))


def _folder_around(names: Sequence[str]) -> str:
    """The one folder around everything, with its slash; empty without one.

    A single folder of pictures alone is a class, and not around anything.
    """
    first = {name.split("/", 1)[0] for name in names}
    if len(first) != 1 or any("/" not in name for name in names):
        return ""
    folder = f"{first.pop()}/"
    inside = [name.removeprefix(folder) for name in names]
    return folder if any("/" in name or name in _METADATA for name in inside) else ""


def _of_folders(
    names: Mapping[str, zipfile.ZipInfo],
) -> tuple[list[_Member], list[str], Decision]:
    """The pictures by their folders, and files that are none. Raises InvalidRequest without two classes."""
    pictures = sorted(name for name in names if name.lower().endswith(PICTURES))
    others = sorted(set(names).difference(pictures))
    tops = {name.split("/", 1)[0].lower() for name in pictures if name.count("/") > 1}
    is_divided = (
        bool(tops)
        and all(name.count("/") > 1 for name in pictures)
        and tops <= _PARTS.keys()
        and {"train", "test"} == {_PARTS[top] for top in tops}
    )
    members = [
        _Member(
            name,
            PurePosixPath(name).parent.name,
            _PARTS[name.split("/", 1)[0].lower()] if is_divided else "train",
        )
        for name in pictures
    ]
    bare = [member.name for member in members if not member.label]
    classes = {member.label for member in members if member.part == "train"}
    if bare or len(classes) < 2:
        what = (
            f"{len(bare)} pictures are in no folder, such as {bare[0]!r:.80}"
            if bare
            else f"the archive has {len(classes)} folder of pictures"
        )
        text = f"The classes of the pictures are not known: {what}. {_LAYOUTS}"
        raise invalid_file(text, code="no_classes", faults=[InputFault("y", "no_classes", text)])
    reason = "each picture has the name of its last folder as its class"
    return members, others, Decision("label_column", "folder", reason)


def _of_metadata(
    archive: zipfile.ZipFile,
    names: Mapping[str, zipfile.ZipInfo],
    metadata: str,
    options: ReadingOptions,
) -> tuple[list[_Member], Decision]:
    """The pictures that a table beside them names. Raises InvalidRequest, TooLarge."""
    info = names[metadata]
    if info.file_size > MAX_METADATA_BYTES:
        text = f"{metadata} has more than {MAX_METADATA_BYTES} bytes."
        raise TooLarge(text, code="metadata_too_large")
    try:
        text = archive.read(info).decode("utf-8-sig")
        records = list(_records(text, is_csv=metadata.endswith(".csv")))
    except (UnicodeDecodeError, csv.Error, msgspec.DecodeError) as error:
        raise invalid_file(f"{metadata} cannot be read: {error}.", code="bad_metadata") from error
    columns = list(dict.fromkeys(key for record in records for key in record))
    file_column = next((name for name in _FILE_NAMES if name in columns), None)
    said = options.label_column
    usual = [name for name in _LABELS if name in columns]
    rest = [name for name in columns if name != file_column]
    label = said if said is not None else next(iter([*usual, *(rest if len(rest) == 1 else ())]), None)
    if file_column is None or label not in columns:
        missing = "file_name" if file_column is None else "labels: say label_column (--label-column NAME)"
        text = f"{metadata} has no column {missing}. Its columns are {', '.join(columns)[:400]}."
        raise invalid_file(text, code="bad_metadata", faults=[InputFault("y", "bad_metadata", text)])
    faults: list[InputFault] = []
    members = []
    for row, record in enumerate(records):
        name = str(record.get(file_column) or "").replace("./", "", 1)
        value = record.get(label)
        if name not in names:
            message = f"Row {row} of {metadata} (counted from 0) names {name!r:.100}, which is not there."
            faults.append(InputFault("X", "missing_file", message, row=row))
        members.append(_Member(name, "" if value is None else str(value), "train"))
        if len(faults) == MAX_PICTURE_FAULTS:
            break
    if faults:
        raise invalid_rows(faults)
    return members, Decision(
        "label_column", label, f"{metadata} names the file and the label of each picture"
    )


def _records(text: str, *, is_csv: bool) -> Iterator[dict[str, Any]]:
    if is_csv:
        yield from csv.DictReader(io.StringIO(text, newline=""), strict=True)
        return
    decoder = msgspec.json.Decoder(dict[str, str | int | float | bool | None])
    for line in text.splitlines():
        if line.strip():
            yield decoder.decode(line)


def _data(
    archive: zipfile.ZipFile,
    names: Mapping[str, zipfile.ZipInfo],
    members: Sequence[_Member],
    limits: DatasetLimits,
) -> tuple[RawPart, RawPart | None]:
    """Both parts with the bytes of their pictures. Raises InvalidRequest naming faulty ones, TooLarge."""
    size = sum(names[member.name].file_size for member in members)
    limits.check_bytes(size)
    faults: list[InputFault] = []
    parts: dict[str, RawPart] = {}
    for part in ("train", "test"):
        own = [member for member in members if member.part == part]
        if not own:
            continue
        most = sum(names[member.name].file_size for member in own)
        buffer = mapped_arrays.empty((most,), np.uint8, limits.temp_folder)
        collector = PictureCollector(buffer)
        for row, member in enumerate(own):
            data = archive.read(names[member.name])
            fault = check_picture_cell(data)
            if fault is not None:
                field = "X" if part == "train" else "X_test"
                faults.append(InputFault(field, fault[0], f"{member.name!r:.200}: {fault[1]}", row=row))
                if len(faults) == MAX_PICTURE_FAULTS:
                    raise invalid_rows(faults)
            else:
                collector.add(data)
        if not faults:
            table = RawTable(
                Table((COLUMN,), (collector.cells(),)), kinds={COLUMN: KindSpec(Kind.IMAGE)}, known=("label",)
            )
            parts[part] = RawPart(table, [member.label for member in own])
    if faults:
        raise invalid_rows(faults)
    return parts["train"], parts.get("test")
