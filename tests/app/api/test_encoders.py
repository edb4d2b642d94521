"""Own encoders by the API and the client: added after a real trial, listed, refused and deleted."""

from __future__ import annotations

from app.encoders.pool import EncoderPool
from app.encoders.specification import EncoderSpecification
from app.services.keys import create_key
from app.services.own_encoders import encoder_file
from tests.app.encoders.onnx_files import HOSTILE, SIDE, network
from tests.pictures import good

PATH = "/v1/encoders"
INPUT = f"image:{SIDE}x{SIDE}:rgb:imagenet"


def add(client, file=None, headers=None, **params):
    given = {"name": "own", "input": INPUT} | params
    content = network() if file is None else file
    return client.post(PATH, params=given, content=content, headers=headers or {})


def test_an_encoder_is_added_once_and_gives_the_same_vectors_from_its_stored_file(client, store):
    made = add(client, licence="Apache-2.0")
    assert made.status_code == 201, made.text
    document = made.json()
    assert (document["name"], document["width"], document["kind"]) == ("own", 64, "image")
    assert document["licence"] == "Apache-2.0"
    assert document["size"] == len(network())
    assert made.headers["location"] == f"{PATH}/own"
    again = add(client)
    assert (again.status_code, again.json()) == (200, document)
    assert client.get(f"{PATH}/own").json() == document
    assert client.get(PATH).json()["data"] == [document]
    specification = EncoderSpecification(**document["specification"])
    pool = EncoderPool(file=encoder_file(store))
    try:
        [vector] = pool.vectors(specification, [good()["jpeg"]], tenant="default")
        assert vector.shape == (64,)
    finally:
        pool.close_now()
    assert client.delete(f"{PATH}/own").status_code == 204
    missing = client.get(f"{PATH}/own")
    assert (missing.status_code, missing.json()["code"]) == (404, "encoder_not_found")


def test_files_and_names_that_are_refused(client):
    loop = add(client, HOSTILE["loop of 2^62 turns"][1]())
    assert (loop.status_code, loop.json()["code"]) == (400, "bad_operator")
    for name in ("hlc", "words"):
        taken = add(client, name=name)
        assert (taken.status_code, taken.json()["code"]) == (400, "encoder_name_taken")
    assert add(client).status_code == 201
    other = add(client, network(seed=1))
    assert (other.status_code, other.json()["code"]) == (409, "encoder_name_taken")
    for wrong in ("image:1x1:rgb:unit", "image:32x64:rgb:unit", "text:32"):
        refused = add(client, name="other", input=wrong)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_encoder_input")


def test_limits_of_bytes_and_of_numbers(make_client, monkeypatch):
    size = len(network())
    client = make_client(max_encoder_bytes=size, max_tenant_encoder_bytes=size)
    assert add(client).status_code == 201
    full = add(client, name="second")
    assert (full.status_code, full.json()["code"]) == (413, "quota_encoder_bytes")
    assert add(client, network() + b"\0", name="second").status_code == 413
    monkeypatch.setattr("app.services.own_encoders.MAX_ENCODERS", 1)
    many = add(client, name="second")
    assert (many.status_code, many.json()["code"]) == (409, "too_many_encoders")


def test_own_encoders_can_be_off_and_need_an_administrator(make_client, store):
    client = make_client(user_encoders=False)
    off = add(client)
    assert (off.status_code, off.json()["code"]) == (403, "own_encoders_off")
    keyed = make_client(require_keys=True)
    _, text = create_key(store, "trainer", {"train"})
    keyed.refresh()
    assert add(keyed, headers={"authorization": f"Bearer {text}"}).status_code == 403
