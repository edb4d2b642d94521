"""The students of a bundle, evaluated in this program without a service. Needs NumPy and safetensors."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from stms_client._packed.errors import InvalidPackage
from stms_client._packed.head import PackedHead
from stms_client._packed.labels import PackedLabels
from stms_client.arrays import ClassName, Row, Rows, class_name
from stms_client.cards import Facts, Shown
from stms_client.errors import InvalidInput, Json, StmsError
from stms_client.evaluator import Evaluator, named_maps
from stms_client.results import Decision, Decisions, Package

_FORMATS: Final = ("stms.bundle.1", "stms.bundle.2")
_MOST_LABELS: Final = 10_000
_MANIFEST: Final = "manifest.json"
_STUDENTS: Final = "students.jsonl"
_SIGNATURE: Final = "model.sig"
_DIGEST: Final = re.compile("[0-9a-f]{64}")

Read: TypeAlias = Callable[[str], bytes]
"""From the name of a member to its bytes. Raises KeyError unless it is a regular file, and OSError."""


class Bundle(Shown):
    """One version of a model from a file, see `open_bundle`. Threads may share it.

    Rows, records and texts are as those of `Client.query`, and the answers have the same bits.

    model, version: as the bundle says. labels: the classes that can be asked about. columns: names of the
    columns of its rows, or None. width: number of columns. takes_records: whether rows are records, or texts.
    """

    def __init__(
        self,
        labels: Sequence[str],
        columns: Sequence[str] | None,
        evaluator: Evaluator,
        *,
        width: int,
        takes_records: bool,
    ) -> None:
        self.labels, self.columns, self.width = tuple(labels), columns, width
        self.model, self.version, self.takes_records = evaluator.model, evaluator.version, takes_records
        self._evaluator = evaluator

    def _facts(self) -> Facts:
        return {"model": self.model, "version": self.version, "classes": len(self.labels)}

    def is_class(self, label: ClassName, x: Row | None = None, *, text: str | None = None) -> bool:
        """Whether one row or text belongs to the class. Raises InvalidInput."""
        return self._evaluator.match(label, x, text)

    def query(self, label: ClassName, x: Row | None = None, *, text: str | None = None) -> Decision:
        """The decision on one row or text. Raises InvalidInput."""
        return self._evaluator.decision(label, x, text)

    def query_rows(
        self, label: ClassName, rows: Rows | None = None, *, texts: Sequence[str] | None = None
    ) -> Decisions:
        """The decisions on many rows or texts. Raises InvalidInput."""
        return self._evaluator.decisions(label, rows, texts)


def open_bundle(path: str | Path, labels: Sequence[ClassName] | None = None) -> Bundle:
    """Read a bundle: the tar file of an export, or the folder that it was unpacked into.

    labels: the classes to read, by default all. Every part that is read must have its digest. Raises
    StmsError for what is not a bundle, damaged or of a later format, InvalidInput for a class that it does
    not have, and OSError.
    """
    with _members(Path(path)) as read, _problems_of(path):
        names = None if labels is None else [class_name(label) for label in labels]
        return _opened(_manifest(read, path), read, names)


def copy_bundle(path: str | Path, folder: Path) -> None:
    """Write what a bundle names, and nothing else, to a folder that does not exist; all of it has its digest.

    path: as for `open_bundle`. The folder is left out if that fails. Raises StmsError and OSError.
    """
    folder.mkdir(parents=True)
    try:
        with _members(Path(path)) as read, _problems_of(path):
            (folder / "blobs").mkdir()
            for name, content in _named(_manifest(read, path), read):
                (folder / name).write_bytes(content)
    except BaseException:
        shutil.rmtree(folder)
        raise


def _named(manifest: Json, read: Read) -> Iterator[tuple[str, bytes]]:
    """The members that a manifest names, with itself and the signature, which has no digest."""
    yield _MANIFEST, read(_MANIFEST)
    digests = list(manifest["files"])
    if manifest["students"] is not None:
        lines = _lines(manifest, read)
        yield _STUDENTS, lines
        digests += [json.loads(line)["digest"] for line in lines.splitlines()]
    for digest in dict.fromkeys(digests):
        yield f"blobs/{digest}", _blob(read, digest)
    with suppress(KeyError):
        yield _SIGNATURE, read(_SIGNATURE)


@contextmanager
def _problems_of(path: str | Path) -> Iterator[None]:
    """Raise StmsError for what is wrong with the content of a bundle."""
    try:
        yield
    except InvalidPackage as error:
        raise StmsError(f"{path} is damaged: {error}") from error
    except StmsError:
        # Some are ValueErrors, too.
        raise
    except (KeyError, ValueError, TypeError, tarfile.TarError) as error:
        raise StmsError(f"{path} is not a whole bundle: {error}") from error


def _manifest(read: Read, path: str | Path) -> Json:
    manifest = json.loads(read(_MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") not in _FORMATS:
        raise StmsError(f"{path} is not a bundle of the format {' or '.join(_FORMATS)}.")
    return manifest


def _lines(manifest: Json, read: Read) -> bytes:
    """The list of students."""
    lines = read(_STUDENTS)
    if hashlib.sha256(lines).hexdigest() != manifest["students"]["digest"]:
        raise StmsError("The list of students does not have its digest.")
    return lines


def _opened(manifest: Json, read: Read, labels: Sequence[str] | None) -> Bundle:
    inputs = (manifest["metrics"].get("inputs") or {}) if manifest["metrics"] else {}
    students = dict(_students(manifest, read, labels))
    missing = [label for label in labels or () if label not in students]
    if missing:
        raise InvalidInput(f"The bundle has no student of class {missing[0]!r:.80}.")
    encoder = None if manifest["encoder"] is None else _blob(read, manifest["encoder"])
    packages = {
        label: Package(
            content,
            f'"{manifest["version"]}-{digest}"',
            manifest["model"],
            manifest["version"],
            manifest["encoder"],
            inputs.get("index_base"),
        )
        for label, (content, digest) in students.items()
    }
    named = named_maps({label: content for label, (content, _) in students.items()})
    maps = {digest: _blob(read, digest) for digest in named}
    return Bundle(
        list(students),
        inputs.get("columns"),
        Evaluator(packages, encoder, maps),
        width=manifest["columns"],
        takes_records=encoder is not None,
    )


def _students(
    manifest: Json, read: Read, labels: Sequence[str] | None
) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """The students by class, each with its digest."""
    wanted = None if labels is None else set(labels)
    if labels is None and manifest["class_count"] > _MOST_LABELS:
        raise InvalidInput(f"The bundle has {manifest['class_count']} classes: name those that you need.")
    if manifest["students"] is None:
        yield from _of_head(manifest, read, labels)
        return
    for text in _lines(manifest, read).splitlines():
        line = json.loads(text)
        if wanted is None or line["label"] in wanted:
            yield line["label"], (_blob(read, line["digest"]), line["digest"])


def _of_head(
    manifest: Json, read: Read, labels: Sequence[str] | None
) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """The students that the rows of an imported head are."""
    table = manifest["class_table"]
    names = (
        PackedLabels.of(manifest["classes"]) if table is None else PackedLabels.from_bytes(_blob(read, table))
    )
    head = PackedHead.from_bytes(_blob(read, manifest["teacher"]), names)
    for label in names if labels is None else labels:
        row = names.find(label)
        if row is not None:
            content = head.student(row).to_bytes()
            yield label, (content, hashlib.sha256(content).hexdigest())


def _blob(read: Read, digest: str) -> bytes:
    if not _DIGEST.fullmatch(digest):
        raise StmsError(f"{digest!r:.80} is not the digest of a blob.")
    content = read(f"blobs/{digest}")
    if hashlib.sha256(content).hexdigest() != digest:
        raise StmsError(f"The blob {digest} does not have its digest.")
    return content


@contextmanager
def _members(path: Path) -> Iterator[Read]:
    """What reads the members of a tar file, or of a folder."""
    if path.is_dir():

        def read_file(name: str) -> bytes:
            # A pipe or a device may have no end.
            if not (path / name).is_file():
                raise KeyError(name)
            return (path / name).read_bytes()

        yield read_file
        return
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(tarfile.open(path, "r:"))
        except tarfile.TarError as error:
            raise StmsError(f"{path} is not a bundle: {error}") from error

        def read(name: str) -> bytes:
            member = archive.getmember(name)
            # A sparse member may be larger than any memory, and no bundle has one.
            if not member.isreg() or member.issparse():
                raise KeyError(name)
            file: Any = archive.extractfile(member)
            with file:
                return bytes(file.read())

        yield read
