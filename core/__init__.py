"""STMS core: one multiclass teacher, many small binary students.

The public names are loaded when they are first used, so that ``import core.packed`` in a process that only
answers queries loads none of the training code:

    from core import LabelledData, TrainingConfig, train
    model = train(LabelledData.from_arrays(X, y), TrainingConfig())
    model.students["7"].decide(X_new)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.compact import CompactRows, CompactSpec, TrainedCompact, train_compact_student
    from core.dataset import LabelledData
    from core.difficulty import difficulty_degrees
    from core.errors import Cancelled, CoreError, Fault, InvalidPackage, InvalidProblem
    from core.estimators import GatedSVMClassifier, STMSClassifier, StructuralSVMClassifier
    from core.evaluation import Evaluation, Examination
    from core.features import FeatureSpec
    from core.metrics import BinaryMetrics, binary_metrics, roc
    from core.packed import PackedStudent, PackedTeacher
    from core.pipeline import (
        Preparation,
        TrainedModel,
        TrainedStudent,
        TrainingConfig,
        evaluate,
        prepare,
        train,
        train_student,
    )
    from core.scaling import Scaling
    from core.selection import choose_threshold, held_out_scores
    from core.solution import Solution, Status, Summary
    from core.students import StudentSpec
    from core.tuning import Grid, SearchReport, TuningSpec
    from core.types import Progress

_HOME = {
    "BinaryMetrics": "core.metrics",
    "Cancelled": "core.errors",
    "CompactRows": "core.compact",
    "CompactSpec": "core.compact",
    "CoreError": "core.errors",
    "Evaluation": "core.evaluation",
    "Examination": "core.evaluation",
    "Fault": "core.errors",
    "FeatureSpec": "core.features",
    "GatedSVMClassifier": "core.estimators",
    "Grid": "core.tuning",
    "InvalidPackage": "core.errors",
    "InvalidProblem": "core.errors",
    "LabelledData": "core.dataset",
    "PackedStudent": "core.packed",
    "PackedTeacher": "core.packed",
    "Preparation": "core.pipeline",
    "Progress": "core.types",
    "STMSClassifier": "core.estimators",
    "Scaling": "core.scaling",
    "SearchReport": "core.tuning",
    "Solution": "core.solution",
    "Status": "core.solution",
    "StructuralSVMClassifier": "core.estimators",
    "StudentSpec": "core.students",
    "Summary": "core.solution",
    "TrainedCompact": "core.compact",
    "TrainedModel": "core.pipeline",
    "TrainedStudent": "core.pipeline",
    "TrainingConfig": "core.pipeline",
    "TuningSpec": "core.tuning",
    "binary_metrics": "core.metrics",
    "choose_threshold": "core.selection",
    "difficulty_degrees": "core.difficulty",
    "evaluate": "core.pipeline",
    "held_out_scores": "core.selection",
    "prepare": "core.pipeline",
    "roc": "core.metrics",
    "train": "core.pipeline",
    "train_compact_student": "core.compact",
    "train_student": "core.pipeline",
}

__all__ = [
    "BinaryMetrics",
    "Cancelled",
    "CompactRows",
    "CompactSpec",
    "CoreError",
    "Evaluation",
    "Examination",
    "Fault",
    "FeatureSpec",
    "GatedSVMClassifier",
    "Grid",
    "InvalidPackage",
    "InvalidProblem",
    "LabelledData",
    "PackedStudent",
    "PackedTeacher",
    "Preparation",
    "Progress",
    "STMSClassifier",
    "Scaling",
    "SearchReport",
    "Solution",
    "Status",
    "StructuralSVMClassifier",
    "StudentSpec",
    "Summary",
    "TrainedCompact",
    "TrainedModel",
    "TrainedStudent",
    "TrainingConfig",
    "TuningSpec",
    "binary_metrics",
    "choose_threshold",
    "difficulty_degrees",
    "evaluate",
    "held_out_scores",
    "prepare",
    "roc",
    "train",
    "train_compact_student",
    "train_student",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
