"""Students with several rejections: mean F against the number of pieces, beside gSVM and the teacher.

Linear features, where one rejection loses most. Two thirds of each training part are learnt from and the last
third is measured; the test parts are not read. At most 3000 rows of a set are used. Every student has the
default hyper-parameters, apart from the number of pieces. The last line is a JSON object: ``mean`` by number
of pieces, ``mean_teacher``, and the three blobs in a row of which a linear gSVM misses the one in the middle.

    python -m lab.studies.rejections [--data FOLDER] [--sets NAME …]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from core.data.dataset import LabelledData
from core.features.spec import FeatureSpec
from core.model_selection.metrics import binary_metrics
from core.run import Run
from core.students.base import StudentSpec
from core.students.gated import GSVM
from core.students.polytope import PIECES, Polytope
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare
from core.training.preparation import Preparation
from tests.system.data import data_folder

SETS = ("dna", "letter", "mfeat", "pendigits", "satimage", "scene15", "segment", "usps", "vowel", "yeast")
BUILT_IN = {"digits": load_digits, "iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer}
BLOBS = "blobs"
ROWS = 3000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.rejections", description=__doc__)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--sets", nargs="+", default=[BLOBS, *BUILT_IN, *SETS])
    options = parser.parse_args(arguments)
    specs: dict[str, StudentSpec] = {"gsvm": GSVM(), **{str(p): Polytope(pieces=p) for p in PIECES}}
    figures: dict[str, dict[str, float]] = {}
    print(f"{'set':14}{'rows':>6}{'classes':>8}{'teacher':>9}" + "".join(f"{name:>8}" for name in specs))
    for name, data in data_sets(options.sets, options.data):
        started = time.perf_counter()
        figures[name] = measure(data, specs)
        values = "".join(f"{value:8.1f}" for value in figures[name].values())
        print(f"{name:14}{data.n:6}{data.K:8} {values}   {time.perf_counter() - started:.0f} s", flush=True)
    real = [one for name, one in figures.items() if name != BLOBS]
    means = {key: round(float(np.mean([one[key] for one in real])), 2) for key in ("teacher", *specs)}
    print(
        json.dumps({"sets": len(real), **{f"mean_{key}": value for key, value in means.items()}, **figures})
    )
    return 0


def data_sets(names: Sequence[str], folder: Path) -> Iterator[tuple[str, LabelledData]]:
    """The data sets with these names, those without a file left out and named on standard error."""
    for name in names:
        path = folder / f"{name}.npz"
        if name == BLOBS:
            yield name, blobs()
        elif name in BUILT_IN:
            X, y = BUILT_IN[name](return_X_y=True)
            yield name, LabelledData.from_arrays(X, y)
        elif path.is_file():
            with np.load(path, allow_pickle=False) as arrays:
                yield name, some_rows(LabelledData.from_arrays(arrays["X_train"], arrays["y_train"]))
        else:
            print(f"{name} is left out: there is no {path}", file=sys.stderr)


def blobs() -> LabelledData:
    """100 rows of each of three Gaussians in a row, and a column of noise."""
    rng = np.random.default_rng(0)
    means = np.repeat([[0.0, 0.0, 0.0], [2.0, -2.0, 0.0], [4.0, -4.0, 0.0]], 100, axis=0)
    return LabelledData.from_arrays(means + rng.normal(size=means.shape), np.repeat(["a", "b", "c"], 100))


def some_rows(data: LabelledData) -> LabelledData:
    """At most ``ROWS`` rows of a data set."""
    rows = np.sort(np.random.default_rng(0).permutation(data.n)[:ROWS])
    return replace(data, X=data.X[rows], y=data.y[rows])


def measure(data: LabelledData, specs: dict[str, StudentSpec]) -> dict[str, float]:
    """Mean F over the classes, in per cent, of the teacher and of each kind of student."""
    order = np.random.default_rng(1).permutation(data.n)
    learnt, measured = np.split(order, [2 * data.n // 3])
    train, test = (replace(data, X=data.X[rows], y=data.y[rows]) for rows in (learnt, measured))
    features = FeatureSpec("linear", scaling="none" if sp.issparse(data.X) else "zscore")
    preparation = prepare(train, TrainingConfig(features=features, teacher=SSVM()))
    evaluator = Evaluator.of(preparation, test)
    classes = [k for k in range(data.K) if (train.y == k).any() and (test.y == k).any()]
    teacher = [f1(evaluator, k, evaluator.ranks.predicted == k) for k in classes]
    figures = {"teacher": 100.0 * float(np.mean(teacher))}
    for name, spec in specs.items():
        figures[name] = 100.0 * float(np.mean([student_f1(preparation, evaluator, k, spec) for k in classes]))
    return figures


def student_f1(preparation: Preparation, evaluator: Evaluator, target: int, spec: StudentSpec) -> float:
    """F of the student of one class at threshold 0."""
    scores = spec.fit(preparation.problem(target), Run()).scores(evaluator.examples)
    return f1(evaluator, target, scores >= 0.0)


def f1(evaluator: Evaluator, target: int, accepted: np.ndarray) -> float:
    """F of a decision (n,) on the measured rows."""
    truth = evaluator.labels == target
    return binary_metrics(truth, accepted, accepted.astype(float)).f1 or 0.0


if __name__ == "__main__":
    sys.exit(main())
