"""Use case: one version of a model as a bundle, a tar file that is made while it is sent.

The same version gives the same bytes, and so does the same part of it. Memory stays flat however many
classes it has: the lines of its students are written to a temporary file first, because the manifest names
their digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed_version
from typing import IO, Any, Final

from app.domain import bundle
from app.domain.bundle import Manifest, StudentLine, StudentList
from app.domain.entities import Job, Json, ModelVersion, StudentRow, StudentState
from app.domain.errors import NotFound, Unavailable, Unprocessable
from app.services.models import served_student
from app.services.version_metrics import StudentTotals
from app.store.blob_cache import BlobCache
from app.store.large_blobs import read_large
from app.store.unit_of_work import Store

IMPORTED: Final = "imported"
"""Entry in the metrics of a version that came from a bundle: where the version was made."""
_IN_MEMORY: Final = 1 << 20
_PAGE: Final = 500
_PIECE: Final = 1 << 20
_BATCH: Final = 200
_SPEC: Final = ("features", "teacher", "student", "compact", "threshold", "calibration", "guard", "seed")
_PROVENANCE: Final = ("seed", "versions", "features", "warnings")
_OTHER_HOUSES: Final = frozenset({"remote", "scores"})
"""Teachers that are outside of the service; their names are not exported."""


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A bundle that is ready to be sent. digest: of its manifest. size: bytes of the tar file.

    lines: the member of the students, as it will be sent; it is deleted when it is closed.
    """

    manifest: bytes
    digest: str
    size: int
    blobs: Sequence[tuple[str, int]]
    lines: IO[bytes]
    lines_size: int

    def pieces(self, store: Store, start: int = 0) -> Iterator[bytes]:
        """The tar file from byte ``start`` on, in pieces of at most some MiB. store: of the version's tenant.

        The part before ``start`` is hardly read. Raises Unavailable, also during the iteration: if a blob is
        damaged, or the version was deleted in the meantime.
        """
        position = 0
        for name, size, content in self._members(store):
            end = position + bundle.member_bytes(size)
            if end > start:
                for piece in _member(name, size, content):
                    yield piece[max(0, start - position) :]
                    position += len(piece)
            position = end
        yield bundle.END[max(0, start - position) :]

    def _members(self, store: Store) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        """Names, sizes and contents in their order; a content is read when it is asked for."""
        yield bundle.MANIFEST, len(self.manifest), iter((self.manifest,))
        if self.lines_size:
            yield bundle.STUDENTS, self.lines_size, self._line_pieces()
        for digest, size in self.blobs:
            yield bundle.blob_name(digest), size, _blob(store, digest)
        for batch in _batches(map(bundle.read_line, bundle.lines_of(self._line_pieces()))):
            read = _small_blobs(store, batch) if len(batch) > 1 else partial(_blob, store)
            for line in batch:
                yield bundle.blob_name(line.digest), line.size, read(line.digest)

    def _line_pieces(self) -> Iterator[bytes]:
        at = 0
        while at < self.lines_size:
            self.lines.seek(at)
            piece = self.lines.read(_PIECE)
            yield piece
            at += len(piece)


@dataclass(frozen=True, slots=True)
class Part:
    """The parts of a version that its bundle contains, by default all.

    students: those of some classes, see `students_of`; None: all. teacher: whether to include the teacher.
    """

    students: Sequence[StudentRow] | None = None
    teacher: bool = True

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.students is None and self.teacher


def students_of(
    store: Store, files: BlobCache, version: ModelVersion, labels: Collection[str]
) -> list[StudentRow]:
    """The students of some classes of a version, numbered from 0 on in the order that the version has.

    Raises NotFound for a class without a student, and Unprocessable for a head.
    """
    if version.imported:
        raise _whole_head(version)
    rows = [served_student(store, files, version, label) for label in sorted(set(labels))]
    rows.sort(key=lambda row: row.class_index)
    return [dataclasses.replace(row, class_index=number) for number, row in enumerate(rows)]


def _whole_head(version: ModelVersion) -> Unprocessable:
    text = f"Version {version.version} of model {version.model!r} is one head: its bundle has all of it."
    return Unprocessable(text, code="head_is_whole")


@contextmanager
def open_bundle(store: Store, version: ModelVersion, part: Part | None = None) -> Iterator[BundleFile]:
    """The bundle of a version, whose temporary file lives until the end of the block.

    Raises NotFound and Unavailable, and Unprocessable for a part of a head.
    """
    part = part or Part()
    if version.imported and not part.is_all:
        raise _whole_head(version)
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as lines:
        students, packed, maps = None, 0, set[str]()
        job = None
        if version.job_id is not None:
            students, packed, maps = _write_lines(store, version, part, lines)
            with store.read() as uow:
                job = uow.jobs.get(version.job_id)
        manifest = _manifest(store, version, part, job, students, sorted(maps))
        data = manifest.to_bytes()
        blobs = [(digest, manifest.files[digest]) for digest in manifest.blobs]
        sizes = [len(data), *(size for _, size in blobs), *([students.size] if students else [])]
        yield BundleFile(
            manifest=data,
            digest=bundle.digest_of(data),
            size=sum(map(bundle.member_bytes, sizes)) + packed + len(bundle.END),
            blobs=blobs,
            lines=lines,
            lines_size=0 if students is None else students.size,
        )


def _manifest(
    store: Store,
    version: ModelVersion,
    part: Part,
    job: Job | None,
    students: StudentList | None,
    maps: list[str],
) -> Manifest:
    if part.students is not None:
        version, job = _of_part(version, part.students, job)
    teacher = version.teacher_digest if part.teacher else None
    digests = [teacher, version.class_table, version.encoder_digest, version.profile_digest, *maps]
    with store.read() as uow:
        sizes = uow.blobs.sizes([digest for digest in digests if digest is not None])
    origin: Json = version.metrics.get(IMPORTED, {})
    return Manifest(
        format=bundle.SHARING if maps else bundle.FORMAT,
        program=f"stms {installed_version('stms')}",
        model=version.model,
        version=version.version,
        created_at=float(origin.get("created_at", version.created_at)),
        method=version.method,
        columns=version.columns,
        class_count=version.class_count,
        classes=list(version.classes),
        class_table=version.class_table,
        teacher=teacher,
        encoder=version.encoder_digest,
        profile=version.profile_digest,
        dataset_digest=version.dataset_digest or None,
        metrics={name: value for name, value in version.metrics.items() if name != IMPORTED},
        spec=None if job is None else _spec(job),
        provenance={} if job is None else _only(job.provenance, _PROVENANCE),
        students=students,
        files=sizes,
        maps=maps,
    )


def _of_part(
    version: ModelVersion, students: Sequence[StudentRow], job: Job | None
) -> tuple[ModelVersion, Job | None]:
    """The version and its job as they would be with these students only."""
    totals = StudentTotals(version.method)
    totals.add(students)
    kept = {name: version.metrics[name] for name in (IMPORTED, "inputs") if name in version.metrics}
    labels = tuple(row.label for row in students)
    version = dataclasses.replace(
        version,
        classes=labels,
        class_count=len(labels),
        class_table=None,
        metrics=totals.metrics() | kept,
    )
    if job is not None:
        provenance = {name: value for name, value in job.provenance.items() if name != "warnings"}
        provenance |= {"warnings": totals.warnings} if totals.warnings else {}
        job = dataclasses.replace(job, provenance=provenance)
    return version, job


def _spec(job: Job) -> Json:
    """The hyper-parameters without names of data sets, aliases, and models or machines of others."""
    spec = _only(job.spec, _SPEC)
    teacher: Any = spec.get("teacher") or {}
    if teacher.get("model") is not None or teacher.get("method") in _OTHER_HOUSES or "url" in teacher:
        del spec["teacher"]
    return spec


def _only(values: Json, names: Sequence[str]) -> Json:
    return {name: values[name] for name in names if name in values}


def _write_lines(
    store: Store, version: ModelVersion, part: Part, lines: IO[bytes]
) -> tuple[StudentList | None, int, set[str]]:
    """Write the lines of the students; returns their member, the bytes of the members of the students, and
    the digests of the maps that these name.

    Raises NotFound for a version without any student.
    """
    sha, size, count, packed = hashlib.sha256(), 0, 0, 0
    maps: set[str] = set()
    for rows, sizes in _students(store, version, part):
        for row in rows:
            line = _line(row, sizes[str(row.digest)])
            content = line.to_bytes()
            sha.update(content)
            lines.write(content)
            size, count, packed = size + len(content), count + 1, packed + bundle.member_bytes(line.size)
            maps |= {line.map} if line.map is not None else set()
    if not count:
        text = f"Version {version.version} of model {version.model!r} has no student."
        raise NotFound(text, code="student_not_found")
    return StudentList(count, sha.hexdigest(), size), packed, maps


def _students(
    store: Store, version: ModelVersion, part: Part
) -> Iterator[tuple[Sequence[StudentRow], dict[str, int]]]:
    """The students of the bundle, by pages, and the bytes of their blobs."""
    if part.students is not None:
        with store.read() as uow:
            sizes = uow.blobs.sizes([str(row.digest) for row in part.students])
        yield part.students, sizes
        return
    after, has_more = -1, True
    while has_more:
        with store.read() as uow:
            page, has_more = uow.students.page(
                str(version.job_id), limit=_PAGE, after=after, method=version.method
            )
            rows = [row for row in page if row.state is StudentState.SUCCEEDED and row.digest is not None]
            sizes = uow.blobs.sizes([str(row.digest) for row in rows])
        if page:
            after = page[-1].class_index
        yield rows, sizes


def _line(row: StudentRow, size: int) -> StudentLine:
    def number(value: float | None) -> float | None:
        return None if value is None else float(value)

    return StudentLine(
        class_index=row.class_index,
        label=row.label,
        digest=str(row.digest),
        size=size,
        threshold=number(row.threshold),
        objective=number(row.objective),
        gap=number(row.gap),
        iterations=row.iterations,
        seconds=number(row.seconds),
        status=row.status,
        metrics=row.metrics,
        chosen=row.chosen,
        map=row.map_digest,
    )


def _batches(lines: Iterator[StudentLine]) -> Iterator[list[StudentLine]]:
    """Students whose blobs are read together: some small ones, or one."""
    batch: list[StudentLine] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == _BATCH or size + line.size > _IN_MEMORY):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += line.size
    if batch:
        yield batch


def _small_blobs(store: Store, lines: Sequence[StudentLine]) -> Callable[[str], Iterator[bytes]]:
    """A function from a digest to its content, for blobs of one chunk, read together on first use."""
    held: dict[str, bytes] = {}

    def read(digest: str) -> Iterator[bytes]:
        if not held:
            with store.read() as uow:
                held.update(uow.blobs.first_chunks([line.digest for line in lines]))
        content = held.pop(digest, b"")
        if hashlib.sha256(content).hexdigest() != digest:
            raise _damaged(digest)
        yield content

    return read


def _damaged(digest: str) -> Unavailable:
    return Unavailable(f"Blob {digest} is damaged where it is stored, or was deleted.", code="blob_damaged")


def _blob(store: Store, digest: str) -> Iterator[bytes]:
    """The content of a blob. Raises Unavailable."""
    sha = hashlib.sha256()
    for chunk in read_large(store, digest):
        sha.update(chunk)
        yield chunk
    if sha.hexdigest() != digest:
        raise _damaged(digest)


def _member(name: str, size: int, content: Iterator[bytes]) -> Iterator[bytes]:
    """A member of the tar file; short ones in one piece. Raises Unavailable for another size."""
    held = bundle.member_header(name, size)
    sent = 0
    for piece in content:
        sent += len(piece)
        held += piece
        if len(held) >= _PIECE:
            yield held
            held = b""
    if sent != size:
        raise Unavailable(f"{name} has {sent} bytes in the database, not {size}.", code="blob_damaged")
    yield held + bytes(bundle.padding_of(size))
