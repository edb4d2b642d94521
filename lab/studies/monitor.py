"""Whether the numbers of the loop after a training hold: alarms, sampled feedback, wrong labels, added
classes.

    python -m lab.studies.monitor [--quick] [--parts alarms recall suspects added] [--sets NAME …] [--draws N]

alarms     streams of 52 weeks of 400 labelled negatives and a promise of 1 %, looked at after each 100: the
           share of 10 000 streams at exactly 1 % that give an alarm, and how many negatives one takes
           (medians) at 2 % and 3 %, and at 2 % after 26 weeks at 0.5 % recall     20 000 queries with 3 % of
           a class whose true recall is 80 %, half of the yes answers and some no answers sampled, 800 labels
           a time: the error of the estimate and how often its 95 % interval covers the truth suspects   of
           three sets, with 5 % of the labels of the training part flipped: how many of the 100 rows shown
           first are wrong; out-of-bag scores of a forest added      a class from 10 and from 30 examples, of
           150 rows a class, beside the whole training with the same rows: F on rows that neither saw, at the
           same budget of 1 % false positives; every class of every set, 5 draws; and the processor seconds at
           15 000 rows and 300 landmarks

Of each set two thirds of the training part are learnt from and the last third is measured; no test part is
read. Sets come from $STMS_DATA or ../shared/data. ``--quick``: fewer streams, repeats, sets and draws.

The last line is a JSON object: ``false_alarms`` and ``recall_coverage`` as shares; ``delay_2pct``,
``delay_3pct`` and ``delay_after_good`` in negatives; ``recall_error``, the standard error in points;
``suspects_in_first_100``, the fewest of the sets; ``added_class_f1_vs_full``, the mean difference in points;
``added_class_s``, processor seconds; ``missed``, the goals that are not met, and figures ``by_part``. Exit
code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from app.domain.answer_counts import ClassCounts, bin_edges
from app.services.monitors import sampling_plan
from core.data.dataset import LabelledData
from core.features.spec import FeatureSpec
from core.model_selection.metrics import binary_metrics
from core.monitoring.addition import AdditionBase, add_class
from core.monitoring.estimates import Samples, recall
from core.monitoring.sampling import SamplingPlan
from core.monitoring.sequential import Evidence, SequentialTest, Trials, alarm_level, replay
from core.monitoring.suspects import class_probabilities, suspect_labels
from core.run import Run
from core.students.polytope import Polytope
from core.students.trees import Trees
from core.teachers.forest import Forest
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from core.types import BoolArray, FloatArray, IntArray
from lab.studies.defaults import read
from lab.studies.defaults_peers import Split
from tests.system.data import data_folder

Json = dict[str, Any]
PROMISED, WEEK, WEEKS, LOOK = 0.01, 400, 52, 100
RECALL, FALSE_POSITIVES, SHARE, QUERIES, LABELS = 0.8, 0.01, 0.03, 20_000, 800
FLIPPED, SHOWN = 0.05, 100
SUSPECT_SETS = ("letter", "pendigits", "satimage")
SETS = ("letter", "pendigits", "satimage", "segment", "usps", "vowel", "mfeat", "dna")
QUICK_SETS = ("vowel", "segment")
PER_CLASS, EXAMPLES = 150, (10, 30)
LARGE = 15_000
CONFIG = TrainingConfig(
    features=FeatureSpec("nystroem", n_components=300),
    students=(Polytope(pieces=4, C=1e5),),
    threshold="fpr",
    budget=PROMISED,
    calibration="sigmoid",
    folds=3,
)
GOALS: dict[str, Callable[[float], bool]] = {
    "false_alarms": lambda share: share <= 0.05,
    "delay_2pct": lambda negatives: negatives <= 1300,
    "delay_3pct": lambda negatives: negatives <= 500,
    "delay_after_good": lambda negatives: negatives <= 3000,
    "recall_error": lambda points: points <= 6.0,
    "recall_coverage": lambda share: share >= 0.93,
    "suspects_in_first_100": lambda rows: rows >= 85,
    "added_class_f1_vs_full": lambda points: points >= -1.0,
    "added_class_s": lambda seconds: seconds <= 1.0,
}


def alarm_times(rates: FloatArray, streams: int, rng: np.random.Generator) -> FloatArray:
    """Negatives until the alarm of each stream, (streams,), inf without one. rates: of each look, (looks,).

    All streams at once, and some of them by ``replay``, which must say the same. Raises AssertionError.
    """
    test, level = SequentialTest.of_false_positives(PROMISED), np.log(alarm_level(1))
    wrong = rng.binomial(LOOK, rates, (streams, len(rates)))
    mistake, right = (test.log_factors(Trials.of_counts(0, 1, one)) for one in (1, 0))
    wealth = np.tile(Evidence.start(test).log_wealth, (streams, 1))
    path = np.empty(wrong.shape)
    for look in range(len(rates)):
        begun = look * LOOK // WEEK + 1
        if begun > 1 and look * LOOK % WEEK == 0:
            wealth = np.logaddexp(wealth, np.log(1.0 / begun - 1.0 / (begun + 1.0)))
        wealth += np.outer(wrong[:, look], mistake) + np.outer(LOOK - wrong[:, look], right)
        path[:, look] = np.logaddexp(
            np.logaddexp.reduce(wealth, axis=1) - np.log(len(mistake)), -np.log(begun + 1.0)
        )
    for stream in range(min(10, streams)):
        batches = [
            Trials.of_counts(look * LOOK // WEEK, LOOK, int(wrong[stream, look]))
            for look in range(len(rates))
        ]
        if not np.allclose(replay(test, batches)[1], path[stream], rtol=1e-9, atol=1e-9):
            raise AssertionError("the streams were not followed as the product follows them")
    reached = path >= level
    return np.where(reached.any(axis=1), LOOK * (reached.argmax(axis=1) + 1.0), np.inf)


def alarms(streams: int) -> Json:
    """Share of false alarms, and delays."""
    looks = WEEKS * WEEK // LOOK
    rng = np.random.default_rng(1)
    kept = alarm_times(np.full(looks, PROMISED), streams, rng)
    some = max(200, streams // 5)
    delays = {rate: alarm_times(np.full(looks, rate), some, rng) for rate in (0.02, 0.03)}
    good = np.where(np.arange(looks) < looks // 2, PROMISED / 2.0, 2.0 * PROMISED)
    broken_at = LOOK * (looks // 2)
    after = alarm_times(good, some, rng)
    return {
        "false_alarms": float(np.isfinite(kept).mean()),
        "delay_2pct": float(np.median(delays[0.02])),
        "delay_3pct": float(np.median(delays[0.03])),
        "delay_after_good": float(np.median(after[after > broken_at] - broken_at)),
        "streams": streams,
    }


def traffic(rng: np.random.Generator) -> tuple[BoolArray, BoolArray, FloatArray]:
    """Truth, answers and right probabilities of queries to a student with binormal scores."""
    distance = stats.norm.isf(FALSE_POSITIVES) - stats.norm.isf(RECALL)
    truth = rng.random(QUERIES) < SHARE
    scores = rng.standard_normal(QUERIES) + distance * truth
    odds = SHARE / (1.0 - SHARE) * np.exp(distance * scores - distance**2 / 2.0)
    return truth, scores >= stats.norm.isf(FALSE_POSITIVES), odds / (1.0 + odds)


def recalls(repeats: int) -> Json:
    """Error and coverage of the estimates. The plan is made by other queries of the same kind, as on a day
    before.
    """
    rng = np.random.default_rng(2)
    _, accepted, p = traffic(rng)
    # As servers count them, and the elected worker plans.
    bins = tuple(np.histogram(p, bin_edges())[0].tolist())
    counted = ClassCounts("", QUERIES, int(accepted.sum()), float(p.sum()), float(p[accepted].sum()), bins)
    plan = sampling_plan(SamplingPlan(0.5), [counted], LABELS)
    found, labels = [], []
    for _ in range(repeats):
        truth, accepted, p = traffic(rng)
        q = np.where(accepted, plan.yes, np.minimum(1.0, plan.floor + plan.slope * np.sqrt(p)))
        rows = rng.random(QUERIES) < q
        samples = Samples(accepted[rows], truth[rows], np.ones(rows.sum(), dtype=bool), q[rows], p[rows])
        found.append(recall(samples).interval)
        labels.append(int(rows.sum()))
    estimates = np.array([one.estimate for one in found if one is not None])
    covered = [one is not None and one.low <= RECALL <= one.high for one in found]
    return {
        "recall_error": float(100.0 * np.sqrt(((estimates - RECALL) ** 2).mean())),
        "recall_coverage": float(np.mean(covered)),
        "mean": float(100.0 * estimates.mean()),
        "labels": float(np.mean(labels)),
        "repeats": repeats,
    }


def flipped(codes: IntArray, K: int, rng: np.random.Generator) -> IntArray:
    """The codes (n,) with a share of them exchanged for another class, all others alike."""
    wrong = rng.random(len(codes)) < FLIPPED
    return np.where(wrong, (codes + rng.integers(1, K, len(codes))) % K, codes)


def suspects(folder: Path, names: Sequence[str]) -> Json:
    """Wrong ones among the rows shown first, by set, and the fewest."""
    config = TrainingConfig(teacher=Forest(), students=(Trees(),), threshold="expected_f1", folds=3)
    found = {}
    for name in names:
        split = read(name, folder, None, final=False)
        if split is None:
            print(f"{name} is left out: there is no such file in {folder}", file=sys.stderr)
            continue
        known = LabelledData.from_arrays(split.X, split.y)
        given = flipped(known.y, known.K, np.random.default_rng(5))
        data = LabelledData.with_codes(split.X, [known.classes[code] for code in given], known.classes)
        held_out = prepare(data, config, Run()).held_out
        if held_out is None:
            raise AssertionError("a forest has scores of rows that its trees have not seen")
        shown = suspect_labels(data.y, class_probabilities(data.y, held_out), SHOWN).rows
        found[name] = int((given != known.y)[shown].sum())
        print(f"{name:10} {found[name]} of the first {len(shown)} suspects are wrong", flush=True)
    return {"suspects_in_first_100": min(found.values()), "sets": found}


def class_figures(split: Split, label: Any, draws: int) -> list[Json]:
    """One class left out and added again, beside the training with the same rows."""
    rng = np.random.default_rng(0)
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(split.y == one))[:PER_CLASS] for one in np.unique(split.y)]
    )
    others, own = rows[split.y[rows] != label], np.flatnonzero(split.y == label)
    base = AdditionBase.fit(split.X[others])
    truth, figures = split.y_test == label, []
    for draw in range(draws):
        order = np.random.default_rng(100 + draw).permutation(own)
        for number in EXAMPLES:
            if number > len(order):
                continue
            new = order[:number]
            began = time.process_time()
            known = np.unique(split.y[others], return_inverse=True)[1]
            added = add_class(
                base, split.X[others], str(label), split.X[new], classes=known, budget=PROMISED
            ).student
            took = time.process_time() - began
            both = np.concatenate([others, new])
            names = np.where(
                split.y[both] == label, "added", "other " + split.y[both].astype(str).astype(object)
            )
            full = train(LabelledData.from_arrays(split.X[both], names), CONFIG, classes=["added"]).students[
                "added"
            ]
            scores = [one.scores(split.X_test) for one in (added, full)]
            measured = [
                binary_metrics(truth, score >= one.threshold, score)
                for score, one in zip(scores, (added, full), strict=True)
            ]
            figures.append(
                {
                    "class": str(label),
                    "examples": number,
                    "added": measured[0].f1,
                    "full": measured[1].f1,
                    "auc": [one.auc for one in measured],
                    "false_positive_rate": measured[0].fp / int((~truth).sum()),
                    "full_false_positive_rate": measured[1].fp / int((~truth).sum()),
                    "at_budget": [_f1_at_budget(truth, score) for score in scores],
                    "seconds": took,
                }
            )
    return figures


def _f1_at_budget(truth: BoolArray, scores: FloatArray) -> float:
    """F at the threshold that lets just the promised share of the other test rows pass: two students that are
    compared there keep the same budget, whatever the rules of their thresholds make of it.
    """
    others = np.sort(scores[~truth])[::-1]
    threshold = others[int(PROMISED * len(others))]
    return binary_metrics(truth, scores > threshold, scores).f1 or 0.0


def added_classes(folder: Path, names: Sequence[str], draws: int) -> Json:
    """Mean F of added classes beside that of the whole training, in points, and the time of a large one."""
    found: dict[str, Json] = {}
    everything: list[Json] = []
    for name in names:
        split = read(name, folder, None, final=False)
        if split is None:
            print(f"{name} is left out: there is no such file in {folder}", file=sys.stderr)
            continue
        figures = [one for label in split.classes for one in class_figures(split, label, draws)]
        everything += figures
        found[name] = _means(figures)
        print(f"{name:10} {json.dumps(found[name])}", flush=True)
    return {
        "added_class_f1_vs_full": _means(everything)["difference"],
        "added_class_s": seconds_of_a_large_one(),
        "means": _means(everything),
        "by_examples": {
            number: _means([one for one in everything if one["examples"] == number]) for number in EXAMPLES
        },
        "sets": found,
    }


def _means(figures: Sequence[Json]) -> Json:
    added, full = (100.0 * float(np.mean([one[name] for one in figures])) for name in ("added", "full"))
    return {
        "added": round(added, 2),
        "full": round(full, 2),
        "difference": round(added - full, 2),
        "auc": [round(100.0 * float(one), 2) for one in np.mean([one["auc"] for one in figures], axis=0)],
        "false_positive_rate": round(float(np.mean([one["false_positive_rate"] for one in figures])), 5),
        "full_false_positive_rate": round(
            float(np.mean([one["full_false_positive_rate"] for one in figures])), 5
        ),
        "at_budget": [
            round(100.0 * float(one), 2) for one in np.mean([one["at_budget"] for one in figures], axis=0)
        ],
        "runs": len(figures),
    }


def seconds_of_a_large_one() -> float:
    """Processor seconds of one addition, the median of five, at 15 000 rows and 300 landmarks."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(LARGE, 16)) + 3.0 * rng.normal(size=(26, 16))[np.arange(LARGE) % 26]
    base = AdditionBase.fit(X)
    taken = []
    for _ in range(5):
        began = time.process_time()
        add_class(base, X, "new", rng.normal(size=(30, 16)), classes=np.arange(LARGE) % 26)
        taken.append(time.process_time() - began)
    return float(np.median(taken))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 when every goal of the parts that ran is met."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.studies.monitor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = ("alarms", "recall", "suspects", "added")
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sets", nargs="+", default=None, help="of the added classes")
    parser.add_argument("--draws", type=int, default=None, help="of the examples of each class")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    quick = given.quick
    run: dict[str, Callable[[], Json]] = {
        "alarms": lambda: alarms(1000 if quick else 10_000),
        "recall": lambda: recalls(200 if quick else 1500),
        "suspects": lambda: suspects(given.data, SUSPECT_SETS[-1:] if quick else SUSPECT_SETS),
        "added": lambda: added_classes(
            given.data, given.sets or (QUICK_SETS if quick else SETS), given.draws or (1 if quick else 5)
        ),
    }
    found: dict[str, Json] = {}
    for part in given.parts:
        found[part] = run[part]()
        print(
            f"{part}: {json.dumps({name: found[part][name] for name in GOALS if name in found[part]})}",
            flush=True,
        )
    figures = {name: one[name] for name in GOALS for one in found.values() if name in one}
    missed = [name for name, value in figures.items() if not GOALS[name](value)]
    print(json.dumps({**figures, "missed": missed, "by_part": found}))
    return 1 if missed or not figures else 0


if __name__ == "__main__":
    sys.exit(main())
