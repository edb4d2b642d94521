"""Quantiles of histograms of latencies."""

from __future__ import annotations

import pytest

from app.processes.exposition import BUCKETS
from app.serving.model_figures import latency_of, quantile


def test_a_quantile_is_linear_within_its_bucket():
    counts = [0.0] * (len(BUCKETS) + 1)
    counts[2], counts[5] = 6.0, 4.0
    assert quantile(counts, 0.3) == pytest.approx((BUCKETS[1] + BUCKETS[2]) / 2)
    assert quantile(counts, 0.8) == pytest.approx((BUCKETS[4] + BUCKETS[5]) / 2)
    assert quantile([4.0], 0.5) == pytest.approx(BUCKETS[0] / 2)


def test_one_request_is_enough_and_none_has_no_quantile():
    counts = [0.0] * (len(BUCKETS) + 1)
    assert latency_of(counts) == {"p50": None, "p95": None, "p99": None}
    counts[-1] = 1.0
    assert latency_of(counts) == {"p50": BUCKETS[-1], "p95": BUCKETS[-1], "p99": BUCKETS[-1]}
