"""What can be seen to fail before a worker touches it: a job whose data do not suit its hyper-parameters."""

from __future__ import annotations

from app.domain.entities import Dataset
from app.domain.errors import InputFault, InvalidRequest, Unprocessable
from app.domain.training_spec import TrainingSpec
from app.store.unit_of_work import UnitOfWork


def check_data(uow: UnitOfWork, dataset: Dataset, spec: TrainingSpec) -> None:
    """Raises InvalidRequest and Unprocessable, which name the field; NotFound for test data that are gone."""
    if len(dataset.classes) < 2:
        raise _bad_data(
            "dataset_id", "single_class", "The data set has a single class; there is nothing to tell apart."
        )
    fraction = spec.evaluation.test_fraction
    if fraction is not None:
        held_out = int(dataset.rows * fraction)
        if min(held_out, dataset.rows - held_out) < len(dataset.classes):
            raise _bad_data(
                "hyperparameters.evaluation.test_fraction",
                "test_part_too_small",
                f"{dataset.rows} rows cannot be split at {fraction} so that both parts have all "
                f"{len(dataset.classes)} classes.",
            )
    if spec.compact is not None and dataset.summary.get("sparse"):
        raise _unfit(
            "hyperparameters.compact",
            "compact_sparse",
            "Compact students need dense rows, and the data set is sparse: their landmarks would be dense.",
        )
    rows = int(dataset.rows * (1.0 - (fraction or 0.0)))
    if spec.tuning is not None and spec.tuning.folds > rows:
        raise _unfit(
            "hyperparameters.tuning.folds",
            "too_many_folds",
            f"{rows} training rows cannot be dealt out to {spec.tuning.folds} folds.",
        )
    if spec.evaluation.dataset_id is not None:
        _check_test_data(uow.datasets.lock(spec.evaluation.dataset_id), dataset)


def _check_test_data(test: Dataset, train: Dataset) -> None:
    field = "hyperparameters.evaluation.dataset_id"
    if test.columns != train.columns:
        message = f"The test data has {test.columns} columns, the training data {train.columns}."
        raise _bad_data(field, "wrong_columns", message)
    unknown = sorted(set(test.classes) - set(train.classes))
    if unknown:
        raise _bad_data(
            field, "unknown_class", f"The training data has no class {unknown[0]!r} of the test data."
        )


def _bad_data(field: str, code: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code=code, faults=[InputFault(field=field, code=code, message=message)])


def _unfit(field: str, code: str, message: str) -> Unprocessable:
    """Hyper-parameters that are right by themselves, but not with this data set."""
    return Unprocessable(message, code=code, faults=[InputFault(field=field, code=code, message=message)])
