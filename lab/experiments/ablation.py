"""What the teacher gives its students: no teacher, its gate, and its gate with difficulty.

    python -m lab.experiments.ablation --data FOLDER [--work FOLDER] [--out FOLDER] [--sets NAME …]
                                       [--seeds N] [--quick] [--report-only]

Two thirds of a training part are learnt from and its last third is measured; no test part is read. Students
are full ones (svm, gsvm0, gsvm) and compact ones of 50 landmarks (without gate and difficulty, with the gate,
with both), for at most eight classes of a set. What teacher and students learn from:

all          all rows
10, 30, 100  so many labelled rows of each class; a set that has fewer than twice as many is left out
10+, …       the same teacher, and the other rows without their labels, scored by it
tenth        students learn from a tenth of the rows, their teacher had all of them

Features and C are those that the product chooses automatically for the teacher's rows. Every record is stored
as soon as it is made, and a stopped run goes on from there. Writes ablation.md and ablation.svg to ``--out``;
the last line is a JSON object with mean F by regime and student. ``--quick``: 600 rows and one draw of a set.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from joblib import Parallel, delayed
from matplotlib.figure import Figure

from core.data.dataset import LabelledData
from core.data.digest import data_digest
from core.model_selection.metrics import binary_metrics
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.base import Problem, StudentSpec
from core.students.compact import Compact
from core.students.gated import GSVM, GSVM0, SVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare
from core.training.preparation import Preparation, with_unlabelled
from core.types import FloatArray, IntArray
from lab.experiments.data import DataMissing, load
from lab.experiments.markdown import pipe_table
from lab.experiments.protocol_2.runs import thirds
from lab.experiments.report.figures import STYLE
from lab.experiments.store import Record, Run, Store, Work, make_missing, recipe_of

SETS = ("vowel", "yeast", "satimage", "letter")
LABELLED = (10, 30, 100)
PARTS = ("none", "gate", "gate and difficulty")
FAMILIES: dict[str, tuple[StudentSpec, ...]] = {
    "full": (SVM(), GSVM0(), GSVM()),
    "compact": (
        Compact(n_landmarks=50, gate_weight=0.0, difficulty_floor=1.0, steps=1000),
        Compact(n_landmarks=50, difficulty_floor=1.0, steps=1000),
        Compact(n_landmarks=50, steps=1000),
    ),
}
TEACHER = "teacher"
_TARGETS, _ROWS, _QUICK_ROWS, _TENTH = 8, 4500, 600, 10


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw of the labelled rows of a set. rows: at most so many of it."""

    data_set: str
    seed: int
    rows: int


class Ablation(Work):
    """The records of one draw, one for each regime that the set has rows enough for."""

    def __init__(self, draw: Draw, folder: Path, store: Store, n_threads: int) -> None:
        whole = load(draw.data_set, folder).train
        kept = np.random.default_rng(2).permutation(whole.n)[: draw.rows]
        split = thirds(replace(whole, X=whole.X[kept], y=whole.y[kept]))
        self.train, self.test = split.train, split.test
        digests = data_digest(self.train), data_digest(self.test)
        run = Run(draw.data_set, "ablation", draw.seed)
        super().__init__(run, store, recipe_of("ablation", draw.seed, *digests))
        self._rng_seed, self._n_threads = draw.seed, n_threads

    def names(self) -> list[str]:
        counts = np.sort(self.train.class_counts)
        enough = [m for m in LABELLED if counts[len(counts) // 2] >= 2 * m]
        return ["all", *(f"{m}{plus}" for m in enough for plus in ("", "+")), "tenth"]

    def make(self, name: str) -> Record:
        if name == "all":
            return self._measured(prepare(self.train, _config(self._rng_seed)))
        if name == "tenth":
            return self._measured(prepare(self.train, _config(self._rng_seed)), self._rows(None))
        labelled = self._rows(int(name.removesuffix("+")))
        preparation = prepare(_part(self.train, labelled), _config(self._rng_seed))
        if name.endswith("+"):
            others = np.setdiff1d(np.arange(self.train.n), labelled)
            preparation = with_unlabelled(preparation, self.train.X[others])
        return self._measured(preparation)

    def _rows(self, of_class: int | None) -> IntArray:
        """So many rows of each class, or a tenth of them and at least two, rising."""
        shuffled = np.random.default_rng(self._rng_seed).permutation(self.train.n)
        kept = []
        for code, count in enumerate(self.train.class_counts):
            wanted = max(2, int(count) // _TENTH) if of_class is None else of_class
            kept.append(shuffled[self.train.y[shuffled] == code][:wanted])
        return np.sort(np.concatenate(kept))

    def _measured(self, preparation: Preparation, rows: IntArray | None = None) -> Record:
        """Teacher and students, on the last third. rows: what the students learn from; None for all."""
        evaluator = Evaluator.of(preparation, self.test)
        shuffled = np.random.default_rng(self._rng_seed).permutation(self.train.K)
        targets = np.sort(shuffled[:_TARGETS]).tolist()
        run = CoreRun(self._rng_seed)

        def student(spec: StudentSpec, target: int) -> tuple[float, float]:
            problem = preparation.problem(target)
            problem = problem if rows is None else problem.take(rows)
            score = _weighed(spec, preparation, problem).fit(problem, run).scores(evaluator.examples)
            measured = binary_metrics(evaluator.labels == target, score >= 0.0, score)
            return measured.f1 or 0.0, measured.auc or 0.0

        def of_family(specs: Sequence[StudentSpec]) -> dict[str, Any]:
            for spec in specs:
                spec.prepare(preparation.examples, run)
            with one_blas_thread():
                pool = Parallel(n_jobs=self._n_threads, prefer="threads")
                jobs = [delayed(student)(spec, target) for spec in specs for target in targets]
                values = np.array(pool(jobs)).reshape(len(specs), len(targets), 2).mean(axis=1)
            return {
                part: {"f1": f1, "auc": auc} for part, (f1, auc) in zip(PARTS, values.tolist(), strict=True)
            }

        of_teacher = [evaluator.teacher(target).metrics for target in targets]
        return {
            TEACHER: {
                "f1": float(np.mean([one.f1 or 0.0 for one in of_teacher])),
                "auc": float(np.mean([one.auc or 0.0 for one in of_teacher])),
            },
            **{family: of_family(specs) for family, specs in FAMILIES.items()},
        }


def _config(seed: int) -> TrainingConfig:
    return TrainingConfig(automatic=True, students=(GSVM(),), calibration="none", seed=seed)


def _weighed(spec: StudentSpec, preparation: Preparation, problem: Problem) -> StudentSpec:
    """A full student with the C/n that was chosen; compact ones have no C."""
    choice = preparation.choice
    if not hasattr(spec, "C") or choice is None or not hasattr(choice, "C_per_row"):
        return spec
    return replace(spec, C=choice.C_per_row * len(problem.positive))  # type: ignore[type-var]


def _part(data: LabelledData, rows: IntArray) -> LabelledData:
    return replace(data, X=data.X[rows], y=data.y[rows])


Values = dict[str, dict[str, list[float]]]
"""Mean F in per cent by regime and student: of each set, the mean of its draws, in the order of the sets."""


def collect(store: Store, sets: Sequence[str], seeds: int) -> tuple[Values, dict[str, int]]:
    """The values of all records, and the number of sets of each regime."""
    values: Values = {}
    sizes: dict[str, int] = {}
    for regime in _regimes():
        found = []
        for name in sets:
            draws = [store.read(Run(name, "ablation", seed).key(regime)) for seed in range(seeds)]
            if known := [one for one in draws if one is not None]:
                found.append(known)
        if not found:
            continue
        sizes[regime] = len(found)
        values[regime] = {TEACHER: [_mean_f1(one[TEACHER] for one in draws) for draws in found]}
        for family, part in product(FAMILIES, PARTS):
            own = [_mean_f1(one[family][part] for one in draws) for draws in found]
            values[regime][f"{family}, {part}"] = own
    return values, sizes


def _mean_f1(measures: Iterable[dict[str, float]]) -> float:
    return 100.0 * float(np.mean([one["f1"] for one in measures]))


def _regimes() -> Iterator[str]:
    yield "all"
    for m in LABELLED:
        yield from (f"{m}", f"{m}+")
    yield "tenth"


def gain(values: dict[str, list[float]], family: str, part: str) -> tuple[float, float]:
    """Points of mean F over no teacher, and its standard error over the sets."""
    ours, base = (np.array(values[f"{family}, {one}"]) for one in (part, PARTS[0]))
    return _mean_and_error(ours - base)


def _mean_and_error(values: FloatArray) -> tuple[float, float]:
    """NaN is the standard error of a single value."""
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(values.mean()), error


def _shown(mean: float, error: float) -> str:
    return f"{mean:+.1f}" if np.isnan(error) else f"{mean:+.1f} ± {error:.1f}"


_TEXT = """# What does the teacher give?

Made by `python -m lab.experiments.ablation` on thirds of training parts; no test part is read. Mean F in
per cent over at most {targets} classes of each of {sets}, means over {seeds} draws of the labelled rows
and over the sets; in brackets points over the student without a teacher ± their standard error over the
sets, where there are several. Regimes with many labelled rows leave small sets out: rows of the table
compare with each other only where they have the same sets.
"Helps" and "costs F" mean by more than two standard errors.

`all`: teacher and students learn from all rows. `10`: from 10 labelled rows of each class. `10+`: the same
teacher, and students learn from the other rows, too, labelled and weighed by its scores alone; "none" then
has its answers as labels, but neither gate nor difficulty. `tenth`: students learn from a tenth of the rows,
and their teacher had all.
"""


def markdown(values: Values, sizes: dict[str, int], seeds: int) -> str:
    """The page with its table, and where the teacher helps."""
    lines = [
        _TEXT.format(targets=_TARGETS, sets=", ".join(SETS), seeds=seeds),
        "![Mean F by rows with labels](ablation.svg)",
        "",
    ]
    rows = []
    for regime, own in values.items():
        cells = [regime, str(sizes[regime]), f"{np.mean(own[TEACHER]):.1f}"]
        for family in FAMILIES:
            for part in PARTS:
                mean = float(np.mean(own[f"{family}, {part}"]))
                beside = "" if part == PARTS[0] else f" ({_shown(*gain(own, family, part))})"
                cells.append(f"{mean:.1f}{beside}")
        rows.append(cells)
    columns = ("rows", "sets", "teacher", *(f"{family}, {part}" for family in FAMILIES for part in PARTS))
    return "\n".join([*lines, *pipe_table(columns, rows), "", *(f"- {one}" for one in findings(values)), ""])


def findings(values: Values) -> Iterator[str]:
    """Where gate, difficulty and rows without labels help by more than two standard errors, and where not."""
    for family in FAMILIES:
        for part in PARTS[1:]:
            by_sign: dict[str, list[str]] = {"helps": [], "costs F": [], "makes no clear difference": []}
            for regime, own in values.items():
                more, error = gain(own, family, part)
                sign = (
                    "helps"
                    if more > 2 * error
                    else "costs F"
                    if more < -2 * error
                    else "makes no clear difference"
                )
                by_sign[sign].append(regime)
            told = "; ".join(f"{sign} with {', '.join(found)}" for sign, found in by_sign.items() if found)
            yield f"{family} students, {part}, against no teacher: {told}."
        shown = []
        for m in LABELLED:
            if f"{m}+" in values:
                few, more_rows = (
                    np.array(values[f"{m}{plus}"][f"{family}, {PARTS[2]}"]) for plus in ("", "+")
                )
                base = np.array(values[f"{m}"][f"{family}, {PARTS[0]}"])
                over_few, over_base = (_shown(*_mean_and_error(more_rows - one)) for one in (few, base))
                shown.append(
                    f"at {m} of a class {over_few} points over the same student without them and {over_base}"
                    " over one without a teacher"
                )
        yield f"{family} students, rows without labels: {'; '.join(shown)}."


def figure(values: Values, sizes: dict[str, int]) -> Figure:
    """Mean F by number of labelled rows: students of labelled rows, and of all rows scored by the teacher."""
    drawn = Figure(figsize=(8.0, 3.4))
    colours = dict(zip(PARTS, ("#d8973c", "#5b9bd5", "#1b6b3a"), strict=True))
    for axes, family in zip(drawn.subplots(1, len(FAMILIES), sharey=True), FAMILIES, strict=True):
        for plus, style in (("", "-o"), ("+", "--s")):
            known = [m for m in LABELLED if f"{m}{plus}" in values]
            for part in PARTS:
                means = [float(np.mean(values[f"{m}{plus}"][f"{family}, {part}"])) for m in known]
                label = f"{part}{', and rows without labels' if plus else ''}"
                axes.plot(known, means, style, color=colours[part], label=label, markersize=4)
        teacher = [m for m in LABELLED if f"{m}" in values]
        means = [float(np.mean(values[f"{m}"][TEACHER])) for m in teacher]
        axes.plot(teacher, means, ":", color="#4d4d4d", label="teacher")
        axes.set(title=f"{family} students", xlabel="labelled rows of each class", xscale="log")
        axes.set_xticks(LABELLED, [f"{m}\n({sizes.get(str(m), 0)} sets)" for m in LABELLED])
    drawn.axes[0].set_ylabel("mean F, %")
    drawn.axes[0].legend(fontsize=7)
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 unless a data set is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.experiments.ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("reproduction"))
    parser.add_argument("--out", type=Path, default=Path("docs") / "reproduction")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--report-only", action="store_true")
    given = parser.parse_args(arguments)
    seeds, rows = (1, _QUICK_ROWS) if given.quick else (given.seeds, _ROWS)
    store = Store(given.work / ("ablation-quick.jsonl" if given.quick else "ablation.jsonl"))
    try:
        if not given.report_only:
            draws = [Draw(name, seed, rows) for seed in range(seeds) for name in given.sets]
            make_missing(Ablation(draw, given.data, store, given.threads) for draw in draws)
    except DataMissing as error:
        print(error, file=sys.stderr)
        return 1
    values, sizes = collect(store, given.sets, seeds)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "ablation.md").write_text(markdown(values, sizes, seeds), encoding="utf-8")
    with mpl.rc_context(STYLE):
        figure(values, sizes).savefig(given.out / "ablation.svg", metadata={"Date": None})
    means = {
        regime: {name: round(float(np.mean(own)), 2) for name, own in students.items()}
        for regime, students in values.items()
    }
    print(json.dumps({"sets": sizes, "mean_f1": means}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
