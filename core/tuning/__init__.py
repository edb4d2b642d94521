"""Choosing hyper-parameters by cross-validation: of the teacher once, then of each student."""

from core.tuning.folds import TuningFolds, fold_assignment, make_folds, tune_teacher
from core.tuning.grid import OPEN_GRID, PAPER_GRID, Grid, Point
from core.tuning.joint import JointlyTuned, overall_score, tune_jointly
from core.tuning.search import tune_student
from core.tuning.spec import TuningSpec
from core.tuning.trace import Metric, SearchReport, Strategy, TracePoint, Tuned

__all__ = [
    "OPEN_GRID",
    "PAPER_GRID",
    "Grid",
    "JointlyTuned",
    "Metric",
    "Point",
    "SearchReport",
    "Strategy",
    "TracePoint",
    "Tuned",
    "TuningFolds",
    "TuningSpec",
    "fold_assignment",
    "make_folds",
    "overall_score",
    "tune_jointly",
    "tune_student",
    "tune_teacher",
]
