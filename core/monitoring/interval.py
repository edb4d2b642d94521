"""An estimate with an interval, in a module without the libraries that compute it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

LEVEL: Final = 0.95
"""Confidence level of intervals that are shown to people."""
Method: TypeAlias = Literal["exact", "wilson", "poisson", "weighted_logit", "weighted_exact", "bootstrap"]
"""How an interval was computed.

``"exact"``: Clopper and Pearson. ``"wilson"``: Wilson's score interval. ``"poisson"``: Garwood's. The others
are for estimates from samples, see ``core.monitoring.estimates``.
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between two ends. All three are shares in [0, 1], or rates of at least 0.

    method: how it was made. level: the probability that an interval made in this way covers the truth, in (0,
    1).
    """

    estimate: float
    low: float
    high: float
    method: Method
    level: float = LEVEL

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, field by field."""
        return asdict(self)
