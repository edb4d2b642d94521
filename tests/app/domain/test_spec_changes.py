"""The fewest hyper-parameters that repeat a job."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.spec_changes import changes, merged
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


@pytest.mark.parametrize(
    ("base", "given", "expected"),
    [
        ({"seed": 3, "student": {"C": 10.0}}, {"seed": 4}, {"seed": 4, "student": {"C": 10.0}}),
        (
            {"student": {"method": "svm", "C": 10.0}},
            {"student": {"C": 2.0}},
            {"student": {"method": "svm", "C": 2.0}},
        ),
        (
            {"student": {"method": "polytope", "pieces": 3}},
            {"student": {"method": "svm"}},
            {"student": {"method": "svm"}},
        ),
        (
            {"teacher": {"model": "heads@3"}},
            {"teacher": {"method": "forest"}},
            {"teacher": {"method": "forest"}},
        ),
        (
            {"features": {"kind": "nystroem", "n_components": 50}, "student": {"C": 2.0}},
            {"features": {"kind": "nystroem", "gamma": 0.5}},
            {"features": {"kind": "nystroem", "n_components": 50, "gamma": 0.5}, "student": {"C": 2.0}},
        ),
        (
            {"threshold": {"rule": "f1", "folds": 4}},
            {"threshold": {"folds": 3}},
            {"threshold": {"rule": "f1", "folds": 3}},
        ),
        ({"tuning": {}}, {"tuning": None}, {"automatic": False}),
        ({}, {"student": {"C": 2.0}}, {"student": {"C": 2.0}}),
        ({"automatic": False}, {"classes": ["a"]}, {"automatic": False, "classes": ["a"]}),
        ({}, {"automatic": True, "student": {"C": 2.0}}, {"automatic": True, "student": {"C": 2.0}}),
        (
            {"inputs": {"columns": {"a": {"kind": "text"}, "b": {"kind": "number"}}}},
            {"inputs": {"columns": {"a": {"kind": "category"}}}},
            {"inputs": {"columns": {"a": {"kind": "category"}, "b": {"kind": "number"}}}},
        ),
    ],
    ids=str,
)
def test_given_hyperparameters_take_the_place_of_those_of_another_job(
    base: dict[str, Any], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    stored = TrainingSpec.model_validate(base).model_dump(mode="json")
    both = TrainingSpec.model_validate(merged(changes(stored), given))
    assert both == TrainingSpec.model_validate(expected)
