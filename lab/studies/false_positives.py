"""Promised against actual false-positive rates of students with a false-positive budget.

    python -m lab.studies.false_positives [--quick] [--minutes M] [--sets NAME …] [--rows N]

Jobs' students of all classes, as a job with threshold.rule fpr trains them, at most 1 % and at most 0.1 % of
false positives promised: "automatic" names nothing else, "gsvm" has the paper's student at the default C on
kernel features. Of each set two thirds of the training part are learnt from and the last third is measured;
no test part is read. Sets come from $STMS_DATA or ../shared/data, and digits from scikit-learn.

A promise is kept if the actual rate, pooled over the classes that it was given for, is at most the promised
one plus two standard errors (binomial, of as many negatives). Classes with too few training rows of other
classes have a warning instead of a promise. Beside it, with the same students and other thresholds:

counted       held-out scores as the folds' students give them, and the budget is the share of the training
              rows themselves, as it was once
gate_saw      as counted, but gate and difficulty come from the teacher of all rows, as it was before that
both_saw      as counted, on the scores of the student and the teacher of all rows

``--quick``: four sets and at most 1500 rows. ``--rows``: at most so many rows of a set, 4500 unless given.
``--minutes``: no further set is begun after so many.

The last line is a JSON object: ``sets``; ``promises``, one for each set, student and budget, and how many are
``kept``; ``worst_excess`` over the promised rate in standard errors; ``rates`` and ``recall`` in percent by
budget and threshold, pooled over sets, students and classes with a promise; and all figures ``by_set``. Exit
code 1 if a promise is not kept or no set was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed

from core.data.dataset import LabelledData
from core.features.spec import FeatureSpec
from core.model_selection.folds import Folds, TunedTeacher
from core.model_selection.held_out import HeldOut, cautious_threshold, hold_out
from core.model_selection.threshold import Promise, choose_threshold
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.training.config import AUTOMATIC_CALIBRATION, AUTOMATIC_FOLDS, AUTOMATIC_STUDENT, TrainingConfig
from core.training.pipeline import Evaluator, Preparation, prepare, train_student
from core.training.student_training import class_batches
from core.types import BoolArray, FloatArray
from lab.studies.defaults import read
from lab.studies.defaults_peers import Split
from tests.system.data import data_folder

Json = dict[str, Any]
SETS = ("digits", "vowel", "yeast", "cwru_lupi", "satimage", "letter", "shuttle", "news20_bydate")
QUICK_SETS = ("digits", "yeast", "satimage", "letter")
ROWS, QUICK_ROWS = 4500, 1500
BUDGETS = (0.01, 0.001)
PROMISED = "promised"
STUDENTS = {
    "automatic": TrainingConfig(
        automatic=True,
        students=(AUTOMATIC_STUDENT,),
        threshold="fpr",
        calibration=AUTOMATIC_CALIBRATION,
        folds=AUTOMATIC_FOLDS,
        guard="repair",
    ),
    "gsvm": TrainingConfig(features=FeatureSpec("auto"), threshold="fpr", guard="check"),
}


@dataclass(frozen=True, slots=True)
class Counts:
    """Answers on rows that were not learnt from, pooled over classes."""

    false_positives: int = 0
    negatives: int = 0
    true_positives: int = 0
    positives: int = 0

    @classmethod
    def of(cls, truth: BoolArray, decision: BoolArray) -> Counts:
        """Of one class, (n,)."""
        n, positives = len(truth), int(truth.sum())
        return cls(int((decision & ~truth).sum()), n - positives, int((decision & truth).sum()), positives)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.false_positives + other.false_positives,
            self.negatives + other.negatives,
            self.true_positives + other.true_positives,
            self.positives + other.positives,
        )

    @property
    def rate(self) -> float:
        """Of false positives."""
        return self.false_positives / max(1, self.negatives)

    @property
    def recall(self) -> float:
        """Share of the positives that are accepted."""
        return self.true_positives / max(1, self.positives)

    def excess(self, budget: float) -> float:
        """Standard errors of as many negatives by which the rate exceeds the budget."""
        return (self.rate - budget) / math.sqrt(budget * (1.0 - budget) / max(1, self.negatives))


Figures = dict[tuple[float, str], Counts]
"""By budget and by the scores that the threshold was chosen on."""


def thresholds(
    truth: BoolArray, held_out: HeldOut, leaking: HeldOut, own: FloatArray, budget: float
) -> dict[str, float]:
    """The threshold of each kind for a class. own: scores of the training rows by the student, (n,)."""
    negatives = int((~truth).sum())
    # With this budget the rule of the product accepts floor(budget · n) of n negatives.
    counted = (math.floor(budget * negatives) + 1) / (negatives + 1)
    beside = {"counted": held_out.scores, "gate_saw": leaking.scores, "both_saw": own}
    return {
        PROMISED: cautious_threshold(held_out, own, truth, budget),
        **{kind: choose_threshold(truth, scores, "fpr", counted) for kind, scores in beside.items()},
    }


def class_figures(
    preparation: Preparation, folds: Folds, leaking: Folds, evaluator: Evaluator, target: int
) -> Figures:
    """One class: those thresholds on the rows that were not learnt from; without a promise nothing.

    leaking: the same folds, with the teacher of all rows for each. Raises AssertionError unless the threshold
    that is measured is that of the student that a job would have shipped.
    """
    student = train_student(preparation, target, folds=folds)
    own, truth = preparation.labels == target, evaluator.labels == target
    seen = student.fitted.scores(preparation.examples)
    held_out, leaked = (hold_out(some, target, student.spec) for some in (folds, leaking))
    answers = student.fitted.scores(evaluator.examples)
    found: Figures = {}
    for budget in BUDGETS:
        chosen = thresholds(own, held_out, leaked, seen, budget)
        if budget == preparation.config.budget and chosen[PROMISED] != student.packed.threshold:
            raise AssertionError(f"the student of class {target} was shipped with another threshold")
        if Promise.of(own, held_out.scores, chosen[PROMISED], budget).warning is None:
            found |= {(budget, name): Counts.of(truth, answers >= at) for name, at in chosen.items()}
    return found


def measure(split: Split, config: TrainingConfig) -> Json:
    """Students of all classes of one set; figures by budget."""
    data = LabelledData.from_arrays(split.X, split.y)
    test = LabelledData.with_codes(split.X_test, split.y_test, data.classes)
    preparation = prepare(data, config, Run(n_threads=cpu_count()))
    preparation.config.students[0].prepare(preparation.examples, Run())
    seen = TunedTeacher(
        preparation.config.teacher, (preparation.teacher,) * len(preparation.fold_teachers), ()
    )
    pooled: Figures = {}
    promised = dict.fromkeys(BUDGETS, 0)
    evaluator = Evaluator.of(preparation, test)
    for batch in class_batches(preparation, range(data.K)):
        folds = preparation.folds(batch)
        leaking = Folds.of(
            preparation.task,
            data.classes,
            folds.fold_of,
            seen,
            targets=batch,
            teacher_cost=folds.teacher_cost,
        )
        with one_blas_thread():
            pool = Parallel(n_jobs=cpu_count(), prefer="threads")
            several = pool(
                delayed(class_figures)(preparation, folds, leaking, evaluator, one) for one in batch
            )
        for found in several:
            for budget in BUDGETS:
                promised[budget] += (budget, PROMISED) in found
            pooled = {key: pooled.get(key, Counts()) + found.get(key, Counts()) for key in {*pooled, *found}}
    return {
        str(budget): {"classes": data.K, "promised_for": promised[budget], **_by_threshold(pooled, budget)}
        for budget in BUDGETS
    }


def _by_threshold(pooled: Figures, budget: float) -> Json:
    return {
        name: {
            "false_positives": one.false_positives,
            "negatives": one.negatives,
            "true_positives": one.true_positives,
            "positives": one.positives,
            "rate": one.rate,
            "recall": one.recall,
            "excess": one.excess(budget),
        }
        for (own, name), one in sorted(pooled.items())
        if own == budget
    }


def summary(found: dict[str, Json]) -> Json:
    """The content of the last line but for the figures by set."""
    kept, excess = 0, []
    pooled: Figures = {}
    for by_student in found.values():
        for by_budget in by_student.values():
            for budget in BUDGETS:
                figures = by_budget[str(budget)]
                if PROMISED not in figures:
                    continue
                excess.append(figures[PROMISED]["excess"])
                kept += excess[-1] <= 2.0
                for name in (PROMISED, "counted", "gate_saw", "both_saw"):
                    fields = Counts.__dataclass_fields__
                    counts = Counts(**{field: figures[name][field] for field in fields})
                    pooled[budget, name] = pooled.get((budget, name), Counts()) + counts
    by_budget = {
        what: {
            str(budget): {
                name: round(100.0 * getattr(one, field), 4)
                for (own, name), one in pooled.items()
                if own == budget
            }
            for budget in BUDGETS
        }
        for what, field in (("rates", "rate"), ("recall", "recall"))
    }
    return {
        "sets": len(found),
        "promises": len(excess),
        "kept": kept,
        "worst_excess": round(max(excess), 2) if excess else None,
        **by_budget,
    }


def _line(name: str, student: str, budget: float, figures: Json) -> str:
    what = f"{name:14} {student:10} {100 * budget:4g} %"
    if PROMISED not in figures:
        return f"{what}  not promised: too few rows"
    rates = "  ".join(
        f"{kind} {100 * figures[kind]['rate']:.3f} % (recall {100 * figures[kind]['recall']:.1f})"
        for kind in (PROMISED, "counted", "gate_saw", "both_saw")
    )
    promise = figures[PROMISED]
    limited = f"{figures['promised_for']} of {figures['classes']} classes"
    return f"{what}  {rates}  {promise['excess']:+.1f} SE, {limited}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 when all promises are kept and at least one set was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.studies.false_positives",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--sets", nargs="+", default=None)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    given = parser.parse_args(arguments)
    names = given.sets or (QUICK_SETS if given.quick else SETS)
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
    ends = time.monotonic() + 60.0 * given.minutes
    found: dict[str, Json] = {}
    for name in names:
        split = read(name, given.data, rows, final=False)
        if split is None:
            print(f"{name} is left out: there is no such file in {given.data}", file=sys.stderr)
            continue
        if time.monotonic() > ends:
            print(f"{name} and what follows are left out: the time is over", file=sys.stderr)
            break
        found[name] = {}
        for student, config in STUDENTS.items():
            started = time.monotonic()
            found[name][student] = measure(split, config)
            seconds = round(time.monotonic() - started, 1)
            for budget in BUDGETS:
                print(_line(name, student, budget, found[name][student][str(budget)]), flush=True)
            print(f"{name:14} {student:10} {seconds} s", flush=True)
    shown = summary(found)
    print(json.dumps({**shown, "by_set": found}))
    return 0 if shown["promises"] and shown["kept"] == shown["promises"] else 1


if __name__ == "__main__":
    sys.exit(main())
