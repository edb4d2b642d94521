"""The benchmark of the other learners: its parts and its last line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lab.studies.learners import labelling
from lab.studies.learners.__main__ import main
from lab.studies.learners.measures import value_of


@pytest.mark.long
def test_the_last_line_has_the_figures_of_the_parts_that_were_asked_for(capsys):
    assert main(["--quick", "--only", "oracles"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["oracle_worst"] <= 1e-6
    assert set(figures["oracles"]) == {
        "odm",
        "svm+",
        "measures",
        "mcodm",
        "interpolation",
        "interpolation, iterated",
        "relaxed_labels",
    }
    assert figures["label_matches"] == 60
    assert figures["ep_algorithm_worst"] <= 1e-8
    assert figures["ep_moments_worst"] <= 1e-3
    assert figures["violated_matches"] == 100
    assert set(figures["seconds"]) == {"oracles"}


def test_clusters_are_matched_under_their_best_names():
    truth = np.array([0, 0, 1, 1, 2, 2])
    assert labelling.matched(truth, np.array([2, 2, 0, 0, 1, 1])) == 1.0
    assert labelling.matched(truth, np.zeros(6, dtype=int)) == pytest.approx(1 / 3)


def test_measures_are_those_of_textbooks():
    truth = np.array([True, True, False, False])
    scores = np.array([2.0, -1.0, 1.0, -2.0])
    expected = {"error": 0.5, "f1": 0.5, "prbep": 0.5, "precision_at_k": 1.0, "recall_at_k": 1.0}
    for name, value in expected.items():
        assert value_of(name, truth, scores) == value
    assert value_of("roc_area", truth, scores) == 0.75
