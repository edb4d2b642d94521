"""The estimate of a run's memory; `python -m lab.benchmarks.memory` compares it with peaks of processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.features.spec import FeatureSpec
from core.learners import TEACHERS
from core.model_selection.tuning_spec import TuningSpec
from core.training.config import TrainingConfig
from core.training.memory import PROCESS_BYTES, RunShape, peak_bytes

SHAPE = RunShape(rows=20_000, test_rows=5000, columns=50, classes=200, row_bytes=8 * 25_000 * 50, threads=2)
KERNEL = FeatureSpec(kind="nystroem", n_components=500)


def test_scores_dual_variables_and_lists_of_classes_are_counted_for_each_row_and_class():
    config = TrainingConfig(guard="off")
    few, many = (replace(SHAPE, rows=100_000, classes=classes) for classes in (1000, 2000))
    growth = (peak_bytes(config, many) - peak_bytes(config, few)) / (100_000 * 1000)
    # S, α, the lists of classes, and α before a round; combined steps do not grow any more.
    assert 20.0 <= growth <= 40.0


def test_folds_that_are_fitted_beside_each_other_add_up():
    config = TrainingConfig(tuning=TuningSpec(folds=4))
    many = replace(SHAPE, rows=100_000, classes=2000)
    alone, together = (peak_bytes(config, replace(many, threads=threads)) for threads in (1, 4))
    assert together - alone > 3 * 0.75 * 20 * 100_000 * 2000
    assert peak_bytes(TrainingConfig(guard="off"), many) < alone


def test_features_are_counted_as_wide_as_they_are():
    double, single = (TrainingConfig(features=replace(KERNEL, dtype=kind)) for kind in ("float64", "float32"))
    shape = replace(SHAPE, classes=2)
    assert peak_bytes(double, shape) - peak_bytes(single, shape) >= 4 * 25_000 * 500
    sparse = replace(shape, is_sparse=True, columns=60_000, row_bytes=10**7)
    assert peak_bytes(TrainingConfig(), sparse) < 8 * 25_000 * 60_000


@pytest.mark.parametrize("name", TEACHERS)
@pytest.mark.parametrize("grown", ["rows", "classes", "columns"])
def test_every_teacher_takes_more_for_more(name: str, grown: str):
    config = TrainingConfig(teacher=TEACHERS[name](), features=FeatureSpec(kind="linear"))
    larger = replace(SHAPE, **{grown: 10 * getattr(SHAPE, grown)})
    larger = replace(larger, row_bytes=8 * larger.rows * larger.columns)
    assert PROCESS_BYTES < peak_bytes(config, SHAPE) < peak_bytes(config, larger)


def test_an_automatic_run_is_counted_with_the_map_that_takes_most():
    automatic = TrainingConfig(automatic=True)
    assert peak_bytes(automatic, SHAPE) >= peak_bytes(
        TrainingConfig(features=FeatureSpec(kind="auto")), SHAPE
    )
    # Of so many rows it takes linear features.
    rows = replace(SHAPE, rows=10**6, classes=2, row_bytes=8 * 10**6 * 50)
    assert peak_bytes(automatic, rows) < PROCESS_BYTES + 10 * rows.row_bytes
