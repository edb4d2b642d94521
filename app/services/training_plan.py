"""What a training job has to do, worked out from its hyper-parameters and the classes of its data set."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.errors import InputFault, InvalidRequest
from app.domain.training_spec import ServedMethod, TrainingSpec


def methods_of(spec: TrainingSpec) -> tuple[ServedMethod, ...]:
    """The method that answers queries first, then the baselines beside it, each once."""
    return tuple(dict.fromkeys((spec.served_method, *spec.evaluation.baselines)))


def targets_of(spec: TrainingSpec, classes: Sequence[str]) -> tuple[int, ...]:
    """Positions in ``classes`` of those that get students, ascending, each once.

    Raises InvalidRequest with one fault for each of the first ten labels that the data set does not have.
    """
    if spec.classes is None:
        return tuple(range(len(classes)))
    positions = {label: position for position, label in enumerate(classes)}
    faults = [
        InputFault(
            field=f"hyperparameters.classes.{place}",
            code="unknown_class",
            message=f"The data set has no class {label!r}.",
        )
        for place, label in enumerate(spec.classes)
        if label not in positions
    ]
    if faults:
        raise InvalidRequest(faults[0].message, code="unknown_class", faults=faults[:10])
    return tuple(sorted({positions[label] for label in spec.classes}))


def pairs_of(spec: TrainingSpec, targets: Sequence[int]) -> list[tuple[int, ServedMethod]]:
    """Every (class index, method) to train, class by class."""
    return [(target, method) for target in targets for method in methods_of(spec)]


def units_of(spec: TrainingSpec, targets: Sequence[int]) -> int:
    """The job's progress total: one unit for the teacher and one for each student."""
    return 1 + len(targets) * len(methods_of(spec))
