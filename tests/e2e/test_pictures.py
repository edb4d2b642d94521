"""Pictures from a folder to an answer, in a real server: one picture has one score, however it is sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from stms_client import Client
from stms_client.errors import Problem
from tests.app.encoders.onnx_files import SIDE, network
from tests.made_pictures import SHAPES, members, packed, picture
from tests.system.deployment import QUICK_SOLVERS, Deployment

Json = dict[str, Any]
Ask = Callable[[], httpx.Response]

PER_CLASS = 14


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(
        tmp_path_factory.mktemp("pictures"),
        serve=True,
        keys={"admin": {"admin"}},
        settings=dict(QUICK_SOLVERS),
        is_clean=True,
    ) as started:
        yield started


@pytest.fixture(scope="module")
def client(service: Deployment) -> Iterator[Client]:
    with Client(service.urls[0], api_key=service.keys["admin"]) as opened:
        yield opened


@pytest.fixture(scope="module")
def http(service: Deployment) -> Iterator[httpx.Client]:
    with service.client("admin") as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shapes")
    for name, content in members(PER_CLASS).items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (root / ".DS_Store").write_bytes(b"hidden")
    return root


@pytest.fixture(scope="module")
def trained(client: Client, folder: Path) -> Json:
    """The finished job of a folder."""
    dataset = client.upload_dataset(folder)
    assert dataset["source_format"] == "zip"
    assert dataset["rows"] == PER_CLASS * len(SHAPES)
    job = client.submit_job(dataset["id"], "shapes", {"teacher": {"method": "ssvm"}})
    job = client.wait_for_job(job.id)
    assert job["state"] == "succeeded", job
    return dict(job)


def test_the_same_folder_is_the_same_data_set(client: Client, folder: Path, trained: Json):
    (folder / ".hidden").write_bytes(b"left out")
    assert client.upload_dataset(folder)["id"] == trained["dataset_id"]


def test_a_job_says_which_encoder_won_and_by_what(trained: Json):
    [choice] = trained["provenance"]["encoders"]
    assert choice["column"] == "image"
    assert set(choice["f1"]) == {"hlc", "rnd"}
    assert choice["f1"][choice["encoder"]] == max(choice["f1"].values())
    assert choice["encoder"] in choice["reason"]


def test_a_picture_has_the_same_score_in_all_ways(http: httpx.Client, client: Client, trained: Json):
    asked = picture("disc", np.random.default_rng(5))
    text = base64.b64encode(asked).decode()
    path = "/v1/models/shapes/classes/disc:query"
    first = http.post(path, content=asked, headers={"content-type": "image/jpeg"})
    assert first.status_code == 200, first.text
    wanted = first.json()["score"]
    form = {"file": ("face.jpg", asked, "image/jpeg")}
    url = f"data:image/jpeg;base64,{text}"
    bodies: list[Json] = [
        {"image": text},
        {"image": url},
        {"record": {"image": {"b64": text}}},
        {"record": {"image": text}},
        {"record": {"image": url}},
        {"x": {"image": {"b64": text}}},
    ]
    scores = [http.post(path, json=body).json().get("score") for body in bodies]
    scores.append(http.post(path, files=form).json().get("score"))
    scores.append(client.query("shapes", "disc", image=asked).score)
    lists: list[Json] = [
        {"images": [text, text]},
        {"records": [{"image": {"b64": text}}]},
        {"columns": {"image": [text]}},
    ]
    for body in lists:
        scores += [one["score"] for one in http.post(path, json=body).json()["results"]]
    by_classes = http.post("/v1/models/shapes:query", json={"image": text, "classes": ["disc", "cross"]})
    scores.append(by_classes.json()["classes"][0]["score"])
    raw = http.post(
        "/v1/models/shapes:query?class=disc&class=cross",
        content=asked,
        headers={"content-type": "image/jpeg"},
    )
    scores.append(raw.json()["classes"][0]["score"])
    assert scores == [wanted] * len(scores)


def test_an_own_encoder_is_compared_trained_with_and_asked(client: Client, trained: Json, tmp_path: Path):
    file = tmp_path / "own.onnx"
    file.write_bytes(network())
    own = client.add_encoder(file, expects=f"image:{SIDE}x{SIDE}:rgb:unit")
    client.add_encoder(file, expects=f"image:{SIDE}x{SIDE}:bgr:unit", name="other-input")

    def job(encoders: str) -> Json:
        columns = {"columns": {"image": {"encoder": encoders}}}
        submitted = client.submit_job(trained["dataset_id"], "own", {"inputs": columns})
        return dict(client.wait_for_job(submitted.id))

    compared = job("own,hlc,other-input")
    assert compared["state"] == "succeeded", compared
    [choice] = compared["provenance"]["encoders"]
    assert set(choice["f1"]) == {"own", "hlc", "other-input"}
    assert choice["f1"]["own"] != choice["f1"]["other-input"]
    alone = job("own")
    [choice] = alone["provenance"]["encoders"]
    assert (choice["encoder"], choice["f1"]) == ("own", {})
    named = alone["hyperparameters"]["inputs"]["columns"]["image"]["encoder"]
    assert named == f"own@{choice['identity']}"
    asked = picture("disc", np.random.default_rng(5))
    by_picture = client.query("own", "disc", image=asked)
    assert by_picture == client.query("own", "disc", image=asked)
    with pytest.raises(Problem, match=r"used by the version own@\d") as refused:
        client.delete_encoder(own["name"])
    assert refused.value.code == "encoder_in_use"
    with pytest.raises(Problem, match="There is no encoder 'unknown'"):
        job("hlc,unknown")


def test_answers_are_mostly_right(client: Client, trained: Json):
    rng = np.random.default_rng(77)
    shapes = [shape for shape in SHAPES for _ in range(5)]
    told = [client.predict("shapes", image=picture(shape, rng)) for shape in shapes]
    right = sum(one == shape for one, shape in zip(told, shapes, strict=True))
    assert right >= 11, told


WRONG: list[tuple[str, Ask | Any, int, str]] = [
    ("gif", b"GIF89a" + bytes(50), 415, "unsupported_image"),
    ("text", b"hello, this is no picture", 415, "unsupported_image"),
    ("half", None, 400, "broken_image"),
]


@pytest.mark.parametrize(("name", "content", "status", "code"), WRONG, ids=[one[0] for one in WRONG])
def test_what_is_no_picture_is_refused(
    http: httpx.Client, trained: Json, name: str, content: bytes | None, status: int, code: str
):
    if content is None:
        whole = picture("cross", np.random.default_rng(1))
        content = whole[: len(whole) // 2]
    response = http.post(
        "/v1/models/shapes/classes/disc:query", content=content, headers={"content-type": "image/jpeg"}
    )
    assert (response.status_code, response.json()["code"]) == (status, code), name


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"image": "https://example.org/a.jpg"}, "image_is_address"),
        ({"image": "no base64!"}, "bad_base64"),
        ({"image": 5}, "wrong_type"),
        ({"record": {"image": {"url": "x"}}}, "wrong_type"),
        ({"image": "", "text": "x"}, "wrong_body"),
        ({"embedding": [1.0, 2.0]}, "wrong_type"),
        ({"images": ["AAAA"] * 17}, "too_many_images"),
    ],
)
def test_a_wrong_body_is_refused_by_its_code(http: httpx.Client, trained: Json, body: Json, code: str):
    answer = http.post("/v1/models/shapes/classes/disc:query", json=body).json()
    codes = {answer.get("code"), *(fault["code"] for fault in answer.get("errors", ()))}
    assert code in codes, json.dumps(answer)


def test_a_form_has_one_file(http: httpx.Client, trained: Json):
    path = "/v1/models/shapes/classes/disc:query"
    forms: list[Json] = [{"data": {"a": "b"}, "files": {"x": (None, "no file")}}]
    forms.append({"files": [("a", ("1.jpg", b"1")), ("b", ("2.jpg", b"2"))]})
    for form in forms:
        answer = http.post(path, **form)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_form"), answer.text


def test_a_second_job_finds_the_vectors(service: Deployment, client: Client, trained: Json):
    job = client.submit_job(
        trained["dataset_id"], "again", {"inputs": {"columns": {"image": {"encoder": "rnd"}}}}
    )
    job = client.wait_for_job(job.id)
    assert job["state"] == "succeeded"
    [choice] = job["provenance"]["encoders"]
    assert (choice["encoder"], choice["f1"]) == ("rnd", {})
    stages = [event["data"].get("stage") for event in client.job_events(job.id)]
    assert "embed" not in stages


def test_models_without_pictures_take_none(http: httpx.Client, client: Client):
    rows = "a,b,kind\n" + "".join(f"{i},{i % 3},{'up' if i % 2 else 'down'}\n" for i in range(40))
    sent = http.post("/v1/datasets", content=rows.encode(), params={"format": "csv"}).json()
    job = client.wait_for_job(client.submit_job(sent["id"], "numbers", {"student": {"method": "gsvm"}}).id)
    assert job["state"] == "succeeded"
    for body in ({"image": "AAAA"}, {"embedding": [1.0]}):
        answer = http.post("/v1/models/numbers/classes/up:query", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "no_pictures"), answer.text


def test_rows_mix_pictures_and_other_columns(http: httpx.Client, client: Client):
    rng = np.random.default_rng(3)
    lines = []
    for number in range(24):
        shape = SHAPES[number % 2]
        text = base64.b64encode(picture(shape, rng, "PNG")).decode()
        lines.append(json.dumps({"photo": text, "price": number, "kind": shape}))
    sent = http.post(
        "/v1/datasets",
        content="\n".join(lines).encode(),
        params={"format": "jsonl", "columns": "photo:image", "label_column": "kind"},
    )
    assert sent.status_code == 201, sent.text
    job = client.submit_job(sent.json()["id"], "mixed", {"teacher": {"method": "ssvm"}})
    job = client.wait_for_job(job.id)
    assert job["state"] == "succeeded", job
    record = {"photo": {"b64": base64.b64encode(picture("disc", rng)).decode()}, "price": 3}
    answer = http.post("/v1/models/mixed/classes/disc:query", json={"record": record})
    assert answer.status_code == 200, answer.text
    faulty = http.post(
        "/v1/datasets",
        content=packed({**members(2), "disc/bad.jpg": b"no picture"}),
        params={"format": "zip"},
    )
    assert faulty.json()["errors"][0]["code"] == "unsupported_image", faulty.text
