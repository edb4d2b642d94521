"""Rates and alarms in production, by made answers and feedback through the functions of the service."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray
from scipy import stats

from app.domain.errors import NotFound
from app.domain.figures import HOUR
from app.domain.monitors import FeedbackItem
from app.domain.performance import ClassPerformance
from app.processes.metrics import Metrics
from app.services.feedback import give_feedback
from app.services.monitors import adapt_slopes, get_monitor, waiting_samples
from app.services.performance import acknowledge, forget_old_samples, judge_all, performance, trials_of_hour
from app.serving.columns.tally import InputTallies
from app.serving.sample_writer import SampleWriter
from app.serving.tally_writer import InputWriter
from app.serving.watch import AnswerWatches
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_engine
from app.store.monitor_tables import promise_evidence, samples
from app.store.repositories.evidence import SampledAnswer
from app.store.tables import webhook_deliveries
from app.store.unit_of_work import Store
from core.monitoring.sequential import SequentialTest, replay
from core.packed.calibration import SigmoidCalibration
from tests.app.monitored import SAMPLING, publish_watched, store_samples, watch
from tests.system.published import linear_student, linear_teacher, publish

RECALL, FALSE_POSITIVES, SHARE, QUERIES = 0.8, 0.01, 0.03, 20_000
THRESHOLD = float(stats.norm.isf(FALSE_POSITIVES))
DISTANCE = float(THRESHOLD - stats.norm.isf(RECALL))
PROMISE = {"a": {"max_false_positive_rate": 0.01}}


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache.of(Settings(data_dir=tmp_path))


def of_a(store: Store, files: BlobCache, days: int = 28) -> ClassPerformance:
    [found] = performance(store, files, "pets", "latest", days, "a").classes
    return found


def say(store: Store, ids: list[str], *, correct: bool) -> None:
    for first in range(0, len(ids), 1000):
        items = [FeedbackItem(sample=one, correct=correct) for one in ids[first : first + 1000]]
        found = give_feedback(store, SAMPLING, items, "tests")
        assert found.accepted == len(items)


def traffic(rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Truth and scores of queries to a student with binormal scores."""
    truth = rng.random(QUERIES) < SHARE
    return truth, rng.standard_normal(QUERIES) + DISTANCE * truth


class Process:
    """What a server process has for monitors, with one student of binormal scores and right probabilities."""

    def __init__(self, store: Store) -> None:
        right = SigmoidCalibration(DISTANCE, log(SHARE / (1.0 - SHARE)) - DISTANCE**2 / 2.0)
        student = linear_student("a", [1.0, 0.0], threshold=THRESHOLD)
        self.student = dataclasses.replace(student, calibration=right)
        teacher = linear_teacher(("a", "b"), np.eye(2))
        students = {"a": self.student, "b": dataclasses.replace(self.student, label="b")}
        measured = {label: {"calibration": "sigmoid"} for label in students}
        self.version = publish(store, "pets", students, teacher, measured=measured)
        self.store, self.watches = store, AnswerWatches()
        self.watch = self.watches.of(self.version, self.student)

    def follow(self) -> None:
        with self.store.read() as uow:
            self.watches.follow(None, uow.monitors.active(None))

    def ask(self, scores: NDArray[np.float64], name: str, *, refused: bool = False) -> None:
        """Answer queries of at most 2000 rows, written as each second and minute."""
        for first in range(0, len(scores), 2000):
            noted: Any = [(self.watch, scores[first : first + 2000], range(first, first + 2000))]
            self.watches.note(noted, name.encode(), refused=refused)
            SampleWriter(self.store, self.watches).write()
        InputWriter(self.store, InputTallies(), Metrics(), watches=self.watches).write()


def waiting(store: Store) -> Iterator[Any]:
    after, has_more = None, True
    while has_more:
        page, has_more = waiting_samples(store, "pets", "latest", None, limit=1000, after=after)
        yield from page
        after = page[-1].id if page else None


def test_recall_by_sampled_feedback_is_that_of_the_truth(store: Store, files: BlobCache):
    """Feedback on yes answers alone would say nearly 100 %, as unasked reports do; the truth is 80 %."""
    process, rng = Process(store), np.random.default_rng(7)
    random.seed(7)
    watch(store, files, ask={"yes": 0.5, "floor": 0.01, "per_day": 800})
    process.follow()
    process.ask(traffic(rng)[1], "before", refused=True)
    with store.begin() as uow:
        # As if the queries had come in a whole day.
        monitor = uow.monitors.get("pets", "latest")
        uow.connection.execute(sa.text("UPDATE monitors SET started_at = started_at - 86400"))
    adapt_slopes(store, time.time() + 1.0)
    slope = get_monitor(store, "pets", "latest").slope
    assert slope > 0.0
    process.follow()
    truth, scores = traffic(rng)
    process.ask(scores, "counted")
    items = []
    for one in waiting(store):
        is_right = bool(truth[one.row]) == one.answer
        items.append(FeedbackItem(sample=one.id, correct=is_right))
    for first in range(0, len(items), 1000):
        give_feedback(store, SAMPLING, items[first : first + 1000], "tests")
    found = of_a(store, files)
    assert found.asked == QUERIES
    assert len(items) == found.labelled_yes + found.labelled_no
    assert abs(len(items) - 800) < 200, "about as many as wanted"
    assert found.recall.interval is not None
    assert abs(found.recall.interval.estimate - RECALL) < 0.06
    assert found.recall.interval.low < RECALL < found.recall.interval.high
    assert found.recall.interval.method == "weighted_logit"
    assert found.false_positive_rate.interval is not None
    assert abs(found.false_positive_rate.interval.estimate - FALSE_POSITIVES) < 0.004
    is_yes = scores >= THRESHOLD
    assert found.precision.interval is not None
    assert abs(found.precision.interval.estimate - truth[is_yes].mean()) < 0.08
    assert monitor.slope == 0.0


def test_volunteers_never_change_a_rate(store: Store, files: BlobCache):
    publish_watched(store)
    monitor = watch(store, files, {"a": {"min_precision": 0.5, "max_false_positive_rate": 0.01}})
    ids = store_samples(store, monitor, [(True, 0.5)] * 50 + [(False, 0.01)] * 50, asked=2000, yes=100)
    say(store, ids[:45] + ids[50:], correct=True)
    say(store, ids[45:50], correct=False)
    before = of_a(store, files)
    reports = [
        FeedbackItem(request_id=f"r{number}", label="a", model="pets", answer=True, correct=False)
        for number in range(60)
    ]
    found = give_feedback(store, SAMPLING, reports, "tests")
    assert {one.sampled for one in found.results} == {False}
    judge_all(store.of_all_tenants(), time.time())
    after = of_a(store, files)
    assert (after.reports, after.reported_wrong, after.most_precise) == (60, 60, 0.4)
    unchanged = {"reports": 0, "reported_wrong": 0, "most_precise": None}
    assert dataclasses.replace(after, **unchanged) == before  # type: ignore[arg-type]
    assert not after.broken
    assert before.precision.interval is not None
    assert before.precision.interval.estimate == 0.9


def test_rates_say_how_much_was_not_answered(store: Store, files: BlobCache):
    publish_watched(store)
    monitor = watch(store, files)
    ids = store_samples(store, monitor, [(True, 0.5)] * 40, asked=100, yes=80)
    say(store, ids[:20], correct=True)
    found = of_a(store, files)
    assert (found.sampled_yes, found.labelled_yes) == (40, 20)
    assert (found.precision.answered, found.precision.worst, found.precision.best) == (0.5, 0.5, 1.0)
    assert found.recall.interval is not None
    few = dataclasses.replace(found.false_positive_rate, answered=0.0)
    assert (few.interval, few.rows) == (None, 0)


def break_promise(store: Store, files: BlobCache, wrong: int = 40) -> list[str]:
    """A monitor whose class has four times as many wrong yes answers as it may have; returns their ids."""
    publish_watched(store)
    monitor = watch(store, files, PROMISE, tolerance=1.0)
    return store_samples(store, monitor, [(True, 0.5)] * wrong, asked=2000, yes=2 * wrong)


def test_an_alarm_is_given_once_and_begins_again_when_it_is_acknowledged(store: Store, files: BlobCache):
    ids = break_promise(store, files)
    hook(store)
    assert judge_all(store.of_all_tenants(), time.time()) == 0, "nobody has said anything"
    say(store, ids, correct=False)
    [before] = of_a(store, files).evidence
    assert before.evidence >= before.alarm_at == 20.0
    assert before.alarm_since is None
    assert judge_all(store.of_all_tenants(), time.time()) == 1
    assert judge_all(store.of_all_tenants(), time.time()) == 0
    say(store, ids[:1], correct=True)
    assert judge_all(store.of_all_tenants(), time.time()) == 0, "it stays, and is not given again"
    [event] = events(store)
    assert event["class"] == "a"
    assert (event["promise"], event["limit"], event["version"]) == ("false_positive_rate", 0.01, 1)
    found = of_a(store, files)
    assert found.broken
    with store.read() as uow:
        assert uow.evidence.count_alarms() == 1
    assert acknowledge(store, "pets", "latest", ["b"], "").alarms == 0
    assert acknowledge(store, "pets", "latest", None, "a new scanner").alarms == 1
    [after] = of_a(store, files).evidence
    assert (after.evidence, after.alarm_since, after.number, after.note) == (1.0, None, 2, "a new scanner")
    assert after.alarm_at == pytest.approx(20.0 * (np.pi * 2) ** 2 / 6.0)
    assert judge_all(store.of_all_tenants(), time.time()) == 0


def test_two_elected_workers_give_one_alarm(database_address: str, store: Store, files: BlobCache):
    say(store, break_promise(store, files), correct=False)
    hook(store)
    stores = [Store(open_engine(database_address)) for _ in range(2)]
    given: list[int] = []

    def judge(own: Store) -> None:
        given.append(judge_all(own.of_all_tenants(), time.time()))

    threads = [threading.Thread(target=judge, args=[own]) for own in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == [0, 1]
    assert len(events(store)) == 1
    for own in stores:
        own.dispose()


def hook(store: Store) -> None:
    from app.domain.webhook import Webhook

    with store.begin() as uow:
        uow.webhooks.add(
            Webhook("wh_1", "w", "https://x", ("promise.broken",), (), "cloudevents", 1.0, "tests", "", None)
        )


def events(store: Store) -> list[dict[str, Any]]:
    with store.read() as uow:
        rows = uow.connection.execute(sa.select(webhook_deliveries.c.type, webhook_deliveries.c.data))
        return [data for kind, data in rows if kind == "promise.broken"]


def test_a_kept_promise_gives_no_alarm(store: Store, files: BlobCache):
    ids = break_promise(store, files, wrong=10)
    say(store, ids, correct=False)
    assert judge_all(store.of_all_tenants(), time.time()) == 0
    [found] = of_a(store, files).evidence
    assert found.evidence < found.alarm_at
    assert found.mistakes_to_alarm > 0


def test_the_evidence_is_that_of_the_sequential_test(store: Store, files: BlobCache):
    """Hour by hour, in the order of the queries, and not in that of the feedback."""
    publish_watched(store)
    monitor = watch(store, files, PROMISE, tolerance=1.0)
    start_earlier(store, 400)
    monitor = get_monitor(store, "pets", "latest")
    hours = {300: 9, 200: 2, 3: 5}
    ids = {
        hour: store_samples(store, monitor, [(True, 0.5)] * 20, asked=700, yes=40, hour=hour)
        for hour in hours
    }
    for hour in (3, 300, 200):
        say(store, ids[hour][: hours[hour]], correct=False)
    first = int(monitor.started_at // HOUR)
    now = int(time.time() // HOUR)
    test = SequentialTest.of_false_positives(0.01, largest_weight=2.0)
    sampled = {hour: [SampledAnswer(0, True, False, 0.5)] * wrong for hour, wrong in hours.items()}
    batches = [
        trials_of_hour("false_positive_rate", (now - hour - first) // 168, 700, sampled[hour])
        for hour in (300, 200, 3)
    ]
    [found] = of_a(store, files).evidence
    assert found.evidence == replay(test, batches)[0].value
    assert found.largest == replay(test, batches)[0].peak


def start_earlier(store: Store, hours: int) -> None:
    with store.begin() as uow:
        uow.connection.execute(sa.text(f"UPDATE monitors SET started_at = started_at - {3600 * hours}"))


@pytest.mark.parametrize(
    ("promises", "answers"),
    [
        ({"max_false_positive_rate": 0.02}, [(True, 0.5)] * 30),
        ({"min_precision": 0.9}, [(True, 0.5)] * 30),
        ({"min_recall": 0.9}, [(True, 0.5)] * 20 + [(False, 0.02)] * 10),
    ],
)
def test_evidence_outlives_the_samples_that_it_is_of(
    store: Store, files: BlobCache, promises: dict[str, float], answers: list[tuple[bool, float]]
):
    publish_watched(store)
    watch(store, files, {"a": promises}, retain_days=10)
    start_earlier(store, 24 * 40)
    monitor = get_monitor(store, "pets", "latest")
    for hour in (24 * 39, 24 * 20, 2):
        ids = store_samples(store, monitor, answers, asked=900, yes=60, hour=hour)
        say(store, ids[-8:], correct=False)
    before = of_a(store, files).evidence
    used = stored_bytes(store)
    assert forget_old_samples(store, Settings(), dry_run=True) == 2 * len(answers)
    assert forget_old_samples(store, Settings()) == 2 * len(answers)
    assert forget_old_samples(store, Settings()) == 0
    assert of_a(store, files).evidence == before, "the same bits"
    assert stored_bytes(store) < used
    with store.read() as uow:
        assert len(uow.connection.execute(sa.select(samples)).all()) == len(answers)
        assert uow.connection.execute(sa.select(promise_evidence)).all()


def stored_bytes(store: Store) -> int:
    with store.read() as uow:
        return uow.quotas.used(store.tenant).stored_bytes


def test_later_feedback_only_raises_the_evidence(store: Store, files: BlobCache):
    """So a false alarm stays as rare, however late feedback comes: for each kind of promise."""
    publish_watched(store)
    promises = {"max_false_positive_rate": 0.01, "min_precision": 0.9, "min_recall": 0.8}
    monitor = watch(store, files, {"a": promises}, tolerance=1.0)
    ids = store_samples(store, monitor, [(True, 0.5)] * 20 + [(False, 0.05)] * 20, asked=1000, yes=40)
    rng, seen = np.random.default_rng(3), [0.0, 0.0, 0.0]
    for one in rng.permutation(ids).tolist():
        say(store, [one], correct=bool(rng.random() < 0.5))
        evidence = [found.evidence for found in of_a(store, files).evidence]
        assert all(now >= before * (1.0 - 1e-12) for now, before in zip(evidence, seen, strict=True))
        seen = evidence


def test_a_new_run_counts_nothing_from_before(store: Store, files: BlobCache):
    say(store, break_promise(store, files), correct=False)
    judge_all(store.of_all_tenants(), time.time())
    assert of_a(store, files).broken
    watch(store, files, PROMISE, revision=1, tolerance=2.0)
    found = of_a(store, files)
    assert not found.broken
    assert (found.asked, found.sampled_yes) == (0, 0)
    with store.read() as uow:
        assert uow.evidence.count_alarms() == 0


def test_promises_of_all_classes_share_alpha(store: Store, files: BlobCache):
    publish_watched(store)
    promised = {"max_false_positive_rate": "promised", "min_recall": 0.5}
    watch(store, files, {"a": promised, "b": promised})
    found = performance(store, files, "pets", "latest", 28)
    assert [one.label for one in found.classes] == ["a", "b"]
    assert {promise.alarm_at for one in found.classes for promise in one.evidence} == {4 / 0.05}
    assert found.classes[0].false_positive_rate.promised == 0.01
    assert found.classes[0].evidence[0].limit == pytest.approx(0.0125)


def test_classes_and_aliases_without_a_monitor_have_no_performance(store: Store, files: BlobCache):
    publish_watched(store)
    codes = []
    watched = False
    for label in ("a", "b", "zebra"):
        for _ in range(2):
            try:
                performance(store, files, "pets", "latest", 28, label)
            except NotFound as error:
                codes.append(error.reason)
            if not watched:
                watch(store, files)
                watched = True
    assert (
        codes == ["monitor_not_found", "class_not_monitored", "class_not_monitored"] + ["class_not_found"] * 2
    )


def moved_by_a_job(store: Store, version: int) -> None:
    """As a job does that publishes a version."""
    with store.begin() as uow:
        seen = uow.models.alias_revision("pets", "latest")
        assert uow.models.advance("pets", "latest", version, seen=seen)


def alias_of(store: Store) -> int:
    with store.read() as uow:
        return uow.models.alias("pets", "latest").version


def second_version(store: Store, files: BlobCache, **settings: Any) -> list[str]:
    """Samples of version 2, to which a program has moved the alias."""
    publish_watched(store)
    hook(store)
    publish_watched(store, alias=None)
    watch(store, files, PROMISE, tolerance=1.0, **settings)
    moved_by_a_job(store, 2)
    monitor = get_monitor(store, "pets", "latest")
    return store_samples(store, monitor, [(True, 0.5)] * 40, asked=2000, yes=80)


def test_an_alarm_moves_the_alias_back_once_where_the_monitor_says_so(store: Store, files: BlobCache):
    say(store, second_version(store, files, on_alarm="rollback"), correct=False)
    assert judge_all(store.of_all_tenants(), time.time()) == 1
    assert alias_of(store) == 1
    [event] = events(store)
    assert (event["version"], event["rolled_back_to"], event["not_rolled_back"]) == (2, 1, None)
    with store.read() as uow:
        [move, *_], _ = uow.models.moves("pets", "latest", limit=3)
        actions = {row.action for row in uow.connection.execute(sa.text("SELECT action FROM audit_log"))}
    assert (move.version, move.previous, move.actor_name) == (1, 2, "rollback")
    assert "alias.rollback" in actions
    # Version 1 breaks its promise as well: it does not go to version 2 again.
    monitor = get_monitor(store, "pets", "latest")
    say(store, store_samples(store, monitor, [(True, 0.5)] * 40, asked=2000, yes=80), correct=False)
    assert judge_all(store.of_all_tenants(), time.time()) == 1
    assert alias_of(store) == 1
    assert events(store)[-1]["not_rolled_back"] == "after_rollback"


def test_an_alarm_alone_moves_nothing(store: Store, files: BlobCache):
    say(store, second_version(store, files), correct=False)
    assert judge_all(store.of_all_tenants(), time.time()) == 1
    assert alias_of(store) == 2
    [event] = events(store)
    assert (event["rolled_back_to"], event["not_rolled_back"]) == (None, None)


def test_a_rollback_goes_not_past_a_person_nor_on_missing_feedback(store: Store, files: BlobCache):
    ids = second_version(store, files, on_alarm="rollback")
    assert judge_all(store.of_all_tenants(), time.time()) == 0, "nobody has said anything"
    assert alias_of(store) == 2
    with store.begin() as uow:
        uow.models.point("pets", "latest", 1)
        uow.models.point("pets", "latest", 2)
    monitor = get_monitor(store, "pets", "latest")
    ids = store_samples(store, monitor, [(True, 0.5)] * 40, asked=2000, yes=80)
    say(store, ids, correct=False)
    assert judge_all(store.of_all_tenants(), time.time()) == 1
    assert alias_of(store) == 2
    assert events(store)[-1]["not_rolled_back"] == "moved_by_hand"
