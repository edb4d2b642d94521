"""Counts which rows a student accepts, by their class, and tells whether its answers are wrong too often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.special import bdtr

from core.types import BoolArray, IntArray

WEAK: Final = "weak_class"
FLOOR: Final = 0.5
"""A class with F or precision clearly below this is weak."""
_CHANCE: Final = 0.05
"""Largest probability of the counts if F or precision is the floor: one side of a 90 % interval."""
_JACCARD: Final = FLOOR / (2.0 - FLOOR)
"""Share of right answers among the rows that are of the class or accepted, if F is the floor."""
_LISTED: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class ClassAnswers:
    """Answers of the student of class code ``target`` on rows that it was not trained on.

    classes: K names. yes: number of accepted rows of each class, (K,). rows: number of rows of each class,
    (K,).
    """

    target: int
    classes: Sequence[str]
    yes: IntArray
    rows: IntArray

    @classmethod
    def of(cls, codes: IntArray, target: int, accepted: BoolArray, classes: Sequence[str]) -> ClassAnswers:
        """The counts, from class codes (n,) and answers (n,)."""
        yes, rows = (np.bincount(one, minlength=len(classes)) for one in (codes[accepted], codes))
        return cls(target, classes, yes, rows)

    @property
    def _counts(self) -> tuple[int, int, int]:
        """Numbers of accepted rows of the class, of all accepted rows, and of all rows of the class."""
        return int(self.yes[self.target]), int(self.yes.sum()), int(self.rows[self.target])

    @property
    def is_weak(self) -> bool:
        """Whether F or precision is below one half, by more than chance explains.

        With precision 1/2, an accepted row is of the class with probability 1/2. With F 1/2, a row that is of
        the class or accepted is both with probability 1/3. The class is weak if a number of hits as small as
        the observed one has a probability below one in twenty (binomial, so few rows give no warning).
        Without rows of the class the result is False.
        """
        found, accepted, positives = self._counts
        if not positives:
            return False
        either = accepted + positives - found
        return bool(
            bdtr(found, either, _JACCARD) < _CHANCE
            or (accepted and bdtr(found, accepted, 1.0 - FLOOR) < _CHANCE)
        )

    def others(self) -> list[dict[str, Any]]:
        """The other classes whose rows it accepts: ``label``, ``yes``, ``rows``, most accepted rows first."""
        order = np.argsort(-self.yes, kind="stable")
        return [
            {"label": self.classes[code], "yes": int(self.yes[code]), "rows": int(self.rows[code])}
            for code in order[: np.count_nonzero(self.yes)].tolist()
            if code != self.target
        ]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: ``classes``, the first ten of the others, and ``rest``, sums of those after them."""
        others = self.others()
        listed, rest = others[:_LISTED], others[_LISTED:]
        if not rest:
            return {"classes": listed}
        sums = {name: sum(one[name] for one in rest) for name in ("yes", "rows")}
        return {"classes": listed, "rest": {"classes": len(rest), **sums}}

    def warning(self, kind: str) -> dict[str, str]:
        """``warning`` and ``message`` if the class is weak, otherwise an empty dictionary.

        kind: kind of rows, such as "test". The message names the two classes most often confused with it.
        """
        if not self.is_weak:
            return {}
        found, accepted, positives = self._counts
        f1 = 200 * found / (accepted + positives)
        told = (
            f"On {int(self.rows.sum())} {kind} rows, {positives} of them of the class, the student says yes"
            f" to {accepted}, and {found} of these are of the class: F {f1:.1f} %"
        )
        told += f", precision {100 * found / accepted:.1f} %." if accepted else "."
        names = [f"{one['label']!r:.80} ({one['yes']} of {one['rows']})" for one in self.others()[:2]]
        told += f" Of other classes it says yes most to rows of {' and '.join(names)}." if names else ""
        return {"warning": WEAK, "message": told}
