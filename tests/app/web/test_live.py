"""The page of an alias in production, and the answers on the page of a version."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from app.domain.monitors import FeedbackItem
from app.services.feedback import give_feedback
from app.services.performance import judge_all, performance
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from tests.app.monitored import SAMPLING, publish_watched, store_samples, watch
from tests.app.web.conftest import Page

LIVE = "/ui/models/pets/aliases/latest/live"


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache.of(Settings(data_dir=tmp_path))


def text_of(person: Any, path: str = LIVE) -> str:
    return " ".join(Page(person.get(path).text).text.split())


def test_an_alias_without_a_monitor_says_how_to_make_one(store: Store, sign_in: Any):
    publish_watched(store)
    assert "This alias has no monitor" in text_of(sign_in("query"))


def test_the_page_shows_rates_promises_and_alarms_until_they_are_acknowledged(
    store: Store, files: BlobCache, sign_in: Any
):
    publish_watched(store)
    monitor = watch(store, files, {"a": {"max_false_positive_rate": 0.01}, "b": {}}, tolerance=1.0)
    ids = store_samples(store, monitor, [(True, 0.5)] * 40, asked=2000, yes=80)
    items = [FeedbackItem(sample=one, correct=False) for one in ids]
    give_feedback(store, SAMPLING, items, "tests")
    reader, trainer = sign_in("query"), sign_in("train")
    before = text_of(reader)
    assert re.search(r"2\s000 answers, 80 yes", before), before
    assert "40 of 40 sampled yes" in before
    assert "Broken promises" not in before
    assert judge_all(store.of_all_tenants(), time.time()) == 1
    broken = text_of(reader)
    assert "Broken promises: 1." in broken
    assert "Acknowledge" not in broken, "for those who may train"
    page = Page(trainer.get(LIVE).text)
    assert "Acknowledge" in page.text
    answer = trainer.post(f"{LIVE}/acknowledge", note="a new scanner")
    assert answer.status_code == 303, answer.text
    assert "Broken promises" not in text_of(reader)
    [found] = performance(store, files, "pets", "latest", 28, "a").classes
    assert found.evidence[0].note == "a new scanner"


def test_the_page_of_a_version_shows_its_answers(client: Any, store: Store, sign_in: Any):
    from app.services.keys import create_key
    from app.serving.tally_writer import InputWriter

    publish_watched(store)
    reader = sign_in("query")
    path = "/ui/models/pets/versions/1"
    assert "if the probabilities still hold" not in text_of(reader, path)
    key = create_key(store, "program", {"query"})[1]
    client.refresh()
    sent = {"authorization": f"Bearer {key}"}
    rows = {"rows": [[1.0, 0.0]] * 7 + [[-1.0, 0.0]] * 3}
    assert client.post("/v1/models/pets/classes/a:query", json=rows, headers=sent).status_code == 200
    context = client.control.state.context
    cache = context.cache
    InputWriter(context.store, cache.tallies, context.metrics, watches=cache.watches).write()
    shown = text_of(reader, path)
    assert "if the probabilities still hold" in shown
    assert "Wrong yes a107" in shown
