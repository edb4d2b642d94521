"""Search for the hyper-parameters of one student: exhaustive, or by successive halving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from core.data.validation import not_whole, out_of_bounds, refuse, unknown_choice
from core.errors import Fault, InvalidProblem
from core.model_selection.folds import Folds
from core.model_selection.metrics import f1_shares, paired_error
from core.model_selection.options import Metric, Strategy, ThresholdRule
from core.model_selection.results import PointContest, SearchResult, SearchResults
from core.model_selection.scoring import HeldOutRows, Measure
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import Budget, StudentSpec
from core.types import BoolArray, IntArray

FINE = Budget()
# Precise enough to rank points: a relative gap of 1e-2 changes one decision in a thousand.
COARSE = Budget(tolerance=1e-2, max_epochs=100, finish=0)
# Successive halving: cumulative share of the folds used by the end of each rung but the last, and the inverse
# of the share of points that survive a rung. The last rung uses all folds and a fine tolerance.
_RUNGS = (0.2, 0.4, 0.7)
_SURVIVORS = 4
_FEWEST = 6
# Least number of folds to choose on, so that thresholds come from other folds; a further fold confirms the
# choice.
_FEWEST_FOLDS = 2
# Limit of the held-out scores of one search: 4 GB.
_MOST_SCORES = 10**9
# Held-out scores to rate between two cancel checks.
_RATED_AT_ONCE = 500_000
# Minimum number of positive rows in the first rung, if the folds have as many.
_POSITIVES = 25


def tune_student(
    folds: Folds,
    target: int,
    points: Sequence[StudentSpec],
    *,
    strategy: Strategy = "halving",
    metric: Metric = "f1",
    threshold_rule: ThresholdRule = "zero",
    budget: float = 0.01,
    confidence: float | None = None,
    start: StudentSpec | None = None,
    run: Run = Run(),
) -> SearchResult:
    """The point with the best cross-validated score for class code ``target``.

    points: specifications of one class, as ``StudentSpec.grid`` gives them.

    strategy: ``"exhaustive"`` evaluates every point on every fold. ``"halving"`` (successive halving)
    evaluates all points on a few folds with a coarse tolerance, keeps the best quarter, and repeats this with
    more folds; the last survivors are evaluated as by ``"exhaustive"``. metric, threshold_rule, budget,
    confidence: the objective, see ``core.model_selection.scoring``. Ties are resolved in favour of the higher
    AUC, then of the first point. start: a point that is kept unless another is clearly better. The other is
    chosen on all folds but the one with the fewest positives, and has to be better there by one standard
    error of the paired difference of F. run: folds are fitted in its threads; reports stage ``"tuning"`` in
    fits.

    Raises InvalidProblem for arguments out of bounds, for a class (or rest) that is in one fold only, and for
    more than 1e9 points × rows; Cancelled.
    """
    refuse(
        None if points else Fault("points", "empty", "at least one point is needed"),
        unknown_choice("strategy", strategy, get_args(Strategy)),
        unknown_choice("metric", metric, get_args(Metric)),
        unknown_choice("threshold", threshold_rule, get_args(ThresholdRule)),
        out_of_bounds("budget", budget, 0.0, 1.0, open_high=True),
        not_whole("target", target, 0, len(folds.classes) - 1),
    )
    measure = Measure(metric, threshold_rule, budget, confidence)
    tried = tuple(points) if start is None else tuple(dict.fromkeys((start, *points)))
    search = _Search(folds, target, tried, measure, run)
    plan = search.plan(strategy)
    total, done = sum(count * len(new) for count, new, _ in plan), 0
    alive = np.arange(len(search.points))
    with one_blas_thread():
        for count, new_folds, effort in plan:
            alive = search.best(alive)[:count]
            if start is not None and 0 not in alive:
                alive = np.append(alive, 0)
            for fits in search.fit(alive, new_folds, effort):
                done += fits
                run.report("tuning", done, total)
            search.rate(alive)
    if start is None:
        return search.outcome(search.choice(alive))
    return search.settled(alive)


class _Search:
    """State of a search: held-out scores of every point (NaN if not evaluated) and ``SearchResults``."""

    def __init__(
        self,
        folds: Folds,
        target: int,
        points: tuple[StudentSpec, ...],
        measure: Measure,
        run: Run,
    ) -> None:
        self.folds, self.target, self.points, self.measure = folds, target, points, measure
        self.run = run
        self.truth = folds.labels == target
        positives, negatives = folds.check_class(target)
        self.positives = positives
        self.pooled = bool((positives == 0).any() or (negatives == 0).any())
        # Folds with many positives come first, so that the first rung includes rows of a rare class.
        self.fold_order = np.argsort(-positives, kind="stable")
        P = len(self.points)
        if P * len(self.truth) > _MOST_SCORES:
            message = (
                f"{P} points on {len(self.truth)} rows are {P * len(self.truth)} held-out scores,"
                f" more than the {_MOST_SCORES} that fit: take a coarser grid"
            )
            raise InvalidProblem(Fault("tuning.grid", "too_large", message))
        self.values = np.full((P, len(self.truth)), np.nan, dtype=np.float32)
        self.results, self.auc = SearchResults(self.points), np.zeros(P)

    def plan(self, strategy: Strategy) -> list[tuple[int, NDArray[np.intp], Budget]]:
        """The rungs: number of points to fit, folds to fit them on, and budget of the solver."""
        count, k = len(self.points), self.folds.n_folds
        rungs: list[tuple[int, NDArray[np.intp], Budget]] = []
        if strategy == "halving":
            seen = np.cumsum(self.positives[self.fold_order])
            enough = min(1 + int(np.searchsorted(seen, _POSITIVES)), ceil(_RUNGS[-1] * k))
            start = 0
            for share in _RUNGS:
                stop = max(2, ceil(share * k), enough)
                if count <= _FEWEST or not start < stop < k:
                    continue
                rungs.append((count, self.fold_order[start:stop], COARSE))
                count, start = max(_FEWEST, ceil(count / _SURVIVORS)), stop
        return [*rungs, (count, self.fold_order, FINE)]

    def fit(self, alive: IntArray, new_folds: NDArray[np.intp], budget: Budget) -> Iterator[int]:
        """Fit the points on the folds in parallel; yields the number of fits after each fold."""
        points = [self.points[index] for index in alive]
        if budget is FINE:
            self.results.gap[alive] = 0.0
        places = [(int(fold), self.target) for fold in new_folds]
        for held_out, result in self.folds.walk(points, places, budget, self.run):
            self.values[np.ix_(alive, held_out)] = result.scores
            self.results.add_fits(alive, result.gaps, result.seconds)
            yield len(points)

    def rate(self, alive: IntArray) -> None:
        """Score the points on the folds that they have been fitted on."""
        seen = np.flatnonzero(~np.isnan(self.values[alive[0]]))
        rows = HeldOutRows(self.truth[seen], self.folds.fold_of[seen], self.pooled)
        # At least two points: NumPy sums a single column in another order, which changes the rounding.
        size = max(2, _RATED_AT_ONCE // len(seen))
        for some in np.array_split(alive, max(1, len(alive) // size)):
            self.run.check_cancel()
            values = self.values[np.ix_(some, seen)]
            scores, errors = rows.scores_of(values, self.measure, self.run)
            self.results.score[some], self.results.error[some] = scores, errors
            self.auc[some], _ = rows.scores_of(values, Measure("auc"))
        self.results.folds[alive] = len(np.unique(rows.fold_of))

    def best(self, alive: NDArray[np.intp]) -> NDArray[np.intp]:
        """The points from best to worst: by score, then by AUC; equal ones in random order.

        Random order among equal points makes the survivors cover the grid.
        """
        luck = np.random.default_rng(self.run.seed).permutation(len(self.points))
        return alive[np.lexsort((luck[alive], -self.auc[alive], -self.results.score[alive]))]

    def choice(self, alive: NDArray[np.intp]) -> int:
        """The best point; among equal ones the first, which has the smallest C in the grids of gated SVMs."""
        return int(alive[np.lexsort((alive, -self.auc[alive], -self.results.score[alive]))[0]])

    def settled(self, alive: NDArray[np.intp]) -> SearchResult:
        """The first point, or the best one on all folds but the last if it also wins on the last."""
        last = self.folds.fold_of == self.fold_order[-1]
        rows = HeldOutRows(self.truth[~last], self.folds.fold_of[~last], self.pooled)
        if len(np.unique(rows.fold_of)) < _FEWEST_FOLDS or not self.truth[last].any():
            return self.outcome(0)
        scores, _ = rows.scores_of(self.values[np.ix_(alive, ~last)], self.measure, self.run)
        found = int(alive[np.lexsort((alive, -scores))[0]])
        contest = self._contest(0, found, last)
        return replace(self.outcome(found if contest.is_won else 0), contest=contest)

    def _contest(self, start: int, found: int, last: BoolArray) -> PointContest:
        """Compare two points on the rows of the last fold, with thresholds from the other folds."""
        measured = []
        for point in (start, found):
            values = self.values[point].astype(np.float64)
            others = self.truth[~last], values[~last]
            threshold = self.measure.threshold(*others)
            measured.append(f1_shares(self.truth[last], values[last] >= threshold))
        (start_f1, of_start), (found_f1, of_found) = measured
        error = paired_error(of_found, of_start)
        return PointContest(int(last.sum()), start_f1, found_f1, error)

    def outcome(self, chosen: int) -> SearchResult:
        """The result with the chosen point and its held-out scores."""
        return SearchResult(
            spec=self.points[chosen],
            held_out_scores=self.values[chosen].astype(np.float64),
            score=float(self.results.score[chosen]),
            standard_error=float(self.results.error[chosen]),
            trace=self.results.trace(),
        )
