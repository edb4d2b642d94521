"""Calibrated probabilities of the open grid's gSVM: fitted on held-out folds, measured on the test part.

The protocol keeps the chosen point of a student, not its held-out scores. These are made again here at that
point alone, on the same folds and by the same teachers; the student itself is that of the protocol.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from core.model_selection.calibration import fit_calibration, reliability
from core.model_selection.grid import Grid
from core.model_selection.metrics import binary_metrics
from core.model_selection.options import CalibrationKind
from core.model_selection.search import tune_student
from core.run import Run as CoreRun
from core.solvers.threads import one_blas_thread
from core.students.fitting import fit_student
from core.students.spec import Method, StudentSpec
from experiments.classroom import Classroom
from experiments.data import Split
from experiments.effort import Effort
from experiments.plans import GridName, Plan
from experiments.results import Record, ResultStore, Run, recipe_of, student_name
from experiments.resumable import Resumable
from experiments.setting import Setting

GRID: GridName = "open"
METHOD: Method = "gsvm"
KINDS: tuple[CalibrationKind, ...] = ("sigmoid", "isotonic")

ISOTONIC_NEEDS = 200
"""Training rows of the class, and of the rest, from which an isotonic calibration is fitted."""

_VERSION = 1


class NeedsProtocol(Exception):
    """The protocol's records that a part starts from are not there; the message says which."""


def record_name(code: int) -> str:
    """Name of the record of class ``code``."""
    return f"probability-{code:03d}"


def chosen_point(student: Record) -> dict[str, float]:
    """C, ε and ϵ of a student's record."""
    return {name: float(student["chosen"][name]) for name in ("C", "margin", "floor")}


def chosen_spec(student: Record, tolerance: float) -> StudentSpec:
    """The student of a record. tolerance: of its plan. Raises InvalidProblem for values out of bounds."""
    point = chosen_point(student)
    return StudentSpec(METHOD, point["C"], point["margin"], point["floor"], tolerance=tolerance)


class Probabilities(Resumable):
    """One data set's classes. protocol: the recipe of the run whose students are calibrated."""

    def __init__(
        self, protocol: str, plan: Plan, run: Run, data: Split, store: ResultStore, effort: Effort
    ) -> None:
        super().__init__(run, store, recipe_of(["probabilities", _VERSION, protocol]))
        self._protocol, self._plan, self._data, self._effort = protocol, plan, data, effort

    def costs(self) -> dict[str, float]:
        data, features = self._data.train, self._plan.search.features
        m = 100 if features.kind == "linear" else features.n_components
        each = float(data.n * m * (self._plan.folds + 1))
        return {record_name(code): each for code in range(data.K)}

    def has(self, name: str) -> bool:
        """A record counts while the protocol's student still has the point that it was made at."""
        record = self._store.read(self.run, name, self.recipe)
        return record is not None and record["point"] == chosen_point(self._student(name))

    def _make(self, name: str) -> Record:
        """Raises NeedsProtocol, InvalidProblem."""
        code, student = _code(name), self._student(name)
        point = chosen_point(student)
        room, effort = self._room, self._effort
        grid = Grid(C=(point["C"],), margins=(point["margin"],), floors=(point["floor"],))
        tuned = tune_student(
            room.folds,
            code,
            METHOD,
            grid,
            strategy="exhaustive",
            metric=self._plan.metric,
            run=CoreRun(effort.seed, effort.n_threads),
        )
        preparation, examination = room.preparation, room.examination
        with one_blas_thread():
            lesson = preparation.lesson(code, floor=point["floor"])
            spec = chosen_spec(student, self._plan.tolerance)
            fitted = fit_student(preparation.features, lesson, spec, CoreRun(effort.seed))
            score = fitted.scores(examination.features)
        positives = int(lesson.positive.sum())
        enough = min(positives, len(lesson.positive) - positives) >= ISOTONIC_NEEDS
        truth = examination.labels == code
        measured: dict[str, Any] = {}
        for kind in KINDS:
            if kind == "isotonic" and not enough:
                measured[kind] = None
                continue
            calibration = fit_calibration(lesson.positive, tuned.held_out_scores, kind)
            measured[kind] = reliability(truth, calibration.probabilities(score)).as_dict()
        decision = score >= student["chosen"]["threshold"]
        f1 = binary_metrics(truth, decision, score).f1
        return {
            "label": preparation.classes[code],
            "protocol": self._protocol,
            "point": point,
            "same_f1": f1 == student["metrics"]["f1"],
            "positives": positives,
            "calibrations": measured,
        }

    @cached_property
    def _room(self) -> Classroom:
        setting = stored_setting(self._store, self.run, self._protocol)
        return Classroom(self._plan, self._data, setting, self._effort)

    def _student(self, name: str) -> Record:
        return stored_student(self._store, self.run, _code(name), self._protocol)


def stored_setting(store: ResultStore, run: Run, protocol: str) -> Setting:
    """The setting of a protocol's run. Raises NeedsProtocol."""
    record = store.read(run, "setting", protocol)
    if record is None:
        message = "there is no setting yet; run the part protocol"
        raise NeedsProtocol(f"{run.data_set}, {run.grid} grid: {message}")
    return Setting.from_dict(record)


def stored_student(store: ResultStore, run: Run, code: int, protocol: str) -> Record:
    """The record of a gSVM student of a protocol's run. Raises NeedsProtocol."""
    record = store.read(run, student_name(code, METHOD), protocol)
    if record is None:
        message = f"there is no tuned student of class {code} yet; run the part protocol"
        raise NeedsProtocol(f"{run.data_set}, {run.grid} grid: {message}")
    return record


def _code(name: str) -> int:
    return int(name.removeprefix("probability-"))
