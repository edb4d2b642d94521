"""Local evaluation beside the service: the same bits, new versions, refusals, and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any
from unittest.mock import AsyncMock

import httpx
import numpy as np
import pytest

from app.domain.entities import ModelVersion
from app.services.keys import create_key, revoke_key
from app.store.unit_of_work import Store
from core.packed import PackedStudent
from stms_client import AsyncClient, InvalidInput, NotAllowed, NotFound, Retry, Stale, StmsError
from stms_client import Client as Asking
from stms_client import errors as client_errors
from stms_client.results import NOTES, Decision
from stms_client.transport import OfProcess
from tests.app.serving.written_records import RECORD, encoder, numbers_encoder
from tests.app.started import Client
from tests.reference.packed_students import CASES, some_rows
from tests.system.published import linear_student, linear_teacher, publish

POLL = 500.0


class Forwarded(httpx.BaseTransport):
    """Sends requests to a started application. is_silent: whether there is no answer."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.is_silent = False
        self.asked: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        if self.is_silent:
            raise httpx.ConnectError("no answer", request=request)
        self.asked.append(path)
        sent = {name: value for name, value in request.headers.items() if name != "content-length"}
        answer = self.client.request(request.method, path, headers=sent, content=request.read())
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


@pytest.fixture
def forwarded(client: Client) -> Forwarded:
    return Forwarded(client)


@pytest.fixture
def stms(forwarded: Forwarded) -> Iterator[Asking]:
    with asking(forwarded) as opened:
        yield opened


def asking(forwarded: Forwarded, key: str = "") -> Asking:
    opened = Asking("http://localhost", key, retry=Retry(attempts=1))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    opened._pools = OfProcess(
        lambda: httpx.Client(base_url="http://localhost", transport=forwarded, headers=headers)
    )
    return opened


def people(store: Store, *, with_note: bool = False, made: Any = None) -> None:
    made = made or encoder(with_note=with_note)
    columns = made.layout.columns
    rng = np.random.default_rng(1)
    students = {label: linear_student(label, rng.normal(size=columns)) for label in ("a", "b")}
    publish(
        store, "people", students, linear_teacher(["a", "b"], rng.normal(size=(2, columns))), encoder=made
    )


@pytest.mark.parametrize("case", CASES)
def test_answers_have_the_bits_of_the_service(case: str, store: Store, stms: Asking):
    student: PackedStudent = CASES[case]
    d = student.map.n_columns
    publish(store, "m", {"größe/1:x": student}, linear_teacher(["größe/1:x"], np.zeros((1, d))))
    label, rows = "größe/1:x", some_rows(student, 60)
    with stms.local("m", [label], poll=POLL, max_stale=2 * POLL) as local:
        for row in rows[:20].tolist():
            assert local.query(label, row) == stms.query("m", label, row)
        row = rows[3]
        assert local.query(label, row) == stms.query("m", label, row)
        assert local.is_class(label, row) == stms.is_class("m", label, row)
        sparse = {"indices": [1, 4], "values": [0.5, 2.0]}
        assert local.query(label, sparse) == stms.query("m", label, sparse)
        assert local.query_classes([label], row) == stms.query_classes("m", [label], row)
        for many in (rows, np.clip(rows, -1e30, 1e30).astype(np.float32)):
            mine, theirs = local.query_rows(label, many), stms.query_rows("m", label, many)
            np.testing.assert_array_equal(mine.scores, theirs.scores)
        assert local.query_rows(label, [*rows.tolist(), sparse]) == stms.query_rows(
            "m", label, [*rows.tolist(), sparse]
        )


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("-linear-none")])
def test_a_map_that_classes_share_is_fetched_once(
    case: str, store: Store, client: Client, stms: Asking, forwarded: Forwarded
):
    first = replace(CASES[case], label="a", shares_map=True)
    students = {"a": first} | {label: replace(first, label=label, threshold=1.0) for label in "bc"}
    teacher = linear_teacher(list(students), np.zeros((3, first.map.n_columns)))
    publish(store, "m", students, teacher)
    rows = some_rows(first, 20)
    with stms.local("m", list(students), poll=POLL, max_stale=2 * POLL) as local:
        assert forwarded.asked == ["/v1/models/m:packages", "/v1/models/m@1/classes/c/map"]
        for row in rows.tolist():
            assert local.query_classes(list(students), row) == stms.query_classes("m", list(students), row)
        # Another version of the same map: its students are fetched, the map is held.
        publish(store, "m", students | {"b": replace(first, label="b", threshold=2.0)}, teacher)
        client.refresh()
        forwarded.asked.clear()
        local._poll_once()
        assert (local.version, [path for path in forwarded.asked if path.endswith("map")]) == (2, [])
        assert local.query("b", rows[0]) == stms.query("m", "b", rows[0])


def newest_answers(store: Store, model: str) -> None:
    """Delete the alias that keeps a version which lacks something from answering."""
    with store.begin() as uow:
        uow.models.delete_alias(model, "latest", expected_revision=1)


OF_ROWS = ("outside", "outside_counts", "notes")


def plain(decision: Decision) -> Decision:
    """A decision of the service without what only that says of a record."""
    return replace(decision, **dict.fromkeys(NOTES))


def test_records_and_texts_have_the_bits_of_the_service(store: Store, stms: Asking):
    people(store, with_note=True)
    records: list[dict[str, Any]] = [
        RECORD | {"note": "my card is lost"},
        RECORD | {"note": "", "age": None, "job": "pilot", "kind": "x"},
        RECORD | {"note": "ärger in der straße", "job": None, "grade": 5.0, "hours": np.float32(3.5)},
        RECORD | {"note": "card", "member": False, "since": "2020-02-29", "grade": "n/a"},
    ]
    with stms.local("people", ["a", "b"], poll=POLL, max_stale=2 * POLL) as local:
        for record in records:
            assert local.query("b", record) == plain(stms.query("people", "b", record))
            answers = stms.query_classes("people", ["a", "b"], record)
            expected = {name: plain(one) for name, one in answers.items()}
            assert local.query_classes(["a", "b"], record) == expected
        answered = stms.query_rows("people", "a", records)
        assert local.query_rows("a", records) == replace(answered, **dict.fromkeys(OF_ROWS))
        columns = {name: [record[name] for record in records] for name in records[0]}
        mine, theirs = local.query_rows("a", columns), stms.query_rows("people", "a", columns)
        np.testing.assert_array_equal(mine.scores, theirs.scores)
        wrong: list[dict[str, Any]] = [
            RECORD | {"note": "x", "wages": 3},
            {"age": 3.0},
            RECORD | {"note": "x", "hours": "many"},
            RECORD | {"note": "x", "hours": None},
        ]
        for record in wrong:
            for ask in (local.query, lambda label, x: stms.query("people", label, x)):
                with pytest.raises((InvalidInput, client_errors.InvalidRequest)):
                    ask("a", record)
        for x in ([1.0, 2.0], np.zeros((2, 3)), "a text"):
            with pytest.raises(InvalidInput):
                local.query("a", x)
        with pytest.raises(InvalidInput, match="not one text"):
            local.query("a", text="lost")


@pytest.mark.long
@pytest.mark.no_cover
def test_100_000_rows_of_every_form_have_the_bits_of_the_service(store: Store, stms: Asking):
    for number, (case, student) in enumerate(CASES.items()):
        model, label = f"m{number}", "größe/1:x"
        weights = np.zeros((1, student.map.n_columns))
        publish(store, model, {label: student}, linear_teacher([label], weights))
        rows = some_rows(student, 100_000)
        with stms.local(model, [label], poll=POLL, max_stale=2 * POLL) as local:
            for part in np.split(rows, 10):
                mine, theirs = local.query_rows(label, part), stms.query_rows(model, label, part)
                np.testing.assert_array_equal(mine.scores, theirs.scores, case)
            for row in rows[:50].tolist():
                assert local.query(label, row) == stms.query(model, label, row), case


@pytest.mark.long
@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["linear-linear-none", "rbf-polytope-none", "forest-linear-none"])
def test_100_000_sparse_rows_have_the_bits_of_the_service(kind: str, store: Store, stms: Asking):
    student, rng = CASES[kind], np.random.default_rng(6)
    d = student.map.n_columns
    publish(store, "m", {"a": student}, linear_teacher(["a"], np.zeros((1, d))))
    with stms.local("m", ["a"], poll=POLL, max_stale=2 * POLL) as local:
        for _ in range(20):
            kept = rng.random((5000, d)) < 0.4
            values = rng.normal(size=(5000, d))
            rows = [
                {"indices": np.flatnonzero(some).tolist(), "values": row[some].tolist()}
                for some, row in zip(kept, values, strict=True)
            ]
            mine, theirs = local.query_rows("a", rows), stms.query_rows("m", "a", rows)
            assert mine.scores == theirs.scores


@pytest.mark.long
@pytest.mark.no_cover
def test_100_000_records_and_texts_have_the_bits_of_the_service(store: Store, stms: Asking):
    people(store, with_note=True)
    rng = np.random.default_rng(7)
    words = ["my", "Card", "is", "lost", "ärger", "STRASSE", "straße", "\u0041\u030a", "42", "x-y"]
    n = 5000
    with stms.local("people", ["a", "b"], poll=POLL, max_stale=2 * POLL) as local:
        for _ in range(20):
            days = rng.integers(0, 20_000, n)
            columns: dict[str, Any] = {
                "age": [
                    None if gap else float(age)
                    for gap, age in zip(rng.random(n) < 0.1, rng.normal(40, 20, n), strict=True)
                ],
                "hours": rng.integers(0, 90, n).tolist(),
                "member": (rng.random(n) < 0.5).tolist(),
                "job": rng.choice(["clerk", "cook", "nurse", "judge", "pilot", "Clerk "], n).tolist(),
                "grade": rng.choice(["1", "2", "3", "4", "5", "6", "n/a"], n).tolist(),
                "since": [str(date(1990, 1, 1) + timedelta(days=int(day))) for day in days],
                "place": rng.normal(size=(n, 2)).tolist(),
                "note": [" ".join(rng.choice(words, int(k))) for k in rng.integers(0, 12, n)],
            }
            records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            mine, theirs = local.query_rows("a", records), stms.query_rows("people", "a", records)
            assert mine.scores == theirs.scores
        for record in records[:50]:
            assert local.query("b", record) == plain(stms.query("people", "b", record))


def test_numbers_by_name_are_lists_too(store: Store, stms: Asking):
    people(store, made=numbers_encoder())
    with stms.local("people", ["a"], poll=POLL, max_stale=2 * POLL) as local:
        for x in ([0.5, -1.0], {"p": 0.5, "q": -1.0}):
            assert local.query("a", x) == stms.query("people", "a", x)


def test_rows_that_the_service_refuses_are_refused(pets: ModelVersion, stms: Asking):
    with stms.local("pets", ["cat"], poll=POLL, max_stale=2 * POLL) as local:
        wrong: list[Any] = [
            [1.0, 2.0],
            [1.0, 2.0, float("nan")],
            [1.0, 2.0, 1e300],
            [1.0, "x", 2.0],
            [1.0, "5", 2.0],
            [1.0, True, 2.0],
            [1.0, None, 2.0],
            [1.0, np.timedelta64(5, "ns"), 2.0],
            [1.0, np.ma.masked, 2.0],
            np.array(["1", "2", "3"]),
            np.array([1, 2, 3], "timedelta64[ns]"),
            np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]),
            {"indices": [0], "values": [True]},
            {"indices": [0], "values": ["5"]},
            {"indices": [3], "values": [1.0]},
            {"indices": [0.5], "values": [1.0]},
            {"a": 1.0},
        ]
        for x in wrong:
            with pytest.raises(InvalidInput):
                local.query("cat", x)
            with pytest.raises(InvalidInput):
                local.query_rows("cat", [x])
            with pytest.raises(StmsError):
                stms.query("pets", "cat", x)
        with pytest.raises(InvalidInput, match="none of those"):
            local.query("dog", [1.0, 2.0, 3.0])
        with pytest.raises(InvalidInput):
            local.query_rows("cat", [[1.0, 2.0]])
        with pytest.raises(InvalidInput):
            local.query_rows("cat")
    with pytest.raises(StmsError, match="context manager"):
        local.query("cat", [1.0, 2.0, 3.0])


def test_a_class_may_be_named_by_the_label_that_it_has_its_name_of(store: Store, stms: Asking):
    weights = np.eye(2, 3)
    students = {name: linear_student(name, row) for name, row in zip(("0", "1"), weights, strict=True)}
    publish(store, "digits", students, linear_teacher(["0", "1"], weights))
    x = [1.0, 2.0, 3.0]
    with stms.local("digits", np.array([0, 1]), poll=POLL, max_stale=2 * POLL) as local:
        for label in (0, np.int64(1), 1.0, "1"):
            assert local.query(label, x) == stms.query("digits", label, x)
        assert local.query_classes([0, 1], x) == stms.query_classes("digits", [0, 1], x)
        with pytest.raises(InvalidInput, match="not the name of a class"):
            local.query(None, x)


def test_a_new_version_is_fetched_whole_and_a_look_is_one_request(
    client: Client, stms: Asking, forwarded: Forwarded, pets: ModelVersion, publish_again: Callable[..., Any]
):
    x = [1.0, 2.0, 3.0]
    with stms.local("pets", ["cat", "dog"], poll=POLL, max_stale=2 * POLL) as local:
        before = local.query("cat", x)
        forwarded.asked.clear()
        local._poll_once()
        assert len(forwarded.asked) == 1
        publish_again()
        client.refresh()
        assert local.query("cat", x) == before
        local._poll_once()
        after = local.query_classes(["cat", "dog"], x)
        assert {decision.version for decision in after.values()} == {2}
        assert local.version == 2
        assert after == stms.query_classes("pets", ["cat", "dog"], x)
        local._poll_once()
    assert 'stms_local_queries_total{model="pets"} 3.0' in client.get("/metrics").text


@pytest.mark.usefixtures("pets", "keys_required")
def test_a_revoked_key_ends_answers_with_the_next_poll(client: Client, store: Store, forwarded: Forwarded):
    key, text = create_key(store, "k", {"query", "download"}, frozenset())
    client.refresh()
    with asking(forwarded, text) as stms:
        for on_stale in ("raise", "ask"):
            with stms.local("pets", ["cat"], poll=POLL, max_stale=2 * POLL, on_stale=on_stale) as local:
                assert local.query("cat", [1.0, 2.0, 3.0]).version == 1
                if on_stale == "ask":
                    revoke_key(store, key.id)
                    client.refresh()
                    assert local.query("cat", [1.0, 2.0, 3.0]).version == 1
                    local._poll_once()
                    for _ in range(2):
                        with pytest.raises(NotAllowed):
                            local.query("cat", [1.0, 2.0, 3.0])
                    assert local._pause() > 40.0
        with pytest.raises(NotAllowed), stms.local("pets", ["cat"]):
            pass


def test_one_of_very_many_wrong_keys_ends_answers_too(
    stms: Asking, forwarded: Forwarded, pets: ModelVersion, monkeypatch: pytest.MonkeyPatch
):
    x, code = [1.0, 2.0, 3.0], ["rate_limited"]
    with stms.local("pets", ["cat"], poll=POLL, max_stale=2 * POLL) as local:
        busy = lambda request: httpx.Response(429, json={"code": code[0]})  # noqa: E731
        monkeypatch.setattr(forwarded, "handle_request", busy)
        local._poll_once()
        assert local.query("cat", x).version == 1
        code[0] = "too_many_failures"
        local._poll_once()
        with pytest.raises(client_errors.TooBusy):
            local.query("cat", x)


def test_a_class_that_is_gone_ends_answers(client: Client, store: Store, stms: Asking, pets: ModelVersion):
    with stms.local("pets", ["cat", "dog"], poll=POLL, max_stale=2 * POLL) as local:
        rng = np.random.default_rng(0)
        only = {"cat": linear_student("cat", rng.normal(size=3))}
        publish(store, "pets", only, linear_teacher(["cat"], rng.normal(size=(1, 3))))
        newest_answers(store, "pets")
        client.refresh()
        local._poll_once()
        with pytest.raises(NotFound):
            local.query("cat", [1.0, 2.0, 3.0])


def test_silence_is_borne_until_max_stale(
    stms: Asking, forwarded: Forwarded, pets: ModelVersion, monkeypatch: pytest.MonkeyPatch
):
    x, now = [1.0, 2.0, 3.0], [1000.0]
    monkeypatch.setattr("stms_client.sync.local.time.monotonic", lambda: now[0])
    with (
        stms.local("pets", ["cat"], poll=POLL, max_stale=600.0) as raising,
        stms.local("pets", ["cat"], poll=POLL, max_stale=600.0, on_stale="ask") as asks,
    ):
        expected = raising.query("cat", x)
        forwarded.is_silent = True
        raising._poll_once()
        now[0] += 599.0
        assert raising.query("cat", x) == asks.query("cat", x) == expected
        assert raising.age == 599.0
        now[0] += 2.0
        with pytest.raises(Stale):
            raising.query("cat", x)
        with pytest.raises(Stale):
            _ = raising.version
        with pytest.raises(client_errors.Unreachable):
            asks.query("cat", x)
        forwarded.is_silent = False
        for ask in (asks.query, asks.query_classes, asks.query_rows, asks.is_class):
            forwarded.asked.clear()
            argument = {"query_classes": (["cat"], x), "query_rows": ("cat", [x])}.get(
                ask.__name__, ("cat", x)
            )
            ask(*argument)
            assert forwarded.asked[-1].endswith(":query")
        raising._poll_once()
        assert raising.query("cat", x) == expected


def test_damaged_bytes_never_answer(stms: Asking, forwarded: Forwarded, pets: ModelVersion):
    real = forwarded.handle_request

    def damaged(request: httpx.Request) -> httpx.Response:
        answer = real(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content[:-1] + b"x")

    forwarded.handle_request = damaged
    with pytest.raises(StmsError, match="cannot be evaluated"), stms.local("pets", ["cat"]):
        pass


@pytest.mark.parametrize(
    ("labels", "options"), [("cat", {}), ([], {}), (["cat"], {"poll": 0}), (["cat"], {"max_stale": 1.0})]
)
def test_impossible_options_are_refused(stms: Asking, labels: Any, options: dict[str, float]):
    with pytest.raises(ValueError, match=r"Name the classes|must be positive"):
        stms.local("pets", labels, **options)


def test_the_background_looks_by_itself(
    client: Client, forwarded: Forwarded, pets: ModelVersion, publish_again: Callable[..., Any]
):
    async def follow() -> list[int]:
        async with AsyncClient("http://localhost", "") as stms:
            stms._pools.here = AsyncMock(return_value=client._http)
            async with stms.local("pets", ["cat"], poll=0.02) as local:
                before = await local.query("cat", [1.0, 2.0, 3.0])
                publish_again()
                await client.context.refresher.refresh()
                await client.context.cache.settle(None)
                async with asyncio.timeout(20):
                    while local.version == before.version:
                        await asyncio.sleep(0.01)
                return [before.version, (await local.query("cat", [1.0, 2.0, 3.0])).version]

    assert client.run(follow()) == [1, 2]


@pytest.mark.usefixtures("pets")
def test_several_classes_are_one_request_and_halves_of_it_where_that_is_too_large(
    stms: Asking, forwarded: Forwarded, make_client: Callable[..., Client]
):
    with stms.local("pets", ["cat", "dog"], poll=POLL, max_stale=2 * POLL) as local:
        expected = local.query_classes(["cat", "dog"], [1.0, 2.0, 3.0])
    assert forwarded.asked == ["/v1/models/pets:packages"]
    forwarded.client = make_client(max_package_bytes=1024)
    forwarded.asked.clear()
    with stms.local("pets", ["cat", "dog"], poll=POLL, max_stale=2 * POLL) as local:
        assert local.query_classes(["cat", "dog"], [1.0, 2.0, 3.0]) == expected
    alone = [
        f"/v1/models/{model}/classes/{label}/package" for model, label in (("pets", "cat"), ("pets@1", "dog"))
    ]
    assert forwarded.asked == ["/v1/models/pets:packages", *alone]
