"""A part of periodic work that fails is reported once, counted and tried again; the others go on."""

from __future__ import annotations

import logging

from app.domain.errors import Unavailable
from app.processes.metrics import Metrics
from app.processes.periodic import PeriodicWork


def test_a_part_that_fails_is_logged_once_and_counted_and_the_others_run(caplog):
    work, done = PeriodicWork(["bad", "good"]), []

    def fail() -> None:
        raise OSError(24, "Too many open files")

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not work.run("bad", fail)
            assert work.run("good", lambda: done.append(1))
        assert work.run("bad", lambda: None)
        assert not work.run("bad", fail)
    assert (work.failures, len(done)) == ({"bad": 4, "good": 0}, 3)
    lines = [record.getMessage() for record in caplog.records]
    failed = "periodic work 'bad' fails and is tried again: [Errno 24] Too many open files"
    assert lines == [failed, "periodic work 'bad' succeeds again after 3 failures", failed]
    assert caplog.records[0].exc_info


def test_an_expected_error_is_reported_without_a_traceback(caplog):
    def fail() -> None:
        raise Unavailable("The database does not answer.")

    PeriodicWork(["figures"]).run("figures", fail)
    [record] = caplog.records
    assert record.getMessage().endswith("The database does not answer.")
    assert not record.exc_info


def test_a_metric_that_cannot_be_read_does_not_keep_the_others_from_being_published():
    metrics, values = Metrics(), [1.0]

    def broken() -> float:
        raise OSError(24, "Too many open files")

    metrics.add_gauge("stms_broken", "Cannot be read.", broken)
    metrics.add_gauge("stms_works", "Can be read.", lambda: values[0])
    work = PeriodicWork(["metrics"])
    assert not work.run("metrics", metrics.publish)
    values[0] = 7.0
    text = metrics.render().decode()
    assert "stms_works 7.0" in text
    assert "stms_broken 0.0" in text
