"""What the proximal Newton methods share: the width of a step, the line search, the share of a dual step."""

from __future__ import annotations

from collections.abc import Callable

MAX_NEWTON_STEPS = 30
"""Of one proximal step: one that needs more is too long."""

_MAX_LINE_STEPS = 60
# Below the smallest width, rounding of the slacks shows.
_FIRST, _LAST, _FACTOR = 1.0, 1e-6, 10.0


class Width:
    """σ of the next proximal step, in units of ``scale``, the size of the targets or margins."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self.value = _FIRST * scale

    def adapt(self, *, struggled: bool) -> None:
        """Longer steps while they are solved easily, shorter ones after trouble."""
        wanted = self.value * _FACTOR if struggled else self.value / _FACTOR
        self.value = max(wanted, _LAST * self._scale)


def exact_step(derivative: Callable[[float], float]) -> float:
    """Step s >= 0 to the minimum along a direction, of which ``derivative`` is increasing in s.

    0 where the derivative does not begin below 0. It ends within a thousandth of its first value above 0.
    """
    at_zero = derivative(0.0)
    if at_zero >= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    below, above = at_zero, derivative(high)
    while above < 0.0:
        low, below = high, above
        high *= 2.0
        above = derivative(high)
    for attempt in range(_MAX_LINE_STEPS):
        if above <= -1e-3 * at_zero:
            return high
        # false position, every third time bisection so that neither end can stay for good
        middle = (low * above - high * below) / (above - below) if attempt % 3 else 0.5 * (low + high)
        value = derivative(middle)
        if value < 0.0:
            low, below = middle, value
        else:
            high, above = middle, value
    return high


def best_share(slope: float, curvature: float) -> float:
    """Share, 0 to 1, of a step along which a concave objective is f + slope s − curvature s²/2."""
    if slope <= 0.0:
        return 0.0
    return 1.0 if curvature <= slope else slope / curvature
