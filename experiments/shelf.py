"""What a report shows, in files that are small enough to be kept with it.

Work folders are large and get lost. Beside the report stands one file for each data set and grid, and for
each result of the other parts; later reports take from there what their work folder does not have, as long
as it was made by the present plan with the same seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from core.types import FloatArray
from experiments.compact_curve import CURVES
from experiments.curves import Curve
from experiments.effort import Effort
from experiments.paper import MEASURES, METHODS, STATISTICS
from experiments.plans import DATA_SETS, GRIDS, GridName, plan_for
from experiments.plots import hardest_classes
from experiments.probabilities import GRID as CALIBRATED_GRID
from experiments.reliabilities import DataSetProbabilities
from experiments.results import Record, Run, read_whole, write_whole
from experiments.summary import Cell, Key, Outcome, Summary, Tried

_FORMAT = "stms.reproduction.shelf.1"
_DIGITS = 7
_KEYS: tuple[Key, ...] = tuple(product(METHODS, STATISTICS, MEASURES))
_LED: tuple[Key, ...] = tuple((method, "mean", "f1") for method in METHODS)
"""The bootstrap is kept of what leads are told of."""
_OF_A_CLASS = ("label", "metrics", "classes_evaluated", "chosen", "solution")

_CURVE = TypeAdapter(Curve)
_PROBABILITIES = TypeAdapter(DataSetProbabilities)


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder of finished results; it need not exist. effort: what they have to be made with."""

    root: Path
    effort: Effort

    def outcomes(self) -> Iterator[Outcome]:
        """Those of the protocol that are there."""
        for data_set in DATA_SETS:
            for grid in GRIDS:
                found = self._read(f"{data_set}-{grid}", plan_for(data_set, grid).as_dict())
                if found is not None:
                    yield _outcome(data_set, grid, found)

    def curves(self) -> dict[str, Curve]:
        """Curves of compact students by data set."""
        found = {name: self._read(f"{name}-compact", plan.as_dict()) for name, plan in CURVES.items()}
        return {name: _CURVE.validate_python(one) for name, one in found.items() if one is not None}

    def probabilities(self, recipes: Mapping[str, str]) -> dict[str, DataSetProbabilities]:
        """By data set, where they belong to the outcome of the open grid with that recipe."""
        found = {name: self._read(f"{name}-probabilities", recipe) for name, recipe in recipes.items()}
        return {name: _PROBABILITIES.validate_python(one) for name, one in found.items() if one is not None}

    def sparse(self, recipes: Mapping[str, str]) -> dict[str, Record]:
        """Sparse queries, as ``probabilities``."""
        found = {name: self._read(f"{name}-sparse", recipe) for name, recipe in recipes.items()}
        return {name: one for name, one in found.items() if one is not None}

    def keep_outcome(self, outcome: Outcome) -> None:
        """Put an outcome there, in the place of what was."""
        grid: GridName = outcome.grid  # type: ignore[assignment]
        made_by = plan_for(outcome.data_set, grid).as_dict()
        self._write(f"{outcome.data_set}-{grid}", made_by, _kept(outcome))

    def keep_curve(self, curve: Curve) -> None:
        """Put a curve there, in the place of what was."""
        self._write(f"{curve.data_set}-compact", curve.plan, asdict(curve))

    def keep_probabilities(self, found: DataSetProbabilities, recipe: str) -> None:
        """recipe: of the outcome that they belong to."""
        self._write(f"{found.data_set}-probabilities", recipe, asdict(found))

    def keep_sparse(self, data_set: str, record: Record, recipe: str) -> None:
        """recipe: of the outcome that it belongs to."""
        self._write(f"{data_set}-sparse", recipe, record)

    def _made_by(self, what: object) -> object:
        # Through JSON, as it comes back from a file: a tuple is a list there.
        made_by = [what, self.effort.seed, self.effort.resampling.replicates]
        return json.loads(json.dumps(made_by))

    def _read(self, name: str, what: object) -> Record | None:
        """None without the file, or when it was made otherwise. Raises ValueError for what is not ours."""
        found = read_whole(self.root / f"{name}.json", _FORMAT)
        if found is None or found["made_by"] != self._made_by(what):
            return None
        result: Record = found["result"]
        return result

    def _write(self, name: str, what: object, result: Record) -> None:
        text = {"format": _FORMAT, "made_by": self._made_by(what)}
        lines = [f"{json.dumps(key)}: {_json(value)}" for key, value in text.items()]
        # A line for each thing, so that the difference between two runs can be looked at.
        own = ",\n".join(f"{json.dumps(key)}: {_json(_short(value))}" for key, value in result.items())
        lines.append(f'"result": {{\n{own}\n}}')
        write_whole(self.root / f"{name}.json", "{\n" + ",\n".join(lines) + "\n}\n")


def recipes_of(summary: Summary) -> dict[str, str]:
    """The recipe of each outcome on the grid whose students get probabilities, by data set."""
    found = {data_set: grids.get(CALIBRATED_GRID) for data_set, grids in summary.items()}
    return {data_set: str(one.setting["recipe"]) for data_set, one in found.items() if one is not None}


def _kept(outcome: Outcome) -> Record:
    drawn = set(hardest_classes(outcome))
    return {
        "runs": [run.split for run in outcome.runs],
        "cells": {_name(key): asdict(outcome.cells[key]) for key in _KEYS},
        "replicates": {_name(key): outcome.replicates[key].tolist() for key in _LED},
        "classes": list(outcome.classes),
        "per_class": {
            method: [
                {name: record[name] for name in _OF_A_CLASS if name in record}
                | {"roc": record["roc"] if code in drawn else None}
                for code, record in enumerate(records)
            ]
            for method, records in outcome.per_class.items()
        },
        "setting": outcome.setting,
        "inference": outcome.inference,
        "joint": outcome.joint,
        "tried": asdict(outcome.tried),
        "seconds": outcome.seconds,
    }


def _outcome(data_set: str, grid: str, kept: Record) -> Outcome:
    return Outcome(
        data_set,
        grid,
        tuple(Run(data_set, grid, split) for split in kept["runs"]),
        {key: _cell(kept["cells"][_name(key)]) for key in _KEYS},
        {key: _array(kept["replicates"][_name(key)]) for key in _LED},
        tuple(kept["classes"]),
        kept["per_class"],
        kept["setting"],
        kept["inference"],
        kept["joint"],
        Tried(**kept["tried"]),
        kept["seconds"],
    )


def _cell(kept: Record) -> Cell:
    low, high = (np.nan if kept[end] is None else kept[end] for end in ("low", "high"))
    return Cell(kept["value"], low, high, kept["spread"])


def _array(values: list[float | None]) -> FloatArray:
    found: FloatArray = np.array(values, dtype=np.float64)  # None becomes NaN
    return found


def _name(key: Key) -> str:
    return " ".join(key)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def _short(value: Any) -> Any:
    """JSON-ready with numbers of seven digits; None for what is undefined."""
    if isinstance(value, float):
        return None if np.isnan(value) else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return value
