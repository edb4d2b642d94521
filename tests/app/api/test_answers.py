"""Counts of answers: what is counted of which query, in memory, in the database and in the API."""

from __future__ import annotations

import dataclasses
import gc
import json
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.domain.answer_counts import PROBABILITY_BINS, AnswerHour, ClassCounts, bin_edges
from app.domain.entities import Json, ModelVersion
from app.domain.figures import HOUR, KEPT_INPUTS_DAYS
from app.processes.metrics import Metrics
from app.services.answers import estimated_rates
from app.services.models import delete_version
from app.services.retention import Cleaned, clean, what_to_clean
from app.serving import watch as watch_module
from app.serving.columns.tally import InputTallies
from app.serving.tally_writer import InputWriter
from app.serving.watch import AnswerTally, AnswerWatches
from app.settings import Settings
from app.store.engine import open_engine
from app.store.live_tables import answer_counts
from app.store.unit_of_work import Store
from core.packed import PackedStudent
from tests.app.api.fast_path import fast_answer
from tests.app.monitored import MEASURED, SIGMOID
from tests.system.published import linear_student, linear_teacher, publish

LABELS = ("a", "b", "größe")


def calibrated(label: str, row: Sequence[float], threshold: float = 0.0) -> PackedStudent:
    return dataclasses.replace(linear_student(label, row, threshold=threshold), calibration=SIGMOID)


def publish_calibrated(store: Store, measured: Json | None = None) -> ModelVersion:
    """A model of two columns: the scores of a and b are those, that of größe has no probability."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    students = {label: calibrated(label, row) for label, row in zip(LABELS[:2], rows[:2], strict=True)}
    students[LABELS[2]] = linear_student(LABELS[2], rows[2])
    of_students = {"a": MEASURED} if measured is None else measured
    return publish(store, "pets", students, linear_teacher(LABELS, rows), measured=of_students)


def write(client: Any) -> None:
    """As the background task does each minute."""
    context = client.control.state.context
    cache = context.cache
    InputWriter(context.store, cache.tallies, context.metrics, watches=cache.watches).write()


def counted(client: Any, **params: Any) -> dict[str, Any]:
    write(client)
    response = client.get("/v1/models/pets/versions/latest/answers", params=params)
    assert response.status_code == 200, response.text
    return {one["label"]: one for one in response.json()["classes"]}


def test_a_tally_adds_up_answers_and_probabilities():
    tally = AnswerTally("a", 0.5, SIGMOID)
    scores = np.random.default_rng(3).normal(size=1000)
    for score in scores[:700].tolist():
        tally.one(score)
    tally.many(scores[700:])
    counts = tally.take()
    assert counts is not None
    p, is_yes = SIGMOID.probabilities(scores), scores >= 0.5
    assert (counts.asked, counts.yes) == (1000, int(is_yes.sum()))
    np.testing.assert_allclose([counts.p, counts.p_yes], [p.sum(), p[is_yes].sum()], rtol=1e-12)
    assert counts.bins == tuple(np.histogram(p, bin_edges())[0].tolist())
    assert tally.take() is None


def test_no_answer_is_lost_between_threads():
    tally = AnswerTally("a", 0.0, SIGMOID)
    taken: list[ClassCounts] = []
    ended = threading.Event()

    def count() -> None:
        for _ in range(5000):
            tally.one(1.0)

    def take() -> None:
        while not ended.is_set():
            counts = tally.take()
            taken.extend([] if counts is None else [counts])

    threads = [threading.Thread(target=count) for _ in range(4)]
    taker = threading.Thread(target=take)
    for thread in (taker, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    taker.join()
    last = tally.take()
    assert sum(one.asked for one in [*taken, *([] if last is None else [last])]) == 20_000


def test_a_student_that_is_unloaded_loses_no_count_and_then_takes_no_memory(store: Store):
    version, watches = publish_calibrated(store), AnswerWatches()
    watch = watches.of(version, calibrated("a", [1.0, 0.0]))
    assert watches.of(version, calibrated("a", [1.0, 0.0])) is watch, "also when it was loaded twice"
    watch.count(0.5)
    del watch
    gc.collect()
    assert watches.of(version, calibrated("a", [1.0, 0.0])).is_on
    [(found, [counts])] = watches.take_counts()
    assert (found, counts.asked) == (version, 1)
    gc.collect()
    assert watches.take_counts() == []
    assert not watches._tallies
    assert not watches._counted


def test_of_very_many_classes_the_first_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch_module, "MOST_COUNTED_CLASSES", 2)
    version, watches = publish_calibrated(store), AnswerWatches()
    found = [watches.of(version, calibrated(label, [1.0, 0.0])) for label in "abc"]
    assert [watch.is_on for watch in found] == [True, True, False]


def test_a_student_without_probabilities_is_not_counted(store: Store):
    version, watches = publish_calibrated(store), AnswerWatches()
    assert not watches.of(version, linear_student("größe", [1.0, 1.0])).is_on


def test_answers_of_all_protocols_and_both_paths_are_counted(client: Any, store: Store):
    publish_calibrated(store)
    one, several = "/v1/models/pets/classes/a:query", "/v1/models/pets:query"
    asked = 0

    def ask(number: int, path: str, **options: Any) -> None:
        nonlocal asked
        response = client.post(path, **options)
        assert response.status_code == 200, response.text
        asked += number

    ask(1, one, json={"x": [1.0, 0.0]})
    ask(3, one, json={"rows": [[1.0, 0.0], [-1.0, 0.0], [1.0, 5.0]]})
    ask(1, one, json={"x": {"indices": [0], "values": [2.0]}})
    ask(1, one, json={"x": [1.0, 0.0], "explain": True})
    ask(1, several, json={"x": [1.0, 0.0], "classes": ["a", "b"]})
    ask(2, several, json={"rows": [[1.0, 0.0], [-2.0, 0.0]], "classes": ["a", "größe"]})
    tensor = np.array([[1.0, 0.0], [-1.0, 0.0]])
    headers = {
        "content-type": "application/octet-stream",
        "x-tensor-shape": "2,2",
        "x-tensor-dtype": "float64",
    }
    ask(2, one, content=tensor.tobytes(), headers=headers)
    inputs = [{"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [1.0, 0.0]}]
    ask(1, "/v2/models/pets/versions/1/infer", json={"inputs": inputs, "parameters": {"class": "a"}})
    faulty = {"rows": [[1.0, 0.0], ["x", 0.0], [1.0, 0.0]], "faulty_rows": "report"}
    ask(2, one, json=faulty)
    body = json.dumps({"x": [1.0, 0.0]}).encode()
    for _ in range(5):
        assert (
            fast_answer(
                client, one, {"host": "localhost", "content-length": str(len(body))}, body, ("127.0.0.1", 1)
            )
            is not None
        )
        asked += 1
    assert client.post(one, json={"x": [1.0]}).status_code == 400, "which is no answer"
    classes = counted(client)
    assert (classes["a"]["asked"], classes["b"]["asked"]) == (asked, 1)
    assert "größe" not in classes
    assert classes["a"]["yes"] == asked - 3, "those of rows with -1 and -2"
    assert sum(classes["a"]["bins"]) == asked
    assert list(counted(client, **{"class": "b"})) == ["b"]


def test_unknown_classes_and_times_are_refused(client: Any, store: Store):
    publish_calibrated(store)
    path = "/v1/models/pets/versions/latest/answers"
    unknown = client.get(path, params={"class": "zebra"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "class_not_found")
    assert client.get(path, params={"days": KEPT_INPUTS_DAYS + 1}).status_code == 400
    assert client.get(path).json() == {"model": "pets", "version": 1, "days": 7, "classes": []}


def test_processes_add_up_in_one_row(database_address: str, store: Store):
    version = publish_calibrated(store)
    hour = int(time.time() // HOUR)
    counts = ClassCounts("a", 10, 3, 2.5, 1.5, (1,) * PROBABILITY_BINS)
    stores = [Store(open_engine(database_address)) for _ in range(2)]

    def add(own: Store) -> None:
        for _ in range(10):
            with own.begin() as uow:
                row = AnswerHour(hour, (counts._replace(label="b"), counts))
                uow.answers.add(version.tenant, version.model, version.version, row)

    threads = [threading.Thread(target=add, args=[own]) for own in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as uow:
        found = uow.answers.since(version.tenant, version.model, version.version, hour)
        rows = uow.connection.execute(sa.select(sa.func.count()).select_from(answer_counts)).scalar_one()
    assert rows == 2
    assert found == [
        ClassCounts(label, 200, 60, 50.0, 30.0, (20,) * PROBABILITY_BINS) for label in ("a", "b")
    ]
    for own in stores:
        own.dispose()


def test_counts_are_kept_for_a_while_and_deleted_with_their_version(store: Store):
    version = publish_calibrated(store)
    used = stored_bytes(store)
    hour = int(time.time() // HOUR)
    for back in (0, 24 * KEPT_INPUTS_DAYS + 2):
        with store.begin() as uow:
            counts = ClassCounts("a", 1, 1, 0.5, 0.5, (0,) * PROBABILITY_BINS)
            uow.answers.add(version.tenant, "pets", 1, AnswerHour(hour - back, (counts,)))
            uow.answers.add(version.tenant, "pets", 9, AnswerHour(hour, (counts,)))
    both = stored_bytes(store)
    assert both > used
    assert what_to_clean(store, Settings()).inputs == 1
    assert clean(store, Settings()) == Cleaned(inputs=1)
    assert stored_bytes(store) == used + (both - used) // 2
    publish_calibrated(store)
    delete_version(store, "pets", 1)
    with store.read() as uow:
        assert uow.connection.execute(sa.select(answer_counts)).all() == []


def stored_bytes(store: Store) -> int:
    with store.read() as uow:
        return uow.quotas.used(store.tenant).stored_bytes


def test_a_writer_without_its_database_keeps_its_counts(
    store: Store, client: Any, monkeypatch: pytest.MonkeyPatch
):
    version = publish_calibrated(store)
    watches = AnswerWatches()
    watch = watches.of(version, calibrated("a", [1.0, 0.0]))
    writer = InputWriter(store, InputTallies(), Metrics(), watches=watches)
    watch.count(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "begin", lambda _self: (_ for _ in ()).throw(watch_error()))
        with pytest.raises(type(watch_error())):
            writer.write()
    watch.count(1.0)
    writer.write()
    assert counted(client)["a"]["asked"] == 2


def watch_error() -> Exception:
    from app.domain.errors import Unavailable

    return Unavailable("down")


def test_estimates_are_what_was_measured_while_nothing_changes():
    """The same probabilities as on the test part give the rates that were measured there."""
    p_yes = 40 * 0.95 + 10 * 0.5
    counts = ClassCounts("a", 1000, 50, 900 * 0.02 + 60 * 0.5 + 40 * 0.95, p_yes, (0,) * PROBABILITY_BINS)
    rates = estimated_rates(counts, MEASURED)
    assert rates is not None
    found = [rates.precision, rates.recall, rates.false_positive_rate]
    np.testing.assert_allclose(found, [40 / 50, 40 / 65, 10 / 935], rtol=1e-9)


def test_estimates_fall_with_the_probabilities_of_yes_answers():
    estimates = []
    for p_yes in (43.0, 35.0, 25.0, 0.0):
        counts = ClassCounts("a", 1000, 50, 86.0, p_yes, (0,) * PROBABILITY_BINS)
        rates = estimated_rates(counts, MEASURED)
        assert rates is not None
        assert rates.precision is not None
        estimates.append(rates.precision)
    assert all(before > after for before, after in pairwise(estimates))
    assert 0.0 < estimates[-1] < 0.01


def test_without_a_test_part_or_an_answer_nothing_is_estimated(client: Any, store: Store):
    nothing = ClassCounts("a", 0, 0, 0.0, 0.0, (0,) * PROBABILITY_BINS)
    rates = estimated_rates(nothing, MEASURED)
    assert rates is not None
    assert (rates.precision, rates.recall, rates.false_positive_rate) == (None, None, None)
    assert estimated_rates(nothing, {"tp": 1, "fp": 0, "tn": 1, "fn": 0}) is None
    assert estimated_rates(nothing, MEASURED | {"tp": None}) is None, "the threshold is no point of the curve"
    publish_calibrated(store)
    client.post("/v1/models/pets:query", json={"x": [1.0, 0.0], "classes": ["a", "b"]})
    classes = counted(client)
    assert classes["b"]["if_probabilities_hold"] is None
    assert set(classes["a"]["if_probabilities_hold"]) == {"precision", "recall", "false_positive_rate"}
    assert classes["a"]["expected"] == pytest.approx(SIGMOID.probability(1.0))
