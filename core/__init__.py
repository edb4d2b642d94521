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
    from core.data.dataset import LabelledData
    from core.data.scaling_kind import Scaling
    from core.errors import Cancelled, CoreError, Fault, InvalidPackage, InvalidProblem
    from core.estimators.classifiers import GatedSVMClassifier, STMSClassifier, StructuralSVMClassifier
    from core.features.spec import FeatureSpec
    from core.model_selection.grid import Grid
    from core.model_selection.metrics import BinaryMetrics, binary_metrics, roc
    from core.model_selection.results import SearchReport
    from core.model_selection.threshold import choose_threshold, held_out_scores
    from core.model_selection.tuning_spec import TuningSpec
    from core.packed import PackedStudent, PackedTeacher
    from core.run import Run
    from core.solvers.solution import Solution, Status, Summary
    from core.students.difficulty import difficulty_degrees
    from core.students.spec import StudentSpec
    from core.training.evaluation import Evaluation, Examination
    from core.training.pipeline import (
        Preparation,
        TrainedModel,
        TrainedStudent,
        TrainingConfig,
        evaluate,
        prepare,
        train,
        train_student,
    )
    from core.types import Progress

_HOME = {
    "BinaryMetrics": "core.model_selection.metrics",
    "Cancelled": "core.errors",
    "CompactRows": "core.compact",
    "CompactSpec": "core.compact",
    "CoreError": "core.errors",
    "Evaluation": "core.training.evaluation",
    "Examination": "core.training.evaluation",
    "Fault": "core.errors",
    "FeatureSpec": "core.features.spec",
    "GatedSVMClassifier": "core.estimators.classifiers",
    "Grid": "core.model_selection.grid",
    "InvalidPackage": "core.errors",
    "InvalidProblem": "core.errors",
    "LabelledData": "core.data.dataset",
    "PackedStudent": "core.packed",
    "PackedTeacher": "core.packed",
    "Preparation": "core.training.pipeline",
    "Progress": "core.types",
    "Run": "core.run",
    "STMSClassifier": "core.estimators.classifiers",
    "Scaling": "core.data.scaling_kind",
    "SearchReport": "core.model_selection.results",
    "Solution": "core.solvers.solution",
    "Status": "core.solvers.solution",
    "StructuralSVMClassifier": "core.estimators.classifiers",
    "StudentSpec": "core.students.spec",
    "Summary": "core.solvers.solution",
    "TrainedCompact": "core.compact",
    "TrainedModel": "core.training.pipeline",
    "TrainedStudent": "core.training.pipeline",
    "TrainingConfig": "core.training.pipeline",
    "TuningSpec": "core.model_selection.tuning_spec",
    "binary_metrics": "core.model_selection.metrics",
    "choose_threshold": "core.model_selection.threshold",
    "difficulty_degrees": "core.students.difficulty",
    "evaluate": "core.training.pipeline",
    "held_out_scores": "core.model_selection.threshold",
    "prepare": "core.training.pipeline",
    "roc": "core.model_selection.metrics",
    "train": "core.training.pipeline",
    "train_compact_student": "core.compact",
    "train_student": "core.training.pipeline",
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
    "Run",
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
