"""The figures of the paper's Table 3 that the default configuration must reach, on the real data sets."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.features.spec import FeatureSpec
from core.training.pipeline import TrainedModel, TrainingConfig, train

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("STMS_DATA", ROOT.parent / "shared" / "data"))


def trained_on(name: str, n_components: int) -> TrainedModel:
    path = FOLDER / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there; set STMS_DATA to the folder of the benchmark sets")
    with np.load(path, allow_pickle=False) as arrays:
        data = LabelledData.from_arrays(arrays["X_train"], arrays["y_train"])
        test = LabelledData.with_codes(arrays["X_test"], arrays["y_test"], data.classes)
    return train(data, TrainingConfig(features=FeatureSpec("nystroem", n_components)), test=test)


@pytest.mark.data
@pytest.mark.long
@pytest.mark.timeout(600)
def test_satimage_reaches_the_papers_figures():
    evaluation = trained_on("satimage", 600).evaluation
    assert evaluation.mean("teacher").f1 >= 0.88
    assert evaluation.mean("gsvm").f1 >= 0.86


@pytest.mark.data
@pytest.mark.long
@pytest.mark.timeout(900)
def test_letter_reaches_the_papers_figures_for_the_teacher_and_more_for_the_students():
    evaluation = trained_on("letter", 1000).evaluation
    assert evaluation.mean("teacher").f1 >= 0.95
    assert evaluation.mean("gsvm").f1 >= 0.92
