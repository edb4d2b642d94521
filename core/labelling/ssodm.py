"""Semi-supervised optimal margin distribution machines as labellers: hyper-parameters and fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from core.data.scaling_kind import Scaling
from core.errors import Fault, InvalidProblem
from core.labelling.base import LabellerSpec, Labelling, Space
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters

if TYPE_CHECKING:
    from core.data.dataset import LabelledData
    from core.run import Run
    from core.solvers.labels.margin_labels import LabelProblem
    from core.types import FloatArray

_SPACES: Final[tuple[Space, ...]] = ("graph", "both", "kernel")
_WEIGHTS: Final = (100.0, 1000.0)
"""Values that are tried if none is given; among equally good ones the first is taken."""


@dataclass(frozen=True, slots=True)
class SsODM(LabellerSpec):
    """Labels the rest of rows of which few have a label.

    Among all labels that keep the given ones, it looks for those for which an optimal margin distribution
    machine has the least objective: ``core.solvers.labels.margin_labels`` with U_i = 2 C_known/l for the l
    labelled rows and 2 C/u for the u others (Zhang, slides; every class against the rest). It starts from the
    answers of a machine that was fitted to the labelled rows only.

    Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "ssodm"
    uses_labels: ClassVar[bool] = True

    C_known: Annotated[
        float | None,
        Ge(1e-6),
        Le(1e8),
        Doc(
            "λ₁, the loss weight of the rows with a label, all together. null: 100 or 1000, whichever errs"
            " least on rows with a label that it did not learn, in 5 folds."
        ),
    ] = None
    C: Annotated[
        float, Ge(1e-6), Le(1e8), Doc("λ₂, the loss weight of the rows without a label, all together.")
    ] = 100.0
    balance: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc(
            "Every class gets at least this part of the rows that it would have by its share of the"
            " labels; 1: exactly these shares."
        ),
    ] = 0.3
    band: Annotated[float, Ge(0), Lt(1), Doc("θ: margins from 1 − θ to 1 + θ have no loss.")] = 0.2
    excess: Annotated[
        float, Gt(0), Le(1), Doc("ν: weight of margins above the band, relative to those below it.")
    ] = 0.5
    space: Annotated[
        Literal["auto", Space],
        Doc(
            "Where classes are looked for. graph: rows that are joined by near rows are alike; kernel: RBF;"
            " both: the mean of these kernels; linear: the columns. auto: graph, both or kernel, chosen as"
            " C_known is."
        ),
    ] = "auto"
    size: Annotated[int, Ge(1), Le(2000), Doc("Components of the graph, or landmarks of the kernel.")] = 100
    scaling: Annotated[Scaling, Doc("Scaling of the raw columns for this stage.")] = Scaling.MINMAX
    rounds: Annotated[
        int, Ge(0), Le(50), Doc("Most label vectors that are added to the relaxed problem.")
    ] = 2

    def __post_init__(self) -> None:
        check_parameters(self, "labelling")
        object.__setattr__(self, "scaling", Scaling(self.scaling))

    def label(self, data: LabelledData, run: Run) -> Labelling:
        """Labels of all rows. Raises InvalidProblem if a class has no label, or if all rows have one."""
        import numpy as np

        from core.labelling.margins import labelling_of, least_counts
        from core.solvers.labels.label_set import LabelSet
        from core.solvers.labels.margin_labels import LabelProblem

        known, counts, unknown = data.y >= 0, data.class_counts, data.unlabelled
        if data.K < 2 or not counts.all() or not unknown:
            message = "some rows must have no label, and every class of two or more a row with one"
            raise InvalidProblem(Fault("labelling.method", "nothing_to_label", message))
        no_pairs = np.empty((0, 2), dtype=np.intp)
        least = least_counts(counts / counts.sum(), unknown, self.balance)
        labels = LabelSet(data.y, data.K, least, no_pairs, no_pairs)

        def supervised(rows: FloatArray, C_known: float) -> LabelProblem:
            weights = np.full(len(rows), 2.0 * C_known / len(rows))
            return LabelProblem(rows, weights, labels, self.band, self.excess)

        features, C_known, errors = self._chosen(data, supervised, run)
        weights = np.where(known, 2.0 * C_known / known.sum(), 2.0 * self.C / unknown)
        problem = LabelProblem(features, weights, labels, self.band, self.excess)
        learnt = supervised(features[known], C_known)
        planes, _, _ = learnt.fit(learnt.features, problem.signs[data.y[known]], run)
        start = labels.best(-problem.losses(features @ planes.T))
        found = labelling_of(problem, [start], data.classes, self.rounds, run)
        return replace(found, details=found.details | errors)

    def _chosen(
        self, data: LabelledData, supervised: Callable[[FloatArray, float], LabelProblem], run: Run
    ) -> tuple[FloatArray, float, dict[str, Any]]:
        """Features of all rows, C_known, and details of their choice; no details if both are given."""
        from core.labelling.choice import Candidate, held_out_errors
        from core.labelling.space import labelling_space

        names = _SPACES if self.space == "auto" else (self.space,)
        spaces = {name: labelling_space(data.X, name, self.scaling, self.size, run) for name in names}
        weights = _WEIGHTS if self.C_known is None else (self.C_known,)
        if len(names) == len(weights) == 1:
            return spaces[names[0]], weights[0], {}
        known = data.y >= 0
        rows = {Candidate(name, C): spaces[name][known] for name in names for C in weights}
        errors = held_out_errors(rows, data.y[known], supervised, run)
        chosen = min(errors, key=errors.__getitem__)
        tried = [{**one._asdict(), "errors": count} for one, count in errors.items()]
        return spaces[chosen.space], chosen.C_known, {**chosen._asdict(), "tried": tried}
