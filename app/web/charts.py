"""The geometry of the pictures, which templates draw as SVG: positions in a picture of `SIDE` units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from app.domain.entities import Json
from app.serving.columns.report import BinInputs

SIDE: Final = 260.0
"""Width and height of the area of a square plot."""
MAP_WIDTH: Final = 520.0
MAP_HEIGHT: Final = 300.0
"""Width and height of the area of a heat map."""
BAR_HEIGHT: Final = 44.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A circle at (x, y) of radius r, and its description."""

    x: float
    y: float
    r: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram: its position, height and description."""

    x: float
    y: float
    width: float
    height: float
    text: str


def calibration_marks(bins: Sequence[Json]) -> list[Mark]:
    """The bins of a reliability plot: predicted against observed share, the area by the number of rows."""
    largest = max((part["count"] for part in bins), default=1)
    return [
        Mark(
            round(SIDE * part["probability"], 1),
            round(SIDE * (1.0 - part["observed"]), 1),
            round(3.0 + 7.0 * sqrt(part["count"] / largest), 1),
            f"predicted {100 * part['probability']:.1f} %, observed {100 * part['observed']:.1f} % "
            f"of {part['count']} rows",
        )
        for part in bins
    ]


def path_of(marks: Sequence[Mark]) -> str:
    """A line through the marks, as SVG path data."""
    return " ".join(f"{'L' if number else 'M'}{mark.x} {mark.y}" for number, mark in enumerate(marks))


def histogram_bars(counts: Sequence[int], width: float = SIDE) -> list[Bar]:
    """The bars of a histogram over [0, 1]."""
    highest, each = max([*counts, 1]), width / max(len(counts), 1)
    bars = []
    for number, count in enumerate(counts):
        height = round(BAR_HEIGHT * count / highest, 1) if count else 0.0
        low, high = number / len(counts), (number + 1) / len(counts)
        text = f"{count} between {low:.2f} and {high:.2f}"
        bars.append(Bar(round(number * each, 1), BAR_HEIGHT - height, round(each - 1.0, 1), height, text))
    return bars


def trend(values: Sequence[float | None], width: float = SIDE) -> str:
    """Values from 0 to the highest in equal steps, filled, with gaps for None, as SVG path data."""
    highest = max((value for value in values if value is not None), default=0.0) or 1.0
    each, parts = width / max(len(values), 1), []
    for number, value in enumerate(values):
        if value is None:
            continue
        if number == 0 or values[number - 1] is None:
            parts.append(f"M{round(number * each, 1):g} {BAR_HEIGHT:g}")
        parts.append(f"V{round(BAR_HEIGHT * (1 - value / highest), 1):g}H{round((number + 1) * each, 1):g}")
        if number + 1 == len(values) or values[number + 1] is None:
            parts.append(f"V{BAR_HEIGHT:g}Z")
    return "".join(parts)


def outline(counts: Sequence[int], width: float = SIDE) -> str:
    """A histogram as one closed line, as SVG path data: small enough for many histograms on one page."""
    return _outline(counts, max([*counts, 1]), width)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Two histograms in one picture, as SVG path data. most: the bin in which they differ most."""

    training: str
    sampled: str
    most: BinInputs


def overlay(bins: Sequence[BinInputs]) -> Overlay:
    """Training and the sampled records in the same bins, in one scale."""
    training, sampled = [one.training for one in bins], [one.sampled for one in bins]
    highest = max(*training, *sampled)
    most = max(bins, key=lambda one: abs(one.sampled - one.training))
    return Overlay(_outline(training, highest, SIDE), _outline(sampled, highest, SIDE), most)


def _outline(heights: Sequence[float], highest: float, width: float) -> str:
    each = width / max(len(heights), 1)
    steps = [
        f"V{round(BAR_HEIGHT * (1 - height / highest), 1):g}H{round((number + 1) * each, 1):g}"
        for number, height in enumerate(heights)
    ]
    return f"M0 {BAR_HEIGHT:g}{''.join(steps)}V{BAR_HEIGHT:g}Z"
