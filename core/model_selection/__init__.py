"""Choosing hyper-parameters by cross-validation: of the teacher once, then of each student."""

from core.model_selection.folds import TuningFolds, fold_assignment, make_folds, tune_teacher
from core.model_selection.grid import OPEN_GRID, PAPER_GRID, Grid, Point
from core.model_selection.joint import JointlyTuned, overall_score, tune_jointly
from core.model_selection.results import Metric, SearchReport, Strategy, TracePoint, Tuned
from core.model_selection.search import tune_student
from core.model_selection.tuning_spec import TuningSpec

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
