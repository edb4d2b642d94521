"""Every page: who may see it, what it shows, and that nothing on it comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.domain.entities import JobState
from app.domain.errors import InvalidRequest
from app.services.class_table import PAGE_ROWS, class_table
from app.store.repositories.students import ORDERS
from app.store.unit_of_work import Store
from app.web import rendering
from app.web.rendering import POLICY, SECTIONS
from tests.app.web.conftest import HOSTILE, Page, Person, Things
from tests.refusals import at_fault

ROOT = Path(__file__).parents[3] / "app" / "web"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
RANK = {"query": 0, "train": 1, "admin": 2, "operator": 3}

Enter = Callable[..., Person]


def addresses(things: Things) -> dict[str, str]:
    """Every page and fragment, with the scope that it needs."""
    job, models = f"/ui/jobs/{things.job.id}", "/ui/models/pets"
    return {
        "/ui/jobs": "train",
        "/ui/jobs?state=failed&state=running&model=digits&created_by=tests": "train",
        "/ui/fragments/jobs": "train",
        job: "train",
        f"{job}?sort=-f1&method=svm&label=script": "train",
        f"/ui/fragments{job[3:]}": "train",
        f"/ui/fragments{job[3:]}/classes?after=100": "train",
        f"{job}/classes/0": "train",
        f"{job}/classes/1?method=svm": "train",
        f"{job}/classes/0?method=teacher": "train",
        "/ui/models": "query",
        models: "query",
        f"{models}/versions/1": "query",
        f"{models}/versions/latest": "query",
        f"{models}/move?version=1&alias=production": "train",
        f"{models}/move?version=2": "train",
        f"{models}/move?version=2&alias=new": "train",
        f"{models}/compare?a=1&b=2": "train",
        f"{models}/compare?a=2&b=1&metric=brier&class=dog": "train",
        f"{models}/aliases/production": "query",
        f"{models}/aliases/production/live": "query",
        f"{models}/ask": "query",
        f"{models}/ask?at=production&class=cow": "query",
        "/ui/evaluations": "train",
        "/ui/evaluations?version=letters@2": "train",
        f"/ui/evaluations/{things.evaluation_id}": "train",
        f"/ui/fragments/evaluations/{things.evaluation_id}": "train",
        "/ui/bundles": "train",
        "/ui/datasets": "train",
        f"/ui/datasets/{things.dataset_id}": "train",
        f"/ui/datasets/{things.dataset_id}?class=b&columns=1&rows=true": "train",
        f"/ui/datasets/{things.dataset_id}/train": "train",
        f"/ui/jobs/{things.job.id}/clone": "train",
        f"/ui/datasets/{things.dataset_id}?class=nobody&columns=9": "train",
        "/ui/keys": "admin",
        "/ui/audit": "admin",
        "/ui/audit?action=dataset.create&actor=system": "admin",
        "/ui/traffic": "operator",
        "/ui/fragments/traffic": "operator",
        "/ui/workers": "operator",
        "/ui/fragments/workers": "operator",
        "/ui/health": "query",
        "/ui/fragments/health": "query",
    }


def test_every_page_is_for_those_with_its_scope(sign_in: Enter, things: Things) -> None:
    people = {scope: sign_in(scope) for scope in RANK}
    for path, needed in addresses(things).items():
        for scope, person in people.items():
            answer = person.get(path)
            expected = 200 if RANK[scope] >= RANK[needed] else 403
            assert answer.status_code == expected, f"{path} for {scope}: {answer.text}"
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert len(answer.content) < 100_000


def test_pages_show_labels_as_text_and_load_nothing_from_elsewhere(sign_in: Enter, things: Things) -> None:
    person = sign_in("operator")
    start = HOSTILE[:27]
    seen = 0
    for path in addresses(things):
        answer = person.get(path)
        assert "<script>alert" not in answer.text
        page = Page(answer.text)
        seen += start in page.text
        for tag, attributes in page.elements:
            assert tag not in {"style", "iframe", "object", "embed", "base"}
            for name, value in attributes.items():
                assert not name.startswith("on")
                assert name != "style"
                if name in {"href", "src", "action", "data-poll"}:
                    parts = urlsplit(value or "")
                    assert (parts.scheme, parts.netloc) == ("", ""), f"{path} leads to {value}"
        assert len(page.values("script", "src")) == sum(tag == "script" for tag, _ in page.elements)
    assert seen >= 6, "labels are shown on many pages"


@pytest.mark.long
def test_every_link_of_every_page_leads_somewhere(sign_in: Enter, things: Things) -> None:
    person = sign_in("operator")
    known = {"/docs"}
    waiting = ["/ui/jobs", f"/ui/jobs/{things.job.id}"]
    while waiting:
        path = waiting.pop().partition("#")[0]
        if path in known or "ds_none" in path or re.search(r"/datasets/ds_|/clone$", path):
            continue
        known.add(path)
        answer = person.get(path)
        assert answer.status_code in {200, 303}, f"{path}: {answer.text}"
        page = Page(answer.text)
        found = [*page.values("a", "href"), *page.values("div", "data-poll")]
        found += [*page.values("script", "src"), *page.values("link", "href")]
        waiting += [target for target in found if target.startswith("/") and len(known) < 150]
    assert len(known) > 60


def test_headings_lead_every_page_and_the_present_section_is_marked(sign_in: Enter, things: Things) -> None:
    person = sign_in("operator")
    for path in addresses(things):
        if "/fragments/" in path:
            continue
        page = Page(person.get(path).text)
        headings = [tag for tag, _ in page.elements if tag in {"h1", "h2", "h3"}]
        assert headings[0] == "h1"
        assert headings.count("h1") == 1
        assert len(page.values("a", "aria-current")) >= 1
        assert f"STMS {metadata.version('stms')}" in page.text
        labelled = {attributes.get("for") for tag, attributes in page.elements if tag == "label"}
        for tag, attributes in page.elements:
            if tag in {"input", "select", "textarea"} and attributes.get("type") not in {
                "hidden",
                "checkbox",
            }:
                has_name = "aria-label" in attributes or attributes.get("id") in labelled
                assert has_name or attributes.get("name") == "hours", f"{path}: {attributes}"
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(ids) == len(set(ids)), path
        assert f"STMS {metadata.version('stms')}\n" in page.text, path


def test_navigation_has_what_a_key_may_see(sign_in: Enter) -> None:
    for scope in RANK:
        page = Page(sign_in(scope).get("/ui/health").text)
        shown = [value for value in page.values("a", "href") if value in {part.path for part in SECTIONS}]
        assert shown == [part.path for part in SECTIONS if RANK[part.scope] <= RANK[scope]]


def test_a_fragment_that_has_not_changed_is_not_sent_again(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    path = f"/ui/fragments/jobs/{things.job.id}/classes"
    first = person.get(path)
    again = person.get(path, **{"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


def test_classes_are_sorted_searched_and_paged_by_the_server(
    sign_in: Enter, things: Things, store: Store
) -> None:
    from app.domain.entities import StudentRow, StudentState

    with store.begin() as uow:
        uow.students.save_all(
            [
                StudentRow(
                    things.job.id, 10 + k, f"class {k:03d}", "svm", StudentState.SUCCEEDED, seconds=float(k),
                    metrics={"f1": (k % 7) / 7} | ({"weak": {"message": "F 20 %."}} if k == 77 else {}),
                )
                for k in range(250)
            ]
        )  # fmt: skip
    person = sign_in("train")

    def labels(query: str) -> list[str]:
        text = person.get(f"/ui/fragments/jobs/{things.job.id}/classes?{query}").text
        return re.findall(r'title="(class \d+|b)">', text)

    assert labels("")[:2] == ["b", "class 077"], "the failed one comes first, then the weak one"
    assert len(labels("after=100")) == PAGE_ROWS
    assert labels("sort=-seconds")[0] == "class 249"
    assert labels("sort=-f1")[0] == "class 006"
    assert labels("label=LASS 01") == [f"class {k:03d}" for k in range(10, 20)]
    for order in ORDERS:
        assert labels(f"sort={order}")
    assert person.get(f"/ui/jobs/{things.job.id}?sort=secret").status_code == 400
    with at_fault(InvalidRequest, "unknown_order"):
        class_table(store, things.job, order="secret")


def test_another_tenants_objects_are_as_those_that_do_not_exist(sign_in: Enter, things: Things) -> None:
    stranger = sign_in("admin", tenant="rival")
    paths = [
        path
        for path in addresses(things)
        if things.job.id in path or "pets" in path or "ds_" in path or "ev_" in path
    ]
    assert len(paths) > 10
    for path in paths:
        answer = stranger.get(path)
        assert answer.status_code == 404, path
        assert "belong to another tenant" in answer.text
        missing = path.replace(things.job.id, "job_0").replace("pets", "no-pets")
        if missing != path:
            assert stranger.get(missing).status_code == 404
    assert things.job.id not in stranger.get("/ui/jobs").text
    assert stranger.get("/ui/jobs?tenant=default").status_code == 403


def test_an_operator_sees_all_tenants_and_follows_links_into_them(sign_in: Enter, things: Things) -> None:
    host = sign_in("operator", tenant="host")
    page = Page(host.get("/ui/jobs").text)
    [target] = [link for link in page.values("a", "href") if things.job.id in link]
    assert target.endswith("?tenant=default")
    job = Page(host.get(target).text)
    assert all("tenant=default" in link for link in job.values("a", "href") if things.job.id in link)


def test_a_limited_key_sees_only_its_models(sign_in: Enter, things: Things) -> None:
    person = sign_in("query", models=["door"])
    assert "pets" not in person.get("/ui/models").text
    assert person.get("/ui/models/pets").status_code == 403


def test_empty_pages_say_what_to_do_next(sign_in: Enter) -> None:
    person = sign_in("operator")
    for path, hint in {
        "/ui/jobs": "stms train",
        "/ui/models": "stms train",
        "/ui/datasets": "stms datasets upload",
        "/ui/workers": "stms worker",
        "/ui/health": "Start a worker",
    }.items():
        assert hint in person.get(path).text, path


def test_unknown_pages_and_wrong_parameters_are_pages_too(sign_in: Enter) -> None:
    person = sign_in("operator")
    for path, status in {
        "/ui/nothing": 404,
        "/ui/jobs/job_0": 404,
        "/ui/jobs?state=great": 400,
        "/ui/models/%00": 404,
        "/ui/jobs/job_0/classes/x": 404,
        "/ui/static/0/../secret": 404,
    }.items():
        answer = person.get(path)
        assert answer.status_code == status, path
        assert answer.headers["content-security-policy"] == POLICY
        assert "What to do" in answer.text
    assert person.post("/ui/jobs").status_code == 405


def test_static_files_are_kept_by_browsers_for_as_long_as_they_are_the_same(client: Any) -> None:
    page = Page(client.get("/ui/sign-in").text)
    [style] = [path for path in page.values("link", "href") if path.endswith(".css")]
    answer = client.get(style)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].startswith("text/css")
    other = client.get(re.sub(r"/static/\w+/", "/static/older/", style))
    assert other.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.name for path in TEMPLATES])
def test_a_template_has_no_styles_handlers_unescaped_text_or_inline_scripts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\sstyle\s*=|<style|\son[a-z]+\s*=|javascript:|https?://", text)
    assert not re.search(r"\|\s*safe|Markup|autoescape", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)


def test_scripts_and_styles_name_no_other_address() -> None:
    for path in (ROOT / "static").iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path


def test_a_server_may_leave_the_dashboard_out(make_client: Any) -> None:
    client = make_client(dashboard=False)
    assert client.get("/ui/jobs").json()["code"] == "no_such_path"
    assert client.get("/").status_code == 404


def test_a_fragment_is_made_once_for_all_tabs_that_show_the_same_and_for_nobody_else(
    sign_in: Enter, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    rendered = rendering._rendered

    def counted(request: Any, *arguments: Any, **values: Any) -> Any:
        made.append(request.url.path)
        return rendered(request, *arguments, **values)

    monkeypatch.setattr(rendering, "_rendered", counted)
    monkeypatch.setattr(rendering, "_SHARED_SECONDS", 60.0)
    first, second = sign_in("train"), sign_in("train")
    stranger, reader = sign_in("train", tenant="rival"), sign_in("query")
    for path in (f"/ui/fragments/jobs/{things.job.id}", "/ui/fragments/jobs"):
        answers = [person.get(path) for person in (first, second, first)]
        assert len({answer.headers["etag"] for answer in answers}) == 1
        assert all(things.job.id in answer.text for answer in answers)
        assert made.count(path) == 1
        other = stranger.get(path)
        assert other.status_code == (404 if things.job.id in path else 200)
        assert other.status_code == 404 or things.job.id not in other.text
        assert reader.get(path).status_code == 403
        again = second.get(path, **{"if-none-match": answers[0].headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert set(again.headers) - {"date"} == set(answers[0].headers) - {
            "content-length",
            "content-type",
            "date",
        }
    assert made.count("/ui/fragments/jobs") == 2, "another tenant has a fragment of its own"


def test_what_can_be_done_with_a_job_follows_its_state(sign_in: Enter, store: Store, add_job: Any) -> None:
    person, buttons = sign_in("train"), {}
    for state in (JobState.RUNNING, JobState.FAILED, JobState.SUCCEEDED):
        with store.begin() as uow:
            job = add_job(uow, state=state)
        text = person.get(f"/ui/fragments/jobs/{job.id}").text
        buttons[state] = [name for name in ("Cancel…", "Retry what is missing", "Delete…") if name in text]
    assert buttons == {
        JobState.RUNNING: ["Cancel…"],
        JobState.FAILED: ["Retry what is missing", "Delete…"],
        JobState.SUCCEEDED: ["Delete…"],
    }
