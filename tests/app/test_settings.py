from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

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
    assert "secret" not in repr(settings)


def test_an_sqlite_address_leaves_the_jobs_in_the_data_folder(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=SecretStr("sqlite:////elsewhere/a.sqlite"))
    assert settings.app_database_url == "sqlite:////elsewhere/a.sqlite"
    assert settings.jobs_database_url == f"sqlite:///{tmp_path}/jobs.sqlite"


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STMS_PORT", "9000")
    assert Settings().port == 9000
    monkeypatch.setenv("STMS_LOG_LEVEL", "LOUD")
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize("name", ["STMS_API_PROCESSES", "STMS_WORKERS"])
def test_api_processes_can_be_set_by_its_old_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3")
    assert Settings().api_processes == 3
    assert Settings(api_processes=2).api_processes == 2


def test_the_new_name_of_a_setting_takes_precedence_over_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STMS_WORKERS", "3")
    monkeypatch.setenv("STMS_API_PROCESSES", "4")
    assert Settings().api_processes == 4
