"""Totals of students added page by page."""

from __future__ import annotations

import random
from statistics import fmean

import numpy as np
import pytest

from app.domain.entities import StudentRow, StudentState
from app.services.version_metrics import StudentTotals, standard_error
from core.model_selection.calibration import reliability
from core.model_selection.metrics import binary_metrics


def row(index: int, method: str = "gsvm", state: StudentState = StudentState.SUCCEEDED, **metrics: object):
    return StudentRow("job", index, f"c{index}", method, state, metrics=metrics, error=None)


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_means_do_not_depend_on_the_size_of_the_pages(page: int):
    random.seed(3)
    rows = []
    for index in range(500):
        f1 = random.random() if index % 3 else None
        rows.append(row(index, accuracy=random.random(), f1=f1, auc=0.5))
        rows.append(row(index, "teacher", accuracy=random.random(), f1=f1, auc=None))
    totals = StudentTotals("gsvm")
    for first in range(0, len(rows), page):
        totals.add(rows[first : first + page])
    means = totals.metrics()["means"]
    for method in ("gsvm", "teacher"):
        of_method = [one.metrics for one in rows if one.method == method]
        for name in ("accuracy", "f1"):
            expected = fmean(metrics[name] for metrics in of_method if metrics[name] is not None)
            assert means[method][name] == pytest.approx(expected, rel=1e-15)
        assert means[method]["classes"] == 500
    assert means["teacher"]["auc"] is None
    assert totals.is_served
    assert (totals.failed, totals.first_failure) == (0, None)


def test_the_first_failure_is_that_of_the_first_class():
    totals = StudentTotals("gsvm")
    totals.add([row(0, "svm"), row(1, state=StudentState.FAILED)])
    totals.add([row(2, state=StudentState.FAILED), row(3, "svm", calibration="sigmoid")])
    assert totals.failed == 2
    assert totals.first_failure == row(1, state=StudentState.FAILED)
    assert not totals.is_served
    assert totals.metrics() == {"means": {}}, "no student has scores, and calibrations count only if served"


def test_only_the_first_warnings_are_listed_and_all_are_counted():
    guard = {"warning": "student_worse_than_teacher", "message": "It has F 0.0 %."}
    totals = StudentTotals("gsvm")
    for first in range(0, 60, 15):
        rows = [row(index, guard=guard) for index in range(first, first + 15)]
        totals.add([*rows, row(first, "svm", guard=guard)])
    assert totals.warned == 60
    assert [one["class_index"] for one in totals.warnings] == list(range(20))
    assert totals.metrics()["students_warned"] == 60


def test_a_student_without_a_guard_is_warned_of_by_the_rows_it_was_trained_on():
    own = {"warning": "student_misses_its_class", "message": "It accepts 1, 0 of them of the class."}
    totals = StudentTotals("gsvm")
    totals.add([row(0, own_rows=own), row(1)])
    assert [(one["code"], one["class_index"]) for one in totals.warnings] == [(own["warning"], 0)]


def test_a_student_may_have_two_warnings_and_counts_once():
    guard = {"warning": "student_worse_than_teacher", "message": "It has F 0.0 %."}
    budget = {"warning": "false_positive_budget_not_promised", "message": "It takes 999 rows."}
    totals = StudentTotals("gsvm")
    totals.add([row(0, guard=guard, false_positives=budget), row(1, false_positives={"budget": 0.01})])
    assert totals.warned == 1
    assert [one["code"] for one in totals.warnings] == [guard["warning"], budget["warning"]]
    assert totals.warnings[1]["message"] == "It takes 999 rows."


def test_standard_errors_are_those_of_samples_of_test_rows():
    random = np.random.default_rng(0)
    measured = []
    for _ in range(400):
        truth = random.random(300) < 0.3
        score = random.normal(size=300) + 1.5 * truth
        chance = 1 / (1 + np.exp(-(1.5 * score - 1.125 - np.log(7 / 3))))
        metrics = binary_metrics(truth, score >= 0.75, score).as_dict()
        trust = reliability(truth, chance).as_dict()
        measured.append(metrics | {"brier": trust["brier"], "reliability": trust["bins"]})
    for name in ("f1", "accuracy", "auc", "brier"):
        told = fmean(standard_error(one, name) for one in measured)
        assert told == pytest.approx(np.std([one[name] for one in measured]), rel=0.15), name
    assert standard_error({"f1": 0.5}, "f1") is None, "without counts"


def test_the_error_of_a_mean_is_stored_beside_it():
    counts = {"tp": 30, "fp": 10, "fn": 10, "tn": 50, "f1": 0.75, "accuracy": 0.8, "auc": None}
    totals = StudentTotals("gsvm")
    totals.add([row(index, **counts) for index in range(8)])
    one = standard_error(counts, "f1")
    errors = totals.metrics()["standard_errors"]["gsvm"]
    assert errors["f1"] == pytest.approx(one * (2 / 8) ** 0.5), "a wrong answer counts in two classes"
    assert set(errors) == {"f1", "accuracy"}


def test_a_weak_class_is_a_warning():
    weak = {"warning": "weak_class", "message": "F 30 %."}
    totals = StudentTotals("gsvm")
    totals.add([row(0, weak=weak), row(1)])
    assert totals.warnings == [{"code": "weak_class", "label": "c0", "class_index": 0, "message": "F 30 %."}]
