"""Counts of what records are like, exactly, in each form in which they come."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.entities import ModelVersion
from app.domain.errors import ServiceError
from app.domain.figures import UNUSUAL
from app.serving.columns.decoders import REFUSED
from app.serving.columns.of_version import columns_of as columns_of_version
from app.serving.columns.reading import Records
from app.serving.columns.tally import (
    CUT,
    GAP,
    OUTSIDE,
    SAMPLED,
    UNSEEN,
    WIDTH,
    InputTallies,
    InputTally,
    Taken,
    unusual,
)
from app.serving.query.evaluate import answer_class, answer_classes
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.query.requests import parse_classes
from app.serving.servable import ServableStudent, make_servable
from app.serving.work import RequestLimits
from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import Table, TextCells
from core.encoding.fit import fit_encoder
from core.encoding.profile import fit_profile
from core.packed.encoder import Encoder
from core.packed.input_profile import GAP_BIN, OTHERS
from tests.app.serving.written_records import (
    RECORD,
    VERSION,
    columns_of,
    encoder,
    numbers_encoder,
    people,
    records_of,
    served,
    text_encoder,
)

LIMITS = RequestLimits(1 << 24, 10_000, 1 << 40)
SENT = RECORD | {"grade": "3"}
LATE, YOUNG = {"since": "2031-01-01"}, {"age": -5}


def ask(student: ServableStudent, body: Any) -> None:
    answer_class(student, json.dumps(body).encode(), DEFAULT_FORMAT, LIMITS)


def taken(student: ServableStudent) -> Taken:
    return records_of(student).tally.take()


def by_column(known: Encoder, found: Taken) -> dict[str, dict[str, int]]:
    """What is unusual about each column of which something is."""
    numbers = struct.unpack(f"<{len(found.counts) // 4}I", found.counts)
    counts = {
        name: dict(zip(UNUSUAL, numbers[place * WIDTH :], strict=False))
        for place, name in enumerate(known.names)
    }
    return {
        name: {kind: n for kind, n in kinds.items() if n}
        for name, kinds in counts.items()
        if any(kinds.values())
    }


CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"kind": "of the label", "id": 7}, {}),
    ({"age": None}, {"age": "gap"}),
    ({"job": None}, {"job": "gap"}),
    ({"job": " ? "}, {"job": "gap"}),
    ({"job": "judge"}, {}),
    ({"job": " clerk "}, {}),
    ({"job": "pilot"}, {"job": "unseen"}),
    ({"grade": 3.0}, {}),
    ({"grade": 3}, {}),
    ({"grade": 9}, {"grade": "unseen"}),
    ({"age": 1000}, {"age": "outside"}),
    ({"hours": -1e99}, {"hours": "outside"}),
    (LATE, {"since": "outside"}),
    ({"since": " 2021-05-06T10:00:00+02:00 "}, {}),
    ({"member": False}, {}),
    (LATE | YOUNG | {"job": "x"}, {"since": "outside", "age": "outside", "job": "unseen"}),
]


@pytest.mark.parametrize("kind", ["linear", "rbf"])
@pytest.mark.parametrize(("change", "wanted"), CASES)
def test_a_record_counts_the_same_in_each_form(kind: str, change: dict[str, Any], wanted: dict[str, str]):
    student = served(encoder(), kind)
    record = SENT | change
    plain = {name: value for name, value in record.items() if name in encoder().names}
    bodies: list[tuple[dict[str, Any], int, int]] = [
        ({"record": record}, 1, 1),
        ({"record": record, "explain": True}, 1, 1),
        ({"records": [record]}, 1, 1),
        ({"records": [SENT, record, SENT, record]}, 4, 2),
        ({"records": [record] * 300, "explain": False}, 300, 300),
        ({"columns": columns_of(plain, SENT, plain)}, 3, 2),
    ]
    if None in change.values():
        without = {name: value for name, value in record.items() if value is not None}
        bodies.append(({"record": without}, 1, 1))
        bodies.append(({"records": [without, SENT]}, 2, 1))
    for body, records, times in bodies:
        ask(student, body)
        found = taken(student)
        assert found.records == records, body
        assert by_column(encoder(), found) == {name: {what: times} for name, what in wanted.items()}, body
        assert found.unusual == {
            what: times * sum(one == what for one in wanted.values()) for what in {*wanted.values()}
        }


def test_a_record_is_counted_once_for_several_classes():
    students = [served(encoder(), label=label, seed=seed) for seed, label in enumerate("ab")]
    both = [students[0], served(encoder(), label="b", seed=1)]
    data = json.dumps({"classes": ["a", "b"], "record": SENT | {"age": None}}).encode()
    request = parse_classes(data, DEFAULT_FORMAT, LIMITS)
    answer_classes(both, request, DEFAULT_FORMAT, LIMITS)
    assert taken(students[0]).unusual == {"gap": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"record": SENT | {"age": "39"}},
        {"record": {}},
        {"records": [SENT, SENT | {"job": []}]},
        {"columns": columns_of(SENT, SENT | {"since": "no date"})},
        {"text": "some words"},
        {"record": SENT, "explain": 1},
    ],
)
def test_a_query_that_is_refused_counts_nothing(body: dict[str, Any]):
    student = served(encoder())
    with pytest.raises(ServiceError):
        ask(student, body)
    assert taken(student).records == 0


TEXTS = [
    ("my card is lost again today", None),
    ("card lost", None),
    ("!?", None),
    ("", "gap"),
    (" N/A", "gap"),
    ("lost " * 13_107 + "a", None),
    ("lost " * 13_107 + "card", "cut"),
    ("ä" * 32_768, None),
    ("ä" * 32_769, "cut"),
]


@pytest.mark.parametrize(("text", "wanted"), TEXTS)
def test_texts_count(text: str, wanted: str | None):
    student = served(text_encoder())
    for body, records in (
        ({"text": text}, 1),
        ({"texts": [text, "my card is lost"]}, 2),
        ({"record": {"text": text}}, 1),
        ({"columns": {"text": [text]}}, 1),
    ):
        ask(student, body)
        found = taken(student)
        assert (found.records, found.unusual) == (records, {wanted: 1} if wanted else {}), body


def test_a_record_beside_texts_counts():
    known = encoder(with_note=True)
    student = served(known)
    ask(student, {"record": SENT | {"note": "my card is lost"}})
    ask(student, {"record": SENT | {"note": "word " * 20_000}})
    ask(student, {"record": SENT | {"note": None, "age": None}})
    found = taken(student)
    assert found.records == 3
    assert by_column(known, found) == {"note": {"gap": 1, "cut": 1}, "age": {"gap": 1}}


def test_lists_of_numbers_are_no_records():
    student = served(numbers_encoder())
    ask(student, {"x": [1.0, 2.0]})
    assert taken(student).records == 0
    ask(student, {"record": {"p": 1.0, "q": 100.0}})
    found = taken(student)
    assert (found.records, found.unusual) == (1, {"outside": 1})


def test_a_very_large_category_is_looked_up():
    """A type lists few values; the others are looked at one by one."""
    names = [f"name number {k}" for k in range(300) for _ in range(2)]
    table = Table(("name",), (TextCells.of(names),))
    known = fit_encoder(table, infer_schema(table, {"name": KindSpec(Kind.CATEGORY)}))
    student = served(known)
    values = records_of(student).clean.decode_body(b'{"record": {"name": "name number 7"}}')
    assert tuple(values) == ("name number 7",)
    ask(student, {"record": {"name": "name number 7"}})
    ask(student, {"record": {"name": "name number 300"}})
    ask(student, {"records": [{"name": "name number 7"}, {"name": "name number 300"}]})
    assert taken(student).unusual == {"unseen": 2}


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 10**6),
    st.floats(-1e3, 1e3),
    st.sampled_from(["clerk", " clerk", "judge", "?", "3", "x", "2021-05-06", "2031-05-06", "no"]),
)


@given(
    st.dictionaries(st.sampled_from([*SENT]), ODD, max_size=3), st.sets(st.sampled_from([*SENT]), max_size=2)
)
def test_a_clean_decoder_takes_records_in_which_nothing_is_unusual(changes: dict[str, Any], absent: set[str]):
    records = Records(encoder())
    record = {name: value for name, value in (SENT | changes).items() if name not in absent}
    data = json.dumps({"record": record}).encode()
    try:
        values = records.clean.decode_body(data)
        score = records.rows.encode(values)
    except REFUSED:
        return
    assert tuple(records.decode_body(data)) == tuple(values)
    assert records.rows.encode(records.decode_body(data)).dense == score.dense
    columns = records.rows.columns
    assert [unusual(column, value) for column, value in zip(columns, values, strict=True)] == [None] * len(
        columns
    )


def test_what_is_clean_is_known_without_a_look(monkeypatch: pytest.MonkeyPatch):
    student = served(encoder())
    looked: list[str] = []

    def spy(column: Any, value: Any) -> int | None:
        looked.append(column.name)
        return unusual(column, value)

    monkeypatch.setattr("app.serving.columns.decoders.unusual", spy)
    monkeypatch.setattr("app.serving.columns.tally.unusual", spy)
    bodies = [{"record": SENT}, {"records": [SENT] * 5}, {"columns": columns_of(SENT, SENT)}]
    for body in bodies:
        ask(student, body)
    assert looked == []
    ask(student, {"record": SENT | {"age": None}})
    ask(student, {"columns": columns_of(SENT, SENT | {"age": None})})
    assert looked == ["age", "age"]


def test_after_an_unusual_record_the_next_ones_are_looked_at():
    """Until one comes about which nothing is unusual."""
    student = served(encoder())
    for age in (None, 39.5, None, None, 39.5, 39.5, 1000, 40):
        ask(student, {"record": SENT | {"age": age}})
    found = taken(student)
    assert (found.records, found.unusual) == (8, {"gap": 3, "outside": 1})


def student_with_profile(tallies: InputTallies | None = None) -> ServableStudent:
    profile = fit_profile(people(), encoder())
    plain = served(encoder())
    made = tallies or InputTallies()
    columns = columns_of_version(
        VERSION, encoder=encoder(), make_tally=lambda rows: made.make(VERSION, profile, rows)
    )
    return make_servable(plain.student, VERSION, columns)


JOB_BINS = {"cook": 0, "nurse": 1, "clerk": 2}
"""The most frequent value first, then by name; see `people`."""


def bins(found: Taken, name: str) -> list[int]:
    numbers = struct.unpack(f"<{len(found.counts) // 4}I", found.counts)
    place = encoder().names.index(name)
    return [*numbers[place * WIDTH + len(UNUSUAL) : (place + 1) * WIDTH]]


def test_one_of_64_records_is_put_into_bins():
    student = student_with_profile()
    for k in range(1, 200):
        # The 64th, 128th and 192nd have what all others have not.
        ask(student, {"record": SENT | ({"age": 20, "job": "nurse"} if k % SAMPLED == 0 else {})})
    found = taken(student)
    assert (found.records, found.sampled, found.unusual) == (199, 3, {})
    assert bins(found, "age") == [3, *[0] * GAP_BIN]
    assert bins(found, "job") == [*[0] * JOB_BINS["nurse"], 3, *[0] * (GAP_BIN - JOB_BINS["nurse"])]


def test_one_of_64_unusual_records_is_put_into_bins():
    student = student_with_profile()
    for k in range(1, 131):
        ask(student, {"record": SENT | ({"age": None} if k % SAMPLED else {"age": -1e6, "job": "pilot"})})
    found = taken(student)
    assert (found.records, found.sampled) == (130, 2)
    assert found.unusual == {"gap": 128, "outside": 2, "unseen": 2}
    assert bins(found, "age") == [2, *[0] * GAP_BIN]
    assert bins(found, "job")[OTHERS] == 2


def test_the_sample_goes_on_over_lists_and_calls():
    student, all_bins = student_with_profile(), np.zeros(GAP_BIN + 1, dtype=int)
    ages = np.random.default_rng(0).uniform(0, 80, 1000).round(2).tolist()
    at = sampled = 0
    sizes = [2, 5, 70, 3, 256, 300, 2, 64, 60, 100, 138]
    assert sum(sizes) == 1000
    for number, size in enumerate(sizes):
        some = [SENT | {"age": age} for age in ages[at : at + size]]
        at += size
        ask(student, {"records": some} if number % 2 else {"columns": columns_of(*some)})
        if number % 3 == 0:
            found = taken(student)
            sampled += found.sampled
            all_bins += bins(found, "age")
    found = taken(student)
    assert sampled + found.sampled == 1000 // SAMPLED
    profiles = dict(zip(encoder().names, fit_profile(people(), encoder()).columns, strict=True))
    wanted = np.searchsorted(profiles["age"].edges, ages[SAMPLED - 1 :: SAMPLED], side="right")
    total = all_bins + bins(found, "age")
    assert total.tolist() == np.bincount(wanted, minlength=GAP_BIN + 1).tolist()


def test_texts_are_sampled_by_known_words_and_length():
    known = text_encoder()
    table = Table(("text",), (TextCells.of([*["my card is lost"] * 30, *["again today"] * 30]),))
    tally = InputTally(Records(known).rows, fit_profile(table, known))
    tally.add([["my card is lost"] * SAMPLED])
    tally.add([["unheard words only here"] * SAMPLED])
    found = struct.unpack(f"<{WIDTH}I", tally.take().counts)[len(UNUSUAL) :]
    assert (found[9], found[0]) == (1, 1)
    assert sum(found[10:20]) == 2


def test_versions_without_a_profile_are_counted_and_not_sampled():
    student = served(encoder())
    for _ in range(SAMPLED):
        ask(student, {"record": SENT})
    found = taken(student)
    assert (found.records, found.sampled) == (SAMPLED, 0)
    assert not any(found.counts)


def test_threads_lose_no_record():
    tallies = InputTallies()
    student = student_with_profile(tallies)
    found: list[tuple[ModelVersion, Taken]] = []

    def run(work: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=lambda: [work() for _ in range(300)])
        thread.start()
        return thread

    asked = [
        run(lambda: ask(student, {"record": SENT})),
        run(lambda: ask(student, {"records": [SENT, SENT | {"age": None}]})),
        run(lambda: found.extend(tallies.take())),
    ]
    for thread in asked:
        thread.join()
    found += tallies.take()
    assert all(version is VERSION for version, _ in found)
    assert sum(one.records for _, one in found) == 900
    assert sum(one.unusual.get("gap", 0) for _, one in found) == 300
    assert sum(one.sampled for _, one in found) in range(900 // SAMPLED - 8, 900 // SAMPLED + 3)
    assert [*tallies.take()] == []


def test_kinds_have_their_numbers():
    assert [UNUSUAL[kind] for kind in (GAP, UNSEEN, OUTSIDE, CUT)] == ["gap", "unseen", "outside", "cut"]
