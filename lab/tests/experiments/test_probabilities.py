"""Calibrated probabilities of the protocol's students: made from its records, and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from core.model_selection.calibration import fit_calibration
from core.model_selection.held_out import held_out_scores
from lab.experiments import probabilities as module
from lab.experiments.data import load
from lab.experiments.probabilities import NAME, Probabilities, _calibrated, summarise_probabilities
from lab.experiments.protocol import Protocol, student_name
from lab.experiments.store import NeedsProtocol, Run, Store

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
    assert list(work(folder, made).steps()) == [(NAME, True)]
    train, record = load("vowel", folder).train, made.read(RUN.key(NAME))
    assert record is not None
    assert (record["n_classes"], record["other_students"], list(record["kinds"])) == (3, [], ["sigmoid"])
    sigmoid = record["kinds"]["sigmoid"]
    assert [one["label"] for one in sigmoid["classes"]] == list(train.classes)
    assert len(seen) == 3
    for code, (truth, scores, kind) in enumerate(seen):
        assert kind == "sigmoid"
        assert np.array_equal(truth, train.y == code)
        assert np.isfinite(scores).all()
        own = sigmoid["classes"][code]
        assert own["positives"] == (train.y == code).sum()
        assert 0.0 < own["brier"] < own["base_brier"]
    assert not any(new for _, new in work(folder, made).steps())


def test_the_brier_score_is_that_of_scikit_learn(folder: Path, made: Store):
    one = work(folder, made)
    list(one.steps())
    room, record = one._protocol, made.read(RUN.key(NAME))
    assert record is not None
    spec = room.spec("gsvm", room.needed(student_name(1, "gsvm"))["chosen"])
    held_out = held_out_scores(room.folds, 1, spec)
    calibration = fit_calibration(room.preparation.labels == 1, held_out)
    probability = calibration.probabilities(room.train(1, spec)[1])
    expected = brier_score_loss(room.evaluator.labels == 1, probability)
    assert record["kinds"]["sigmoid"]["classes"][1]["brier"] == pytest.approx(expected)


def test_a_student_with_another_f_than_the_protocols_is_named(folder: Path, made: Store):
    student = made.read(RUN.key(student_name(1, "gsvm")))
    assert student is not None
    rewrite(made, RUN, student_name(1, "gsvm"), metrics={**student["metrics"], "f1": 0.123})
    list(work(folder, made).steps())
    found = summarise_probabilities(made, "vowel")
    assert found is not None
    assert found["other_students"] == [student["label"]]


def test_isotonic_calibrations_need_rows(folder: Path, made: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ISOTONIC_NEEDS", 20)
    list(work(folder, made).steps())
    record, train = made.read(RUN.key(NAME)), load("vowel", folder).train
    assert record is not None
    assert 0 < sum(train.class_counts >= 20) < 3
    labels = [one["label"] for one in record["kinds"]["isotonic"]["classes"]]
    assert labels == [label for label, n in zip(train.classes, train.class_counts, strict=True) if n >= 20]


def test_scores_are_means_over_the_classes_and_bins_of_all_rows():
    tested = [
        {"label": "a", "positives": 2, "truth": np.array([True, False]), "sigmoid": np.array([0.95, 0.05])},
        {"label": "b", "positives": 1, "truth": np.array([False, True]), "sigmoid": np.array([0.95, 0.08])},
    ]
    found = _calibrated("sigmoid", tested)
    briers = [brier_score_loss(one["truth"], one["sigmoid"]) for one in tested]
    assert [one["brier"] for one in found["classes"]] == pytest.approx(briers)
    assert found["brier"] == pytest.approx(np.mean(briers))
    assert [one["count"] for one in found["bins"]] == [2, 2]
    assert [one["probability"] for one in found["bins"]] == pytest.approx([0.065, 0.95])
    assert [one["observed"] for one in found["bins"]] == [0.5, 0.5]
    assert found["pooled_error"] == pytest.approx((2 * 0.435 + 2 * 0.45) / 4)


def test_probabilities_of_another_protocol_do_not_count(store: Store):
    assert summarise_probabilities(store, "vowel") is None
    fill_probabilities(store, RUN)
    found = summarise_probabilities(store, "vowel")
    assert found is not None
    assert found["seconds"] == pytest.approx(18.0)
    rewrite(store, RUN, NAME, protocol="other")
    assert summarise_probabilities(store, "vowel") is None
