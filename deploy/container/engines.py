"""Finds a container engine and provides its base images.

Docker is used if its daemon answers, otherwise podman. Missing base images are pulled from a registry.
Without a registry, podman can use images that a *kit* builds locally: a folder with a program ``make-base``
and a file ``env`` to be sourced, which ``STMS_CONTAINER_BASE`` names or which is next to the project.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KIT_BESIDE: Final = ROOT.parent / "shared" / "container"
ANSWER_SECONDS: Final = 30.0
PULL_SECONDS: Final = 600.0
MAKE_SECONDS: Final = 900.0


class Missing(Exception):
    """There is no engine or no base image, so the image cannot be tested."""


class EngineFailed(Exception):
    """The engine failed; the message contains its output."""


@dataclass(frozen=True)
class Engine:
    """A program with Docker's command line. environ: additional environment variables of each call."""

    program: str
    environ: Mapping[str, str]
    build_flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``docker`` or ``podman``."""
        return Path(self.program).name

    def try_run(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command and return its result; a timeout or a failed start counts as a failure."""
        command = [self.program, *arguments]
        try:
            return subprocess.run(
                command,
                env=os.environ | dict(self.environ),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return subprocess.CompletedProcess(command, 1, "", str(error))

    def run(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run a command; returns its standard output. Raises EngineFailed."""
        done = self.try_run(*arguments, timeout=timeout)
        if done.returncode != 0:
            called = " ".join([self.name, *arguments])
            raise EngineFailed(f"{called}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout.strip()

    def why_not(self) -> str | None:
        """Why the engine cannot be used; None if it answers."""
        if shutil.which(self.program) is None:
            return "is not installed"
        done = self.try_run("info", timeout=ANSWER_SECONDS)
        # Docker's command exits with code 0 and an error message if its daemon does not run.
        said = done.stdout + done.stderr
        if done.returncode != 0 or re.search(r"cannot connect to the docker daemon", said, re.IGNORECASE):
            return f"does not answer ({_last_line(done.stderr or said)})"
        return None

    def has(self, image: str) -> bool:
        """Whether the engine has an image."""
        return self.try_run("image", "inspect", image).returncode == 0

    def pull(self, image: str) -> str | None:
        """Pull an image from a registry; returns the reason of a failure, otherwise None."""
        done = self.try_run("pull", "--quiet", image, timeout=PULL_SECONDS)
        return None if done.returncode == 0 else _last_line(done.stderr)


@dataclass(frozen=True)
class Kit:
    """A kit that builds base images locally: a folder with ``make-base`` and ``env``."""

    folder: Path

    @classmethod
    def find(cls, environ: Mapping[str, str], beside: Path = KIT_BESIDE) -> Kit | None:
        """The kit that ``STMS_CONTAINER_BASE`` names (folder or program), or the one next to the project.

        Raises Missing if the named kit does not exist.
        """
        named = environ.get("STMS_CONTAINER_BASE")
        folder = beside if not named else Path(named)
        if folder.name == "make-base":
            folder = folder.parent
        if all((folder / name).is_file() for name in ("make-base", "env")):
            return cls(folder)
        if named:
            raise Missing(f"STMS_CONTAINER_BASE names {named}, where there is no make-base with its env.")
        return None

    def engine(self) -> Engine:
        """podman with the storage and settings of the kit."""
        script = f'. "{self.folder / "env"}"; export BUILD_FLAGS; env -0'
        printed = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout
        found = dict(entry.split("=", 1) for entry in printed.split("\0") if "=" in entry)
        added = {name: value for name, value in found.items() if os.environ.get(name) != value}
        flags = found.get("BUILD_FLAGS", "--format docker").split()
        return Engine("podman", {k: v for k, v in added.items() if k not in {"_", "SHLVL"}}, tuple(flags))

    def make(self) -> None:
        """Build all base images, installing what the kit needs. Raises Missing."""
        done = subprocess.run(
            [self.folder / "make-base"], capture_output=True, text=True, timeout=MAKE_SECONDS, check=False
        )
        if done.returncode != 0:
            raise Missing(f"{self.folder / 'make-base'} failed: {_last_line(done.stderr)}")


def engine_with(
    images: Iterable[str], environ: Mapping[str, str] = os.environ, beside: Path = KIT_BESIDE
) -> Engine:
    """The first engine that works and has, or can get, all base images.

    ``STMS_CONTAINER_ENGINE`` (docker or podman) leaves only one of them. Raises Missing with every reason.
    """
    wanted = environ.get("STMS_CONTAINER_ENGINE")
    if wanted not in (None, "", "docker", "podman"):
        raise Missing(f"STMS_CONTAINER_ENGINE is {wanted!r}; it may be docker or podman.")
    kit = Kit.find(environ, beside)
    reasons = []
    if wanted != "podman":
        docker = Engine("docker", {})
        reason = docker.why_not() or without(docker, images)
        if reason is None:
            return docker
        reasons.append(f"docker {reason}")
    if wanted != "docker":
        podman = kit.engine() if kit else Engine("podman", {}, ("--format", "docker"))
        reason = podman.why_not() or without(podman, images)
        if reason is not None and kit is not None:
            kit.make()
            reason = podman.why_not() or without(podman, images)
        if reason is None:
            return podman
        reasons.append(f"podman {reason}")
    if kit is None:
        reasons.append("no make-base beside the project, and STMS_CONTAINER_BASE names none")
    raise Missing("; ".join(reasons) + ".")


def without(engine: Engine, images: Iterable[str]) -> str | None:
    """Pull missing images; returns a message for the first image that cannot be pulled, otherwise None."""
    for image in images:
        if not engine.has(image) and (refused := engine.pull(image)) is not None:
            return f"has no {image} and cannot pull it ({refused})"
    return None


def bases(dockerfile: str, compose: str = "") -> list[str]:
    """Base images of the project: ARG BASE of the Dockerfile, and Compose services without a build."""
    found = re.findall(r"^ARG BASE=(\S+)", dockerfile, re.MULTILINE)
    found += re.findall(r"^\s+image: ([^$\s]+)$", compose, re.MULTILINE)
    return list(dict.fromkeys(found))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word"


def quoted(arguments: Sequence[str]) -> str:
    """Arguments as one line of text."""
    return " ".join(argument if " " not in argument else f"'{argument}'" for argument in arguments)
