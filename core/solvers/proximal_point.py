"""Parts shared by the proximal Newton methods: width schedule, line search and step length in the dual."""

from __future__ import annotations

from collections.abc import Callable

MAX_NEWTON_STEPS = 30
"""Newton steps per proximal step; if this is reached, σ is increased."""

_MAX_LINE_STEPS = 60
# First and smallest σ, and the factor of its changes. Below the smallest, rounding of the slacks dominates.
_FIRST, _LAST, _FACTOR = 1.0, 1e-6, 10.0


class Width:
    """σ of the next proximal step, in units of ``scale``, the size of the targets or margins."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self.value = _FIRST * scale

    def adapt(self, *, struggled: bool) -> None:
        """Multiply σ by 10 after a step that ``struggled``, otherwise divide it by 10, down to a limit."""
        wanted = self.value * _FACTOR if struggled else self.value / _FACTOR
        self.value = max(wanted, _LAST * self._scale)


def exact_step(derivative: Callable[[float], float]) -> float:
    """Exact line search: s >= 0 where the increasing function ``derivative`` crosses 0.

    Returns 0 if derivative(0) >= 0, otherwise an s with 0 <= derivative(s) <= 1e-3 |derivative(0)|.
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
        # Regula falsi; bisection every third time, because regula falsi can leave one end fixed.
        middle = (low * above - high * below) / (above - below) if attempt % 3 else 0.5 * (low + high)
        value = derivative(middle)
        if value < 0.0:
            low, below = middle, value
        else:
            high, above = middle, value
    return high


def best_share(slope: float, curvature: float) -> float:
    """The s in [0, 1] that maximises slope·s − curvature·s²/2, with curvature >= 0."""
    if slope <= 0.0:
        return 0.0
    return 1.0 if curvature <= slope else slope / curvature
