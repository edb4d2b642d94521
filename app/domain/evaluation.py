"""Evaluations of versions on data sets, and gates of aliases, which ask for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

from app.domain.document import OWN, Document, Time
from app.domain.entities import JobState, Json, workflow_id
from app.domain.names import DEFAULT_TENANT

Part: TypeAlias = Literal["all", "train", "test"]
"""Of a data set: all labelled rows, or those of its training part or its test part."""
UnknownClasses: TypeAlias = Literal["drop", "keep", "refuse"]
"""What becomes of rows of classes that a version does not have: they are left out, or are rows of none of the
classes, or the evaluation fails.
"""
Rule: TypeAlias = Literal["not_worse", "no_class_worse"]
"""Of a gate: every class must be proved not worse, or none may be proved worse."""

LEAST_ROWS: Final = 50
"""Rows without which nothing is evaluated."""
MAX_CLASSES: Final = 5000
"""Most classes of a version that is evaluated: the report has an entry for each."""
MAX_ANSWERS: Final = 1_000_000_000
"""Most answers of both versions together."""
EVALUATION_ID: Final = "ev"
"""What the ids of evaluations begin with."""
MAX_REASON: Final = 200
"""Characters of the reason for overriding a gate."""
TOLERANCE: Final = 0.01
ALPHA: Final = 0.05


@dataclass(frozen=True, slots=True)
class ListedEvaluation(Document):
    """An evaluation in a list.

    version, baseline: ``model@number``; baseline is null where no other version was asked for. part: of the
    data set. tolerance, alpha: of the comparison. rows_used: null until it is counted. rows_left_out: how
    many for which reason: ``trained_on``, ``unknown_class``, ``unlabelled``. verdict: ``not_worse``,
    ``worse`` or ``undecided``; null without a baseline, and before the end. progress_done, progress_total:
    in classes.
    """

    id: str
    version: str
    baseline: str | None
    dataset_id: str
    part: Part
    tolerance: float
    alpha: float
    unknown_classes: UnknownClasses
    state: JobState
    created_at: Time
    created_by: str
    started_at: Time | None = None
    finished_at: Time | None = None
    error_code: str | None = None
    error_message: str | None = None
    progress_done: int = 0
    progress_total: int = 0
    rows_used: int | None = None
    rows_left_out: dict[str, int] = field(default_factory=dict)
    verdict: str | None = None
    warnings: Sequence[Json] = ()
    tenant: Annotated[str, OWN] = DEFAULT_TENANT

    @property
    def workflow_id(self) -> str:
        """Of its workflow; it has one attempt."""
        return workflow_id(self.id, 0)


@dataclass(frozen=True, slots=True)
class Evaluation(ListedEvaluation):
    """How a version answers on a data set, and whether it is worse than another one.

    classes: of each class its measures on the rows used, and with a baseline ``baseline``, the measures of
    that, and ``comparison``: of ``recall`` and of ``false_positives`` the counts of rows that only one of
    both answered right, the test, the difference with its ends and the verdict. not_compared: classes that
    only one of the two versions has.
    """

    classes: Sequence[Json] = ()
    not_compared: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Gate(Document):
    """What a version must have passed before an alias is moved to it.

    It is an evaluation on ``dataset_id`` against the version that the alias has, with the same ``alpha``, at
    most this ``tolerance`` and at least ``least_rows`` rows. revision: its ETag, for If-Match.
    """

    model: str
    alias: str
    rule: Rule
    dataset_id: str
    tolerance: float
    alpha: float
    least_rows: int
    revision: int
    updated_at: Time
    tenant: Annotated[str, OWN] = DEFAULT_TENANT


def is_evaluation(object_id: str) -> bool:
    """Whether an id of an object, or of its workflow, is one of an evaluation."""
    return object_id.startswith(f"{EVALUATION_ID}_")
