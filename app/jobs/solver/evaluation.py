"""An evaluation in the solver process: selects the rows, computes both versions' answers, and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp

from app.domain.entities import Dataset, Json, ModelVersion
from app.domain.errors import NotFound, Unavailable
from app.domain.evaluation import LEAST_ROWS, Evaluation
from app.jobs.solver.job_data import Rows, as_table, row_identities
from app.services.datasets import get_dataset, load_dataset
from app.services.evaluations import reference_of, was_imported
from app.services.models import list_classes, open_head, open_student, resolve, served_student
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.data.repeated_rows import Digests
from core.data.row_identity import identities_from, matrix_identities
from core.data.schema import Kind, KindSpec, cells_as
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.monitoring.class_measures import ClassMeasures
from core.monitoring.comparison import compare_answers, compare_classes, overall
from core.monitoring.student_scores import student_scores
from core.packed import PackedStudent
from core.packed.encoder import Encoder
from core.packed.maps import PackedMap
from core.solvers.threads import one_blas_thread
from core.types import BoolArray, FloatArray, IntArray, Matrix, Progress, ProgressCallback

_SCORES_AT_ONCE: Final = 1 << 25
"""Scores of a version that are in memory at a time: 256 MiB."""
_LISTED: Final = 100
_SEEN_ROWS_UNKNOWN: Final = "seen_rows_unknown"
_COLUMN_FAULTS: Final = frozenset({"missing_column", "no_names", "wrong_columns"})


class VersionRows(NamedTuple):
    """Rows in the form that a version takes. X: (n, d). filled: (n,), as in `student_scores`.

    identities: (n,).
    """

    X: Matrix
    filled: FloatArray | None
    identities: Digests


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedVersion:
    """A version that is evaluated. labels: names of its classes. seen: ascending numbers of the rows that it
    was trained on; None if unknown. is_imported: whether they are unknown because it was trained elsewhere.
    maps: the maps of its students that were read, by digest.
    """

    version: ModelVersion
    labels: tuple[str, ...]
    encoder: Encoder | None
    seen: Digests | None
    is_imported: bool
    store: Store
    files: BlobCache
    maps: dict[str, PackedMap] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, files: BlobCache, reference: str) -> EvaluatedVersion:
        """The version that the reference names. Raises NotFound, Unavailable."""
        with store.read() as uow:
            version = resolve(uow.models, reference)
            job = None if version.job_id is None else uow.jobs.get(version.job_id)
        listed, _ = list_classes(store, files, version, limit=version.class_count)
        encoder = seen = None
        if version.encoder_digest is not None:
            encoder = Encoder.from_bytes(_blob(store, files, version.encoder_digest))
        if job is not None and job.rows_digest is not None:
            seen = identities_from(_blob(store, files, job.rows_digest))
        labels = tuple(label for _, label in listed)
        is_imported = job is None or was_imported(job)
        return cls(version, labels, encoder, seen, is_imported, store, files)

    def rows(self, rows: Rows) -> VersionRows:
        """Labelled rows of a data set in the form that this version takes. Raises InvalidProblem."""
        try:
            return self._rows(rows)
        except InvalidProblem as error:
            fault = error.faults[0]
            if fault.code not in _COLUMN_FAULTS:
                raise
            text = f"The rows have not the columns of {reference_of(self.version)}: {fault.message}"
            raise InvalidProblem(Fault("dataset_id", "wrong_columns", text)) from error

    def _rows(self, rows: Rows) -> VersionRows:
        if self.encoder is not None:
            table = as_table(rows)
            encoded = table.encoded(self.encoder)
            filled = self.encoder.filled_shares(table.table)
            return VersionRows(encoded.X, filled, row_identities(table, self.encoder))
        X = self._numbers(rows)
        return VersionRows(X, None, matrix_identities(X))

    def _numbers(self, rows: Rows) -> Matrix:
        """Numbers in the order of the version's columns."""
        names: Sequence[str] | None = self.version.inputs.get("columns")
        wanted = self.version.columns
        if isinstance(rows, LabelledTable):
            if names is None:
                raise InvalidProblem(Fault("X", "no_names", "its columns have no names."))
            missing = [name for name in names if name not in rows.table.names]
            if missing:
                message = f"there is no column {missing[0]!r:.80}."
                raise InvalidProblem(Fault("X", "missing_column", message))
            return np.column_stack([_numbers_of(rows, name) for name in names])
        given = rows.feature_names
        if rows.d != wanted:
            message = f"there are {rows.d} columns instead of {wanted}."
            raise InvalidProblem(Fault("X", "wrong_columns", message))
        if names is None or given is None or list(given) == list(names) or not {*names} & {*given}:
            return rows.X
        missing = [name for name in names if name not in given]
        if missing:
            message = f"there is no column {missing[0]!r:.80}."
            raise InvalidProblem(Fault("X", "missing_column", message))
        return rows.X[:, [given.index(name) for name in names]]

    def has_seen(self, rows: VersionRows) -> BoolArray:
        """Whether the version was trained on each row, (n,)."""
        if self.seen is None or not len(self.seen):
            return np.zeros(len(rows.identities), dtype=bool)
        places = np.searchsorted(self.seen, rows.identities).clip(max=len(self.seen) - 1)
        found: BoolArray = self.seen[places] == rows.identities
        return found

    def student(self, label: str) -> PackedStudent | None:
        """The student of a class; None if it has none. Raises Unavailable."""
        version = self.version
        try:
            if version.imported:
                head = open_head(self.store, self.files, version)
                place = head.labels.find(label)
                return None if place is None else head.student(place)
            row = served_student(self.store, self.files, version, label)
        except NotFound:
            return None
        return open_student(self.store, self.files, row, self.maps)


def evaluate(store: Store, files: BlobCache, evaluation_id: str, progress: ProgressCallback) -> Json:
    """The result of an evaluation: column values, and the report's ``classes`` and ``not_compared``.

    Raises NotFound, Unavailable, InvalidProblem.
    """
    progress(Progress("data", 0, 1))
    with store.read() as uow:
        evaluation = uow.evaluations.get(evaluation_id)
    references = [one for one in (evaluation.version, evaluation.baseline) if one is not None]
    versions = [EvaluatedVersion.of(store, files, reference) for reference in references]
    in_all = _common_labels(versions)
    known = [label for label in versions[0].labels if label in in_all]
    if not known:
        message = f"{' and '.join(references)} have no class in common."
        raise InvalidProblem(Fault("baseline", "no_common_classes", message))
    codes, rows, left_out = _rows(store, files, evaluation, versions, known)
    others = {label for one in versions for label in one.labels} - in_all
    classes, missing = _classes(versions, rows, codes, known, progress)
    result: Json = {"rows_used": len(codes), "rows_left_out": left_out, "warnings": _warnings(versions)}
    result |= {"progress_done": len(known), "progress_total": len(known), "verdict": None}
    result["not_compared"] = [*missing, *sorted(others)][:_LISTED]
    if evaluation.baseline is not None and classes:
        counts = [one.counts for one in classes]
        compared = compare_classes(counts, evaluation.tolerance, evaluation.alpha)
        for one, comparison in zip(classes, compared, strict=True):
            one.entry["comparison"] = comparison.as_dict()
        result["verdict"] = overall([comparison.verdict for comparison in compared])
    result["classes"] = [one.entry for one in classes]
    return result


class _Class(NamedTuple):
    """entry: of the report. counts: of rows by who answered them right, for both sides; empty without a
    baseline.
    """

    entry: Json
    counts: Any


def _classes(
    versions: Sequence[EvaluatedVersion],
    rows: Sequence[VersionRows],
    codes: IntArray,
    known: Sequence[str],
    progress: ProgressCallback,
) -> tuple[list[_Class], list[str]]:
    """Report entries of the classes for which all versions have a student, and the other classes.

    codes: (n,), position of each row's class in ``known``, −1 if it is not there.
    """
    found: list[_Class] = []
    missing: list[str] = []
    number = {label: code for code, label in enumerate(known)}
    step = max(1, _SCORES_AT_ONCE // len(codes))
    progress(Progress("classes", 0, len(known)))
    for first in range(0, len(known), step):
        batch = known[first : first + step]
        students = [{label: one.student(label) for label in batch} for one in versions]
        trained = [label for label in batch if all(of_one[label] is not None for of_one in students)]
        missing += [label for label in batch if label not in trained]
        if not trained:
            continue
        with one_blas_thread():
            scores = [
                student_scores([student for label in trained if (student := of_one[label])], X, filled)
                for of_one, (X, filled, _) in zip(students, rows, strict=True)
            ]
        for place, label in enumerate(trained):
            thresholds = [student.threshold for of_one in students if (student := of_one[label])]
            of_class = [of_version[place] for of_version in scores]
            found.append(_of_class(label, codes == number[label], of_class, thresholds))
        progress(Progress("classes", first + len(batch), len(known)))
    return found, missing


def _of_class(
    label: str, truth: BoolArray, scores: Sequence[FloatArray], thresholds: Sequence[float]
) -> _Class:
    answers = [values >= threshold for values, threshold in zip(scores, thresholds, strict=True)]
    measures = [
        ClassMeasures.of(truth, yes, values).as_dict() for yes, values in zip(answers, scores, strict=True)
    ]
    entry: Json = {"class": label, **measures[0]}
    if len(measures) == 1:
        return _Class(entry, None)
    entry["baseline"] = {name: value for name, value in measures[1].items() if name != "n"}
    return _Class(entry, compare_answers(truth, answers[1], answers[0]))


def _rows(
    store: Store,
    files: BlobCache,
    evaluation: Evaluation,
    versions: Sequence[EvaluatedVersion],
    known: Sequence[str],
) -> tuple[IntArray, list[VersionRows], dict[str, int]]:
    """The rows of the evaluation: positions of their classes in ``known``, (n,), −1 for others; the rows in
    the form that each version takes; and the rows that are left out.

    Raises InvalidProblem if too few are left.
    """
    dataset = get_dataset(store, evaluation.dataset_id)
    number = {label: code for code, label in enumerate(known)}
    left_out: Counter[str] = Counter()
    codes: list[IntArray] = []
    parts: list[list[VersionRows]] = [[] for _ in versions]
    for part in _parts(store, files, evaluation):
        left_out["unlabelled"] += part.unlabelled
        rows = part.labelled()
        of_rows = np.array([number.get(name, -1) for name in rows.classes], dtype=np.int32)[rows.y]
        is_known = of_rows >= 0
        if evaluation.unknown_classes == "refuse" and not is_known.all():
            name = rows.classes[int(rows.y[~is_known][0])]
            message = f"There are rows of the class {name!r:.100}, which not all versions have."
            raise InvalidProblem(Fault("unknown_classes", "unknown_class", message))
        as_taken = [one.rows(rows) for one in versions]
        seen = np.any([one.has_seen(taken) for one, taken in zip(versions, as_taken, strict=True)], axis=0)
        dropped = ~is_known & ~seen if evaluation.unknown_classes == "drop" else np.zeros(rows.n, dtype=bool)
        left_out["trained_on"] += int(seen.sum())
        left_out["unknown_class"] += int(dropped.sum())
        kept = np.flatnonzero(~seen & ~dropped)
        codes.append(of_rows[kept])
        for of_version, (X, filled, identities) in zip(parts, as_taken, strict=True):
            some = None if filled is None else filled[kept]
            of_version.append(VersionRows(X[kept], some, identities[kept]))
    _check_enough(sum(map(len, codes)), left_out, dataset)
    counted = {reason: count for reason, count in left_out.items() if count}
    return np.concatenate(codes), [_joined(of_version) for of_version in parts], counted


def _common_labels(versions: Sequence[EvaluatedVersion]) -> frozenset[str]:
    return frozenset(versions[0].labels).intersection(*(one.labels for one in versions))


def _parts(store: Store, files: BlobCache, evaluation: Evaluation) -> Iterator[Rows]:
    train, test = load_dataset(store, files, evaluation.dataset_id)
    if evaluation.part in {"train", "all"}:
        yield train
    if evaluation.part in {"test", "all"} and test is not None:
        yield test


def _check_enough(rows: int, left_out: Counter[str], dataset: Dataset) -> None:
    if rows >= LEAST_ROWS:
        return
    reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.items() if count)
    message = (
        f"{rows} rows of data set {dataset.id} are left, and at least {LEAST_ROWS} are needed."
        f" Left out: {reasons or 'none'}."
    )
    raise InvalidProblem(Fault("dataset_id", "no_common_rows", message))


def _joined(parts: Sequence[VersionRows]) -> VersionRows:
    if len(parts) == 1:
        return parts[0]
    matrices: list[Any] = [part.X for part in parts]
    is_dense = all(isinstance(one, np.ndarray) for one in matrices)
    X = np.vstack(matrices) if is_dense else sp.csr_array(sp.vstack(matrices, format="csr"))
    filled = [part.filled for part in parts if part.filled is not None]
    return VersionRows(
        X,
        np.concatenate(filled) if filled else None,
        np.concatenate([part.identities for part in parts]),
    )


def _warnings(versions: Sequence[EvaluatedVersion]) -> list[Json]:
    return [
        {
            "code": _SEEN_ROWS_UNKNOWN,
            "message": f"{reference_of(one.version)} was imported: rows that it was trained on may be among"
            " those that count.",
        }
        for one in versions
        if one.is_imported
    ]


def _numbers_of(rows: LabelledTable, name: str) -> FloatArray:
    """The cells of a column as numbers. Raises InvalidProblem for gaps and other cells."""
    cells: Any = cells_as(name, rows.table.column(name), KindSpec(Kind.NUMBER))
    gaps = np.flatnonzero(cells.is_gap)
    if len(gaps):
        message = f"Row {gaps[0]}: column {name!r:.80} has no value."
        raise InvalidProblem(Fault("X", "missing_value", message, row=int(gaps[0])))
    values: FloatArray = cells.values
    return values


def _blob(store: Store, files: BlobCache, digest: str) -> memoryview:
    """A blob in the local cache. Raises Unavailable where it is damaged."""
    try:
        return files.with_refetch(lambda: open_blob(store, files, digest).whole(), digest)
    except InvalidPackage as error:
        raise Unavailable(f"Blob {digest} is damaged.", code="blob_damaged") from error
