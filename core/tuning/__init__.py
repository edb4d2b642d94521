"""Choosing hyper-parameters by cross-validation: of the teacher once, then of each student."""

from core.tuning.folds import TuningFolds, fold_assignment, make_folds, tune_teacher
from core.tuning.grid import OPEN_GRID, PAPER_GRID, Grid, Point
from core.tuning.search import Strategy, tune_student
from core.tuning.trace import Metric, TracePoint, Tuned

__all__ = [
    "OPEN_GRID",
    "PAPER_GRID",
    "Grid",
    "Metric",
    "Point",
    "Strategy",
    "TracePoint",
    "Tuned",
    "TuningFolds",
    "fold_assignment",
    "make_folds",
    "tune_student",
    "tune_teacher",
]
