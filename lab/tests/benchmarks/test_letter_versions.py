"""The comparison of letter's jobs at two versions: turns, medians and ratios."""

from __future__ import annotations

import json

import pytest

from app.domain.training_spec import TrainingSpec
from lab.benchmarks import letter_versions


class Instant:
    """A version whose jobs take ``seconds`` and are written to ``log``."""

    def __init__(self, name, seconds, log):
        self.name, self._seconds, self._log = name, seconds, log

    def seconds(self, hyperparameters):
        self._log.append((self.name, json.dumps(hyperparameters)))
        return self._seconds


def test_versions_take_turns_and_the_ratio_is_that_of_the_medians(monkeypatch):
    monkeypatch.setattr(letter_versions, "_until_idle", lambda *_: None)
    log: list[tuple[str, str]] = []
    found = letter_versions.measure(Instant("before", 2.0, log), Instant("after", 1.0, log), 2)
    assert found["ratio"] == 0.5
    assert found["tuned"] == {"before": [2.0, 2.0], "after": [1.0, 1.0], "ratio": 0.5}
    jobs = len(letter_versions.JOBS)
    assert [name for name, _ in log[2:]] == ["before", "after"] * jobs + ["after", "before"] * jobs
    assert all(log[at][1] == log[at + 1][1] for at in range(2, len(log), 2)), "the same job on both in turn"


@pytest.mark.parametrize("name", letter_versions.JOBS)
def test_no_job_leaves_the_choice_to_the_version(name):
    assert TrainingSpec.model_validate(letter_versions.JOBS[name]).automatic is False
