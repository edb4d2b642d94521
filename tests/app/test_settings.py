from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from app.secret_files import BadSecretFile, ExposedSecretFile
from app.settings import Settings


def test_the_default_is_sqlite_in_the_data_folder(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.embedded
    assert settings.app_database_url == f"sqlite:///{tmp_path}/stms.sqlite"
    assert settings.jobs_database_url == f"sqlite:///{tmp_path}/jobs.sqlite"


def test_a_postgresql_address_is_used_for_data_and_jobs() -> None:
    address = "postgresql://stms:secret@db/stms"
    settings = Settings(database_url=SecretStr(address))
    assert not settings.embedded
    assert settings.app_database_url == settings.jobs_database_url == address
    assert ":secret@" not in repr(settings)


def test_an_sqlite_address_leaves_the_jobs_in_the_data_folder(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=SecretStr("sqlite:////elsewhere/a.sqlite"))
    assert settings.app_database_url == "sqlite:////elsewhere/a.sqlite"
    assert settings.jobs_database_url == f"sqlite:///{tmp_path}/jobs.sqlite"


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_address_means_sqlite_in_the_data_folder(tmp_path: Path, empty: str):
    settings = Settings(data_dir=tmp_path, database_url=SecretStr(empty))
    assert settings.app_database_url == f"sqlite:///{tmp_path}/stms.sqlite"


@pytest.mark.parametrize("wrong", ["stms.sqlite", "postgres://stms:hidden@db/stms", "mysql://db/stms"])
def test_an_address_of_another_database_is_refused_without_showing_it(wrong: str):
    with pytest.raises(ValidationError, match="must begin with postgresql:// or sqlite:///") as refused:
        Settings(database_url=SecretStr(wrong))
    assert "hidden" not in str(refused.value)


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STMS_PORT", "9000")
    assert Settings().port == 9000
    monkeypatch.setenv("STMS_LOG_LEVEL", "LOUD")
    with pytest.raises(ValidationError):
        Settings()


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of secrets as Kubernetes mounts it: links to links to files, which a group may read."""
    folder = tmp_path / "secrets"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026")
    monkeypatch.setenv("STMS_SECRETS_DIR", str(folder))
    for name in ("STMS_DATABASE_URL", "STMS_PORT", "STMS_API_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    return folder


def write(folder: Path, name: str, text: str | bytes, mode: int = 0o440) -> Path:
    path = folder / "..2026" / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    (folder / name).symlink_to(f"..data/{name}")
    return path


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n"])
def test_every_setting_can_be_a_file(secrets: Path, ending: str) -> None:
    write(secrets, "STMS_DATABASE_URL", f"postgresql://stms:a b @db/stms{ending}")
    write(secrets, "stms_remote_teacher_tokens", f'{{"https://triton.example.com": "abc"}}{ending}')
    write(secrets, "STMS_API_PROCESSES", f"3{ending}")
    write(secrets, "STMS_LOG_LEVEL", f"ERROR{ending}")
    settings = Settings()
    assert settings.app_database_url == "postgresql://stms:a b @db/stms"
    assert settings.remote_teacher_tokens["https://triton.example.com"].get_secret_value() == "abc"
    assert (settings.api_processes, settings.log_level) == (3, "ERROR")


def test_other_files_are_not_read(secrets: Path) -> None:
    write(secrets, "PORT", "9000", 0o644)
    write(secrets, "STMS_API_KEY", "stms_mine", 0o644)
    assert Settings().port == 8000


def test_a_variable_comes_before_the_file_and_an_argument_before_both(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(secrets, "STMS_PORT", "11")
    assert Settings().port == 11
    monkeypatch.setenv("STMS_PORT", "12")
    assert Settings().port == 12
    assert Settings(port=13).port == 13


@pytest.mark.parametrize("mode", [0o644, 0o444, 0o604, 0o602])
def test_a_file_that_others_can_read_or_change_is_refused(secrets: Path, mode: int) -> None:
    """The mode of the file counts, not that of the link, which is always 0777."""
    path = write(secrets, "STMS_DATABASE_URL", "sqlite:////a.sqlite", mode)
    with pytest.raises(ExposedSecretFile, match=rf"{mode:04o}.*`chmod 600 .*`defaultMode: 0400`"):
        Settings()
    path.chmod(0o640)
    assert Settings().embedded


def test_files_that_cannot_be_used_are_named_without_their_text(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(secrets, "STMS_DATABASE_URL", b"secret\xff")
    with pytest.raises(BadSecretFile, match=r"STMS_DATABASE_URL is not UTF-8 text\.$"):
        Settings()
    path.write_bytes(b"x" * (1024**2 + 1))
    with pytest.raises(BadSecretFile, match="has more than 1048576 bytes"):
        Settings()
    path.unlink()
    with pytest.raises(BadSecretFile, match="STMS_DATABASE_URL cannot be read: No such file"):
        Settings()
    os.mkfifo(path, 0o600)
    with pytest.raises(BadSecretFile, match="is not a file"):
        Settings()
    path.unlink()
    path.write_text("sqlite:////a.sqlite")
    path.chmod(0o600)
    assert Settings().embedded
    write(secrets, "stms_database_url", "sqlite:////b.sqlite")
    with pytest.raises(BadSecretFile, match="two files for STMS_DATABASE_URL"):
        Settings()
    monkeypatch.setenv("STMS_SECRETS_DIR", str(secrets / "none"))
    with pytest.raises(BadSecretFile, match=r"STMS_SECRETS_DIR, .*/none, cannot be read: No such file"):
        Settings()


def test_an_object_store_has_a_bucket_a_prefix_and_credentials():
    secret = SecretStr("hidden")
    settings = Settings(
        blobs="s3://bucket/a/b/",
        blobs_endpoint="https://objects.example.com/",
        blobs_key_id="key",
        blobs_secret=secret,
    )
    address = settings.object_address
    assert address is not None
    assert (address.bucket, address.prefix, address.endpoint) == (
        "bucket",
        "a/b",
        "https://objects.example.com",
    )
    assert address.secret == "hidden"
    assert "hidden" not in repr(settings) + repr(address)
    assert Settings().object_address is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"blobs": "gs://bucket"},
        {"blobs": "s3://Bucket"},
        {"blobs": "bucket/prefix"},
        {"blobs": "s3://bucket/../other"},
        {"blobs": "s3://bucket", "blobs_endpoint": "https://objects.example.com/path"},
        {"blobs": "s3://bucket", "blobs_public_endpoint": "objects.example.com"},
        {"blobs": "s3://bucket", "blobs_key_id": "key"},
        {"uploads": "presigned"},
        {"uploads": "never"},
    ],
)
def test_what_is_no_object_store_is_refused(wrong: dict[str, str]):
    with pytest.raises(ValidationError):
        Settings(**wrong)
