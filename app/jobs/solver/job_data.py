"""The rows of a job as numbers: training rows, test rows, and the encoder of records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.domain.input_parameters import InputParameters
from app.domain.training_spec import LIKE_NOTHING, TrainingSpec
from app.jobs.solver.picture_vectors import with_vectors
from app.jobs.solver.scikit_learn import import_scikit_learn
from app.services.datasets import load_dataset
from app.services.imported_teacher import teacher_rows
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from core.data.labels import encode_with
from core.data.repeated_rows import Digests, shared_rows
from core.data.row_identity import identity_bytes, matrix_identities, table_identities
from core.data.schema import Kind
from core.data.test_part import Split
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidProblem
from core.labelling.base import Labelling
from core.packed.encoder import Encoder
from core.packed.input_profile import InputProfile
from core.run import Run
from core.teachers.linear_head import LinearHead
from core.types import IntArray, Matrix, ProgressCallback

if TYPE_CHECKING:
    from core.model_selection.encoder_choice import EncoderChoice

Rows: TypeAlias = LabelledData | LabelledTable
_OF_KINDS: Final = frozenset({"not_numeric", "not_boolean", "bad_date", "bad_kind"})
"""Codes of errors about cells that are not of their column's kind."""
Score: TypeAlias = Callable[[LabelledData, int], LabelledData]
"""Adds the scores of a remote teacher to rows; 0 for the training part, 1 for the test part."""


class TestPart(NamedTuple):
    """The source of the rows on which students are measured.

    source: "held_out" of the training rows, the "data_set", or an "other_data_set" (evaluation.dataset_id).
    rows: their number, out of ``of`` labelled rows. digest: equal for jobs that are measured on equal rows.
    """

    source: str
    rows: int
    of: int
    digest: str


class JobData(NamedTuple):
    """train: the training rows. test: the rows on which students are measured, with labels coded by the
    training classes, or None. encoder: made numbers of the records of both; None if they were numbers.
    left_out: number of test rows of classes that training does not have.
    profile: of the rows that the encoder was fitted to; None if it was not fitted now.
    test_part: of the test rows; None without any. may_repeat: whether test rows may equal training rows, as
    where all rows have few different values. identities: the numbers of the training rows before they were
    encoded, `core.data.row_identity.identity_bytes`, if they were asked for. held_out: ascending numbers of
    the rows of the data set that the job has taken out of the training part; None if it has held out none.
    measures_held_out: whether they are its test rows. encoders: how the encoder of each column of pictures
    was chosen, if it was now.
    """

    train: LabelledData
    test: LabelledData | None
    encoder: Encoder | None = None
    left_out: int = 0
    profile: InputProfile | None = None
    test_part: TestPart | None = None
    may_repeat: bool = False
    identities: bytes = b""
    held_out: IntArray | None = None
    encoders: tuple[EncoderChoice, ...] = ()
    measures_held_out: bool = True

    @property
    def training_numbers(self) -> IntArray:
        """The numbers of the training rows in the data set, (n,)."""
        if self.held_out is None:
            return np.arange(self.train.n)
        return np.setdiff1d(np.arange(self.train.n + len(self.held_out)), self.held_out)

    @property
    def test_rows_in_training(self) -> int:
        """Number of test rows that equal a training row, if there are unexpectedly many; otherwise 0."""
        if self.test is None or self.may_repeat:
            return 0
        shared = shared_rows(self.train.X, self.test.X)
        return shared.rows if shared.are_many else 0


def load_job_data(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    spec: TrainingSpec,
    labels: Labelling | None = None,
    score: Score | None = None,
    encoder: Encoder | None = None,
    *,
    identify: bool = False,
    run: Run | None = None,
) -> JobData:
    """The rows of a job. identify: with the numbers of the training rows. run: for comparisons of encoders.

    labels: labels that the job's labelling found for all training rows of the data set; rows are held out by
    the given labels. score: adds scores of a remote teacher. encoder: the one that the job has fitted before;
    without one, it is fitted to the training rows alone.
    Raises NotFound, InvalidProblem, and the errors of ``score``.
    """
    train, test = _load(store, files, dataset_id, spec.inputs)
    held_out = _held_out_rows(train, test, spec)
    measures_held_out = _measures_held_out(held_out, test, spec)
    left_out = 0
    source = "data_set"
    if labels is not None:
        train = labels.applied_to(train)
    if spec.evaluation.dataset_id is not None:
        source = "other_data_set"
        inputs = spec.inputs if isinstance(train, LabelledTable) else None
        given = _load(store, files, spec.evaluation.dataset_id, inputs)[0].labelled()
        known = _known_rows(train, given, spec)
        left_out = given.n - known.n
        test = _with_classes_of(train, known, spec)
    if score is not None:
        train, test = _scored(score, train, test, wants_test=not measures_held_out)
    labelled = train.n - train.unlabelled
    if measures_held_out:
        source = "held_out"
        # The split takes scores along, so that which rows are asked for does not depend on it.
        test = train.take(held_out)
    if len(held_out):
        train = train.take(_others(train, held_out))
    part = None
    if test is not None:
        of = labelled if source == "held_out" else test.n + left_out
        numbers = held_out if measures_held_out else held_out[:0]
        part = TestPart(source, test.n, of, _digest(store, dataset_id, spec, test.n, numbers))
    may_repeat = source == "held_out" and spec.evaluation.given_fraction is None
    with _about_kept_kinds(spec.like):
        encoded = _encoded(train, test, spec.inputs, encoder, run or Run(spec.seed))
    if identify:
        encoded = encoded._replace(identities=identity_bytes(row_identities(train, encoded.encoder)))
    return encoded._replace(
        left_out=left_out,
        test_part=part,
        may_repeat=may_repeat,
        held_out=held_out if len(held_out) else None,
        measures_held_out=measures_held_out,
    )


def load_training_rows(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    spec: TrainingSpec,
    labels: Labelling | None = None,
    encoder: Encoder | None = None,
) -> LabelledData:
    """The rows that a job was trained on, as from `load_job_data`, without scores of a remote teacher.

    encoder: the one that the job fitted. Raises NotFound, InvalidProblem.
    """
    train, test = _load(store, files, dataset_id, spec.inputs)
    held_out = _held_out_rows(train, test, spec)
    if labels is not None:
        train = labels.applied_to(train)
    if len(held_out):
        train = train.take(_others(train, held_out))
    return _encoded(train, None, spec.inputs, encoder).train


def load_examples(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    spec: TrainingSpec,
    train: LabelledData,
    encoder: Encoder | None,
) -> Matrix:
    """All training rows of a data set as further rows for ``train``, encoded in the same way.

    Raises NotFound, and InvalidProblem if its columns do not fit.
    """
    given, _ = _load(store, files, dataset_id, spec.inputs if encoder is not None else None)
    if encoder is not None:
        return as_table(given).encoded(encoder).X
    if isinstance(given, LabelledTable):
        given = given.encoded(LabelledTable.of_numbers(train).encoder())
    order = _order(train.feature_names, given.feature_names)
    return given.X if order is None else given.X[:, order]


@contextmanager
def _about_kept_kinds(like: str | None) -> Iterator[None]:
    """Adds the expected kind to errors about cells that are not of it. like: see `TrainingSpec`."""
    try:
        yield
    except InvalidProblem as error:
        if like in (None, LIKE_NOTHING) or not any(fault.code in _OF_KINDS for fault in error.faults):
            raise
        more = (
            f" Columns are read as {like} reads them: give this one another kind"
            " (--set inputs.columns.NAME.kind=KIND), or train by the data set alone: like=none (--like none)."
        )
        faults = (
            replace(fault, message=fault.message + more) if fault.code in _OF_KINDS else fault
            for fault in error.faults
        )
        raise InvalidProblem(*faults) from error


def label_rows(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    spec: TrainingSpec,
    n_threads: int,
    progress: ProgressCallback,
) -> Labelling:
    """Labels for the training rows of a data set. Rows that the job holds out are not used, and keep theirs.

    Raises NotFound, InvalidProblem.
    """
    if spec.labelling is None:
        raise RuntimeError("the job has no labelling")
    data, test = _load(store, files, dataset_id, spec.inputs)
    rows = _others(data, _held_out_rows(data, test, spec))
    run = Run(spec.seed, n_threads=n_threads, progress=progress)
    numbers = _encoded(data.take(rows), None, spec.inputs, None).train
    return spec.labelling.label(numbers, run.stage("labelling")).of_rows(rows, data)


def load_head(store: Store, files: BlobCache, spec: TrainingSpec, data: LabelledData) -> LinearHead | None:
    """The imported teacher's rows for the classes of the data; None without an imported teacher.

    Raises NotFound, Unavailable, InvalidProblem.
    """
    if spec.teacher.model is None:
        return None
    return LinearHead(*teacher_rows(store, files, spec.teacher.model, data.classes))


def row_identities(rows: Rows, encoder: Encoder | None) -> Digests:
    """The number of each row, from the columns that the encoder uses, or from all numbers without one."""
    if encoder is None:
        if not isinstance(rows, LabelledData):
            raise RuntimeError("rows of raw cells are known by the columns of an encoder")
        return matrix_identities(rows.X)
    return table_identities(as_table(rows).table, encoder.names)


def _load(
    store: Store, files: BlobCache, dataset_id: str, inputs: InputParameters | None
) -> tuple[Rows, Rows | None]:
    """Training part and test part of a data set, as tables if the specification describes columns."""
    train, test = load_dataset(store, files, dataset_id)
    said = {} if inputs is None else inputs.encoders
    if isinstance(train, LabelledTable):
        train = with_vectors(store, dataset_id, "train", train, said)
    if isinstance(test, LabelledTable):
        test = with_vectors(store, dataset_id, "test", test, said)
    if inputs is None or not inputs.columns:
        return train, test
    kinds = inputs.kinds
    return as_table(train).with_kinds(kinds), None if test is None else as_table(test).with_kinds(kinds)


def as_table(rows: Rows) -> LabelledTable:
    """The rows as a table of raw cells. Raises InvalidProblem if columns of numbers have no names."""
    return rows if isinstance(rows, LabelledTable) else LabelledTable.of_numbers(rows)


def _encoded(
    train: Rows,
    test: Rows | None,
    inputs: InputParameters | None,
    encoder: Encoder | None,
    run: Run = Run(),
) -> JobData:
    """Both parts as numbers. Raises InvalidProblem if the test part lacks a column of training."""
    if isinstance(train, LabelledData):
        if isinstance(test, LabelledTable):
            # Training rows that are numbers without gaps are used unchanged.
            test = test.encoded(LabelledTable.of_numbers(train).encoder())
        return JobData(train, test)
    profile = None
    choices: tuple[EncoderChoice, ...] = ()
    if encoder is None:
        said = InputParameters() if inputs is None else inputs
        if any(column.kind is Kind.IMAGE for column in train.schema):
            from core.model_selection.encoder_choice import choose_encoders  # only jobs on pictures need it

            train, choices = choose_encoders(train, said.encoder_names, run)
        encoder = train.encoder(
            said.rules, takes_others=said.extra == "ignore", answers_gaps=said.on_missing == "answer"
        )
        profile = train.profile(encoder)
    tested = None if test is None else as_table(test).encoded(encoder)
    return JobData(train.encoded(encoder), tested, encoder, profile=profile, encoders=choices)


def _known_rows(train: Rows, test: Rows, spec: TrainingSpec) -> Rows:
    """The test rows; on request without rows of classes that training does not have."""
    if spec.evaluation.unknown_classes == "refuse":
        return test
    is_known = np.isin(_class_names(test, spec), train.classes)
    return test.take(np.flatnonzero(is_known[test.y]))


def _class_names(test: Rows, spec: TrainingSpec) -> NDArray[np.str_]:
    """The names of the classes of the test data as in the training data, (K,)."""
    renamed = spec.evaluation.class_names
    return np.asarray([renamed.get(name, name) for name in test.classes])


def _with_classes_of(train: Rows, test: Rows, spec: TrainingSpec) -> Rows:
    """Test rows with labels coded by the training classes, and columns of numbers in the order of training.

    Raises InvalidProblem for any other label, and for other names of columns.
    """
    names = _class_names(test, spec)[test.y]
    if isinstance(test, LabelledTable):
        codes, classes = encode_with(names, train.classes)
        return replace(test, y=codes, classes=classes)
    if isinstance(train, LabelledTable):
        return LabelledData.with_codes(test.X, names, train.classes, test.feature_names)
    order = _order(train.feature_names, test.feature_names)
    X = test.X if order is None else test.X[:, order]
    return LabelledData.with_codes(X, names, train.classes, train.feature_names, n_columns=train.d)


def _order(names: Sequence[str] | None, given: Sequence[str] | None) -> list[int] | None:
    """The order of the test rows' columns as in training; None if it is equal, or if no name is shared.

    Raises InvalidProblem if only some names are shared.
    """
    if names is None or given is None or names == given or not set(names).intersection(given):
        return None
    missing = [name for name in names if name not in given]
    if missing:
        message = f"The test data has no column {missing[0]!r:.80}, as the training data has."
        raise InvalidProblem(Fault("evaluation.dataset_id", "wrong_columns", message))
    return [given.index(name) for name in names]


def _scored(
    score: Score, train: Rows, test: Rows | None, *, wants_test: bool
) -> tuple[LabelledData, LabelledData | None]:
    """Rows with the scores of a remote teacher, which takes numbers. Raises InvalidProblem for records."""
    if isinstance(train, LabelledTable) or isinstance(test, LabelledTable):
        message = "A remote teacher takes rows of numbers, and the data set has records."
        raise InvalidProblem(Fault("teacher.method", "needs_numbers", message))
    return score(train, 0), score(test, 1) if test is not None and wants_test else None


def _digest(store: Store, dataset_id: str, spec: TrainingSpec, rows: int, held_out: IntArray) -> str:
    """A digest of the test rows, from the content of their data set and, if held out, their numbers."""
    with store.read() as uow:
        data = uow.datasets.get(spec.evaluation.dataset_id or dataset_id)
    named = f"{data.digest} {spec.evaluation.dataset_id is not None} {rows} ".encode()
    return hashlib.sha256(named + held_out.astype("<i8").tobytes()).hexdigest()[:16]


def _others(data: Rows, rows: IntArray) -> IntArray:
    return np.setdiff1d(np.arange(data.n), rows)


def _held_out_rows(data: Rows, test: Rows | None, spec: TrainingSpec) -> IntArray:
    """Ascending numbers of the training rows that a job does not learn from, the same for the same seed.

    They are the test rows of a revision, whatever the job says, or else a stratified part of the labelled
    rows. test: the test part of the data set. Raises InvalidProblem where the share that was given cannot be
    held out.
    """
    if data.marks.held_out is not None:
        return data.marks.test_rows
    if not spec.evaluation.holds_out(has_test_part=test is not None):
        return np.empty(0, dtype=np.intp)
    if spec.evaluation.given_fraction is not None:
        import_scikit_learn()
    return Split(spec.evaluation.given_fraction, spec.seed).rows(data.y, data.row_digests(), data.marks)


def _measures_held_out(held_out: IntArray, test: Rows | None, spec: TrainingSpec) -> bool:
    """Whether students are measured on the rows that are held out, and not on a test part or data set."""
    has_other = spec.evaluation.dataset_id is not None
    return (
        bool(len(held_out)) and not has_other and (test is None or spec.evaluation.given_fraction is not None)
    )
