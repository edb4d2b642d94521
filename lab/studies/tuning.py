"""The paper's tuning protocol, exhaustive and by successive halving, on satimage, vowel and yeast.

    python -m lab.studies.tuning [--threads N] [--job] [set …]

Ten folds; the teacher's C over 7 values; for every class gSVM over 7 × 16 × 5 points, gSVM-0 over 7 × 16 and
the SVM over 7, by cross-validated F at threshold 0. Prints, for each set, both times and how far the points
that halving chose are from the best ones, in their standard errors. The last line is a JSON object.

``--job`` measures a search of scope job instead, on random mixtures of 10 430 × 10 rows of 12 classes.

Wall times depend on the load of the machine; processor times depend less on it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from core.data.dataset import LabelledData
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.model_selection.folds import Folds, make_folds, task_of_features
from core.model_selection.options import Strategy
from core.model_selection.results import SearchResult
from core.model_selection.search import tune_student
from core.model_selection.setting_search import search_setting
from core.model_selection.setting_time import expected_seconds
from core.run import Run
from core.students.gated import GATED, GSVM, Method
from core.students.grid import PAPER_GRID
from core.students.polytope import Polytope
from core.teachers.ssvm import SSVM
from tests.system.data import training_part

T = TypeVar("T")

# Satimage as in the other benchmarks; γ of the small sets as in the sanity fits of the data's README.
FEATURES = {
    "satimage": FeatureSpec("nystroem", n_components=600, gamma=0.05),
    "vowel": FeatureSpec("nystroem", n_components=500, gamma=0.15),
    "yeast": FeatureSpec("nystroem", n_components=500, gamma=0.125),
}
YEAST_SPLITS = 20
LIMIT_SECONDS = 15 * 60
JOB_ROWS, JOB_COLUMNS, JOB_CLASSES, JOB_SECONDS = 10_430, 10, 12, 60.0


@dataclass(frozen=True)
class Cost:
    """Wall and processor seconds."""

    wall: float
    cpu: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu)


def timed(work: Callable[[], T]) -> tuple[T, Cost]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, Cost(time.perf_counter() - wall, time.process_time() - cpu)


def folds_of(name: str, n_threads: int | None) -> Folds:
    """Features of the training rows, ten folds, and the teacher's C."""
    data = LabelledData.from_arrays(*training_part(name))
    features = fit_feature_map(data.X, FEATURES[name], 0).transform(data.X)
    return make_folds(
        task_of_features(features, data.y, data.K),
        data.classes,
        [SSVM(C) for C in PAPER_GRID.C],
        run=Run(n_threads=n_threads),
    )


def search_all(
    folds: Folds, strategy: Strategy, n_threads: int | None
) -> dict[tuple[int, Method], SearchResult]:
    """All pairs of a class and a method."""
    return {
        (target, method): tune_student(
            folds, target, GATED[method]().grid(PAPER_GRID), strategy=strategy, run=Run(n_threads=n_threads)
        )
        for target in range(len(folds.classes))
        for method in GATED
    }


def distance(exhaustive: SearchResult, halving: SearchResult) -> float:
    """Loss of score of the point chosen by halving against the best one, in standard errors of the best."""
    chosen = halving.spec.params()
    score = next(point.score for point in exhaustive.trace if point.params == chosen)
    below = exhaustive.score - score
    if below <= 0.0:
        return 0.0
    return below / exhaustive.standard_error if exhaustive.standard_error > 0.0 else float("inf")


def run(name: str, n_threads: int | None) -> dict[str, Any]:
    """Run both strategies on one data set. Returns figures by name."""
    folds, shared = timed(lambda: folds_of(name, n_threads))
    best, exhaustive = timed(lambda: search_all(folds, "exhaustive", n_threads))
    found, halving = timed(lambda: search_all(folds, "halving", n_threads))
    away = {key: distance(best[key], found[key]) for key in best}
    fits = folds.n_folds * sum(len(tuned.trace) for tuned in best.values())
    print(
        f"{name}: n {len(folds.labels)}, m {folds.rows[0].single.shape[1]}, {len(folds.classes)} classes,"
        f" teacher {folds.teacher.spec.params()}; rare classes: {', '.join(folds.rare_classes) or 'none'}"
    )
    print(f"  features, folds, teachers {shared.wall:7.1f} s, {shared.cpu:7.1f} s of processor")
    print(
        f"  exhaustive                {exhaustive.wall:7.1f} s, {exhaustive.cpu:7.1f} s of processor,"
        f" {fits} fits, {1e3 * exhaustive.cpu / fits:.2f} ms each"
    )
    print(f"  halving                   {halving.wall:7.1f} s, {halving.cpu:7.1f} s of processor")
    for method in GATED:
        keys = [key for key in best if key[1] == method]
        means = [100 * float(np.mean([tuned[key].score for key in keys])) for tuned in (best, found)]
        print(
            f"  {method:6s} mean F of the folds: exhaustive {means[0]:.2f}, halving {means[1]:.2f};"
            f" halving's points at most {max(away[key] for key in keys):.2f} standard errors below"
        )
    return {
        "exhaustive": shared + exhaustive,
        "halving": shared + halving,
        "within": [value <= 1.0 for value in away.values()],
        "worst_gap": max(point.gap for tuned in best.values() for point in tuned.trace),
    }


def search_job(threads: int) -> int:
    """Seconds of a search of scope job, by student. Exit code: 0 if each is within a minute."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, JOB_CLASSES, JOB_ROWS)
    X = rng.normal(size=(JOB_ROWS, JOB_COLUMNS)) + 0.8 * rng.normal(size=(JOB_CLASSES, JOB_COLUMNS))[y]
    data, run = LabelledData.from_arrays(X, y), Run(n_threads=threads)
    figures: dict[str, float] = {}
    for name, student in (("gsvm", GSVM()), ("polytope", Polytope())):
        expected = expected_seconds(data, (student,), run)
        _, cost = timed(partial(search_setting, data, FeatureSpec(), (student,), run))
        print(f"{name}: {cost.wall:.1f} s ({cost.cpu:.1f} s of processor time), {expected:.1f} s expected")
        figures[f"{name}_seconds"] = round(cost.wall, 1)
        figures[f"{name}_expected_seconds"] = round(expected, 1)
    print(json.dumps(figures))
    return int(max(figures["gsvm_seconds"], figures["polytope_seconds"]) > JOB_SECONDS)


def main() -> int:
    """Exit code: 0 when the time and all chosen points are within their limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", default=list(FEATURES), help="data sets (default: all three)")
    parser.add_argument("--threads", type=int, default=None, help="folds at a time (default: processors)")
    parser.add_argument("--job", action="store_true", help="only a search of scope job")
    arguments = parser.parse_args()
    if arguments.job:
        return search_job(arguments.threads or os.cpu_count() or 1)
    figures = {name: run(name, arguments.threads) for name in arguments.sets}
    exhaustive = sum((one["exhaustive"] for one in figures.values()), Cost(0.0, 0.0))
    halving = sum((one["halving"] for one in figures.values()), Cost(0.0, 0.0))
    within = [inside for one in figures.values() for inside in one["within"]]
    result: dict[str, Any] = {
        "exhaustive_seconds": round(exhaustive.wall, 1),
        "exhaustive_cpu_seconds": round(exhaustive.cpu, 1),
        "halving_seconds": round(halving.wall, 1),
        "halving_cpu_seconds": round(halving.cpu, 1),
        "halving_within_one_se": all(within),
        "searches_within_one_se": f"{sum(within)}/{len(within)}",
        "worst_relative_gap": max(one["worst_gap"] for one in figures.values()),
    }
    if "yeast" in figures:
        twenty = YEAST_SPLITS * figures["yeast"]["exhaustive"].wall
        print(f"yeast on {YEAST_SPLITS} splits: {twenty:.0f} s, {YEAST_SPLITS} times the one above")
        result["yeast_20_splits_exhaustive_seconds_estimated"] = round(twenty, 1)
    print(json.dumps(result))
    return 0 if all(within) and exhaustive.wall <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
