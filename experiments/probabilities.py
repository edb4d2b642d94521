"""Calibrated probabilities of the open grid's gSVM: fitted on held-out folds, measured on the test part.

The protocol stores the chosen point of a student, not its held-out scores. These are computed again here at
that point alone, on the same folds and with the same teachers; the student itself is that of the protocol.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from core.model_selection.calibration import fit_calibration, reliability
from core.model_selection.metrics import binary_metrics
from core.model_selection.options import CalibrationKind
from core.model_selection.search import tune_student
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.gated import GSVM, Method
from core.students.grid import Grid
from experiments.plans import GridName
from experiments.protocol import Protocol
from experiments.stats import student_name
from experiments.store import Record, Run, Store, Work, recipe_of, short

GRID: GridName = "open"
METHOD: Method = "gsvm"
KINDS: tuple[CalibrationKind, ...] = ("sigmoid", "isotonic")

ISOTONIC_NEEDS = 200
"""Training rows of the class, and of the rest, from which an isotonic calibration is fitted."""

_SCORES = ("brier", "base_brier", "error")


def record_name(code: int) -> str:
    """Name of the record of class ``code``."""
    return f"probability-{code:03d}"


def chosen_point(student: Record) -> dict[str, float]:
    """C, ε and ϵ of a student's record."""
    return {name: float(student["chosen"][name]) for name in ("C", "margin", "floor")}


def chosen_spec(student: Record, tolerance: float) -> GSVM:
    """The student of a record. tolerance: of its plan. Raises InvalidProblem for values out of bounds."""
    C, margin, floor = chosen_point(student).values()
    return GSVM(C, margin, floor, tolerance=tolerance)


class Probabilities(Work):
    """The records of one data set's classes."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol.run, protocol.store, recipe_of("probabilities", protocol.recipe))
        self._protocol = protocol

    def names(self) -> list[str]:
        return [record_name(code) for code in range(self._protocol.data.train.K)]

    def is_stored(self, name: str) -> bool:
        """A record counts while the protocol's student still has the point that it was made at."""
        record = self.store.read(self.run.key(name), self.recipe)
        return record is not None and record["point"] == chosen_point(self._student(name))

    def make(self, name: str) -> Record:
        code, student, protocol = _code(name), self._student(name), self._protocol
        point = chosen_point(student)
        tuned = tune_student(
            protocol.folds,
            code,
            GSVM().grid(Grid(C=(point["C"],), margins=(point["margin"],), floors=(point["floor"],))),
            strategy="exhaustive",
            metric=protocol.plan.metric,
            run=protocol.core_run,
        )
        preparation, evaluator = protocol.preparation, protocol.evaluator
        with one_blas_thread():
            problem, spec = preparation.problem(code), chosen_spec(student, protocol.plan.tolerance)
            score = spec.fit(problem, CoreRun(protocol.effort.seed)).scores(evaluator.examples)
        positives, truth = int(problem.positive.sum()), evaluator.labels == code
        enough = min(positives, len(problem.positive) - positives) >= ISOTONIC_NEEDS
        measured: dict[str, Record | None] = dict.fromkeys(KINDS)
        for kind in KINDS if enough else KINDS[:1]:
            calibration = fit_calibration(problem.positive, tuned.held_out_scores, kind)
            measured[kind] = reliability(truth, calibration.probabilities(score)).as_dict()
        f1 = binary_metrics(truth, score >= student["chosen"]["threshold"], score).f1
        return {
            "label": preparation.classes[code],
            "protocol": protocol.recipe,
            "point": point,
            "same_f1": f1 == student["metrics"]["f1"],
            "positives": positives,
            "calibrations": measured,
        }

    def _student(self, name: str) -> Record:
        return self._protocol.needed(student_name(_code(name), METHOD))


def _code(name: str) -> int:
    return int(name.removeprefix("probability-"))


def summarise_probabilities(store: Store, data_set: str) -> Record | None:
    """One record for the report; None unless every class was calibrated from the protocol's present student.

    ``kinds``: by calibration the classes that have it, the means over them of the Brier score, of that of the
    class's share (``base_brier``) and of the calibration ``error``; ``bins`` pooled over these classes, and
    their error. ``other_students``: classes whose student, trained again, has another F on the test part.
    """
    run = Run(data_set, GRID, 0)
    setting = store.read(run.key("setting"))
    if setting is None:
        return None
    records = []
    for code in range(len(setting["classes"])):
        record = store.read(run.key(record_name(code)))
        student = store.read(run.key(student_name(code, METHOD)), setting["recipe"])
        if record is None or student is None or record["protocol"] != setting["recipe"]:
            return None
        if record["point"] != chosen_point(student):
            return None
        records.append(record)
    kinds = {kind: [one for one in records if one["calibrations"][kind] is not None] for kind in KINDS}
    summary: Record = short(
        {
            "protocol": setting["recipe"],
            "n_classes": len(records),
            "other_students": [record["label"] for record in records if not record["same_f1"]],
            "kinds": {kind: _calibrated(kind, own) for kind, own in kinds.items() if own},
            "seconds": sum(float(record["seconds"]) for record in records),
        }
    )
    return summary


def _calibrated(kind: str, records: Sequence[Record]) -> Record:
    measured = [record["calibrations"][kind] for record in records]
    classes = [
        {"label": record["label"], "positives": record["positives"], **{name: one[name] for name in _SCORES}}
        for record, one in zip(records, measured, strict=True)
    ]
    pooled: dict[tuple[float, float], list[Record]] = defaultdict(list)
    for each in (each for one in measured for each in one["bins"]):
        pooled[each["low"], each["high"]].append(each)
    bins = [_merged(low, high, pooled[low, high]) for low, high in sorted(pooled)]
    differences = sum(one["count"] * abs(one["probability"] - one["observed"]) for one in bins)
    return {
        "kind": kind,
        **{name: float(np.mean([one[name] for one in classes])) for name in _SCORES},
        "pooled_error": differences / sum(one["count"] for one in bins),
        "classes": classes,
        "bins": bins,
    }


def _merged(low: float, high: float, bins: Sequence[Record]) -> Record:
    count = sum(one["count"] for one in bins)
    means = {
        name: sum(one["count"] * one[name] for one in bins) / count for name in ("probability", "observed")
    }
    return {"low": low, "high": high, "count": count, **means}
