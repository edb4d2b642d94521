"""The form for a training job: what it sends, what it refuses, and the commands that do the same."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from typing import Any

from app.commands.hyperparameters import read_hyperparameters
from app.domain.entities import JobState
from app.domain.parameter_table import parameter_rows
from app.domain.training_spec import TrainingSpec
from app.store.unit_of_work import Store
from app.web.training.snippets import snippets
from tests.app.web.conftest import Page, Person, Things

Enter = Callable[..., Person]


def once(text: str) -> str:
    return re.findall(r'name="once" value="(\w+)"', text)[0]


def sent_by(person: Person, things: Things, store: Store, **fields: str) -> dict[str, Any]:
    """The specification of the job that the form makes."""
    answer = person.post(f"/ui/datasets/{things.dataset_id}/train", model="mine", **fields)
    assert answer.status_code == 303, html.unescape(answer.text)
    job_id = answer.headers["location"].partition("?")[0].rpartition("/")[2]
    with store.read() as uow:
        return uow.jobs.get(job_id).spec


def test_the_form_has_every_hyper_parameter_with_its_meaning(sign_in: Enter, things: Things) -> None:
    shown = sign_in("train").get(f"/ui/datasets/{things.dataset_id}/train").text
    page = Page(shown)
    named = set(page.values("input", "name")) | set(page.values("select", "name"))
    rows = list(parameter_rows())
    assert {f"p.{row.name}" for row in rows} <= named
    text = " ".join(page.text.split())
    for row in rows:
        assert " ".join(row.meaning.split()) in text, row.name
    assert len(shown) < 120_000


def test_only_what_is_filled_in_is_sent(sign_in: Enter, things: Things, store: Store) -> None:
    person = sign_in("train")
    assert sent_by(person, things, store) == TrainingSpec().model_dump(mode="json")
    given = {
        "p.student.method": "polytope",
        "p.student.pieces": "3",
        "p.student.C": "1e3",
        "p.evaluation.baselines": "svm, gsvm0",
        "p.classes": "b",
        "p.compact": "",
        "p.publish": "false",
        "p.alias": "null",
        "p.tuning": "{}",
        "p.tuning.grid.C": "1, 10",
    }
    wanted = TrainingSpec.model_validate(
        {
            "student": {"method": "polytope", "pieces": 3, "C": 1000.0},
            "evaluation": {"baselines": ["svm", "gsvm0"]},
            "classes": ["b"],
            "publish": False,
            "alias": None,
            "tuning": {"grid": {"C": [1.0, 10.0]}},
        }
    )
    assert sent_by(person, things, store, **given) == wanted.model_dump(mode="json")


def test_the_same_form_twice_is_one_job_and_changed_it_is_another(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    path = f"/ui/datasets/{things.dataset_id}/train"
    token = once(person.get(path).text)
    first = person.post(path, model="mine", once=token).headers["location"]
    assert person.post(path, model="mine", once=token).headers["location"] == first
    assert person.post(path, model="yours", once=token).headers["location"] != first
    assert "is accepted" in person.get(first).text


def test_what_is_wrong_is_shown_beside_its_field(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    path = f"/ui/datasets/{things.dataset_id}/train"
    for fields, field, hint in (
        ({"p.student.C": "-1"}, "student.C", "greater than or equal to"),
        ({"p.student.C": "much"}, "student.C", "valid number"),
        ({"p.student.method": "best"}, "student.method", "Input should be"),
        ({"p.classes": "nobody"}, "classes", "nobody"),
        ({"p.evaluation.test_fraction": "0.01"}, "evaluation.test_fraction", "cannot be split"),
        ({"p.teacher.model": "nothing"}, "teacher.model", "nothing"),
        ({"model": "a b"}, "model", "name"),
    ):
        answer = person.post(path, **({"model": "mine"} | fields))
        assert answer.status_code in {400, 422}, fields
        text = html.unescape(answer.text)
        [wrong] = re.findall(r'<div class="wrong">(.*?)</div>', text)
        assert hint in wrong
        assert f">{field}</a>" in text
        assert "Correct the marked fields" in text
    both = {"p.evaluation.test_fraction": "0.2", "p.evaluation.dataset_id": "ds_1"}
    answer = person.post(path, model="mine", **both)
    assert "give dataset_id or test_fraction" in answer.text
    assert person.post(path, model="mine", priority="highest").status_code == 400
    assert person.post(path, model="mine", priority="high").status_code == 403
    assert person.post("/ui/datasets/ds_none/train", model="mine").status_code == 404


def test_the_commands_make_the_same_job(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    fields = {"p.student.C": "10", "p.classes": "1, b", "p.features.kind": "kernel", "priority": "low"}
    answer = person.post(f"/ui/datasets/{things.dataset_id}/train", model="mine", show="1", **fields)
    assert answer.status_code == 200
    found = re.findall(r'<pre id="code-\d"[^>]*>(.*?)</pre>', answer.text, re.DOTALL)
    curl, command, python = map(html.unescape, found)
    wanted = {"student": {"C": 10}, "classes": ["1", "b"], "features": {"kind": "kernel"}}
    words = shlex.split(curl.replace("\\\n", " "))
    body = json.loads(words[words.index("-d") + 1])
    same = {"dataset_id": things.dataset_id, "model": "mine", "priority": "low", "hyperparameters": wanted}
    assert body == same
    words = shlex.split(command.replace("\\\n", " "))
    assignments = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert read_hyperparameters(assignments, None) == wanted
    assert words[:3] == ["stms", "train", things.dataset_id]
    calls: list[Any] = []

    class Recorder:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> Recorder:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit_job(self, *args: Any, **options: Any) -> Recorder:
            calls.append((args, options))
            return self

        def wait(self) -> None: ...

    script = python.replace("from stms_client import Client", "")
    exec(script.replace("os.environ['STMS_API_KEY']", "''"), {"Client": Recorder})
    assert calls == [((things.dataset_id, "mine", wanted), {"priority": "low"})]


def test_a_text_that_looks_like_a_number_stays_a_text() -> None:
    shown = snippets("http://a", "ds_1", "m", {"evaluation": {"dataset_id": "7"}}, "normal")["Command line"]
    words = shlex.split(shown.replace("\\\n", " "))
    assert read_hyperparameters([words[-1]], None) == {"evaluation": {"dataset_id": "7"}}


def test_a_job_is_cloned_with_changes(sign_in: Enter, things: Things, store: Store) -> None:
    person = sign_in("train")
    with store.begin() as uow:
        spec = TrainingSpec.model_validate({"student": {"C": 7.5}, "seed": 3, "classes": ["b"]})
        from app.store.tables import jobs

        change = jobs.update().where(jobs.c.id == things.job.id)
        uow.connection.execute(change.values(spec=spec.model_dump(mode="json"), state=JobState.FAILED))
    job = f"/ui/jobs/{things.job.id}"
    assert f"{job}/clone" in person.get(job).text
    page = Page(person.get(f"{job}/clone").text)
    filled = {
        attributes["name"]: attributes["value"]
        for tag, attributes in page.elements
        if tag == "input" and attributes.get("value") and str(attributes.get("name")).startswith("p.")
    }
    assert filled.pop("p.student.C") == "7.5"
    assert filled == {"p.seed": "3", "p.classes": '["b"]'}
    again = sent_by(person, things, store, **{"p.student.C": "8", "p.seed": "3", "p.classes": '["b"]'})
    assert again == spec.model_dump(mode="json") | {"student": again["student"]}
    assert again["student"]["C"] == 8.0
    assert person.get("/ui/jobs/job_none/clone").status_code == 404


def test_kinds_that_were_chosen_on_the_page_of_a_data_set_become_those_of_the_job(
    sign_in: Enter, things: Things
) -> None:
    person = sign_in("train")
    path = f"/ui/datasets/{things.dataset_id}"
    page = Page(person.get(path).text)
    assert {"b:category", "c:ignore"} <= set(page.values("option", "value"))
    assert f"{path}/train" in page.values("form", "action")
    answer = person.get(f"{path}/train?kinds=&kinds=b:category&kinds=c:date:%25Y%25m%25d")
    assert answer.status_code == 200, answer.text
    shown = Page(answer.text)
    assert "b as category, c as date:%Y%m%d" in " ".join(shown.text.split())
    kinds = {"b": {"kind": "category"}, "c": {"kind": "date:%Y%m%d"}}
    [text] = [known["value"] for _, known in shown.elements if known.get("name") == "p.inputs.columns"]
    assert json.loads(text or "") == kinds
    assert "--set inputs.columns.b.kind=category" in answer.text
    made = person.post(f"{path}/train", model="mine", **{"p.inputs.columns": text or ""})
    assert made.status_code == 303, made.text
    job = made.headers["location"].partition("?")[0]
    assert "b as category, c as date:%Y%m%d" in " ".join(Page(person.get(job).text).text.split())
    clone = Page(person.get(f"{job}/clone").text)
    [text] = [known["value"] for _, known in clone.elements if known.get("name") == "p.inputs.columns"]
    assert {name: one["kind"] for name, one in json.loads(text or "").items()} == {
        name: one["kind"] for name, one in kinds.items()
    }
    for wrong in ("b", "b:nothing", "b:text&kinds=b:date"):
        assert person.get(f"{path}/train?kinds={wrong}").status_code == 400, wrong


def test_names_with_dots_stay_whole_in_the_commands() -> None:
    values = {"inputs": {"columns": {"a.b": {"kind": "text"}}}}
    words = shlex.split(
        snippets("http://x", "ds_1", "m", values, "normal")["Command line"].replace("\\\n", " ")
    )
    assignments = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert read_hyperparameters(assignments, None) == values
