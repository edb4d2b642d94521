"""Reads and checks an uploaded bundle: the work of a reader process. Formats: `app.domain.bundle`.

The first members determine what a bundle contains, so each header must be exactly the one that this
program writes for the next expected member: nothing else is read, and no name is used as a path.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
from numpy.typing import NDArray

from app.domain import bundle
from app.domain.bundle import BLOCK, Manifest, StudentLine
from app.domain.errors import InputFault, InvalidRequest, TooLarge, Unprocessable, UnsupportedFormat
from app.ingest.formats import beginning_of
from app.ingest.orders import BundleContent, BundleOrder, Place
from app.ingest.other_files import refuse_other
from core.data.labels import check_class_names
from core.data.validation import largest_value
from core.errors import InvalidPackage, InvalidProblem
from core.packed import PackedHead, PackedLabels, PackedStudent, PackedTeacher
from core.packed.codec import encode_front
from core.packed.encoder import Encoder
from core.packed.head import head_header, head_shapes
from core.packed.input_profile import InputProfile
from core.packed.map_packages import map_from_bytes

_Labels: TypeAlias = Sequence[str]

_PIECE: Final = 1 << 20
_NAMES: Final = 10_000
_USTAR: Final = 257
"""Position in the header of a tar file of the text that identifies it."""
_RECORD: Final = 20 * BLOCK
"""Tar programs pad a file to a multiple of this many bytes."""
_FORMAT: Final = re.compile(r"stms\.bundle\.(\d{1,9})")
_KINDS: Final = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.DIRTYPE: "a folder",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.XHDTYPE: "an extended header (pax)",
    tarfile.XGLTYPE: "a global header (pax)",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGNAME: "a long name of GNU tar",
    tarfile.GNUTYPE_LONGLINK: "a long link of GNU tar",
}


class _Format(msgspec.Struct):
    """The part of a manifest that is read first, because newer formats may have other fields."""

    format: str


def read_bundle(order: BundleOrder) -> BundleContent:
    """Check every byte of a bundle, and return the positions of its members.

    Raises InvalidRequest (``invalid_bundle``) that names the faulty member, TooLarge beyond the limits of
    the order, and Unprocessable for a bundle of a later release (``newer_format``), or one that is not signed
    by a key of the order (``unsigned_bundle``, ``wrong_signature``).
    """
    source = Path(order.source)
    _refuse_other(source)
    with source.open("rb") as file:
        size = file.seek(0, 2)
        if size < BLOCK:
            _fail("bundle", "The file is too short for a bundle.")
        # Never closed: arrays are views of it until they are gone.
        tar = _Members(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    manifest = _manifest(tar, order)
    students = None
    if manifest.students is not None:
        students = tar.take(bundle.STUDENTS, manifest.students.size, manifest.students.digest)
    places = {
        digest: tar.take(bundle.blob_name(digest), manifest.files[digest], digest)
        for digest in manifest.blobs
    }
    parts = _Parts(manifest, {digest: tar.view(place) for digest, place in places.items()})
    first = tar.position
    if students is not None:
        _check_students(tar, tar.view(students), manifest, parts)
    signature = tar.take_signature()
    tar.finish()
    text = str(tar.view(tar.manifest), "utf-8")
    digest, signer = bundle.digest_of(text.encode()), None
    if order.keys is not None:
        from app.ingest.bundle_signature import signer_of

        signer = signer_of(signature, digest, order.keys)
    return BundleContent(text, digest, places, students, first, signer)


def _refuse_other(source: Path) -> None:
    """Raise an error that describes a file that is not a tar file, if its kind is known."""
    beginning = beginning_of(source)
    if beginning[_USTAR : _USTAR + 5] == b"ustar":
        return
    try:
        refuse_other(source, beginning)
    except UnsupportedFormat as error:
        _fail("bundle", error.message)


class _Members:
    """The members of a tar file, which must come one after the other as they are asked for."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0
        self.manifest = Place(0, 0)

    def view(self, place: Place) -> memoryview:
        """The content of a member."""
        return self._data[place.start : place.start + place.size]

    def take(self, name: str, size: int | None, digest: str | None, limit: int = 0) -> Place:
        """The next member, which must have this name, size and SHA-256. size: None for up to ``limit``."""
        header = bytes(self._data[self.position : self.position + BLOCK])
        found = _size_in(header, name)
        if size is None and found > limit:
            raise TooLarge(f"{name} has {found} bytes; at most {limit} are read.", code="bundle_too_large")
        if size is not None and found != size:
            _fail(name, f"{name} has {found} bytes; the manifest says {size}.")
        if header != bundle.member_header(name, found):
            _fail(name, f"The header of {name} has other times, owners or rights than a bundle has.")
        place = Place(self.position + BLOCK, found)
        end = place.start + found + bundle.padding_of(found)
        if end > len(self._data):
            _fail(name, f"The file ends within {name}.")
        content = self.view(place)
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            _fail(name, f"{name} does not have the digest {digest}.")
        if any(self._data[place.start + found : end]):
            _fail(name, f"There are bytes between {name} and the next member.")
        self.position = end
        return place

    def take_signature(self) -> bytes | None:
        """The content of the signature, if that is the next member."""
        if _name_in(bytes(self._data[self.position : self.position + BLOCK])) != bundle.SIGNATURE:
            return None
        return bytes(self.view(self.take(bundle.SIGNATURE, None, None, bundle.MAX_SIGNATURE_BYTES)))

    def finish(self) -> None:
        """Check that nothing follows but the zeros at the end of a tar file."""
        rest = bytes(self._data[self.position : self.position + _RECORD + 1])
        if any(rest):
            header = rest[:BLOCK]
            _fail(_name_in(header), f"The bundle has a member that nothing names: {_name_in(header)!r:.120}.")
        if not 2 * BLOCK <= len(rest) <= _RECORD:
            _fail("bundle", "The bundle does not end as a tar file does.")


def _size_in(header: bytes, expected: str) -> int:
    """The size in a header, if it is the header of a regular file with this name."""
    if len(header) < BLOCK:
        _fail(expected, f"The file ends before {expected}.")
    if not any(header):
        _fail(expected, f"The bundle lacks {expected}.")
    try:
        member = tarfile.TarInfo.frombuf(header, "ascii", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        text = f"Where {expected} should be is no header of a tar file: {error}."
        raise _fault(expected, text) from error
    if member.type in _KINDS or not member.isreg():
        what = _KINDS.get(member.type, "of a kind that a bundle has not")
        _fail(expected, f"The member {member.name!r:.120} is {what}; a bundle has regular files only.")
    if member.name != expected:
        _fail(expected, f"The member {member.name!r:.120} stands where {expected} should be.")
    if not 0 < member.size <= bundle.MAX_MEMBER_BYTES:
        _fail(expected, f"{expected} says that it has {member.size} bytes.")
    return member.size


def _name_in(header: bytes) -> str:
    return header[:100].rstrip(b"\0").decode("ascii", "replace") or "bundle"


def _manifest(tar: _Members, order: BundleOrder) -> Manifest:
    tar.manifest = tar.take(bundle.MANIFEST, None, None, bundle.MAX_MANIFEST_BYTES)
    data = bytes(tar.view(tar.manifest))
    try:
        named = msgspec.json.decode(data, type=_Format).format
        if named not in {bundle.FORMAT, bundle.SHARING}:
            _refuse_format(named)
        manifest = msgspec.json.decode(data, type=Manifest)
        is_canonical = manifest.to_bytes() == data
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _fault(bundle.MANIFEST, f"The manifest cannot be read: {error}.") from error
    if not is_canonical:
        _fail(bundle.MANIFEST, "The manifest is not canonical JSON, or names something twice.")
    _check_manifest(manifest)
    for count, limit, what in (
        (manifest.class_count, order.max_classes, "classes"),
        (manifest.columns, order.max_columns, "columns"),
    ):
        if count > limit:
            raise TooLarge(f"The bundle has {count} {what}; the limit is {limit}.", code=f"too_many_{what}")
    if bool(manifest.classes) != (manifest.class_count <= order.listed):
        _fail("classes", f"A version lists its classes if they are at most {order.listed}.")
    return manifest


def _refuse_format(named: str) -> NoReturn:
    known = _FORMAT.fullmatch(named)
    if known is not None and int(known[1]) > int(bundle.SHARING.rpartition(".")[2]):
        text = f"The bundle has the format {named}; this release reads {bundle.FORMAT} and {bundle.SHARING}."
        raise Unprocessable(text, code="newer_format", faults=[InputFault("format", "newer_format", text)])
    _fail("format", f"The format is {named!r:.80}; a bundle has {bundle.FORMAT!r} or {bundle.SHARING!r}.")


def _check_manifest(manifest: Manifest) -> None:
    """Check that the fields of a manifest are consistent."""
    if bundle.has_nul(manifest.to_bytes()):
        _fail(bundle.MANIFEST, "The manifest has the character U+0000, which is not stored.")
    is_head = manifest.students is None
    if set(manifest.files) != set(manifest.blobs):
        _fail("files", "The manifest must give the size of every blob that it names, and of no other.")
    _check_maps(manifest)
    if is_head and (manifest.encoder or manifest.profile or manifest.spec is not None):
        _fail("students", "A version without students has a head, and neither encoder nor hyper-parameters.")
    if is_head and manifest.teacher is None:
        _fail("teacher", "A version without students has a head.")
    if is_head and (manifest.class_table is None or manifest.method not in {"head", "linear"}):
        _fail("method", "A version without students is a head or linear, and has a class table.")
    if not is_head and manifest.spec is None:
        _fail("spec", "A version with students has the hyper-parameters of its job.")
    if not is_head and bool(manifest.classes) == (manifest.class_table is not None):
        _fail("class_table", "A trained version either lists its classes or has a table of them.")
    if manifest.students is not None and manifest.students.count > manifest.class_count:
        _fail("students", "The version has more students than classes.")
    if manifest.profile is not None and manifest.encoder is None:
        _fail("profile", "A profile of inputs needs an encoder.")
    if manifest.classes and len(manifest.classes) != manifest.class_count:
        _fail("classes", "The number of listed classes is not the number of classes.")
    if manifest.spec is not None and len(bundle.canonical(manifest.spec)) > bundle.MAX_SPEC_BYTES:
        _fail("spec", f"The hyper-parameters take more than {bundle.MAX_SPEC_BYTES} bytes.")
    _check_known(manifest.metrics, bundle.VersionMetrics, "metrics")


def _check_maps(manifest: Manifest) -> None:
    """Check the entries of a manifest about maps that students share."""
    if bool(manifest.maps) != (manifest.format == bundle.SHARING):
        _fail("maps", f"A bundle has maps if its format is {bundle.SHARING}, and none otherwise.")
    if manifest.maps != sorted(set(manifest.maps)):
        _fail("maps", "The maps must be different, and in the order of their digests.")
    if manifest.maps and manifest.students is None:
        _fail("maps", "A version without students has no maps of students.")


def _check_known(metrics: dict[str, Any], kind: type[Any], field: str) -> None:
    """Raise InvalidRequest unless the metrics that pages read have the types that they expect."""
    try:
        msgspec.convert(metrics, kind)
    except msgspec.ValidationError as error:
        raise _fault(field, f"The metrics cannot be used: {error}.") from error


class _Parts:
    """The packages that a manifest names, each checked. labels: of all classes. width: of encoded rows.

    named: digests of the maps that students have named so far.
    """

    def __init__(self, manifest: Manifest, blobs: dict[str, memoryview]) -> None:
        self.width = manifest.columns
        self.labels = _labels(manifest, blobs)
        if manifest.encoder is not None:
            with _Packages("encoder"):
                encoder = Encoder.from_bytes(blobs[manifest.encoder])
                self.width = encoder.layout.columns
                if manifest.profile is not None:
                    InputProfile.from_bytes(blobs[manifest.profile], encoder)
        self.named: set[str] = set()
        with _Packages("maps"):
            self._maps = {digest: map_from_bytes(blobs[digest]) for digest in manifest.maps}
        if manifest.teacher is None:
            return
        with _Packages("teacher"):
            if manifest.students is None:
                _check_head(manifest, PackedHead.from_bytes(blobs[manifest.teacher], self._table))
            else:
                teacher = PackedTeacher.from_bytes(blobs[manifest.teacher])
                check_class_names(teacher.classes, "teacher", None)
                self._check_width("teacher", teacher.map.n_columns)

    @property
    def _table(self) -> PackedLabels:
        assert isinstance(self.labels, PackedLabels)  # noqa: S101 - a head has a class table
        return self.labels

    def _check_width(self, name: str, columns: int) -> None:
        if columns != self.width:
            _fail(name, f"The {name} has {columns} columns, the version {self.width}.")

    def check_student(self, line: StudentLine, data: memoryview) -> None:
        """Raise InvalidRequest unless a package is the student that its line describes."""
        name = bundle.blob_name(line.digest)
        with _Packages(name):
            student = PackedStudent.from_bytes(data, maps=self._maps)
        if line.map != (student.map.digest if student.shares_map else None):
            _fail(name, f"The student of class {line.label!r:.100} has another map than its line says.")
        self.named |= {line.map} if line.map is not None else set()
        if line.class_index >= len(self.labels) or self.labels[line.class_index] != line.label:
            _fail(bundle.STUDENTS, f"Class number {line.class_index} is not {line.label!r:.100}.")
        if student.label != line.label or line.threshold not in {None, student.threshold}:
            _fail(name, f"The student of class {line.label!r:.100} has another class or threshold.")
        self._check_width(name, student.map.n_columns)


def _labels(manifest: Manifest, blobs: dict[str, memoryview]) -> _Labels:
    """The labels of all classes, checked: few as a list, many as their table."""
    labels: _Labels = manifest.classes
    with _Packages("classes"):
        if manifest.class_table is not None:
            table = PackedLabels.from_bytes(blobs[manifest.class_table])
            table.verify()
            if manifest.classes and list(table) != manifest.classes:
                _fail("classes", "The listed classes are not those of the class table.")
            labels = table
        elif len(set(labels)) != len(labels):
            _fail("classes", "The manifest lists a class twice.")
        if len(labels) != manifest.class_count:
            _fail("classes", "The classes are not as many as the manifest says.")
        # By blocks, because there may be millions; a table knows the others by itself.
        for first in range(0, len(labels), _NAMES):
            check_class_names(labels[first : first + _NAMES], "classes", None)
    return labels


def _check_head(manifest: Manifest, head: PackedHead) -> None:
    """Look at all numbers of a head: its students are taken out of it without another look."""
    if head.kind != manifest.method or head.map.n_columns != manifest.columns:
        _fail("teacher", "The head has another kind, or other columns, than the manifest says.")
    with_threshold, rivals = head.threshold is not None, 0 if head.rivals is None else head.rivals.shape[-1]
    shapes = head_shapes(len(head.labels), manifest.columns, head.weights.dtype, with_threshold, rivals)
    front, _ = encode_front(head_header(head.kind), shapes)
    if bytes(head.read(0, len(front))) != front:
        # Rows are read at the places that follow from this header.
        _fail("teacher", "The head has another header than a packed head.")
    step = max(1, _PIECE // max(1, head.weights.shape[1]))
    for first in range(0, len(head.weights), step):
        for array in (head.weights, head.bias, head.threshold):
            if array is not None and not _are_usable(array[first : first + step]):
                _fail("teacher", f"The head has unusable numbers in classes {first} to {first + step}.")
    if head.rivals is not None and not ((head.rivals >= 0) & (head.rivals < len(head.labels))).all():
        _fail("teacher", "The head names rivals that it does not have.")


def _are_usable(numbers: NDArray[Any]) -> bool:
    # NaN fails both comparisons.
    largest = largest_value(numbers.dtype)
    return bool(numbers.min() >= -largest and numbers.max() <= largest)


def _check_students(tar: _Members, text: memoryview, manifest: Manifest, parts: _Parts) -> None:
    """Take the member of each student in the order of the lines, and check it."""
    count, last = 0, -1
    try:
        for content in bundle.lines_of(_pieces(text)):
            line = msgspec.json.decode(content, type=StudentLine)
            if line.to_bytes()[:-1] != content:
                _fail(bundle.STUDENTS, f"Line {count + 1} is not canonical JSON, or names something twice.")
            if line.class_index <= last:
                _fail(bundle.STUDENTS, f"Line {count + 1} is not of a later class than the one before it.")
            if bundle.has_nul(content):
                _fail(bundle.STUDENTS, f"Line {count + 1} has the character U+0000, which is not stored.")
            _check_known(line.metrics, bundle.StudentMetrics, bundle.STUDENTS)
            place = tar.take(bundle.blob_name(line.digest), line.size, line.digest)
            parts.check_student(line, tar.view(place))
            count, last = count + 1, line.class_index
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _fault(bundle.STUDENTS, f"Line {count + 1} cannot be read: {error}.") from error
    if manifest.students is None or count != manifest.students.count:
        _fail(bundle.STUDENTS, f"There are {count} lines; the manifest says otherwise.")
    if parts.named != set(manifest.maps):
        _fail("maps", "The manifest has a map that no student names.")


def _pieces(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield bytes(data[start : start + _PIECE])


class _Packages:
    """A context that converts core's errors about a package to errors of a bundle. field: its member."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, InvalidPackage | InvalidProblem):
            raise _fault(self._field, f"The {self._field} in the bundle cannot be used: {error}") from error


def _fault(field: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, code="invalid_bundle", faults=[InputFault(field, "invalid_bundle", text)])


def _fail(field: str, text: str) -> NoReturn:
    raise _fault(field, text)
