"""Students of teachers that are not ours: a random forest and a small neural network on letter.

The training part of letter is dealt into thirds. The teachers learn the first; their scores of the second
are sent as a matrix with its rows, from which students are trained; the third is measured. The test part is
not read. ``none`` is a student without a teacher (svm), ``ssvm`` those of this library's own teacher of the
second third.

    python -m lab.studies.learners.outside_scores [--quick]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from core.data.dataset import LabelledData
from core.data.extras import RawExtras
from core.features.spec import FeatureSpec
from core.run import Run
from core.students.base import StudentSpec
from core.students.gated import GSVM, SVM
from core.students.polytope import Polytope
from core.teachers.base import TeacherSpec
from core.teachers.outside import OutsideScores
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import train
from tests.system.data import training_part

TEACHERS: dict[str, Callable[[], Any]] = {
    "forest": lambda: RandomForestClassifier(300, random_state=0),
    "network": lambda: make_pipeline(StandardScaler(), MLPClassifier((100,), max_iter=200, random_state=0)),
}
STUDENTS: dict[str, StudentSpec] = {"gsvm": GSVM(C=1e5), "polytope": Polytope(pieces=8, C=1e4)}
_PROBABILITY_FLOOR = 1e-3


def measure(quick: bool = False) -> dict[str, Any]:
    """Mean F over the classes, in per cent, of teachers and students. quick: thirds of 800 rows."""
    first, second, third = thirds(800 if quick else 5000)
    features = FeatureSpec("nystroem", 150 if quick else 600)
    test = LabelledData.from_arrays(*third)

    def students(teacher: TeacherSpec, specs: dict[str, StudentSpec], scores: Any = None) -> dict[str, float]:
        extras = RawExtras(teacher_scores=scores)
        data = LabelledData.from_arrays(*second, extras=extras)
        config = TrainingConfig(features=features, teacher=teacher, students=tuple(specs.values()))
        model = train(data, config, test=test, run=Run(n_threads=1))
        assert model.evaluation is not None
        return {name: 100.0 * (model.evaluation.mean(spec.name).f1 or 0.0) for name, spec in specs.items()}

    found: dict[str, Any] = {"rows": len(second[1]), "none": students(SSVM(), {"svm": SVM(C=1e5)})}
    found["ssvm"] = students(SSVM(), STUDENTS)
    for name, make in TEACHERS.items():
        model = make().fit(*first)
        scores = np.log(np.maximum(model.predict_proba(second[0]), _PROBABILITY_FLOOR))
        own = 100.0 * float(f1_score(third[1], model.predict(third[0]), average="macro"))
        found[name] = {"teacher": own, **students(OutsideScores(), STUDENTS, scores)}
    return {"outside_scores": found}


def thirds(rows: int) -> list[tuple[Any, Any]]:
    """Rows and labels of three parts of letter's training part, of at most so many rows each."""
    X, y = training_part("letter")
    dealt = np.random.default_rng(1).permutation(len(y))[: 3 * rows]
    return [(X[part], y[part]) for part in np.array_split(dealt, 3)]


if __name__ == "__main__":
    print(json.dumps(measure("--quick" in sys.argv[1:]), indent=1))
