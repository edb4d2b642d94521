"""Secrets in files that an orchestrator mounts: single files, and a folder with one file a setting."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_settings import BaseSettings, EnvSettingsSource

from app.domain.errors import SetupError

_MAX_BYTES: Final = 1024**2
_OF_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH


class BadSecretFile(SetupError):
    """A file with a secret cannot be used."""


class ExposedSecretFile(BadSecretFile):
    """Others than the user and the group of a file with a secret can read or change it."""


def read_secret(path: Path) -> str:
    """The text of a file without the line ends after it.

    The mode is that of the file which symbolic links lead to. Its group may read it, as containers of
    Kubernetes do with fsGroup. Raises BadSecretFile, among them ExposedSecretFile.
    """
    try:
        # A pipe without a writer must not stop the start for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            _check(path, status)
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadSecretFile(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > _MAX_BYTES:
        raise BadSecretFile(f"{path} has more than {_MAX_BYTES} bytes.")
    try:
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise BadSecretFile(f"{path} is not UTF-8 text.") from None


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadSecretFile(f"{path} is not a file.")
    if status.st_mode & _OF_OTHERS:
        raise ExposedSecretFile(
            f"Other users can read or change the secret in {path} (mode {stat.S_IMODE(status.st_mode):04o}). "
            f"Run `chmod 600 {path}`; in Kubernetes, set `defaultMode: 0400` for the volume of the secret."
        )


class SecretFiles(EnvSettingsSource):
    """Reads settings from the folder ``secrets_dir``, a setting that an earlier source of settings gives.

    A file has the name of the environment variable, in any case, and counts if the variable is not set.
    Other files are not read. Calling it raises BadSecretFile.
    """

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {}

    def __call__(self) -> dict[str, Any]:
        folder = self.current_state.get("secrets_dir")
        if not folder:
            return {}
        self.env_vars = self._texts(Path(folder))
        return super().__call__()

    def _texts(self, folder: Path) -> Mapping[str, str | None]:
        """Texts of the files that belong to settings, by the name of the variable in lower case."""
        texts: dict[str, str | None] = {}
        wanted = self._variables()
        try:
            paths = sorted(folder.iterdir())
        except OSError as error:
            message = f"The folder of STMS_SECRETS_DIR, {folder}, cannot be read: {error.strerror or error}"
            raise BadSecretFile(message) from error
        for path in paths:
            name = path.name.lower()
            if name not in wanted:
                continue
            if name in texts:
                raise BadSecretFile(f"{folder} has two files for {name.upper()}.")
            texts[name] = read_secret(path)
        return texts

    def _variables(self) -> set[str]:
        """The variables of settings that no earlier source gives, in lower case."""
        names: set[str] = set()
        for name, field in self.settings_cls.model_fields.items():
            if name not in self.current_state:
                names.update(variable for _, variable, _ in self._extract_field_info(field, name))
        return names
