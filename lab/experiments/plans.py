"""What is run on each data set with each grid: features, folds, strategy, splits; and the compact curves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from core.model_selection.options import Metric, Strategy
from core.students.grid import OPEN_GRID, PAPER_GRID, Grid
from lab.experiments.setting import Search

GridName: TypeAlias = Literal["paper", "open"]

GRIDS: tuple[GridName, ...] = get_args(GridName)

TEACHER_C = tuple(10.0**power for power in range(7))
"""The paper gives no values for its teacher; with C/n its figures need a C well beyond 1e3."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The seed of everything random, how many fits run at the same time, and the bootstrap replicates."""

    seed: int = 0
    n_threads: int = 2
    replicates: int = 500


@dataclass(frozen=True, slots=True)
class Plan:
    """One data set with one grid.

    search: for the setting. grid: of the students. tuning: ``"class"`` as in the paper, every class by itself
    for the best ``metric``, with threshold 0; ``"joint"`` one point for all classes, with the thresholds of
    ``class_thresholds``. strategy: of a class's search on split 0; later splits are searched by halving.
    folds: of the students' cross-validation. splits: how many are averaged.
    by_groups: whether rows that belong together share a fold, where a data set has such. tolerance: relative
    duality gap of the students that are measured on the test part.
    """

    data_set: str
    name: GridName
    search: Search
    grid: Grid
    tuning: Literal["class", "joint"]
    strategy: Strategy
    folds: int
    splits: int
    by_groups: bool
    metric: Metric = "f1"
    tolerance: float = 1e-5

    def strategy_of(self, split: int) -> Strategy:
        """The strategy of the students' search on a split."""
        return self.strategy if split == 0 else "halving"


@dataclass(frozen=True, slots=True)
class CurvePlan:
    """One data set's curve of compact students: cost against F.

    features, teacher_C: of the teacher. sizes: numbers of landmarks. steps: of each descent.
    rows: at most this many training rows are used; None for all.
    """

    features: FeatureSpec
    teacher_C: float = 3e4  # noqa: N815
    sizes: tuple[int, ...] = (25, 50, 100, 200)
    steps: int = 3000
    rows: int | None = None


def as_record(plan: Plan | CurvePlan) -> dict[str, Any]:
    """All fields, JSON-ready; later fields of `core` only if they have an effect.

    Otherwise a further field of a specification would make every stored result that of another plan.
    """
    without_effect = (("column_factors", None), ("layout", None), ("balance", 0.0), ("balances", ()))

    def known(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in items if (name, value) not in without_effect}

    return asdict(plan, dict_factory=known)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What differs between data sets. exhaustive: whether the paper's whole protocol is affordable."""

    features: FeatureSpec
    folds: int = 10
    open_folds: int = 10
    splits: int = 1
    exhaustive: bool = False
    setting_folds: int = 5
    setting_rows: int = 4000


_TEXT = FeatureSpec("linear", scaling=Scaling.IDF)

_FACTS = {
    "letter": _Facts(FeatureSpec("nystroem", n_components=1000, dtype="float32"), 10, 5, setting_folds=3),
    "satimage": _Facts(FeatureSpec("nystroem", n_components=600), exhaustive=True),
    "shuttle": _Facts(FeatureSpec("nystroem", n_components=500, dtype="float32"), 10, 5, setting_folds=3),
    "vowel": _Facts(FeatureSpec("nystroem", n_components=500), exhaustive=True),
    "yeast": _Facts(FeatureSpec("nystroem", n_components=500), splits=20, exhaustive=True),
    "protein_val_part": _Facts(FeatureSpec("nystroem", n_components=600, scaling=Scaling.NONE)),
    "news20_bydate": _Facts(_TEXT, 5, 5, setting_folds=3),
    "reuters_r8": _Facts(_TEXT, 5, 5, setting_folds=3),
    "pendigits": _Facts(FeatureSpec("nystroem", n_components=600), 5, 5, setting_folds=3),
    "usps": _Facts(FeatureSpec("nystroem", n_components=600, scaling=Scaling.NONE), 5, 5, setting_folds=3),
    "mnist": _Facts(
        FeatureSpec("nystroem", n_components=1000, scaling=Scaling.MINMAX, dtype="float32"),
        3,
        3,
        setting_folds=3,
    ),
}

DATA_SETS = tuple(_FACTS)
BEYOND_THE_PAPER = ("news20_bydate", "pendigits", "usps", "mnist", "reuters_r8")
PART_ONLY = "protein_val_part"

CURVES: dict[str, CurvePlan] = {
    "letter": CurvePlan(FeatureSpec("nystroem", 1000, gamma=0.1)),
    "satimage": CurvePlan(FeatureSpec("nystroem", 600, gamma=0.05)),
    # γ = 0.03 on pixels from 0 to 1. Some of the rows and half the steps, to be affordable for all classes.
    "mnist": CurvePlan(
        FeatureSpec("nystroem", 1000, gamma=0.03 / 255.0**2, scaling=Scaling.NONE), steps=1500, rows=10_000
    ),
}

_GAMMA_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_OPEN_TEACHER_C = (1e2, 1e3, 1e4, 1e5, 1e6)


def plan_for(data_set: str, grid: GridName) -> Plan:
    """The plan of a data set with a grid. Raises KeyError for an unknown set."""
    facts = _FACTS[data_set]
    if grid == "paper":
        search = Search(facts.features, TEACHER_C, folds=facts.setting_folds)
        strategy: Strategy = "exhaustive" if facts.exhaustive else "halving"
        return Plan(data_set, grid, search, PAPER_GRID, "class", strategy, facts.folds, facts.splits, False)
    linear = facts.features.kind == "linear"
    scalings = tuple(dict.fromkeys((facts.features.scaling, Scaling.ZSCORE, Scaling.MINMAX)))
    search = Search(
        facts.features,
        _OPEN_TEACHER_C,
        scalings=() if linear else scalings,
        gamma_factors=() if linear else _GAMMA_FACTORS,
        folds=facts.setting_folds,
        rows=facts.setting_rows,
    )
    return Plan(data_set, grid, search, OPEN_GRID, "joint", "halving", facts.open_folds, facts.splits, True)
