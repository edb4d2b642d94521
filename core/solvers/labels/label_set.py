"""The set 𝓑 of labels that rows may have in ODMC and ssODM, and linear programmes over it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse.csgraph import connected_components

from core.errors import Fault, InvalidProblem
from core.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class LabelSet:
    """All label vectors of n rows that satisfy the given conditions.

    known: class codes (n,), −1 for a row with a free label. n_classes: K.
    least: least number of free rows of each class, (K,). must_link, cannot_link: pairs of row numbers
    of the same class and of different classes, (·, 2).

    Raises InvalidProblem for pairs that contradict each other or the known labels, and for numbers out of
    range.
    """

    known: IntArray
    n_classes: int
    least: IntArray
    must_link: IntArray
    cannot_link: IntArray
    _group_of: IntArray = field(init=False, repr=False)
    _allowed: BoolArray = field(init=False, repr=False)
    _apart: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n, K = len(self.known), self.n_classes
        for name in ("must_link", "cannot_link"):
            pairs = np.asarray(getattr(self, name), dtype=np.intp).reshape(-1, 2)
            if pairs.size and not 0 <= pairs.min() <= pairs.max() < n:
                raise _fault(name, "unknown_row", f"{name} names a row that does not exist; there are {n}.")
            object.__setattr__(self, name, pairs)
        links = sp.coo_array((np.ones(len(self.must_link)), self.must_link.T), shape=(n, n))
        _, groups = connected_components(links, directed=False)
        allowed = np.ones((groups.max() + 1, K), dtype=bool)
        labelled = np.flatnonzero(self.known >= 0)
        others = self.known[labelled][:, None] != np.arange(K)
        np.logical_and.at(allowed, groups[labelled], ~others)
        apart = np.unique(np.sort(groups[self.cannot_link], axis=1), axis=0)
        if len(apart) and (apart[:, 0] == apart[:, 1]).any():
            raise _fault("cannot_link", "contradiction", "Two rows must be and cannot be of one class.")
        before = -1
        while before != (before := int(allowed.sum())):  # excluding a class may decide another row
            for one, other in np.concatenate([apart, apart[:, ::-1]]):
                if allowed[one].sum() == 1:
                    allowed[other] &= ~allowed[one]
        stuck = np.flatnonzero(allowed.sum(axis=1) == 0)
        if len(stuck):
            row = int(np.flatnonzero(np.isin(groups, stuck))[0])
            message = f"The links of row {row} contradict the labels that are known."
            raise _fault("must_link", "contradiction", message)
        both = (allowed[apart].sum(axis=2) > 1).all(axis=1)
        object.__setattr__(self, "_group_of", groups)
        object.__setattr__(self, "_allowed", allowed)
        object.__setattr__(self, "_apart", apart[both])

    @property
    def free(self) -> BoolArray:
        """Rows whose label is not known, (n,)."""
        free: BoolArray = self.known < 0
        return free

    def best(self, scores: FloatArray) -> IntArray:
        """The labels y of the set with the largest Σ_i scores[i, y_i], (n,) class codes.

        The result is exact: by successive shortest paths if only ``least`` connects rows, otherwise by an
        integer programme. scores: (n, K), finite. Raises InvalidProblem if no labels respect all conditions.
        """
        groups = self._group_of
        totals = np.zeros(self._allowed.shape)
        np.add.at(totals, groups, scores)
        totals[~self._allowed] = -np.inf
        sizes = np.bincount(groups, weights=self.free, minlength=len(totals)).astype(np.intp)
        counted = np.flatnonzero(sizes)
        if len(self._apart) or (self.least.any() and sizes.max() > 1):
            return _by_programme(totals, sizes, self.least, self._apart)[groups]
        codes = totals.argmax(axis=1)
        codes[counted] = _with_least(totals[counted], codes[counted], self.least)
        best: IntArray = codes[groups]
        return best


def _with_least(scores: FloatArray, codes: IntArray, least: IntArray) -> IntArray:
    """The best labels (n,) with at least ``least`` rows in each class, from the best without this limit.

    It solves a minimum cost flow: every missing row of a class arrives along a shortest path of moves.
    """
    K = scores.shape[1]
    counts = np.bincount(codes, minlength=K)
    loss, mover = np.full((K, K), np.inf), np.zeros((K, K), dtype=np.intp)
    changed = set(range(K)) if (counts < least).any() else set()
    while (counts < least).any():
        for a in changed:
            rows = np.flatnonzero(codes == a)
            loss[a] = np.inf
            if len(rows):
                differences = scores[rows, a][:, None] - scores[rows]
                chosen = differences.argmin(axis=0)
                mover[a], loss[a] = rows[chosen], differences[chosen, np.arange(K)]
            loss[a, a] = np.inf
        distance, before = _shortest(loss, counts > least)
        goal = int(np.where(counts < least, distance, np.inf).argmin())
        if not np.isfinite(distance[goal]) or counts[goal] >= least[goal]:
            message = f"No labels give every class {least.tolist()} of the {len(codes)} rows without a label."
            raise _fault("balance", "impossible", message)
        changed, b = {goal}, goal
        while before[b] >= 0:
            a = int(before[b])
            codes[mover[a, b]] = b
            changed.add(a)
            b = a
        counts[b] -= 1
        counts[goal] += 1
    return codes


def _shortest(loss: FloatArray, sources: BoolArray) -> tuple[FloatArray, IntArray]:
    """Bellman and Ford's distances (K,) from the nearest source, and the class before each on its path."""
    distance = np.where(sources, 0.0, np.inf)
    before = np.full(len(distance), -1)
    for _ in range(len(distance) - 1):
        through = distance[:, None] + loss
        nearest = through.argmin(axis=0)
        shorter = through[nearest, np.arange(len(distance))]
        better = shorter < distance - 1e-12 * (1.0 + np.abs(np.where(np.isfinite(distance), distance, 0.0)))
        if not better.any():
            break
        distance[better], before[better] = shorter[better], nearest[better]
    return distance, before


def _by_programme(totals: FloatArray, sizes: IntArray, least: IntArray, apart: IntArray) -> IntArray:
    """The best class of each group, (G,), by branch and bound. totals: (G, K), −∞ where not allowed."""
    G, K = totals.shape
    allowed = np.isfinite(totals)
    ones = sp.kron(sp.eye_array(G), np.ones((1, K)))
    counts = sp.kron(sizes[None, :].astype(np.float64), sp.eye_array(K))
    conditions = [LinearConstraint(ones, 1.0, 1.0), LinearConstraint(counts, least, np.inf)]
    if len(apart):
        pair = np.arange(len(apart))
        either = sp.coo_array(
            (np.ones(2 * len(apart)), (np.tile(pair, 2), apart.T.ravel())), shape=(len(apart), G)
        )
        conditions.append(LinearConstraint(sp.kron(either, sp.eye_array(K)), -np.inf, 1.0))
    solved = milp(
        -np.where(allowed, totals, 0.0).ravel(),
        integrality=np.ones(G * K),
        bounds=Bounds(0.0, allowed.ravel().astype(np.float64)),
        constraints=conditions,
        options={"mip_rel_gap": 0.0},
    )
    if solved.x is None:
        message = "No labels respect balance, must_link and cannot_link together."
        raise _fault("cannot_link", "impossible", message)
    codes: IntArray = solved.x.reshape(G, K).argmax(axis=1)
    return codes


def _fault(name: str, code: str, message: str) -> InvalidProblem:
    return InvalidProblem(Fault(f"labelling.{name}", code, message))
