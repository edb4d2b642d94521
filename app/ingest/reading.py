"""Reads an uploaded file of any format, and writes what is stored of it: the work of a reader process.

Orders and results are plain data with a JSON form. The readers of the formats are imported when they are
needed: a server process, which gives the orders, loads none of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from app.domain.errors import TooLarge
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits, alike_labels, disk_full_as_unavailable
from core.packed.head import Kind

MAX_NAMES_BYTES: Final = 256 * 1024**2
"""Most characters of all names of classes, or of columns, of a data set or head together."""


class DatasetOrder(msgspec.Struct, frozen=True, tag="dataset"):
    """Read the data set in ``source`` and write its rows to ``rows``, in the format of stored data sets.

    declared, filename: what the sender said of the format, see `app.ingest.formats.detect`. max_bytes: of the
    arrays in memory. temp_folder: for large arrays. label_column, unlabelled and the last fields: see
    `app.ingest.options.ReadingOptions`. is_dry: whether nothing is written.
    """

    source: str
    rows: str
    declared: str | None
    filename: str | None
    label_column: str | None
    max_rows: int
    max_columns: int
    max_bytes: int
    temp_folder: str
    unlabelled: Literal["accept", "drop", "refuse"] | None = None
    header: Literal["yes", "no"] | None = None
    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    index_column: str | None = None
    index_base: Literal[0, 1] | None = None
    columns: dict[str, str] | None = None
    null_values: tuple[str, ...] | None = None
    skip_lines: int | None = None
    column_names: tuple[str, ...] | None = None
    encoding: Literal["latin-1", "windows-1252"] | None = None
    rare_classes: Literal["drop", "keep", "refuse"] | None = None
    is_dry: bool = False

    @property
    def options(self) -> ReadingOptions:
        """What the sender said of the content."""
        return ReadingOptions(**{name: getattr(self, name) for name in ReadingOptions.__struct_fields__})


class DatasetContent(msgspec.Struct, frozen=True, tag="dataset"):
    """What a data set contains besides its rows. summary: see `app.ingest.validate.summarise`.

    variant: what sets this reading of the file apart from the usual one, see `app.ingest.raw.RawData`.
    """

    source_format: str
    variant: tuple[str, ...]
    rows: int
    test_rows: int
    columns: int
    classes: tuple[str, ...]
    summary: dict[str, Any]


class HeadOrder(msgspec.Struct, frozen=True, tag="head"):
    """Read the head in ``source``; write the packed head to ``weights`` and its class table to ``labels``.

    kind: see `core.packed.head`. listed: most classes that the result lists by name. max_bytes: of the
    decompressed weights. rivals, row_norm: see `app.ingest.packed_head`.
    """

    source: str
    weights: str
    labels: str
    kind: Kind
    listed: int
    max_classes: int
    max_columns: int
    max_bytes: int
    rivals: int = 0
    row_norm: float | None = None


class HeadContent(msgspec.Struct, frozen=True, tag="head"):
    """Size of a head, and the names of its classes if they are few enough to be listed, otherwise none.

    warnings: code and text of each.
    """

    count: int
    columns: int
    classes: tuple[str, ...]
    warnings: tuple[tuple[str, str], ...] = ()


class BundleOrder(msgspec.Struct, frozen=True, tag="bundle"):
    """Check the bundle in ``source``, see `app.ingest.bundle`; nothing is written.

    listed: most classes that a version lists by name. max_bytes: that may be mapped beside the file.
    keys: PEM text of the public keys one of which must have signed it; None: signatures are not looked at.
    """

    source: str
    listed: int
    max_classes: int
    max_columns: int
    max_bytes: int = 0
    keys: str | None = None


class Place(msgspec.Struct, frozen=True):
    """Where the content of a member begins in the file, and its bytes."""

    start: int
    size: int


class BundleContent(msgspec.Struct, frozen=True, tag="bundle"):
    """Where the members of a checked bundle are.

    manifest: its text; digest: its SHA-256. blobs: places of those that it names, by digest. students: place
    of their lines, if there are any. first: where the header of the first student begins; those of the others
    follow one after the other. signer: the key that has signed it, see `app.ingest.bundle_signature`.
    """

    manifest: str
    digest: str
    blobs: dict[str, Place]
    students: Place | None
    first: int
    signer: str | None = None


@contextmanager
def temporary_paths(folder: Path, *names: str) -> Iterator[list[Path]]:
    """Paths of new files for the results of an order, which are removed after the block."""
    token = secrets.token_hex(8)
    paths = [folder / f"{name}-{token}.tmp" for name in names]
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


Order: TypeAlias = DatasetOrder | HeadOrder | BundleOrder
Content: TypeAlias = DatasetContent | HeadContent | BundleContent


def read_dataset(order: DatasetOrder) -> DatasetContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, UnsupportedFormat, Unavailable and MemoryError."""
    from app.ingest import dataset_format
    from app.ingest.formats import detect, read
    from app.ingest.left_out import MIN_PER_CLASS, left_out_rows
    from app.ingest.validate import summarise, validate

    source = Path(order.source)
    limits = DatasetLimits(order.max_rows, order.max_columns, order.max_bytes, Path(order.temp_folder))
    kind = detect(source, declared=order.declared, filename=order.filename)
    raw = read(source, kind, limits, order.options)
    train, test = validate(raw, unlabelled=order.unlabelled, rare_classes=order.rare_classes)
    _check_names(train.classes)
    _check_names(raw.feature_names or ())
    summary = summarise(raw, train, test)
    rare = sum(count < MIN_PER_CLASS for count in train.class_counts.tolist())
    if rare:
        summary["single_row_classes"] = rare
    if not order.is_dry:
        with disk_full_as_unavailable(), Path(order.rows).open("wb") as output:
            for piece in dataset_format.encode(train, test):
                output.write(piece)
    unlabelled, single = left_out_rows(raw.train.labels, train)
    other = {"unlabelled=drop": unlabelled, "rare_classes=drop": single, "rare_classes=keep": rare}
    return DatasetContent(
        source_format=kind.value,
        variant=(*raw.variant, *(name for name, rows in other.items() if rows)),
        rows=train.n,
        test_rows=0 if test is None else test.n,
        columns=train.d,
        classes=train.classes,
        summary=summary,
    )


def read_head(order: HeadOrder) -> HeadContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, UnsupportedFormat and MemoryError."""
    from app.ingest.linear_head import HeadLimits, as_invalid_request, head_file
    from app.ingest.packed_head import write_head
    from core.errors import InvalidProblem
    from core.packed import PackedLabels

    limits = HeadLimits(order.max_classes, order.max_columns, order.max_bytes)
    with head_file(Path(order.source), limits) as head:
        _check_names(head.labels)
        try:
            table = PackedLabels.of(head.labels).to_bytes()
        except InvalidProblem as error:
            raise as_invalid_request(error) from error
        with disk_full_as_unavailable():
            Path(order.labels).write_bytes(table)
            write_head(Path(order.weights), head, order.kind, order.rivals, order.row_norm)
        count = len(head.labels)
        classes = tuple(head.labels) if count <= order.listed else ()
        return HeadContent(count, head.columns, classes, tuple(alike_labels(head.labels)))


def check_bundle(order: BundleOrder) -> BundleContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, Unprocessable and MemoryError."""
    from app.ingest.bundle import read_bundle

    return read_bundle(order)


def carry_out(order: Order) -> Content:
    """Carry out an order of any kind."""
    if isinstance(order, BundleOrder):
        return check_bundle(order)
    return read_dataset(order) if isinstance(order, DatasetOrder) else read_head(order)


def _check_names(names: Any) -> None:
    size = sum(map(len, names))
    if size > MAX_NAMES_BYTES:
        text = f"The names have {size} characters together; the limit is {MAX_NAMES_BYTES}."
        raise TooLarge(text, code="class_names_too_long")
