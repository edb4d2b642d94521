"""Optimal margin distribution clustering: hyper-parameters and fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from core.data.scaling_kind import Scaling
from core.errors import Fault, InvalidProblem
from core.labelling.base import LabellerSpec, Labelling, Space
from core.parameters import Doc, Ge, Gt, Le, Lt, MaxLen, check_parameters

if TYPE_CHECKING:
    from core.data.dataset import LabelledData
    from core.run import Run
    from core.types import FloatArray

_STARTS = 10


@dataclass(frozen=True, slots=True)
class ODMC(LabellerSpec):
    """Clusters rows without labels so that a classifier of the clusters has good margins on all rows.

    The labels y also minimise the objective of an optimal margin distribution machine over y:
    ``core.solvers.labels.margin_labels`` with U_i = C/n (Zhang and Zhou, Optimal Margin Distribution
    Clustering, AAAI 2018; every cluster against the rest). It starts from k-means in the space that the
    squared loss without a band gives.
    Raises InvalidProblem naming every wrong field.
    Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "odmc"
    uses_labels: ClassVar[bool] = False

    clusters: Annotated[
        int, Ge(2), Le(100), Doc("K; the clusters are named cluster 1 to cluster K, with leading zeros.")
    ] = 2
    balance: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc("Every cluster gets at least this part of n/K rows; 1: all are of the same size."),
    ] = 0.3
    must_link: Annotated[
        tuple[str, ...],
        MaxLen(10_000),
        Doc('Pairs of rows of one cluster, as texts "3-17", counted from 0 in the training part.'),
    ] = ()
    cannot_link: Annotated[
        tuple[str, ...], MaxLen(10_000), Doc('Pairs of rows of different clusters, like "3-17".')
    ] = ()
    C: Annotated[float, Ge(1e-6), Le(1e8), Doc("λ, the loss weight; the loss of one row weighs C/n.")] = 100.0
    band: Annotated[float, Ge(0), Lt(1), Doc("θ: margins from 1 − θ to 1 + θ have no loss.")] = 0.2
    excess: Annotated[
        float, Gt(0), Le(1), Doc("ν: weight of margins above the band, relative to those below it.")
    ] = 0.5
    space: Annotated[
        Space,
        Doc(
            "Where clusters are looked for. graph: rows that are joined by near rows are alike; kernel: RBF;"
            " both: the mean of these kernels; linear: the columns."
        ),
    ] = "graph"
    size: Annotated[int, Ge(1), Le(2000), Doc("Components of the graph, or landmarks of the kernel.")] = 30
    scaling: Annotated[Scaling, Doc("Scaling of the raw columns for this stage.")] = Scaling.MINMAX
    rounds: Annotated[
        int, Ge(0), Le(50), Doc("Most label vectors that are added to the relaxed problem.")
    ] = 3

    def __post_init__(self) -> None:
        faults = [_pair_fault(name, getattr(self, name)) for name in ("must_link", "cannot_link")]
        check_parameters(self, "labelling", *faults)
        object.__setattr__(self, "scaling", Scaling(self.scaling))

    def classes_of(self, known: Sequence[str] = ()) -> tuple[str, ...]:
        """The names of the clusters; ``known`` is ignored."""
        del known
        width = len(str(self.clusters))
        return tuple(f"cluster {number:0{width}d}" for number in range(1, self.clusters + 1))

    def label(self, data: LabelledData, run: Run) -> Labelling:
        """Clusters of all rows; their labels, if any, are ignored."""
        import numpy as np

        from core.labelling.margins import labelling_of, least_counts
        from core.labelling.space import labelling_space
        from core.solvers.labels.label_set import LabelSet
        from core.solvers.labels.margin_labels import LabelProblem

        n, K = data.n, self.clusters
        if n < K:
            message = f"{n} rows cannot be divided into {K} clusters"
            raise InvalidProblem(Fault("labelling.clusters", "out_of_bounds", message))
        labels = LabelSet(
            np.full(n, -1),
            K,
            least_counts(np.full(K, 1.0 / K), n, self.balance),
            np.array(_pairs(self.must_link)),
            np.array(_pairs(self.cannot_link)),
        )
        features = labelling_space(data.X, self.space, self.scaling, self.size, run)
        problem = LabelProblem(features, np.full(n, self.C / n), labels, self.band, self.excess)
        start = labels.best(_affinities(features, K, self.C, run))
        return labelling_of(problem, [start], self.classes_of(), self.rounds, run)


def _affinities(features: FloatArray, K: int, C: float, run: Run) -> FloatArray:
    """−‖z_i − centre_k‖², (n, K), by k-means on the K − 1 directions that a ridge regression fits best.

    With the squared loss and no band the labels maximise tr(Yᵀ P Y), P = Φ(ΦᵀΦ + n/C I)⁻¹Φᵀ, whose
    relaxation has the leading eigenvectors of P for Y (Bach and Harchaoui, DIFFRAC, NIPS 2007).
    """
    import numpy as np
    from sklearn.cluster import KMeans

    run.check_cancel()
    centred = features - features.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    shrunk = values**2 / (values**2 + len(features) / C)
    rows = left[:, : K - 1] * np.sqrt(shrunk[: K - 1])
    found = KMeans(K, n_init=_STARTS, random_state=run.seed).fit(rows)
    distances: FloatArray = found.transform(rows)
    return -(distances**2)


def _pairs(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Row numbers of pairs like "3-17". Raises ValueError."""
    pairs = []
    for text in texts:
        one, _, other = text.partition("-")
        pairs.append((int(one), int(other)))
    return pairs


def _pair_fault(name: str, texts: object) -> Fault | None:
    try:
        _pairs(texts)  # type: ignore[arg-type]
    except (ValueError, AttributeError, TypeError):
        return Fault(f"labelling.{name}", "bad_pair", f'{name} must hold pairs of rows like "3-17"')
    return None
