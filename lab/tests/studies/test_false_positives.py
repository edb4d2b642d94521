"""The benchmark of false-positive rates: its parts on rows made here."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

from core.features.spec import FeatureSpec
from core.students.gated import GSVM
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from lab.studies import false_positives
from lab.studies.defaults import Split
from lab.studies.false_positives import main, measure, summary

SPARSE = TrainingConfig(
    features=FeatureSpec("linear", scaling="none"),
    teacher=SSVM(C=10.0),
    students=(GSVM(C=10.0),),
    threshold="fpr",
    folds=2,
)
CONFIG = TrainingConfig(features=FeatureSpec("linear"), threshold="fpr", folds=3)


def noisy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that overlap, among so many columns of noise that training rows are nearly separated."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    X = rng.normal(size=(n, 60))
    X[:, :3] += 1.5 * np.eye(3)[codes]
    return X, codes


@pytest.fixture(scope="module")
def figures() -> dict:
    return measure(Split(*noisy(240, 0), *noisy(3000, 1)), CONFIG)


def test_a_budget_is_promised_for_classes_with_rows_enough(figures):
    assert [figures[budget]["promised_for"] for budget in ("0.01", "0.001")] == [3, 0]
    assert set(figures["0.001"]) == {"classes", "promised_for"}
    counts = figures["0.01"]["promised"]
    assert (counts["negatives"], counts["positives"]) == (6000, 3000)


def test_thresholds_from_rows_that_were_seen_flatter(figures):
    rate = {name: one["rate"] for name, one in figures["0.01"].items() if isinstance(one, dict)}
    assert rate["promised"] <= 0.02
    assert rate["both_saw"] > 0.05
    assert rate["promised"] < rate["gate_saw"] < rate["both_saw"]


@pytest.mark.long
def test_sparse_rows_are_measured_too():
    (X, y), (X_test, y_test) = noisy(180, 0), noisy(300, 1)
    sparse = measure(Split(sp.csr_array(X), y, sp.csr_array(X_test), y_test), SPARSE)
    assert sparse["0.01"]["promised_for"] == 3
    assert sparse["0.01"]["promised"]["negatives"] == 600


def test_broken_promises_are_counted(figures):
    broken = figures["0.01"] | {"promised": figures["0.01"]["both_saw"]}
    shown = summary({"one": {"gsvm": figures}, "two": {"gsvm": figures | {"0.01": broken}}})
    assert (shown["sets"], shown["promises"], shown["kept"]) == (2, 2, 1)
    assert shown["worst_excess"] > 2.0
    assert shown["rates"]["0.001"] == {}
    assert shown["rates"]["0.01"]["both_saw"] == round(100.0 * figures["0.01"]["both_saw"]["rate"], 4)


def test_the_last_line_is_json_and_no_test_part_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FINAL", "1")
    monkeypatch.setattr(false_positives, "STUDENTS", {"gsvm": CONFIG})
    X, y = noisy(390, 2)
    Split(X, y, np.full((6, 60), np.nan), np.arange(6) % 3).write(tmp_path / "some.npz")
    status = main(["--sets", "some", "none", "--data", str(tmp_path), "--rows", "360"])
    printed = capsys.readouterr()
    last = json.loads(printed.out.splitlines()[-1])
    assert (last["sets"], last["promises"]) == (1, 1)
    assert status == (last["kept"] != last["promises"])
    assert last["by_set"]["some"]["gsvm"]["0.01"]["promised"]["negatives"] == 240
    assert "none is left out" in printed.err
    assert main(["--sets", "none", "--data", str(tmp_path)]) == 1
