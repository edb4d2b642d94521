"""The estimate of what is left, from what was measured."""

from __future__ import annotations

import pytest

from experiments.forecast import Forecast, kind_of
from experiments.results import Run

VOWEL, YEAST, LETTER = Run("vowel", "open", 0), Run("yeast", "open", 0), Run("letter", "paper", 0)


def test_nothing_is_estimated_before_anything_was_measured():
    forecast = Forecast()
    forecast.expect(VOWEL, "class-001-gsvm", 10.0)
    assert forecast.seconds_left is None


def test_nothing_expected_takes_no_time():
    assert Forecast().seconds_left == 0.0


def test_the_same_kind_on_the_same_data_counts_first():
    forecast = Forecast()
    forecast.observe(VOWEL, "class-001-gsvm", 10.0, 20.0)
    forecast.observe(YEAST, "class-001-gsvm", 10.0, 500.0)
    forecast.expect(VOWEL, "class-002-gsvm", 30.0)
    assert forecast.seconds_left == pytest.approx(60.0)


def test_a_kind_is_learnt_from_other_data_and_else_from_everything():
    forecast = Forecast()
    forecast.observe(VOWEL, "class-001-gsvm", 10.0, 20.0)
    forecast.observe(VOWEL, "class-001-svm", 10.0, 1000.0)
    forecast.expect(LETTER, "class-003-gsvm", 5.0)
    assert forecast.seconds_left == pytest.approx(10.0)
    forecast.expect(LETTER, "inference", 2.0)
    assert forecast.seconds_left == pytest.approx(10.0 + 2.0 * 1020.0 / 20.0)


def test_the_same_grid_counts_before_the_other_one():
    forecast = Forecast()
    forecast.observe(VOWEL, "setting", 1.0, 7.0)
    forecast.observe(Run("vowel", "paper", 0), "setting", 1.0, 1.0)
    forecast.expect(YEAST, "setting", 1.0)
    assert forecast.seconds_left == pytest.approx(7.0)


def test_the_estimate_gets_better_with_each_record():
    """Costs that are wrong by a factor of 50 from one method to the next."""
    forecast, names = Forecast(), [f"class-{code:03d}-{method}" for code in range(1, 6) for method in "ab"]
    truth = {name: 100.0 if name.endswith("a") else 2.0 for name in names}
    for name in names:
        forecast.expect(VOWEL, name, 1.0)
    for done, name in enumerate(names[:2], 1):
        forecast.observe(VOWEL, name, 1.0, truth[name])
        left = sum(truth[other] for other in names[done:])
        assert forecast.seconds_left is not None
        assert (forecast.seconds_left == pytest.approx(left)) is (done == 2)


def test_what_is_made_or_given_up_is_not_expected():
    forecast = Forecast()
    for name in ("setting", "inference", "class-000-svm"):
        forecast.expect(VOWEL, name, 4.0)
    forecast.observe(VOWEL, "setting", 4.0, 8.0)
    assert forecast.seconds_left == pytest.approx(16.0)
    forecast.give_up(VOWEL, ["class-000-svm", "not there"])
    assert forecast.seconds_left == pytest.approx(8.0)


def test_the_first_class_is_a_kind_of_its_own():
    assert kind_of("class-000-gsvm") != kind_of("class-001-gsvm") == kind_of("class-025-gsvm")
    assert kind_of("class-001-gsvm") != kind_of("class-001-gsvm0")
    assert kind_of("landmarks-0025-class-003") == kind_of("landmarks-0200-class-007")
