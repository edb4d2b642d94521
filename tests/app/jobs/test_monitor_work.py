"""What the elected worker does for monitors, in rounds of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.domain.monitors import FeedbackItem
from app.jobs import monitor_work
from app.jobs.monitor_work import PARTS, MonitorWork
from app.services.feedback import give_feedback
from app.services.performance import performance
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from tests.app.api.conftest import RememberingQueue
from tests.app.monitored import SAMPLING, publish_watched, store_samples, watch


def broken(store: Store, files: BlobCache) -> bool:
    return performance(store, files, "pets", "latest", 28, "a").classes[0].broken


def test_only_the_elected_worker_gives_alarms_and_deletes_samples(store: Store, tmp_path: Path):
    files = BlobCache.of(Settings(data_dir=tmp_path))
    publish_watched(store)
    monitor = watch(store, files, {"a": {"max_false_positive_rate": 0.01}}, retain_days=2)
    ids = store_samples(store, monitor, [(True, 0.5)] * 40, asked=2000, yes=80)
    old = store_samples(store, monitor, [(True, 0.5)] * 5, asked=10, yes=10, hour=72)
    give_feedback(store, SAMPLING, [FeedbackItem(sample=one, correct=False) for one in ids], "tests")
    elected = [False]
    work = MonitorWork(
        store.of_all_tenants(), Settings(data_dir=tmp_path), RememberingQueue(), lambda: elected[0]
    )
    work.run_once()
    assert not broken(store, files)
    elected[0] = True
    work.run_once()
    assert broken(store, files)
    with store.begin() as uow:
        assert set(uow.feedback.samples([*ids, *old])) == set(ids)
    assert work.periodic.failures == dict.fromkeys(PARTS, 0)


def test_a_part_that_fails_does_not_keep_the_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    called: list[str] = []

    def fail(*_: object) -> int:
        raise RuntimeError("down")

    monkeypatch.setattr(monitor_work, "judge_all", fail)
    monkeypatch.setattr(monitor_work, "adapt_slopes", lambda *_: called.append("sampling"))
    monkeypatch.setattr(monitor_work, "forget_old_samples", lambda *_: called.append("samples"))
    work = MonitorWork(store.of_all_tenants(), Settings(data_dir=tmp_path), RememberingQueue())
    work.run_once()
    work.run_once()
    assert called == ["sampling", "samples", "sampling"], "old samples once an hour"
    assert work.periodic.failures[PARTS[0]] == 2
