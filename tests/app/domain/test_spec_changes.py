"""The fewest hyper-parameters that repeat a job."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.spec_changes import changes
from app.domain.training_spec import TrainingSpec


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"automatic": False},
        {"automatic": {"seconds": 30.0}},
        {"student": {"C": 10.0}},
        {"student": {"method": "polytope", "pieces": 3}, "features": {"kind": "kernel"}},
        {"seed": 7, "alias": None, "publish": False},
        {"calibration": {"kind": "isotonic"}},
        {"compact": {}},
        {"compact": {"n_landmarks": 20}, "classes": ["a", "b"]},
        {"tuning": {"scope": "job"}},
        {"tuning": {"grid": {"C": [1.0, 2.0], "margins": [1.0], "floors": [0.3], "balances": []}}},
        {"teacher": {"method": "mcodm", "band": 0.1}, "guard": {"kind": "off"}},
        {"teacher": {"model": "heads@3"}},
        {"evaluation": {"test_fraction": 0.2}},
        {"automatic": True, "student": {"method": "gsvm"}, "threshold": {"rule": "zero"}},
        {"teacher": {"method": "forest"}},
        {"student": {"method": "trees", "rivals": 2}},
        {"automatic": True, "teacher": {"C": 5.0}},
        {"student": {"method": "gpc+"}, "evaluation": {"baselines": ["svm"]}},
    ],
    ids=str,
)
def test_they_give_the_same_job_again_and_no_more_than_was_given(given: dict[str, Any]) -> None:
    stored = TrainingSpec.model_validate(given).model_dump(mode="json")
    sent = changes(stored)
    assert TrainingSpec.model_validate(sent).model_dump(mode="json") == stored
    assert len(sent) <= len(given) + 1, sent
    for name in set(sent) & set(given):
        if isinstance(given[name], dict) and name != "tuning":
            assert set(sent[name]) <= {"method", *given[name]}
