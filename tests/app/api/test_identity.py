"""A key that was found in a file is sent only to a server that shows that it knows the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.commands.output import CommandFailed
from app.commands.remote import connect
from app.services.first_key import ensure_first_key
from app.services.keys import create_key
from app.store.unit_of_work import Store
from stms_client import Client, UnprovenServer
from stms_client.local_key import LocalKey, proof_of

NONCE = "0f" * 32
MODELS = "http://127.0.0.1:8123/v1/models"


@pytest.fixture
def text(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first key, which programs find in the data folder."""
    file = ensure_first_key(store, tmp_path)
    assert file is not None
    monkeypatch.delenv("STMS_API_KEY", raising=False)
    monkeypatch.setenv("STMS_DATA_DIR", str(tmp_path))
    return file.read_text(encoding="ascii").strip()


def test_a_server_that_knows_the_key_gets_it(make_client: Any, store: Store, text: str) -> None:
    client = make_client(require_keys=True)
    key = LocalKey(text)
    assert client.get(MODELS, auth=key).status_code == 200
    assert client.get(MODELS, auth=key).status_code == 200
    assert client.get(MODELS).status_code == 401


def test_the_proof_is_of_this_port_and_this_key(make_client: Any, store: Store, text: str) -> None:
    client = make_client(require_keys=True)
    other = create_key(store, "other", {"query"})[1]
    client.refresh()
    for known in (text, other):
        answer = client.get(f"http://127.0.0.1:8123/identity?key={known[5:33]}&nonce={NONCE}")
        assert answer.status_code == 204
        assert answer.headers["stms-proof"].encode() == proof_of(known, NONCE, 8123)
        assert answer.headers["stms-proof"].encode() != proof_of(known, NONCE, 8124)
    unknown = client.get(f"/identity?key=key_{'f' * 24}&nonce={NONCE}")
    assert (unknown.status_code, "stms-proof" in unknown.headers) == (204, False)
    for query in ("", f"key={text[5:33]}&nonce=1", f"key=x&nonce={NONCE}", f"key={text}&nonce={NONCE}"):
        assert client.get(f"/identity?{query}").status_code == 400
    with pytest.raises(UnprovenServer):
        client.get(MODELS, auth=LocalKey(text[:-1] + ("A" if text[-1] != "A" else "B")))


def test_a_server_without_keys_is_asked_without_the_key(make_client: Any, text: str) -> None:
    client = make_client()
    answer = client.get(MODELS, auth=LocalKey(f"stms_key_{'f' * 24}_{'A' * 43}"))
    assert answer.status_code == 200
    assert "authorization" not in answer.request.headers


@pytest.mark.parametrize(
    "answer", [(b"", 204, {}), (b"", 200, {"stms-proof": "ab" * 32}), (b"x" * 9, 404, {})]
)
def test_another_listener_does_not_get_the_key(
    written: Any, text: str, answer: tuple[bytes, int, dict[str, str]]
) -> None:
    body, status, headers = answer
    written.on("GET", "/identity", body or None, status, **headers)
    with connect(written.address, None) as server, pytest.raises(CommandFailed, match="was not sent"):
        list(server.models())
    with Client(written.address) as client, pytest.raises(UnprovenServer):
        next(iter(client.pages("/v1/models")))
    assert {request.path.partition("?")[0] for request in written.requests} == {"/identity"}
    assert text not in str([request.headers for request in written.requests])


def test_a_key_that_was_named_is_sent_as_asked(
    written: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.on("GET", "/v1/models", {"data": [], "has_more": False})
    monkeypatch.setenv("STMS_API_KEY", "stms_mine")
    for key, sent in ((None, "Bearer stms_mine"), (text, f"Bearer {text}")):
        with connect(written.address, key) as server:
            list(server.models())
        assert written.requests[-1].headers["Authorization"] == sent


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda file: file.chmod(0o640), "chmod 600"),
        (lambda file: file.chmod(0o602), "chmod 600"),
        (None, "belongs to another user"),
    ],
)
def test_a_file_of_others_is_not_used(
    written: Any,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path], None] | None,
    reason: str,
) -> None:
    if harm is None:
        monkeypatch.setattr("stms_client.local_key.os.geteuid", lambda: 12345)
    else:
        harm(tmp_path / "admin.key")
    with pytest.raises(CommandFailed, match=reason), connect(written.address, None):
        pass
    assert written.requests == []


def test_line_ends_of_a_named_key_are_left_out_and_no_message_holds_it(
    written: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.on("GET", "/v1/models", {"data": [], "has_more": False})
    monkeypatch.setenv("STMS_API_KEY", f" {text}\r\n")
    for key in (None, f"{text}\n"):
        with connect(written.address, key) as server:
            list(server.models())
        assert written.requests[-1].headers["Authorization"] == f"Bearer {text}"
    for broken in (f"{text[:20]}\n{text[20:]}", f"{text}é", f"{text}\0"):
        with pytest.raises(CommandFailed) as caught, connect(written.address, broken):
            pass
        assert text[:20] not in str(caught.value)
