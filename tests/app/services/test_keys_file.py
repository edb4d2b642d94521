"""API keys from a file: the file is the truth, and a file that cannot be used changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from app.domain.entities import ApiKey
from app.domain.errors import NotAuthenticated
from app.services.keys import KeyRing, all_keys, make_key
from app.services.keys_file import BadKeysFile, KeysFile, line_of
from app.store.unit_of_work import Store


def write(path: Path, *keys: ApiKey) -> None:
    """Replace the file, as an orchestrator does."""
    beside = path.with_suffix(".new")
    beside.write_text("".join(map(line_of, keys)))
    beside.rename(path)


def valid(store: Store) -> set[str]:
    return {key.id for key in all_keys(store) if key.revoked_at is None}


def test_the_keys_are_those_of_the_file(store: Store, tmp_path: Path):
    path = tmp_path / "keys"
    camera, text = make_key("camera", ["query"], ["faces"], expires_at=time.time() + 60.0)
    robot, other = make_key("robot", ["query", "download"], [])
    write(path, camera, robot)
    file, ring = KeysFile(store, path), KeyRing()
    assert file.follow()
    ring.reload(store)
    assert ring.authenticate(text).models == {"faces"}
    assert ring.authenticate(other).scopes == {"query", "download"}
    assert not file.follow()

    # One key is removed, the other has another secret and may do less.
    renewed, newer = make_key("robot", ["query"], [])
    write(path, dataclasses.replace(robot, digest=renewed.digest, scopes=frozenset({"query"})))
    assert file.follow()
    ring.reload(store)
    assert valid(store) == {robot.id}
    assert ring.authenticate(newer.replace(renewed.id, robot.id)).scopes == {"query"}
    for gone in (text, other):
        with pytest.raises(NotAuthenticated, match=r"revoked|unknown"):
            ring.authenticate(gone)

    # A key that comes back is valid again.
    write(path, camera, robot)
    assert file.follow()
    ring.reload(store)
    assert ring.authenticate(text).name == "camera"
    with store.read() as uow:
        actions = [record.action for record in uow.audit.page(limit=20)[0]]
    assert sorted(actions) == ["key.change"] * 3 + ["key.create"] * 2 + ["key.revoke"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "has no keys"),
        ("\n\n", "has no keys"),
        ("nonsense\n", "line 1 is not a key"),
        ("[]\n", "line 1 is not a key"),
        ('{"id": "key_1"}\n', "line 1 is not a key"),
        ("\xff\n", "line 1 is not a key"),
        ("{GOOD}\n{ADMIN}\n", "line 2 is not a key"),
        ("{GOOD}\n{NAMELESS}\n", "line 2: The name of a key"),
        ("{GOOD}\n{EXPIRED}\n", "line 2: The expiry"),
        ("{GOOD}\n{GOOD}\n", "twice"),
        ("{GOOD}\n{UNKNOWN}\n", "line 2 is not a key"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(store: Store, tmp_path: Path, content: str, text: str):
    path = tmp_path / "keys"
    key, _ = make_key("camera", ["query"], [])
    write(path, key)
    file = KeysFile(store, path)
    assert file.follow()
    good = json.loads(line_of(make_key("other", ["query"], [])[0]))
    for name, changed in {
        "GOOD": {},
        "ADMIN": {"scopes": ["admin"]},
        "NAMELESS": {"name": ""},
        "EXPIRED": {"expires_at": 1.0},
        "UNKNOWN": {"tenant": "other"},
    }.items():
        content = content.replace(f"{{{name}}}", json.dumps(good | changed))
    path.write_bytes(content.encode("latin-1"))
    for _ in range(2):
        with pytest.raises(BadKeysFile, match=text):
            file.follow()
        assert valid(store) == {key.id}


def test_a_missing_file_and_one_without_end_are_refused(store: Store, tmp_path: Path):
    with pytest.raises(BadKeysFile, match="cannot be read: No such file"):
        KeysFile(store, tmp_path / "absent").follow()
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        os.truncate(file.fileno(), 17 * 1024**2)
    with pytest.raises(BadKeysFile, match="has more than"):
        KeysFile(store, endless).follow()
