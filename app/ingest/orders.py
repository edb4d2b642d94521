"""Orders to a reader process, and its answers: plain data with a JSON form."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from app.ingest.options import Decision, ReadingOptions
from core.packed.head import Kind


class DatasetOrder(msgspec.Struct, frozen=True, tag="dataset"):
    """Read the data set in ``source`` and write its rows to ``rows``, in the format of stored data sets.

    declared, filename: what the sender said of the format, see `app.ingest.formats.detect`. max_bytes: of the
    arrays in memory. temp_folder: for large arrays. options: what the sender said of the content. is_dry:
    whether nothing is written. subject_key: hexadecimal, by which subjects get their pseudonyms.
    """

    source: str
    rows: str
    declared: str | None
    filename: str | None
    max_rows: int
    max_columns: int
    max_bytes: int
    temp_folder: str
    options: ReadingOptions = ReadingOptions()
    is_dry: bool = False
    subject_key: str = ""


class DatasetContent(msgspec.Struct, frozen=True, tag="dataset"):
    """The contents of a data set besides its rows. summary: see `app.ingest.validate.summarise`.

    variant: how this reading of the file differs from the usual one, see `app.ingest.raw.RawData`.
    """

    source_format: str
    variant: tuple[str, ...]
    rows: int
    test_rows: int
    columns: int
    classes: tuple[str, ...]
    summary: dict[str, Any]


class NewLabel(msgspec.Struct, frozen=True):
    """The label of a training row, by its number or, where is_id, its id; None takes the label away."""

    row: int
    label: str | None
    is_id: bool = False


class RevisionOrder(msgspec.Struct, frozen=True, tag="revision"):
    """Write the rows of the stored data set in ``source`` to ``rows``, without some and followed by others.

    deleted: different numbers of training rows. added: path of the rows of another stored data set. kind,
    label_column, reading: of the data set, see `DatasetContent`. min_per_class: rows that each class must
    have. max_rows, max_columns, max_bytes: as of `DatasetOrder`. relabelled: numbers of training rows, or
    their ids, with their new labels, None to take one away. subjects: hexadecimal pseudonyms of those all
    rows of which are deleted. split: share and seed by which test rows are held out, kinds: what jobs say of
    columns where they are; see `core.encoding.revised_rows`. next_id, renamed: as there.
    """

    source: str
    rows: str
    deleted: tuple[int, ...]
    added: str | None
    kind: str
    label_column: str | None
    reading: tuple[Decision, ...]
    min_per_class: int
    max_rows: int
    max_columns: int
    max_bytes: int
    relabelled: tuple[NewLabel, ...] = ()
    subjects: tuple[str, ...] = ()
    split: tuple[float | None, int] | None = None
    kinds: dict[str, str] = {}
    next_id: int = 0
    renamed: dict[str, str] = {}


class RevisionContent(msgspec.Struct, frozen=True, tag="revision"):
    """What a revision contains besides its rows, and `core.encoding.revised_rows.RevisedRows` of it.

    deleted: rows that were deleted, of the training part and the test part together. rows_deleted: ascending
    numbers of those of the training part. held_out: test rows among the training rows.
    """

    content: DatasetContent
    added: int
    equal: int
    changed: tuple[str, ...]
    relabelled: int = 0
    deleted: int = 0
    rows_deleted: tuple[int, ...] = ()
    held_out: int = 0
    next_id: int = 0


class HeadOrder(msgspec.Struct, frozen=True, tag="head"):
    """Read the head in ``source``; write the packed head to ``weights`` and its class table to ``labels``.

    kind: see `core.packed.head`. listed: largest number of classes that the result lists by name. max_bytes:
    of the decompressed weights. rivals, row_norm: see `app.ingest.packed_head`.
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
    """Size of a head, and the names of its classes; empty if they are too many to be listed.

    warnings: code and text of each.
    """

    count: int
    columns: int
    classes: tuple[str, ...]
    warnings: tuple[tuple[str, str], ...] = ()


class BundleOrder(msgspec.Struct, frozen=True, tag="bundle"):
    """Check the bundle in ``source``, see `app.ingest.bundle`; nothing is written.

    listed: largest number of classes that a version lists by name. max_bytes: limit of further mapped bytes.
    keys: PEM text of the public keys, one of which must have signed it; None: signatures are not checked.
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
    """The positions of the members of a checked bundle.

    manifest: its text; digest: its SHA-256. blobs: positions of those that it names, by digest. students:
    position of their lines, if there are any. first: position of the header of the first student; those of
    the others follow one after the other. signer: the key that has signed it, see
    `app.ingest.bundle_signature`.
    """

    manifest: str
    digest: str
    blobs: dict[str, Place]
    students: Place | None
    first: int
    signer: str | None = None


Order: TypeAlias = DatasetOrder | RevisionOrder | HeadOrder | BundleOrder
Content: TypeAlias = DatasetContent | RevisionContent | HeadContent | BundleContent
