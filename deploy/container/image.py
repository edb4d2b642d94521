"""Builds and inspects the image."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.container.engines import ROOT, Engine, EngineFailed, bases

IMAGE: Final = "localhost/stms:smoke"
BUILD_SECONDS: Final = 1800.0
MEGABYTE: Final = 1e6
LARGEST_MB: Final = {"runtime": 700.0, "serving": 300.0}
"""Limits by the locked set that is installed."""


@dataclass(frozen=True)
class Image:
    """A built image. lock: what is installed, see `LARGEST_MB`.

    seconds: duration of the build, close to zero if all layers were cached.
    """

    name: str
    lock: str
    size_mb: float
    base_mb: float
    seconds: float
    config: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        """Labels and settings of the image."""
        return dict(self.config.get("Labels") or {})


def project_version(root: Path = ROOT) -> str:
    """The version in pyproject.toml."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def base_images(root: Path = ROOT, *, composed: bool = False) -> list[str]:
    """Images that a build needs, and for Compose also those of the other services."""
    compose = (root / "docker-compose.yml").read_text(encoding="utf-8") if composed else ""
    return bases((root / "Dockerfile").read_text(encoding="utf-8"), compose)


def build(engine: Engine, lock: str = "runtime", root: Path = ROOT) -> Image:
    """Build the image of the tree at ``root`` with the packages of a locked set.

    Raises EngineFailed with the end of the build log.
    """
    name = f"{IMAGE}-{lock}"
    arguments = [
        "--build-arg",
        f"LOCK={lock}",
        "--build-arg",
        f"VERSION={project_version(root)}",
        "--build-arg",
        f"REVISION={_revision(root)}",
    ]
    started = time.monotonic()
    engine.run("build", *engine.build_flags, *arguments, "--tag", name, str(root), timeout=BUILD_SECONDS)
    seconds = time.monotonic() - started
    found = _inspect(engine, name)
    [base] = base_images(root)
    return Image(
        name,
        lock,
        found["Size"] / MEGABYTE,
        _inspect(engine, base)["Size"] / MEGABYTE,
        seconds,
        found["Config"] | {"Healthcheck": found["Config"].get("Healthcheck") or found.get("Healthcheck")},
    )


def _inspect(engine: Engine, image: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(engine.run("image", "inspect", image))
    if len(found) != 1:
        raise EngineFailed(f"{len(found)} images are named {image}.")
    return found[0]


def _revision(root: Path) -> str:
    """The commit that is checked out; "unknown" outside a repository."""
    done = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--verify", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"
