"""Trains one student from a preparation: hyper-parameters, fit, threshold, calibration, package."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from core.model_selection.class_answers import ClassAnswers
from core.model_selection.folds import Folds
from core.model_selection.guard import OwnRows, Verdict, alternatives, judge
from core.model_selection.held_out import HeldOut, HeldOutF1, cautious_threshold, hold_out
from core.model_selection.metrics import f1_shares
from core.model_selection.results import SearchReport
from core.model_selection.scoring import Measure
from core.model_selection.search import tune_student
from core.model_selection.setting_points import SharedPoint
from core.model_selection.setting_search import Setting
from core.model_selection.threshold import Promise
from core.packed import PackedStudent
from core.packed.calibration import Calibration
from core.packed.head import RIVALS
from core.run import Run
from core.solvers.solution import Summary
from core.solvers.threads import one_blas_thread
from core.students.base import Report, Selection, Student, StudentSpec
from core.students.difficulty import ScoreRanks
from core.students.rivals import Rivals
from core.students.sigmoid import fit_sigmoid
from core.students.trees import Trees
from core.teachers.forest import Forest
from core.training.config import TrainingConfig
from core.training.preparation import MOST_COPIED_BYTES, Preparation
from core.types import BoolArray, FloatArray, IntArray

SHARED: Final = "shared"
"""Name of the threshold rule, in a student's metadata, of a threshold that a search chose for all classes."""
_FEWEST_CLASSES = 3
"""With two classes the margin equals the score, up to a factor and a constant."""
_LEAST_GAIN = 0.001
"""Smallest gain of Brier score. Where both are nearly always right, the shape of the sigmoid would decide."""
_FOLD_SCORE_BYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class TrainedStudent:
    """One student: as it is shipped (``packed``), and as it was fitted, for measuring.

    target, label: code and name of its class. method: the requested kind of student, e.g. ``"gsvm"``. spec:
    its hyper-parameters; those of another kind, if the guard replaced it. seconds: wall time, including
    search, threshold, calibration and guard. search: how hyper-parameters were chosen; None if they were
    given. verdict: comparison with its teacher on held-out rows; None without a guard. own_rows: its answers
    on its training rows. promise: about the false-positive rate; None for a threshold without a budget.
    answers: on held-out rows; None without such rows.
    """

    target: int
    label: str
    method: str
    packed: PackedStudent
    fitted: Student
    spec: StudentSpec
    seconds: float
    own_rows: OwnRows
    search: Report | None = None
    verdict: Verdict | None = None
    promise: Promise | None = None
    answers: ClassAnswers | None = None

    @property
    def summary(self) -> Summary:
        """How its fit ended."""
        return self.fitted.summary

    @property
    def chosen(self) -> dict[str, Any] | None:
        """What the search or the fit chose, JSON-ready; None if everything was given."""
        return {**self.fitted.facts(), **({} if self.search is None else self.search.summary())} or None

    @property
    def trace(self) -> dict[str, Any] | None:
        """The search of this student, JSON-ready: ``chosen`` and all ``points``; None without a search."""
        points = [] if self.search is None else self.search.trace()
        return {"chosen": self.chosen, "points": points} if points else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the arrays and the points of the search."""
        calibration = self.packed.calibration
        return {
            "label": self.label,
            "method": self.method,
            "threshold": self.packed.threshold,
            "calibration": None if calibration is None else calibration.kind,
            "digest": self.packed.digest,
            "chosen": self.chosen,
            "guard": None if self.verdict is None else self.verdict.as_dict(),
            "false_positives": None if self.promise is None else self.promise.as_dict(),
            "training_seconds": self.seconds,
            **self.summary.as_dict(),
        }


def class_batches(preparation: Preparation, targets: Sequence[int]) -> list[Sequence[int]]:
    """Groups of class codes; ``Preparation.folds`` takes about half a gigabyte of scores for each group."""
    folds = len(preparation.fold_teachers)
    if not folds:
        return [targets]
    size = max(1, _FOLD_SCORE_BYTES // (8 * folds * len(preparation.labelled.labels)))
    return [targets[start : start + size] for start in range(0, len(targets), size)]


def train_student(
    preparation: Preparation,
    target: int,
    spec: StudentSpec | None = None,
    *,
    folds: Folds | None = None,
    run: Run = Run(),
) -> TrainedStudent:
    """Train and pack the student of class code ``target``; the same arguments give the same bytes.

    spec: by default the configuration's first student. A configuration that tunes takes hyper-parameters from
        the search for this class and method instead. Threshold rule, budget, calibration, folds and seed are
        the configuration's.
    folds: the result of ``Preparation.folds``, if the caller has it; it does not change the result.
    run: folds of a search are fitted in its threads; reports stages ``"tuning"`` (in fits), ``"student"`` and
        those of the student.

    Safe to call from several threads at once. Raises InvalidProblem, Cancelled.
    """
    config = preparation.config
    run = run.with_seed(config.seed)
    asked = config.students[0] if spec is None else spec
    spec = asked.suited(config.teacher)
    started = time.perf_counter()
    with one_blas_thread():
        problem = preparation.problem(target)
        folds = _folds_for(preparation, target, asked, folds, run)
        selection = None if folds is None else _selection(config, folds, target, spec, run)
        chosen = spec if selection is None else selection.spec
        shared = _shared_report(preparation, spec)
        all_have = None if shared is None else shared.threshold
        held_out, seen, verdict, promise = None, None, None, None
        if selection is not None and config.threshold != "fpr":
            held_out = HeldOut(selection.held_out_scores)
        elif folds is not None and config.wants_held_out:
            folds.check_class(target)
            held_out = hold_out(folds, target, chosen, run)
        if folds is not None and config.is_guarded(asked) and folds.is_learnable(target):
            chosen, seen, verdict = _guarded(preparation, folds, target, chosen, held_out, all_have, run)
            held_out = None if held_out is None else seen
        chosen = _without_rivals(preparation, target, chosen)
        problem = preparation.with_held_out(run).problem(target) if isinstance(chosen, Rivals) else problem
        fitted = chosen.fit(problem, run.stage("student"))
        codes = preparation.labelled.labels
        if config.wants_held_out and held_out is None:
            held_out, codes = _held_out_of_teacher(preparation, fitted, codes)
        threshold, calibration = _settled(config, fitted, codes == target, held_out)
        rule: str = config.threshold
        if all_have is not None and (verdict is None or verdict.replaced is None):
            threshold, rule = all_have, SHARED
        own = _own_scores(preparation, fitted)
        if held_out is not None and config.threshold == "fpr":
            copied = threshold if folds is None else None
            threshold, promise = _promised(config, held_out, own, codes == target, copied)
        n_folds = 0 if held_out is None else _fold_count(preparation, folds)
        report = shared if selection is None else selection.report
        packed = _pack(preparation, target, chosen, fitted, (threshold, rule), calibration, n_folds, report)
    return TrainedStudent(
        target=target,
        label=packed.label,
        method=asked.name,
        packed=packed,
        fitted=fitted,
        spec=chosen,
        seconds=time.perf_counter() - started,
        own_rows=OwnRows.of(preparation.labelled.labels == target, own >= threshold),
        search=report,
        verdict=verdict,
        promise=promise,
        answers=_answers(preparation, target, codes, held_out or seen, threshold),
    )


def _own_scores(preparation: Preparation, fitted: Student) -> FloatArray:
    """Scores of the labelled rows, (n,). For a copy they are computed from the teacher's scores."""
    labelled = preparation.labelled
    if preparation.teacher.own_scores is None:
        copied = fitted.of_teacher(preparation.scores[: len(labelled.labels)])
        if copied is not None:
            return copied
    return fitted.scores(labelled.examples)


def _answers(
    preparation: Preparation, target: int, codes: IntArray, held_out: HeldOut | None, threshold: float
) -> ClassAnswers | None:
    """Answers on the held-out rows, whose class codes are ``codes``, (n,); None without such rows."""
    if held_out is None:
        return None
    known = ~np.isnan(held_out.scores)
    accepted = held_out.scores[known] >= threshold
    return ClassAnswers.of(codes[known], target, accepted, preparation.classes)


def _settled(
    config: TrainingConfig, fitted: Student, truth: BoolArray, held_out: HeldOut | None
) -> tuple[float, Calibration | None]:
    """Threshold and calibration. truth: of the held-out rows.

    A student that chose its own 0 by the rule keeps it, unless the rule gives a larger F on these rows.
    """
    if held_out is None:
        return config.settle(truth, None)
    threshold, calibration = config.settle(truth, held_out.scores)
    if config.threshold == "expected_f1" and fitted.expects_f1:
        found, zero = (f1_shares(truth, held_out.scores >= value)[0] for value in (threshold, 0.0))
        threshold = threshold if found > zero else 0.0
    return threshold, calibration


def _promised(
    config: TrainingConfig, held_out: HeldOut, own: FloatArray, truth: BoolArray, threshold: float | None
) -> tuple[float, Promise]:
    """The threshold that keeps a budget of false positives, and the promise that follows from it.

    threshold: given for a copy of its teacher, because its scores on its own rows say nothing about other
    rows; None if the threshold is still to be chosen.
    """
    if threshold is None:
        threshold = cautious_threshold(held_out, own, truth, config.budget, config.confidence)
    promise = Promise.of(truth, held_out.scores, threshold, config.budget, config.confidence)
    return threshold, promise


def _fold_count(preparation: Preparation, folds: Folds | None) -> int:
    """Number of folds that gave the held-out scores; 0 if they are the teacher's own."""
    is_own = folds is None and preparation.teacher.held_out is not None
    return 0 if is_own else len(preparation.fold_teachers)


def _folds_for(
    preparation: Preparation, target: int, spec: StudentSpec, folds: Folds | None, run: Run
) -> Folds | None:
    """``folds`` or, if None, folds made from the preparation; None for a student that needs no folds."""
    if not preparation.config.holds_out(spec):
        return None
    return preparation.folds([target], run) if folds is None else folds


def _without_rivals(preparation: Preparation, target: int, spec: StudentSpec) -> StudentSpec:
    """``spec``, or copies of trees without rivals if the class score alone predicts the class better.

    This compares held-out margins over the best rival with held-out scores of the class. The Brier score of a
    sigmoid of the score must be better by one paired standard error of the difference, and by
    ``_LEAST_GAIN``. If classes overlap, the margin is the noise of two scores. Rivals stay if they are given,
    if the trees are boosted (their scores have a term common to all classes), or if the threshold is 0.
    """
    config, held_out = preparation.config, preparation.held_out
    if not (isinstance(spec, Trees) and isinstance(config.teacher, Forest)) or spec.rivals is not None:
        return spec
    if held_out is None or config.threshold == "zero" or held_out.shape[1] < _FEWEST_CLASSES:
        return spec
    known = ~np.isnan(held_out[:, target])
    truth, scores = preparation.labelled.labels[known] == target, held_out[known]
    if truth.all() or not truth.any():
        return spec
    alone = scores[:, target]
    errors = [
        (fit_sigmoid(truth, values).probabilities(values) - truth) ** 2
        for values in (alone - ScoreRanks.of(scores).rival(target), alone)
    ]
    gain = errors[0] - errors[1]
    is_better = gain.mean() > max(_LEAST_GAIN, gain.std() / np.sqrt(len(gain)))
    return replace(spec, rivals=0) if is_better else spec


def _held_out_of_teacher(
    preparation: Preparation, fitted: Student, codes: IntArray
) -> tuple[HeldOut | None, IntArray]:
    """Held-out scores of a student that follow from the teacher's held-out scores, and codes of their rows.

    codes: class codes, (n,). The scores are None if they do not follow from the teacher's.
    """
    held_out = preparation.held_out
    scores = None if held_out is None else fitted.of_teacher(held_out)
    if scores is None:
        return None, codes
    known = ~np.isnan(scores)
    return HeldOut(scores[known]), codes[known]


def _guarded(
    preparation: Preparation,
    folds: Folds,
    target: int,
    spec: StudentSpec,
    held_out: HeldOut | None,
    shared: float | None,
    run: Run,
) -> tuple[StudentSpec, HeldOut, Verdict | None]:
    """``spec``, or its replacement if it is clearly worse than its teacher; with the held-out rows.

    held_out: held-out scores of ``spec``, if they are known already. shared: the threshold that ``spec``
    shares with other classes; None for the run's rule. A replacement always uses the run's rule. Replacements
    are tried in order, and the first that is not worse than the teacher is taken; if all are worse, the best
    of them is taken (``Verdict.is_better_than``).
    """
    config = preparation.config
    has_budget = config.threshold == "fpr"
    is_small = 8 * len(folds.labels) * len(preparation.classes) <= MOST_COPIED_BYTES
    can_copy = is_small and preparation.teacher.class_weights is not None and not has_budget

    def seen(one: StudentSpec) -> HeldOut:
        if isinstance(one, Rivals):
            # Its held-out scores follow from those of the teacher.
            scored = preparation.with_held_out(run)
            assert scored.held_out is not None  # noqa: S101 - it has just been made
            return HeldOut(one.fit(scored.problem(target), run.silent()).of_teacher(scored.held_out))
        return hold_out(folds, target, one, run)

    def judged(one: StudentSpec, known: HeldOut | None = None) -> tuple[StudentSpec, HeldOut, Verdict | None]:
        rows, threshold = seen(one) if known is None else known, 0.0
        if one is spec and shared is not None:
            threshold = shared
        elif config.threshold != "zero":
            threshold, _ = config.settle(folds.labels == target, rows.scores)
        budget = config.budget if has_budget else None
        verdict = judge(folds, target, rows.scores, threshold, budget, config.confidence)
        return one, rows, verdict

    first = judged(spec, held_out)
    best, verdict = first, first[2]
    if verdict is None or verdict.warning is None or config.guard != "repair":
        return best
    for other in alternatives(spec, len(np.unique(folds.labels)) - 1, can_copy=can_copy):
        tried = judged(other)
        found, so_far = tried[2], best[2]
        if found is None or so_far is None or not found.is_better_than(so_far):
            continue
        best = other, tried[1], replace(found, replaced=spec.name)
        if found.warning is None:
            break
    return best


def _shared_report(preparation: Preparation, spec: StudentSpec) -> SharedPoint | None:
    """What a search for all classes together chose for this kind of student; None without such a search."""
    choice = preparation.choice
    return choice.report_of(spec.name) if isinstance(choice, Setting) else None


def _selection(
    config: TrainingConfig, folds: Folds, target: int, spec: StudentSpec, run: Run
) -> Selection | None:
    """Hyper-parameters chosen by a search or by the student itself; None if all are given."""
    if spec.selects:
        measure = Measure("f1", config.threshold, config.budget, config.confidence)
        return spec.select(HeldOutF1(folds, target, measure, run), run)
    points = () if config.tuning is None else spec.grid(config.tuning.grid)
    if config.tuning is None or not points:
        return None
    started = time.perf_counter()
    result = tune_student(
        folds,
        target,
        points,
        strategy=config.tuning.strategy,
        metric=config.tuning.metric,
        threshold_rule=config.threshold,
        budget=config.budget,
        confidence=config.confidence,
        start=spec if config.automatic and config.tuning.metric == "f1" else None,
        run=run,
    )
    report = SearchReport(
        chosen=result.spec.params(),
        score=result.score,
        standard_error=result.standard_error,
        metric=config.tuning.metric,
        strategy=config.tuning.strategy,
        folds=folds.n_folds,
        points=result.trace,
        seconds=time.perf_counter() - started,
        contest=result.contest,
    )
    return Selection(result.spec, result.held_out_scores, report)


def _pack(
    preparation: Preparation,
    target: int,
    spec: StudentSpec,
    fitted: Student,
    threshold: tuple[float, str],
    calibration: Calibration | None,
    folds: int,
    report: Report | None,
) -> PackedStudent:
    """The student for queries. Its metadata contain all that is needed to train the same student again.

    threshold: the value and the name of its rule.
    """
    config, decision = preparation.config, fitted.pack()
    if config.calibration == "auto" and decision.form.calibration is not None:
        calibration = decision.form.calibration
    metadata: dict[str, str | float | int] = {
        "method": spec.name,
        **spec.metadata(),
        "seed": int(config.seed),
        "threshold_rule": threshold[1],
        "threshold_folds": folds,
        "calibration": "none" if calibration is None else calibration.kind,
        **fitted.metadata(),
        **_rivals_of(fitted, preparation.classes),
        "data_digest": preparation.data_digest,
        **({} if report is None else report.metadata()),
    }
    return PackedStudent(
        map=decision.map,
        # With tens of thousands of terms float32 is exact enough and halves the size of the package.
        form=decision.form.in_single() if config.features.has_terms else decision.form,
        threshold=threshold[0],
        label=preparation.classes[target],
        metadata=metadata,
        calibration=calibration,
    )


def _rivals_of(fitted: Student, classes: tuple[str, ...]) -> dict[str, str]:
    """Metadata with the names of the classes that the student's first rejections stand for."""
    codes = fitted.rival_codes()
    return {RIVALS: json.dumps([classes[code] for code in codes])} if codes else {}
