"""Eleven hundred attacks on one real server: each gets the expected answer, and the server stays intact.

`make test` asks the tables of `tests.refusals` in process, and here one attack of each category, status and
code that only a socket can show; `make test-all` runs all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals.every import every
from tests.refusals.refusal import ANY_CODE, PAGE, Answer, Refusal, complaints
from verification.hostile.run import MAX_GROWTH, Report, quick_attacks, run
from verification.hostile.slow import slow

pytestmark = [pytest.mark.timeout(600)]


ATTACKS = {attack.id: attack for attack in quick_attacks() + slow()}


def one_of_each() -> set[str]:
    """Names of the first attack of each category, status and code that only a socket can show."""
    in_process = {refusal.id for refusal in every()}
    first: dict[object, str] = {}
    for name, attack in ATTACKS.items():
        # A browser takes its time.
        if name not in in_process and attack.category != "browser":
            first.setdefault(attack.category, name)
            first.setdefault((attack.status, attack.code), name)
    return set(first.values())


EACH = one_of_each()
NAMES = [name if name in EACH else pytest.param(name, marks=pytest.mark.long) for name in ATTACKS]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """One server, and on it the attacks whose tests were selected."""
    selected = [item.callspec.params["name"] for item in request.session.items if is_attack(item)]
    return run(tmp_path_factory.mktemp("hostile"), only=set(selected) or EACH)


def is_attack(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return item.path == Path(__file__) and callspec is not None and "name" in callspec.params


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_gets_the_expected_answer(report: Report, name: str):
    assert name in {attack.id for attack in report.attacks}
    assert report.failures.get(name, []) == []


def test_the_server_stays_intact(report: Report):
    assert report.damage() == []
    assert report.growth <= MAX_GROWTH
    assert report.alive
    assert report.same_answer


def test_attacks_have_distinct_names():
    names = [(attack.category, attack.name) for attack in quick_attacks() + slow()]
    assert len(names) == len(set(names)) >= 1000
    assert len({category for category, _ in names}) >= 28


PROBLEM = (
    b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"%s","instance":"/","code":"empty",'
    b'"request_id":"1"}'
)
KIND = {"content-type": "application/problem+json"}


def judge(answer: Answer, status: int | frozenset[int] = 400, code: str | None = "empty") -> list[str]:
    attack = Refusal("tests", "one", lambda server: answer, status, code)
    return complaints(attack, answer, ["/var/stms"])


def test_a_good_answer_has_no_complaint():
    assert judge(Answer(400, KIND, PROBLEM % b"The body is empty.")) == []
    assert judge(Answer(0), 0, None) == []
    assert judge(Answer(403, {"content-type": "application/json"}, b'{"error": "No."}'), 403, None) == []


def test_where_several_answers_are_right_each_of_them_has_no_complaint():
    page = Answer(404, {"content-type": "text/html; charset=utf-8"}, b"<!doctype html><p>No.")
    either = frozenset({400, 404})
    assert judge(Answer(400, KIND, PROBLEM % b"No."), either, ANY_CODE) == []
    assert judge(Answer(400, KIND, PROBLEM % b"No."), either, PAGE) == []
    assert judge(page, either, PAGE) == []
    assert judge(page, either, ANY_CODE) != []
    assert judge(Answer(500, page.headers, page.body), either, PAGE) != []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(0), "status 0"),
        (Answer(500, KIND, PROBLEM % b"Oh."), "status 500"),
        (Answer(400, {"content-type": "text/html"}, PROBLEM % b"Oh."), "no problem document"),
        (Answer(400, KIND, b"<html>"), "no problem document"),
        (Answer(400, KIND, b'{"code": "empty", "status": 400}'), "lacks"),
        (Answer(400, KIND, PROBLEM % b"In /var/stms/a."), "tells of the inside"),
        (Answer(400, KIND, PROBLEM % b"Traceback (most recent call last)"), "tells of the inside"),
        (Answer(400, KIND, PROBLEM % b"<object at 0x7f0123456789>"), "tells of the inside"),
        (Answer(400, KIND, PROBLEM % b"(sqlite3.OperationalError) no such table"), "tells of the inside"),
        (Answer(400, KIND, PROBLEM % (b"a" * 70_000)), "bytes"),
    ],
)
def test_each_kind_of_wrong_answer_is_detected(answer: Answer, words: str):
    assert any(words in complaint for complaint in judge(answer))
