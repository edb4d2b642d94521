"""Counts the answers of a binary classifier at every threshold, and keeps a few of these points."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from core.errors import Fault, InvalidProblem
from core.types import BoolArray, FloatArray, IntArray

MAX_POINTS: Final = 201
"""Points of a curve: a third from its convex hull, and a third each by equal steps of its two axes."""


@dataclass(frozen=True, slots=True)
class ScoreCurve:
    """Points of an exact ROC curve by descending threshold; precision and recall follow from its counts.

    At ``thresholds[i]`` a row is accepted if its score is at least that; ``tp[i]`` of ``positives`` and
    ``fp[i]`` of ``negatives`` rows are then accepted. The counts between two points are unknown.
    """

    positives: int
    negatives: int
    thresholds: tuple[float, ...]
    tp: tuple[int, ...]
    fp: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, field by field."""
        return asdict(self)


def score_curve(
    truth: BoolArray, score: FloatArray, threshold: float, max_points: int = MAX_POINTS
) -> ScoreCurve:
    """The curve of scores (n,) against the truth (n,), at most ``max_points`` points, at least 7.

    threshold: always one of the points. The other points are those of the convex hull of the ROC curve, which
    are the best for some ratio of costs (Provost and Fawcett, Robust Classification for Imprecise
    Environments, 2001, section 3), and those nearest to equal steps of log false-positive rate and of
    true-positive rate.

    Raises InvalidProblem for no rows, unequal lengths and scores that are not finite.
    """
    if not (truth.ndim == 1 and truth.size > 0 and truth.shape == score.shape):
        message = f"truth and score must be vectors of one length; got {truth.shape} and {score.shape}"
        raise InvalidProblem(Fault("truth", "wrong_shape", message))
    if not np.isfinite(score).all():
        raise InvalidProblem(Fault("score", "not_finite", "score must be finite"))
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], truth[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    tp = np.cumsum(hits)[ends]
    fp = ends + 1 - tp
    thresholds = ranked[ends]
    kept = _kept(tp, fp, (max_points - 1) // 3)
    points = {float(thresholds[i]): (int(tp[i]), int(fp[i])) for i in kept}
    accepted = score >= threshold
    points[float(threshold)] = int((accepted & truth).sum()), int((accepted & ~truth).sum())
    chosen = sorted(points, reverse=True)
    return ScoreCurve(
        positives=int(truth.sum()),
        negatives=int((~truth).sum()),
        thresholds=tuple(chosen),
        tp=tuple(points[value][0] for value in chosen),
        fp=tuple(points[value][1] for value in chosen),
    )


def _kept(tp: IntArray, fp: IntArray, each: int) -> IntArray:
    """Rising indices of the points to keep, at most three times ``each``."""
    if len(tp) <= 3 * each:
        return np.arange(len(tp))
    hull = _hull(tp, fp)
    by_hull = hull[np.linspace(0, len(hull) - 1, min(each, len(hull))).round().astype(np.int64)]
    low = np.geomspace(1.0, max(float(fp[-1]), 1.0), each)
    by_fp = np.minimum(np.searchsorted(fp, low), len(fp) - 1)
    by_tp = np.minimum(np.searchsorted(tp, np.linspace(0.0, float(tp[-1]), each)), len(tp) - 1)
    return np.unique(np.concatenate([by_hull, by_fp, by_tp]))


def _hull(tp: IntArray, fp: IntArray) -> IntArray:
    """Indices of the upper convex hull of the points (fp, tp), both ascending (Andrew's monotone chain)."""
    # Each hull vertex is strictly convex relative to its neighbours, so few points are left for the loop.
    dx, dy = np.diff(fp), np.diff(tp)
    corners = 1 + np.flatnonzero(dx[:-1] * dy[1:] < dx[1:] * dy[:-1])
    kept: list[int] = []
    xs, ys = fp.tolist(), tp.tolist()
    for i in [0, *corners.tolist(), len(tp) - 1]:
        x, y = xs[i], ys[i]
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            if (xs[b] - xs[a]) * (y - ys[a]) - (ys[b] - ys[a]) * (x - xs[a]) < 0:
                break
            kept.pop()
        kept.append(i)
    return np.asarray(kept, dtype=np.int64)
