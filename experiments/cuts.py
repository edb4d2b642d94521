"""Where a student of the open grid decides: one threshold that serves accuracy and F together."""

from __future__ import annotations

import numpy as np

from core.types import BoolArray, FloatArray


def balanced_threshold(truth: BoolArray, scores: FloatArray) -> float:
    """The threshold t with the best accuracy + F of "yes where score >= t" on held-out scores.

    F alone buys recall with accuracy where classes are rare, accuracy alone says no to everything; Table 3
    asks for both. t lies midway between two neighbouring scores; of equal ones the nearest to 0 is taken,
    the paper's threshold. truth, scores: (n,), with at least one positive.
    """
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    tp = np.r_[0, np.cumsum(truth[order])]
    said = np.arange(len(scores) + 1)
    positives = int(tp[-1])
    accuracy = (len(scores) - positives - said + 2 * tp) / len(scores)
    value = accuracy + 2.0 * tp / (said + positives)
    middles = 0.5 * (falling[:-1] + falling[1:])
    cuts = np.r_[np.nextafter(falling[0], np.inf), middles, falling[-1]]
    # A cut between equal scores, or next to each other as floats, cannot be made.
    usable = np.r_[True, (middles < falling[:-1]) & (middles > falling[1:]), True]
    best = usable & (value >= value[usable].max() - 1e-12)
    candidates = cuts[best]
    return float(candidates[np.argmin(np.abs(candidates))])
