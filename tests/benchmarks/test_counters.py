"""The costs that decisions 15 and 17 state, as the benchmark measures them."""

from __future__ import annotations

import json

import pytest

from benchmarks import counters


def test_counting_a_query_is_much_cheaper_than_with_prometheus_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["counters"])
    counters.main()
    report = json.loads(capsys.readouterr().out)
    assert 3 * report["metrics"]["minimum"] < report["prometheus_client"]["minimum"]
    # Processor time: 0.45 and 0.14 µs on an idle machine.
    assert report["metrics"]["minimum"] < 5
    assert report["rate_limit"]["minimum"] < 2
