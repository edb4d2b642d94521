"""The search for the hyper-parameters of a student as a picture, from the trace that is stored with it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.domain.entities import Json
from app.store.unit_of_work import Store
from app.web.charts import MAP_HEIGHT, MAP_WIDTH, SIDE
from app.web.formats import words

_BEST: Final = 25
_MEASURES: Final = ("folds", "score", "standard_error", "gap", "seconds")
_MOST_SHADE: Final = 0.55


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectangle of a heat map. shade: opacity of its colour. score: its text. text: its description."""

    x: float
    y: float
    shade: float
    score: str
    text: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Whisker:
    """A point with its error: (x, y), and the ends of a vertical line."""

    x: float
    y: float
    top: float
    bottom: float
    name: str
    text: str
    chosen: bool


def find_trace(store: Store, job_id: str, class_index: int, method: str) -> Json | None:
    """The trace of a student: ``chosen`` and ``points``; None if it was trained without a search."""
    with store.read() as uow:
        stored = uow.students.trace(job_id, class_index, method)
    trace: Json | None = None if stored is None else json.loads(zlib.decompress(stored))
    return trace


def drawn_search(trace: Json | None) -> dict[str, Any] | None:
    """What the page of a class shows of a search; None without one.

    kind: "sizes" of a compact student, "families" of an automatic one, else "grid".
    """
    if trace is None or not trace["points"]:
        return None
    points, chosen = trace["points"], trace["chosen"] or {}
    if "family" in points[0]:
        return {"kind": "families", "chosen": chosen, "points": points}
    if "n_landmarks" in points[0] and "f1" in points[0]:
        return {"kind": "sizes", "chosen": chosen, "points": points, "line": _sizes(points, chosen)}
    return {"kind": "grid", "chosen": chosen} | _grid(points, chosen)


def _sizes(points: Sequence[Json], chosen: Json) -> dict[str, Any]:
    """F against the number of landmarks, rising in equal steps, with F of the full student."""
    full = chosen.get("full_score")
    values = [point["f1"] for point in points] + ([] if full is None else [full])
    place = _scale(min(values), max(values))
    marks = [
        Whisker(
            _step(number, len(points)),
            place(point["f1"]),
            place(point["f1"]),
            place(point["f1"]),
            str(point["n_landmarks"]),
            f"{point['n_landmarks']} landmarks: F {point['f1']:.4f}",
            point["n_landmarks"] == chosen.get("n_landmarks") or point["f1"] == chosen.get("score"),
        )
        for number, point in enumerate(points)
    ]
    return {"marks": marks, "full": None if full is None else place(full), "ends": (min(values), max(values))}


def _grid(points: Sequence[Json], chosen: Json) -> dict[str, Any]:
    """A heat map over the two parameters with the most values, or scores with errors over a single one.

    A cell shows the best point of all other parameters, of those that were measured on the most folds.
    """
    names = [name for name in points[0] if name not in _MEASURES]
    values = {name: _distinct(point.get(name) for point in points) for name in names}
    varied = sorted((name for name in names if len(values[name]) > 1), key=lambda name: -len(values[name]))
    ranked = sorted(points, key=lambda point: (-point["folds"], -point["score"]))
    found = {"varied": varied, "best": ranked[:_BEST], "count": len(points), "names": names}
    is_chosen = {id(point): all(point.get(name) == chosen.get(name) for name in names) for point in points}
    best: dict[tuple[Any, ...], Json] = {}
    for point in ranked:
        place = tuple(_key(point.get(name)) for name in varied[:2])
        if place not in best or is_chosen[id(point)]:
            best[place] = point
    lowest, highest = (min(p["score"] for p in best.values()), max(p["score"] for p in best.values()))
    if len(varied) < 2:
        return found | {"line": _whiskers(points, varied, is_chosen)}
    across, down = varied[0], varied[1]
    width, height = MAP_WIDTH / len(values[across]), MAP_HEIGHT / len(values[down])
    cells = []
    for point in best.values():
        column = values[across].index(point.get(across))
        row = len(values[down]) - 1 - values[down].index(point.get(down))
        share = (point["score"] - lowest) / ((highest - lowest) or 1.0)
        cells.append(
            Cell(
                round(column * width, 1),
                round(row * height, 1),
                round(0.05 + (_MOST_SHADE - 0.05) * share, 2),
                f"{point['score']:.3f}",
                _described(point, names),
                is_chosen[id(point)],
            )
        )
    return found | {
        "cells": cells,
        "area": (MAP_WIDTH, MAP_HEIGHT),
        "size": (round(width, 1), round(height, 1)),
        "across": [(round((n + 0.5) * width, 1), text) for n, text in _ticks(values[across], 10)],
        "down": [(round(MAP_HEIGHT - (n + 0.5) * height, 1), text) for n, text in _ticks(values[down], 14)],
        "ends": (lowest, highest),
    }


def _ticks(values: Sequence[Any], most: int) -> list[tuple[int, str]]:
    """Every so many of the values that there are at most ``most``, with their numbers."""
    every = -(-len(values) // most)
    return [(number, shown(value)) for number, value in enumerate(values) if number % every == 0]


def _whiskers(points: Sequence[Json], varied: Sequence[str], is_chosen: dict[int, bool]) -> dict[str, Any]:
    """Scores with one standard error each way, in the order of the grid."""
    low = min(point["score"] - point["standard_error"] for point in points)
    high = max(point["score"] + point["standard_error"] for point in points)
    place = _scale(low, high)
    marks = [
        Whisker(
            _step(number, len(points)),
            place(point["score"]),
            place(point["score"] + point["standard_error"]),
            place(point["score"] - point["standard_error"]),
            shown(point.get(varied[0])) if varied else "",
            _described(point, varied),
            is_chosen[id(point)],
        )
        for number, point in enumerate(points)
    ]
    return {"marks": marks, "full": None, "ends": (low, high)}


def _scale(low: float, high: float) -> Any:
    """Positions of values between ``low``, at the lower end of a plot, and ``high``."""
    return lambda value: round(SIDE * (1.0 - (value - low) / ((high - low) or 1.0)), 1)


def _step(number: int, count: int) -> float:
    return round(SIDE * (number + 0.5) / count, 1)


def _described(point: Json, names: Sequence[str]) -> str:
    place = ", ".join(f"{name} {shown(point.get(name))}" for name in names)
    error = f"{point['score']:.4f} ± {point['standard_error']:.4f}"
    return f"{place}: {error} on {point['folds']} folds"


def in_words(chosen: Json) -> str:
    """What the search or the fit of a student chose; nothing of a student that no search has compared.

    Rivals are the classes whose scores a student must exceed; without any, it is as its teacher.
    """
    names = [name for name in chosen if name != "least_score" and (name != "rivals" or chosen[name])]
    return ", ".join(f"{words(name)} {_value_in_words(chosen[name])}" for name in names)


def _value_in_words(value: Any) -> str:
    if isinstance(value, dict):
        return f"({in_words(value)})"
    if isinstance(value, list | tuple):
        return " and ".join(map(_value_in_words, value)) or "none"
    return shown(float(f"{value:.4g}") if isinstance(value, float) else value)


def shown(value: Any) -> str:
    """The value of a hyper-parameter, short."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _distinct(values: Any) -> list[Any]:
    """Different values; numbers rise, others are in the order of the grid."""
    found = list({_key(value): value for value in values}.values())
    numeric = all(isinstance(value, int | float) for value in found)
    return sorted(found) if numeric else found
