"""The plan of a training job: its classes and methods, and whether its data suit its hyper-parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from app.domain.entities import WORKER_ALIVE_SECONDS, Dataset, Json, Worker
from app.domain.errors import InputFault, InvalidRequest, NotFound, Unprocessable
from app.domain.near_names import known_names, listed, near_name
from app.domain.origins import AllowedServers, Origin, not_allowed
from app.domain.remote_teacher import RemoteScores
from app.domain.training_spec import EvaluationParameters, TrainingSpec
from app.services import quotas
from app.settings import Settings
from app.store.unit_of_work import UnitOfWork
from core.data.extras import EXTRAS
from core.data.reading_hints import reading_hint, setting_hint
from core.data.schema import Kind
from core.data.test_part import SHARE
from core.encoding.rules import most_terms
from core.packed.encoded_columns import MAX_VALUES
from core.students.base import StudentSpec
from core.teachers.base import TeacherSpec
from core.teachers.linear_head import ImportedHead, LinearHead
from core.training.config import TrainingConfig
from core.training.memory import RunShape, peak_bytes

_TERM_BYTES: Final = 3
"""Bytes of the terms of texts as numbers, for each byte of the stored texts."""
_RENAMED: Final = 5
"""Classes of a test part whose other names an error suggests."""
MAX_SPEC_BYTES: Final = 64 * 1024
"""Bytes of a specification as it is stored: some thousand labels. Every answer about the job has them all."""


def check_size(spec: TrainingSpec) -> None:
    """Reject a specification that is too long to be stored with a job. Raises InvalidRequest."""
    size = len(spec.model_dump_json().encode())
    if size > MAX_SPEC_BYTES:
        raise _bad_data(
            "hyperparameters",
            "too_long",
            f"The hyper-parameters are {size} bytes of JSON; the limit is {MAX_SPEC_BYTES}. For more classes"
            " than that upload a data set of them alone, and leave hyperparameters.classes out.",
        )


def classes_of(spec: TrainingSpec, known: Sequence[str]) -> tuple[str, ...]:
    """The classes that a job trains: ``known``, those of its data set, or those that its labelling makes."""
    return tuple(known) if spec.labelling is None else spec.labelling.classes_of(known)


def trained_classes(uow: UnitOfWork, spec: TrainingSpec, dataset: Dataset) -> tuple[str, ...]:
    """Like `classes_of`; it reads all classes of the data set."""
    return classes_of(spec, uow.datasets.classes(dataset.id))


def class_count_of(spec: TrainingSpec, dataset: Dataset) -> int:
    """Number of the classes of a job."""
    if spec.labelling is None or spec.labelling.uses_labels:
        return dataset.class_count
    return len(spec.labelling.classes_of(()))


def methods_of(spec: TrainingSpec) -> tuple[str, ...]:
    """The method that answers queries first, then the baselines, each once."""
    return tuple(student.name for student in spec.students)


def target_count(spec: TrainingSpec, dataset: Dataset) -> int:
    """Number of the classes that get students, of a job whose classes exist."""
    return class_count_of(spec, dataset) if spec.classes is None else len(set(spec.classes))


def targets_of(spec: TrainingSpec, classes: Sequence[str]) -> Sequence[int]:
    """Rising positions in ``classes`` of those that get students, each once.

    Raises InvalidRequest with one fault for each of the first ten labels that the data set does not have.
    """
    if spec.classes is None:
        return range(len(classes))
    positions = {label: position for position, label in enumerate(classes)}
    unknown = ((place, label) for place, label in enumerate(spec.classes) if label not in positions)
    faults = [
        InputFault(
            field=f"hyperparameters.classes.{place}",
            code="unknown_class",
            message=f"The data set has no class {label!r:.100}; {known_names(label, classes, 'classes')}",
        )
        for place, label in islice(unknown, 10)
    ]
    if faults:
        raise InvalidRequest(faults[0].message, code="unknown_class", faults=faults)
    return tuple(sorted({positions[label] for label in spec.classes}))


def pairs_of(spec: TrainingSpec, targets: Sequence[int]) -> list[tuple[int, str]]:
    """Every (class index, method) to train, class by class."""
    return [(target, method) for target in targets for method in methods_of(spec)]


def units_of(spec: TrainingSpec, targets: int) -> int:
    """The job's progress total: one unit for the teacher and one for each student of ``targets`` classes."""
    return 1 + targets * len(methods_of(spec))


def config_of(spec: TrainingSpec, head: LinearHead | None = None) -> TrainingConfig:
    """The configuration of core for a TrainingSpec. Raises InvalidProblem.

    head: weights of the imported teacher, unless it is restored.
    """
    teacher = spec.teacher
    return TrainingConfig(
        features=spec.features,
        teacher=teacher.spec if teacher.model is None else ImportedHead(teacher.model, head),
        students=spec.students,
        automatic=bool(spec.automatic),
        automatic_seconds=spec.automatic_seconds,
        tuning=spec.tuning,
        threshold=spec.threshold.rule,
        budget=spec.threshold.max_false_positive_rate,
        confidence=spec.threshold.confidence,
        calibration=spec.calibration.kind,
        folds=spec.threshold.folds,
        guard=spec.guard.kind or "off",
        seed=spec.seed,
    )


def needed_memory(dataset: Dataset, spec: TrainingSpec, stored_bytes: int, *, threads: int) -> int:
    """Peak bytes of a solver with this many threads, see `core.training.memory`.

    stored_bytes: of the data set's rows, as arrays or as raw cells of a table. Sizes that are unknown before
    the rows are read are estimated from above: for texts the largest number of terms, for other categories
    the columns of their values.
    """
    held_out = int(dataset.rows * _held_out_share(dataset, spec))
    classes = class_count_of(spec, dataset)
    is_table, has_texts = "schema" in dataset.summary, _has_texts(dataset, spec)
    columns = dataset.columns
    if is_table:
        columns = sum(_encoded_columns(kind, distinct) for kind, distinct in _kinds(dataset, spec))
        columns += most_terms(classes) if has_texts else 0
    is_sparse = bool(dataset.summary.get("sparse")) or has_texts
    every = dataset.rows + dataset.test_rows
    shape = RunShape(
        rows=dataset.rows - held_out,
        test_rows=dataset.test_rows + held_out,
        columns=columns,
        classes=classes,
        row_bytes=(_TERM_BYTES if has_texts else 1) * stored_bytes if is_sparse else 8 * every * columns,
        is_sparse=is_sparse,
        threads=threads,
    )
    return peak_bytes(config_of(spec), shape)


def _encoded_columns(kind: str, distinct: int) -> int:
    """About how many numbers a column of records becomes, without terms of texts."""
    if kind == Kind.CATEGORY:
        return min(distinct, MAX_VALUES) + 2
    return {Kind.DATE: 8, Kind.TEXT: 0, Kind.IGNORE: 0, Kind.VECTOR: max(1, distinct), Kind.IMAGE: 3316}.get(
        Kind(kind), 2
    )


def _held_out_share(dataset: Dataset, spec: TrainingSpec) -> float:
    """The largest share of the training rows that the job holds out."""
    if not spec.evaluation.holds_out(has_test_part=dataset.test_rows > 0):
        return 0.0
    return SHARE if spec.evaluation.given_fraction is None else spec.evaluation.given_fraction


def check_memory(uow: UnitOfWork, dataset: Dataset, spec: TrainingSpec) -> None:
    """Reject a job that cannot fit into the memory of any worker. Without live workers nothing is checked.

    Raises Unprocessable.
    """
    workers = uow.workers.alive(WORKER_ALIVE_SECONDS)
    if not workers or not all(worker.solver_bytes for worker in workers):
        return
    stored = uow.blobs.size(dataset.blob_digest)
    spare = {
        worker.solver_bytes - needed_memory(dataset, spec, stored, threads=worker.threads): worker
        for worker in workers
    }
    most = max(spare)
    if most >= 0:
        return
    limit, classes = spare[most].solver_bytes, class_count_of(spec, dataset)
    has_components = spec.features.kind in ("nystroem", "fourier") and not spec.automatic
    raise _unfit(
        "hyperparameters.features.n_components" if has_components else "dataset_id",
        "not_enough_memory",
        f"The job needs about {(limit - most) / 1e9:.1f} GB of memory for {dataset.rows} rows and {classes}"
        f" classes, that is {dataset.rows * classes} scores; the worker that it suits best gives a solver"
        f" {limit / 1e9:.1f} GB. {_what_would_fit(dataset, spec, stored, spare[most])}",
    )


def _what_would_fit(dataset: Dataset, spec: TrainingSpec, stored: int, worker: Worker) -> str:
    """So many rows or classes, halved until a worker has the memory for them."""

    def fits(rows: int, classes: int) -> bool:
        smaller = replace(dataset, rows=rows, class_count=classes)
        share = stored * rows // max(1, dataset.rows)
        return needed_memory(smaller, spec, share, threads=worker.threads) <= worker.solver_bytes

    rows = next((size for size in _halves(dataset.rows) if fits(size, dataset.class_count)), 0)
    classes = next((size for size in _halves(dataset.class_count) if fits(dataset.rows, size)), 0)
    smaller = [f"{size} {name}" for size, name in ((rows, "rows"), (classes, "classes")) if size]
    return (
        f"What would fit: {', or '.join(smaller)}."
        if smaller
        else "Neither fewer rows nor classes would fit."
    )


def _halves(size: int) -> Iterator[int]:
    while size > 1:
        size //= 2
        yield size


def check_data(uow: UnitOfWork, dataset: Dataset, spec: TrainingSpec) -> None:
    """Reject a job that would fail for its data before a worker starts it.

    Raises InvalidRequest and Unprocessable, which name the field, and NotFound for deleted test data.
    """
    labelled = dataset.rows - dataset.summary.get("unlabelled_rows", 0)
    if rare := dataset.summary.get("single_row_classes", 0):
        message = (
            f"{rare} classes of the data set have a single row, since it was uploaded with"
            f" {reading_hint('rare_classes', 'keep')}:"
            " it can be tested on, but not trained on."
        )
        raise _bad_data("dataset_id", "class_too_small", message)
    _check_labelling(dataset, spec, labelled)
    if class_count_of(spec, dataset) < 2:
        raise _bad_data(
            "dataset_id", "single_class", "The data set has a single class; there is nothing to tell apart."
        )
    fraction = spec.evaluation.given_fraction
    if fraction is not None:
        held_out = int(labelled * fraction)
        if min(held_out, labelled - held_out) < dataset.class_count:
            raise _bad_data(
                "hyperparameters.evaluation.test_fraction",
                "test_part_too_small",
                f"{labelled} rows cannot be split at {fraction} so that both parts have all "
                f"{dataset.class_count} classes.",
            )
    _check_inputs(dataset, spec)
    if dataset.summary.get("sparse") or _has_texts(dataset, spec):
        _check_sparse(spec, trees_have_columns=_has_more_than_texts(dataset, spec))
    _check_extras(dataset, spec)
    rows = labelled if spec.labelling is None else dataset.rows
    rows = int(rows * (1.0 - _held_out_share(dataset, spec)))
    if spec.tuning is not None and spec.tuning.folds > rows:
        raise _unfit(
            "hyperparameters.tuning.folds",
            "too_many_folds",
            f"{rows} training rows cannot be dealt out to {spec.tuning.folds} folds.",
        )
    if spec.evaluation.dataset_id is None:
        if spec.evaluation.class_names:
            message = "These are classes of evaluation.dataset_id, and the job has none."
            raise _bad_data("hyperparameters.evaluation.class_names", "no_test_data", message)
    else:
        test = uow.datasets.lock(spec.evaluation.dataset_id)
        _check_test_data(uow, test, dataset, spec.evaluation)


def check_remote_teacher(uow: UnitOfWork, dataset: Dataset, spec: TrainingSpec, settings: Settings) -> None:
    """Reject a remote teacher that is not allowed, lacks a class, or whose scores would take too much space.

    Raises Unprocessable, and TooLarge beyond the tenant's quota.
    """
    teacher = spec.teacher.spec
    if spec.teacher.model is not None or not isinstance(teacher, RemoteScores):
        return
    field = "hyperparameters.teacher"
    origin = Origin.of(teacher.url)
    if not AllowedServers.of(settings.remote_teachers).allow(origin):
        raise _unfit(f"{field}.url", "remote_not_allowed", not_allowed(origin))
    if teacher.columns is not None:
        named = set(teacher.columns)
        needed = trained_classes(uow, spec, dataset)
        missing = next((label for label in needed if label not in named), None)
        if missing is not None:
            raise _unfit(
                f"{field}.columns", "missing_class", f"No column has the scores of class {missing!r:.100}."
            )
        if len(named) != len(teacher.columns):
            raise _unfit(f"{field}.columns", "duplicate", "Two columns have scores of the same class.")
    scores = _remote_bytes(uow, dataset, spec)
    if scores > settings.max_dataset_bytes:
        message = f"Its scores would take {scores} bytes; the limit is {settings.max_dataset_bytes}."
        raise _unfit(f"{field}.method", "too_many_scores", message)
    _, used, allowed = quotas.usage(uow, settings, dataset.tenant)
    if used.stored_bytes + scores > allowed.stored_bytes:
        raise quotas.storage_exceeded(allowed.stored_bytes, used.stored_bytes + scores)


def lock_teacher(uow: UnitOfWork, spec: TrainingSpec) -> None:
    """Keep the pinned imported head of a job from being deleted before the job is stored.

    Raises InvalidRequest if that has happened already.
    """
    if spec.teacher.model is None:
        return
    model, _, version = spec.teacher.model.partition("@")
    try:
        uow.models.lock(model, int(version))
    except NotFound as error:
        raise _bad_data("hyperparameters.teacher.model", "unknown_model", error.message) from error


def _remote_bytes(uow: UnitOfWork, dataset: Dataset, spec: TrainingSpec) -> int:
    """Bytes of the scores that a remote teacher gives: a float64 for each row and class."""
    holds_out = spec.evaluation.holds_out(has_test_part=dataset.test_rows > 0)
    rows = dataset.rows + (0 if holds_out else dataset.test_rows)
    if spec.evaluation.dataset_id is not None:
        rows = dataset.rows + uow.datasets.get(spec.evaluation.dataset_id).rows
    return 8 * rows * class_count_of(spec, dataset)


def _check_labelling(dataset: Dataset, spec: TrainingSpec, labelled: int) -> None:
    """Reject rows without any label that nothing would label, and a labelling that does not suit the rows."""
    field, labelling = "hyperparameters.labelling.method", spec.labelling
    if labelling is None and not labelled:
        message = 'No row has a label: name a labelling, such as {"method": "odmc", "clusters": 3}.'
        raise _unfit(field, "no_labels", message)
    if labelling is None:
        return
    if labelling.uses_labels and labelled in (0, dataset.rows):
        have = "no row has one" if not labelled else "all rows have one"
        message = f"{labelling.name} labels the rows without a label from those with one, and {have}."
        raise _unfit(field, "nothing_to_label", message)
    if not labelling.uses_labels and labelled:
        message = f"{labelling.name} is for rows of which none has a label, and {labelled} have one."
        raise _unfit(field, "has_labels", message)
    if not labelling.uses_labels and spec.evaluation.given_fraction is not None:
        message = "There are no labels to measure students by, so no rows can be held out."
        raise _unfit("hyperparameters.evaluation.test_fraction", "no_labels", message)


def _check_inputs(dataset: Dataset, spec: TrainingSpec) -> None:
    """Reject columns of ``inputs`` that the data set does not have, as far as it lists its columns.

    A teacher from outside takes numbers, so it is rejected for records.
    """
    said = spec.inputs is not None and bool(spec.inputs.columns)
    is_from_outside = spec.teacher.model is not None or isinstance(spec.teacher.spec, RemoteScores)
    if is_from_outside and (said or "schema" in dataset.summary):
        message = "A teacher from outside takes rows of numbers, and the rows of this job are records."
        raise _unfit("hyperparameters.teacher", "needs_numbers", message)
    if spec.inputs is None or not said:
        return
    field, listed = "hyperparameters.inputs.columns", listed_columns(dataset)
    names = [name for name in (column.get("name") for column in listed) if name]
    if not names:
        message = "The columns of the data set have no names, so nothing can be said of them by name."
        raise _unfit(field, "no_names", message)
    unknown = next((name for name in spec.inputs.columns if name not in names), None)
    if unknown is not None and len(listed) == dataset.columns:
        message = f"The data set has no column {unknown!r:.100}; {known_names(unknown, names, 'columns')}"
        raise _unfit(f"{field}.{unknown:.100}", "unknown_column", message)


def _has_texts(dataset: Dataset, spec: TrainingSpec) -> bool:
    """Whether records of the data set become sparse rows: they have texts, or a category of many values."""
    for kind, distinct in _kinds(dataset, spec):
        if kind == Kind.TEXT or (kind == Kind.CATEGORY and distinct > MAX_VALUES):
            return True
    return spec.inputs is not None and Kind.TEXT in {one.kind for one in spec.inputs.kinds.values()}


def _has_more_than_texts(dataset: Dataset, spec: TrainingSpec) -> bool:
    """Whether records of the data set have columns besides texts, which trees test."""
    return any(kind not in {Kind.TEXT, Kind.IGNORE} for kind, _ in _kinds(dataset, spec))


def _kinds(dataset: Dataset, spec: TrainingSpec) -> Iterator[tuple[str, int]]:
    """Kind of each column of a schema, as this job takes it, and how many values it has."""
    kinds = {} if spec.inputs is None else {name: one.kind for name, one in spec.inputs.kinds.items()}
    for column in dataset.summary.get("schema", ()):
        yield kinds.get(column["name"], column["kind"]), column.get("distinct", 0)


def listed_columns(dataset: Dataset) -> Sequence[Json]:
    """The known columns of a data set, with their names if they have any; for wide data sets not all."""
    found: Sequence[Json] = dataset.summary.get("schema") or dataset.summary.get("features") or ()
    return found


def _check_sparse(spec: TrainingSpec, *, trees_have_columns: bool) -> None:
    if spec.compact is not None:
        raise _unfit(
            "hyperparameters.compact",
            "compact_sparse",
            "Compact students need dense rows, and the data set is sparse: their landmarks would be dense.",
        )
    dense = [student.name for student in spec.students if "dense" in student.needs]
    if dense:
        message = f"Students of method {', '.join(dense)} need dense rows, and the data set is sparse."
        raise _unfit("hyperparameters.student.method", "dense_rows_needed", message)
    teacher = spec.teacher.spec
    suits = teacher.grows_trees and trees_have_columns
    if spec.teacher.model is None and "dense" in teacher.needs and not suits:
        message = f"A teacher of method {teacher.name} needs dense rows, and the data set is sparse."
        raise _unfit("hyperparameters.teacher.method", "dense_rows_needed", message)


def _check_extras(dataset: Dataset, spec: TrainingSpec) -> None:
    """Reject learners that need extras which the data set does not have."""
    learners: list[tuple[str, TeacherSpec | StudentSpec]] = [
        *(("hyperparameters.student.method", student) for student in spec.students),
    ]
    if spec.teacher.model is None:
        learners.append(("hyperparameters.teacher.method", spec.teacher.spec))
    for field, learner in learners:
        missing = sorted(need for need in learner.needs if need in EXTRAS and need not in dataset.summary)
        if missing:
            message = f"{learner.name} needs {EXTRAS[missing[0]]}, and the data set has none."
            raise _unfit(field, f"no_{missing[0]}", message)


def _check_test_data(
    uow: UnitOfWork, test: Dataset, train: Dataset, evaluation: EvaluationParameters
) -> None:
    field = "hyperparameters.evaluation.dataset_id"
    # Records are matched by the names of their columns, when they are read.
    has_records = "schema" in test.summary or "schema" in train.summary
    if test.columns != train.columns and not has_records:
        message = f"The test data has {test.columns} columns, the training data {train.columns}."
        raise _bad_data(field, "wrong_columns", message)
    known, tested = uow.datasets.classes(train.id), uow.datasets.classes(test.id)
    if test.rows == test.summary.get("unlabelled_rows", 0):
        message = "No row of the test data has a label, so nothing can be measured on it. Ask about its rows."
        raise _bad_data(field, "no_labels", message)
    renamed = evaluation.class_names
    if absent := sorted(set(renamed) - set(tested)):
        there = known_names(absent[0], tested, "classes")
        message = f"The test data has no class {absent[0]!r:.100}; {there}"
        raise _bad_data("hyperparameters.evaluation.class_names", "unknown_class", message)
    unknown = sorted({renamed.get(name, name) for name in tested} - set(known))
    if len(unknown) == len(tested) or (unknown and evaluation.unknown_classes == "refuse"):
        message = (
            f"The training data does not have {len(unknown)} of the {len(tested)} classes of the test data:"
            f" {listed(unknown)}. If they are written in another way, say so: {_renaming(unknown, known)}; to"
            f" leave their rows out, say {setting_hint('evaluation.unknown_classes', 'drop')}."
        )
        raise _bad_data(field, "unknown_class", message)


def _renaming(unknown: Sequence[str], known: Sequence[str]) -> str:
    """The hyper-parameter that gives classes of the test data the names that they may mean."""
    near = {name: near_name(name, known) or known[0] for name in unknown[:_RENAMED]}
    return setting_hint("evaluation.class_names", json.dumps(near, ensure_ascii=False))


def _bad_data(field: str, code: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code=code, faults=[InputFault(field=field, code=code, message=message)])


def _unfit(field: str, code: str, message: str) -> Unprocessable:
    """Error for hyper-parameters that are valid, but not with this data set."""
    return Unprocessable(message, code=code, faults=[InputFault(field=field, code=code, message=message)])
