"""`/metrics` in the format that a scraper asks for."""

from __future__ import annotations

import pytest

from app.api.metrics_format import OPEN_METRICS, TEXT, prefers_open_metrics
from app.api.probe_answers import MADE_PER_SECOND

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/plain; version=0.0.4", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/json", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ('Application/OpenMetrics-Text; Version="1.0.0"', True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; version=2.0.0, text/plain", False),
        ("application/openmetrics-text;q=0, */*", False),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.6", False),
        ("application/openmetrics-text;q=nonsense, text/plain;q=0.6", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text," * 1000, False),
    ],
)
def test_the_answer_says_the_version_that_it_speaks(standing, accept: str | None, is_open: bool):
    # httpx has an Accept of its own.
    headers = {"accept": accept} if accept is not None else {"accept": "*/*"}
    response = standing.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"] == (OPEN_METRICS if is_open else TEXT)
    assert response.headers["vary"] == "accept"
    assert response.text.endswith("# EOF\n") is is_open
    assert ("# TYPE stms_requests counter" in response.text) is is_open
    assert ("# TYPE stms_requests_total counter" in response.text) is not is_open


def test_a_repeated_answer_has_the_right_format(standing):
    for _ in range(2 * MADE_PER_SECOND):
        for accept, expected in (("application/openmetrics-text", OPEN_METRICS), ("*/*", TEXT)):
            response = standing.get("/metrics", headers={"accept": accept})
            assert response.headers["content-type"] == expected


def test_without_an_accept_it_is_text():
    assert not prefers_open_metrics(b"")
