"""Calibrated probabilities of the protocol's students: made from its records, and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from core.model_selection.calibration import fit_calibration
from experiments import probabilities as module
from experiments.data import load
from experiments.probabilities import Probabilities, record_name, summarise_probabilities
from experiments.protocol import Protocol
from experiments.stats import student_name
from experiments.store import NeedsProtocol, Run, Store

from .conftest import EFFORT, fill_probabilities, rewrite, small

RUN = Run("vowel", "open", 0)


def protocol(folder: Path, store: Store) -> Protocol:
    return Protocol(small("vowel", "open"), RUN, load("vowel", folder), store, EFFORT)


def work(folder: Path, store: Store) -> Probabilities:
    return Probabilities(protocol(folder, store))


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> Store:
    """The protocol on vowel's open grid."""
    store = Store(tmp_path / "made.jsonl")
    list(protocol(folder, store).steps())
    return store


def test_the_part_needs_the_records_of_the_protocol(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "work.jsonl")
    with pytest.raises(NeedsProtocol, match="run the part protocol"):
        list(work(folder, store).steps())


def test_every_class_is_calibrated_on_held_out_scores(
    folder: Path, made: Store, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def fit(truth, scores, kind):
        seen.append((truth, scores, kind))
        return fit_calibration(truth, scores, kind)

    monkeypatch.setattr(module, "fit_calibration", fit)
    steps = list(work(folder, made).steps())
    assert [name for name, _ in steps] == [record_name(code) for code in range(3)]
    train = load("vowel", folder).train
    assert len(seen) == 3
    for code, (truth, scores, kind) in enumerate(seen):
        assert kind == "sigmoid"
        assert np.array_equal(truth, train.y == code)
        assert np.isfinite(scores).all()
        record = made.read(RUN.key(record_name(code)))
        assert record is not None
        assert record["same_f1"]
        assert record["positives"] == (train.y == code).sum()
        assert record["calibrations"]["isotonic"] is None
        assert (
            0.0 < record["calibrations"]["sigmoid"]["brier"] < record["calibrations"]["sigmoid"]["base_brier"]
        )
    assert not any(new for _, new in work(folder, made).steps())


def test_the_brier_score_is_that_of_scikit_learn(folder: Path, made: Store):
    one = work(folder, made)
    list(one.steps())
    room, student = one._protocol, made.read(RUN.key(student_name(1, "gsvm")))
    assert student is not None
    from core.model_selection.search import tune_student
    from core.run import Run
    from core.students.gated import GSVM
    from core.students.grid import Grid

    spec = module.chosen_spec(student, small("vowel", "open").tolerance)
    grid = Grid(C=(spec.C,), margins=(spec.margin,), floors=(spec.difficulty_floor,))
    held_out = tune_student(room.folds, 1, GSVM().grid(grid), strategy="exhaustive").held_out_scores
    calibration = fit_calibration(room.preparation.labels == 1, held_out)
    fitted = spec.fit(room.preparation.problem(1), Run())
    probability = calibration.probabilities(fitted.scores(room.evaluator.examples))
    record = made.read(RUN.key(record_name(1)))
    assert record is not None
    expected = brier_score_loss(room.evaluator.labels == 1, probability)
    assert record["calibrations"]["sigmoid"]["brier"] == pytest.approx(expected)


def test_isotonic_calibrations_need_rows(folder: Path, made: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ISOTONIC_NEEDS", 20)
    list(work(folder, made).steps())
    there = [made.read(RUN.key(record_name(code)))["calibrations"]["isotonic"] for code in range(3)]  # type: ignore[index]
    counts = load("vowel", folder).train.class_counts
    assert [one is not None for one in there] == [count >= 20 for count in counts]


def test_a_student_with_another_point_is_calibrated_again(folder: Path, made: Store):
    list(work(folder, made).steps())
    student = made.read(RUN.key(student_name(1, "gsvm")))
    assert student is not None
    chosen = student["chosen"] | {"C": 10.0 * student["chosen"]["C"]}
    rewrite(made, RUN, student_name(1, "gsvm"), chosen=chosen)
    assert summarise_probabilities(made, "vowel") is None
    assert [new for _, new in work(folder, made).steps()] == [False, True, False]
    assert summarise_probabilities(made, "vowel") is not None


def test_bins_of_classes_are_pooled(store: Store):
    assert summarise_probabilities(store, "vowel") is None
    fill_probabilities(store, RUN)
    found = summarise_probabilities(store, "vowel")
    assert found is not None
    sigmoid, isotonic = found["kinds"]["sigmoid"], found["kinds"]["isotonic"]
    assert (len(sigmoid["classes"]), len(isotonic["classes"]), found["n_classes"]) == (3, 1, 3)
    assert [one["count"] for one in sigmoid["bins"]] == [90, 30]
    assert sigmoid["bins"][0]["observed"] == pytest.approx(0.1)
    assert sigmoid["pooled_error"] == pytest.approx(0.05)
    assert sigmoid["brier"] == pytest.approx(0.04)
    assert found["other_students"] == ["c2"]
    assert found["seconds"] == pytest.approx(18.0)


def test_probabilities_of_another_protocol_do_not_count(store: Store):
    fill_probabilities(store, RUN)
    rewrite(store, RUN, record_name(1), protocol="other")
    assert summarise_probabilities(store, "vowel") is None


def test_a_data_set_whose_classes_are_all_small_has_no_isotonic_part(store: Store):
    fill_probabilities(store, RUN, isotonic=False)
    found = summarise_probabilities(store, "vowel")
    assert found is not None
    assert list(found["kinds"]) == ["sigmoid"]
