"""Intervals, tests and suspect labels equal those of statsmodels and cleanlab, in an environment of their
own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from core.monitoring.comparison import PairedCounts, compare_classes, holm
from core.monitoring.intervals import exact_ends, wilson_interval
from core.monitoring.suspects import class_probabilities, suspect_labels
from tests.system.environments import Offline, environment

HERE = Path(__file__).parent

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    trials = np.exp(rng.uniform(0.0, np.log(1e5), 10_000)).astype(int)
    labels = rng.integers(0, 6, 4000)
    scores = 2.0 * np.eye(6)[labels] + rng.normal(size=(4000, 6))
    flipped = rng.random(4000) < 0.05
    labels[flipped] = (labels[flipped] + rng.integers(1, 6, flipped.sum())) % 6
    return {
        "hits": rng.binomial(trials, rng.random(10_000)),
        "trials": trials,
        "lost": rng.integers(0, 50, 500),
        "won": rng.integers(0, 50, 500),
        "p": rng.random((200, 24)) ** 3,
        "labels": labels,
        "probabilities": class_probabilities(labels, scores),
    }


@pytest.fixture(scope="module")
def oracle(given, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    try:
        python = environment(HERE / "oracle_requirements.txt") / "bin" / "python"
    except Offline as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("oracle")
    np.savez(folder / "given.npz", **given)
    command = [python, HERE / "oracle_program.py", folder / "given.npz", folder / "found.npz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "found.npz", allow_pickle=False))


def test_intervals_of_shares_are_those_of_statsmodels(given, oracle):
    hits, trials = given["hits"], given["trials"]
    np.testing.assert_allclose(exact_ends(hits, trials, 0.025), oracle["exact"], rtol=1e-12, atol=1e-15)
    for i in range(0, len(hits), 20):
        mine = wilson_interval(int(hits[i]), int(trials[i]))
        np.testing.assert_allclose((mine.low, mine.high), oracle["wilson"][:, i], rtol=1e-12, atol=1e-15)


def test_p_values_are_halves_of_mcnemars_and_corrected_as_by_statsmodels(given, oracle):
    counts = list(zip(given["lost"].tolist(), given["won"].tolist(), strict=True))
    for (lost, won), both in zip(counts, oracle["mcnemar"], strict=True):
        [found] = compare_classes([(PairedCounts(200, lost, won), PairedCounts(200, won, lost))])
        # Of two sides the smaller p-value is doubled.
        smaller = min(found.recall.p_worse, found.false_positives.p_worse)
        assert min(1.0, 2.0 * smaller) == pytest.approx(both, rel=1e-12)
    for p, adjusted in zip(given["p"], oracle["holm"], strict=True):
        np.testing.assert_allclose(holm(p), adjusted, rtol=1e-12)


def test_suspect_rows_are_cleanlabs_in_its_order(given, oracle):
    found = suspect_labels(given["labels"], given["probabilities"])
    assert len(found.rows) > 100
    assert found.rows.tolist() == oracle["rows"].tolist()
