"""The records of protocol 2: a job of the product on each data set, and the paper's grid beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed

from app.domain.training_spec import TrainingSpec
from app.services.training_plan import config_of
from core.data.dataset import LabelledData
from core.data.digest import data_digest
from core.model_selection.row_samples import some_rows
from core.model_selection.tuning_spec import TuningSpec
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.gated import GATED, Method
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare
from core.training.preparation import Preparation
from core.training.student_training import TrainedStudent, class_batches, train_student
from core.types import BoolArray, FloatArray, IntArray
from lab.experiments.data import Split, load
from lab.experiments.paper import GOAL_SETS
from lab.experiments.plans import Effort
from lab.experiments.stats import bootstrap, rounded
from lab.experiments.store import Record, Run, Store, Work, recipe_of

VERSION = 1
"""Part of every recipe. To be raised when ``protocol_2.md`` changes."""

TEACHER = "teacher"
BASELINES: tuple[Method, ...] = ("svm", "gsvm0", "gsvm")
PRODUCT, PAPER = "product", "paper"
UNSEEN_SETS = (
    *("segment", "dna", "mfeat", "scene15", "ohsumed23", "pendigits", "usps", "reuters_r8", "mnist"),
)
"""Sets on which nothing was ever decided here."""

JOB = {"tuning": {"scope": "job"}, "evaluation": {"baselines": list(BASELINES)}}
"""The job of the grid ``"product"``; all else is left to the product."""
PAPER_TUNING = TuningSpec(grid="paper", scope="students", strategy="halving", folds=5, metric="f1")
SPLITS = {"yeast": 10}
"""Splits that are averaged; one of every other set."""
MOST_ROWS = {"mnist": 10_000}
"""Training rows that are used, of each class its share; all of every other set."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the data come from. final: learn from training parts and measure test parts.

    Otherwise two thirds of a training part are learnt from and its last third is measured, and the test part
    is not read into any result.
    """

    folder: Path
    final: bool = False
    rows: int | None = None

    def split(self, name: str, number: int) -> Split:
        """What is learnt from and what is measured. Raises DataMissing, InvalidProblem."""
        whole = load(name, self.folder, number)
        most = min(MOST_ROWS.get(name, whole.train.n), self.rows or whole.train.n)
        if self.final:
            return replace(whole, train=_part(whole.train, some_rows(whole.train.y, most, 0)))
        return thirds(_part(whole.train, some_rows(whole.train.y, most, 0)))


def thirds(data: LabelledData) -> Split:
    """Two thirds of some rows to learn from and one to measure; classes with a row left are left out."""
    dealt = np.random.default_rng(1).permutation(data.n)
    learnt, measured = np.split(dealt, [2 * data.n // 3])
    codes, counts = np.unique(data.y[learnt], return_counts=True)
    known = codes[counts >= 2]
    learnt, measured = (rows[np.isin(data.y[rows], known)] for rows in (learnt, measured))
    names = np.array(data.classes)
    train = LabelledData.from_arrays(data.X[learnt], names[data.y[learnt]])
    return Split(train, LabelledData.with_codes(data.X[measured], names[data.y[measured]], train.classes))


def _part(data: LabelledData, rows: IntArray) -> LabelledData:
    return replace(data, X=data.X[rows], y=data.y[rows])


def planned_runs(data_sets: Sequence[str]) -> list[Run]:
    """Every run of the protocol; the paper's grid is for the paper's sets."""
    grids = {name: (PRODUCT, PAPER) if name in GOAL_SETS else (PRODUCT,) for name in data_sets}
    return [
        Run(name, grid, split)
        for name in data_sets
        for split in range(SPLITS.get(name, 1))
        for grid in grids[name]
    ]


class ProtocolTwo(Work):
    """The records of one run, each with the measures of all classes of one method.

    What the product's search has chosen is stored as a preparation in ``folder``, and both grids use it.
    """

    def __init__(self, run: Run, source: Source, folder: Path, store: Store, effort: Effort) -> None:
        self.data = source.split(run.data_set, run.split)
        self._digests = data_digest(self.data.train), data_digest(self.data.test)
        parts = "protocol 2", VERSION, run.grid, run.split, effort.seed, effort.replicates, *self._digests
        super().__init__(run, store, recipe_of(*parts))
        self._folder, self._effort = folder, effort
        self._run = CoreRun(effort.seed, effort.n_threads)

    def names(self) -> list[str]:
        if self.run.grid == PAPER:
            return [*BASELINES]
        return [TEACHER, *(spec.name for spec in self._job_config.students)]

    def make(self, name: str) -> Record:
        if name == TEACHER:
            return self._teacher()
        trained = self._train(name)
        classes = [self._student(one) for one in trained]
        # Where the search has not won against the defaults, students are not searched for.
        scores = [one.search.summary()["score"] for one in trained if one.search is not None]
        return {
            "classes": classes,
            "held_out_score": float(np.mean(scores)) if scores else None,
            "replaced": sum(one.spec.name != name for one in trained),
            "warnings": sum(one.verdict is not None and one.verdict.warning is not None for one in trained),
        }

    @cached_property
    def _job_config(self) -> TrainingConfig:
        return config_of(TrainingSpec.model_validate({**JOB, "seed": self._effort.seed}))

    @cached_property
    def _searched(self) -> Preparation:
        """The preparation of the job, with what its search chose; stored for other processes and grids."""
        train, path = self.data.train, self._folder / f"{self._digests[0]}-{self._effort.seed}.preparation"
        if path.is_file():
            return Preparation.from_bytes(path.read_bytes(), train, self._job_config, self._run)
        made = prepare(train, self._job_config, self._run)
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(made.to_bytes())
        partial.replace(path)
        return made

    @cached_property
    def preparation(self) -> Preparation:
        """Map and teacher of the grid's students."""
        if self.run.grid == PRODUCT:
            return self._searched
        chosen = self._searched.config
        config = TrainingConfig(
            features=chosen.features,
            teacher=chosen.teacher,
            students=tuple(GATED[name]() for name in BASELINES),
            tuning=PAPER_TUNING,
            calibration="none",
            seed=self._effort.seed,
        )
        return prepare(self.data.train, config, self._run)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The rows that are measured."""
        return Evaluator.of(self.preparation, self.data.test)

    def _train(self, name: str) -> list[TrainedStudent]:
        """The students of all classes, in the threads of the effort."""
        preparation, spec = self.preparation, self.preparation.config.student(name)
        spec.prepare(preparation.examples, self._run)
        found = list[list[TrainedStudent]]()
        for batch in class_batches(preparation, range(self.data.train.K)):
            folds = preparation.folds(batch, self._run) if preparation.config.holds_out(spec) else None
            with one_blas_thread():
                pool = Parallel(n_jobs=self._effort.n_threads, prefer="threads")
                own = replace(self._run, n_threads=1)
                jobs = (
                    delayed(train_student)(preparation, code, spec, folds=folds, run=own) for code in batch
                )
                found.append(pool(jobs))
        return list(chain.from_iterable(found))

    def _teacher(self) -> Record:
        evaluator = self.evaluator
        classes = []
        for target in range(self.data.train.K):
            score = evaluator.scores[:, target] - evaluator.ranks.rival(target)
            decision = evaluator.ranks.predicted == target
            metrics = evaluator.teacher(target).metrics.as_dict()
            classes.append({**self._measured(target, decision, score), "metrics": metrics})
        choice = self._searched.choice
        return {
            "classes": classes,
            "features": None if choice is None else choice.as_dict(),
            "teacher": self.preparation.config.teacher.params(),
        }

    def _student(self, one: TrainedStudent) -> Record:
        score = one.fitted.scores(self.evaluator.examples)
        result = self.evaluator.student(one.target, one.method, one.fitted, one.packed.threshold)
        return {
            **self._measured(one.target, score >= one.packed.threshold, score),
            "metrics": result.metrics.as_dict(),
            "threshold": one.packed.threshold,
            "chosen": one.chosen,
        }

    def _measured(self, target: int, decision: BoolArray, score: FloatArray) -> Record:
        truth = self.evaluator.labels == target
        replicates = bootstrap(truth, decision, score, self._effort.replicates)
        return {
            "label": self.data.train.classes[target],
            "replicates": {measure: rounded(values) for measure, values in replicates.items()},
        }
