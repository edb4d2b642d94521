"""The first API key and its file: made once, private, and never by opening the server instead."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from app.domain.errors import NotAuthenticated
from app.secret_files import BadSecretFile, ExposedSecretFile
from app.services.first_key import (
    FIRST_KEY_ID,
    FirstKey,
    NoFirstKey,
    ensure_first_key,
    provide_first_key,
    replace_first_key,
)
from app.services.keys import KeyRing, all_keys, create_key, new_text, revoke_key
from app.settings import Settings
from app.store.unit_of_work import Store
from stms_client.local_key import find_api_key


def text_in(folder: Path) -> str:
    return (folder / "admin.key").read_text().strip()


def test_the_first_key_is_made_once_and_its_file_is_private(store: Store, tmp_path: Path):
    folder = tmp_path / "new" / "data"
    assert ensure_first_key(store, folder) == folder / "admin.key"
    assert stat.S_IMODE((folder / "admin.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert KeyRing(all_keys(store)).authenticate(text_in(folder)).scopes == {"admin", "operator"}
    assert ensure_first_key(store, folder) is None
    assert [path.name for path in folder.iterdir()] == ["admin.key"]
    with store.read() as uow:
        assert [row.object for row in uow.audit.page(limit=10)[0]] == [FIRST_KEY_ID]


def test_an_installation_with_keys_gets_no_first_key(sqlite_store: Store, tmp_path: Path):
    key, _ = create_key(sqlite_store, "old", {"query"})
    revoke_key(sqlite_store, key.id)
    assert ensure_first_key(sqlite_store, tmp_path) is None
    assert not (tmp_path / "admin.key").exists()


def test_after_a_crash_before_the_key_was_stored_the_key_in_the_file_is_stored(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr("app.store.repositories.keys.Keys.add_first", fail)
        with pytest.raises(RuntimeError):
            ensure_first_key(sqlite_store, tmp_path)
    text = text_in(tmp_path)
    ensure_first_key(sqlite_store, tmp_path)
    assert text_in(tmp_path) == text
    assert KeyRing(all_keys(sqlite_store)).authenticate(text).id == FIRST_KEY_ID


def fail(*_arguments: object) -> bool:
    raise RuntimeError("crash")


def given_key(folder: Path, text: str = "", mode: int = 0o600) -> Settings:
    """Settings of a server whose STMS_FIRST_KEY_FILE has ``text``, at first that of a new key."""
    path = folder / "first.key"
    path.write_text(text or f"{new_text(FIRST_KEY_ID)}\n")
    path.chmod(mode)
    return Settings(data_dir=folder / "data", first_key_file=path, require_keys=True)


def test_a_key_in_a_file_is_stored_once_and_never_said(store: Store, tmp_path: Path):
    settings = given_key(tmp_path)
    text = (tmp_path / "first.key").read_text().strip()
    said = provide_first_key(store, settings)
    assert said.made is None
    assert "is now stored" in str(said.note)
    [key] = all_keys(store)
    assert KeyRing([key]).authenticate(text).scopes == {"admin", "operator"}
    assert not (tmp_path / "data").exists()
    again = provide_first_key(store, settings)
    assert "STMS_FIRST_KEY_FILE is ignored, since there are API keys, among them" in str(again.note)
    assert text.removeprefix(f"stms_{FIRST_KEY_ID}_") not in f"{said} {again}"
    with store.read() as uow:
        [record] = uow.audit.page(limit=10)[0]
    assert (record.action, record.object) == ("key.create", FIRST_KEY_ID)
    assert record.details == {"name": "first", "scopes": ["admin", "operator"], "models": 0}


@pytest.mark.parametrize("same_text", [True, False])
def test_pods_that_start_at_once_store_one_key_of_their_files(store: Store, tmp_path: Path, same_text: bool):
    texts = [new_text(FIRST_KEY_ID) for _ in range(6)]
    folders = [tmp_path / str(number) for number in range(6)]
    barrier, notes = threading.Barrier(6), []

    def start(folder: Path, settings: Settings) -> None:
        barrier.wait()
        notes.append(str(provide_first_key(store, settings).note))

    threads = []
    for number, folder in enumerate(folders):
        folder.mkdir()
        settings = given_key(folder, texts[0 if same_text else number])
        threads.append(threading.Thread(target=start, args=(folder, settings)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [key] = all_keys(store)
    assert len(notes) == 6
    assert sum("is now stored" in note for note in notes) == 1
    assert sum("is not valid" in note for note in notes) == (0 if same_text else 5)
    with store.read() as uow:
        assert len(uow.audit.page(limit=10)[0]) == 1
    assert KeyRing([key]).known(FIRST_KEY_ID) == key


@pytest.mark.parametrize("content", ["garbage", "", "stms_key_" + "a" * 24 + "_" + "b" * 43, None])
def test_a_file_without_a_first_key_stops_the_start_only_if_there_is_no_key(
    sqlite_store: Store, tmp_path: Path, content: str | None
):
    settings = given_key(tmp_path, "x")
    path = tmp_path / "first.key"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(BadSecretFile, match=r"first\.key") as raised:
        provide_first_key(sqlite_store, settings)
    assert "garbage" not in str(raised.value)
    assert all_keys(sqlite_store) == []
    create_key(sqlite_store, "other", {"query"})
    assert "is ignored, since there are API keys" in str(provide_first_key(sqlite_store, settings).note)
    assert len(all_keys(sqlite_store)) == 1


def test_keys_of_before_are_kept_and_the_one_in_the_file_is_not_valid(sqlite_store: Store, tmp_path: Path):
    revoke_key(sqlite_store, create_key(sqlite_store, "old", {"query"})[0].id)
    settings = given_key(tmp_path)
    assert "is not valid" in str(provide_first_key(sqlite_store, settings).note)
    with pytest.raises(NotAuthenticated):
        KeyRing(all_keys(sqlite_store)).authenticate((tmp_path / "first.key").read_text().strip())


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_first_key_that_others_can_read_stops_every_start(
    sqlite_store: Store, tmp_path: Path, has_keys: bool
):
    if has_keys:
        create_key(sqlite_store, "other", {"query"})
    settings = given_key(tmp_path, mode=0o644)
    with pytest.raises(ExposedSecretFile, match=r"chmod 600 .*defaultMode: 0400"):
        provide_first_key(sqlite_store, settings)
    assert len(all_keys(sqlite_store)) == has_keys
    (tmp_path / "first.key").chmod(0o440)
    assert provide_first_key(sqlite_store, settings).note


def test_a_server_without_keys_needs_no_first_key(sqlite_store: Store, tmp_path: Path):
    settings = given_key(tmp_path).model_copy(update={"require_keys": False})
    note = "STMS_FIRST_KEY_FILE is ignored, since STMS_REQUIRE_KEYS is false."
    assert provide_first_key(sqlite_store, settings) == FirstKey(note=note)
    assert all_keys(sqlite_store) == []
    path = tmp_path / "data" / "admin.key"
    assert provide_first_key(sqlite_store, Settings(data_dir=path.parent, require_keys=True)) == FirstKey(
        made=path
    )


@pytest.mark.parametrize("same_folder", [True, False])
def test_servers_that_start_at_once_make_one_key(store: Store, tmp_path: Path, same_folder: bool):
    folders = [tmp_path / ("one" if same_folder else str(number)) for number in range(6)]
    barrier, errors = threading.Barrier(len(folders)), []

    def start(folder: Path) -> None:
        barrier.wait()
        try:
            ensure_first_key(store, folder)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=start, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    [key] = all_keys(store)
    texts = {text_in(folder) for folder in folders if (folder / "admin.key").exists()}
    assert [KeyRing([key]).authenticate(text) for text in texts] == [key]


@pytest.mark.parametrize("content", ["", "stms_key_" + "a" * 24 + "_" + "b" * 43, "something else"])
def test_a_file_that_holds_no_first_key_is_not_replaced(sqlite_store: Store, tmp_path: Path, content: str):
    path = tmp_path / "admin.key"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(NoFirstKey, match="stms keys create"):
        ensure_first_key(sqlite_store, tmp_path)
    assert path.read_text() == content
    assert all_keys(sqlite_store) == []


def test_a_file_that_others_may_read_or_a_link_is_not_trusted(sqlite_store: Store, tmp_path: Path):
    ensure_first_key(sqlite_store, tmp_path / "other")
    path = tmp_path / "admin.key"
    path.write_text(text_in(tmp_path / "other"))
    path.chmod(0o640)
    with sqlite_store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM api_keys")
    with pytest.raises(NoFirstKey, match="private"):
        ensure_first_key(sqlite_store, tmp_path)
    path.unlink()
    path.symlink_to(tmp_path / "other" / "admin.key")
    with pytest.raises(NoFirstKey):
        ensure_first_key(sqlite_store, tmp_path)


def test_a_folder_that_cannot_be_made_is_reported_with_the_way_out(sqlite_store: Store, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(NoFirstKey, match="stms keys create NAME --scope operator"):
        ensure_first_key(sqlite_store, tmp_path / "file" / "data")
    assert all_keys(sqlite_store) == []


def test_a_client_finds_the_key_of_this_machine_only(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ensure_first_key(sqlite_store, tmp_path / "stms-data")
    text = text_in(tmp_path / "stms-data")
    monkeypatch.delenv("STMS_API_KEY", raising=False)
    monkeypatch.delenv("STMS_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert find_api_key("127.0.0.1") == text
    assert find_api_key("example.org") is None
    assert find_api_key(None) is None
    monkeypatch.setenv("STMS_DATA_DIR", str(tmp_path))
    assert find_api_key("localhost") is None
    monkeypatch.setenv("STMS_API_KEY", "stms_mine")
    assert find_api_key("localhost") == find_api_key("example.org") == "stms_mine"
    assert replace_first_key(tmp_path, text) is False
    replace_first_key(tmp_path / "stms-data", "new")
    assert text_in(tmp_path / "stms-data") == "new"
    assert stat.S_IMODE((tmp_path / "stms-data" / "admin.key").stat().st_mode) == 0o600
