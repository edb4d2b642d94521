"""Which container engine there is, and where its base images come from.

Docker is taken where an engine answers, else podman. Base images that are not there are pulled where a
registry can be reached; where none can, podman may be given images made on the spot by a *kit*: a folder with
a program ``make-base`` and a file ``env`` to be sourced, named by ``STMS_CONTAINER_BASE`` or found beside the
project.
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

ROOT: Final = Path(__file__).resolve().parents[1]
KIT_BESIDE: Final = ROOT.parent / "shared" / "container"
ANSWER_SECONDS: Final = 30.0
PULL_SECONDS: Final = 600.0
MAKE_SECONDS: Final = 900.0


class Missing(Exception):
    """There is no engine or no base image here: nothing can be said about the image."""


class EngineFailed(Exception):
    """The engine refused; the message holds what it said."""


@dataclass(frozen=True)
class Engine:
    """A program with Docker's command line. environ: what is added to the environment of every call."""

    program: str
    environ: Mapping[str, str]
    build_flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``docker`` or ``podman``."""
        return Path(self.program).name

    def try_run(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run it, whatever comes of it; a call that takes too long or cannot be started has failed."""
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
        """What it prints on standard output. Raises EngineFailed."""
        done = self.try_run(*arguments, timeout=timeout)
        if done.returncode != 0:
            called = " ".join([self.name, *arguments])
            raise EngineFailed(f"{called}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout.strip()

    def why_not(self) -> str | None:
        """Why it cannot be used; None when it answers."""
        if shutil.which(self.program) is None:
            return "is not installed"
        done = self.try_run("info", timeout=ANSWER_SECONDS)
        # Docker's command ends well with a complaint where its engine does not run.
        said = done.stdout + done.stderr
        if done.returncode != 0 or re.search(r"cannot connect to the docker daemon", said, re.IGNORECASE):
            return f"does not answer ({_last_line(done.stderr or said)})"
        return None

    def has(self, image: str) -> bool:
        """Whether an image is in its store."""
        return self.try_run("image", "inspect", image).returncode == 0

    def pull(self, image: str) -> str | None:
        """Fetch an image from a registry; why that failed, None if it did not."""
        done = self.try_run("pull", "--quiet", image, timeout=PULL_SECONDS)
        return None if done.returncode == 0 else _last_line(done.stderr)


@dataclass(frozen=True)
class Kit:
    """Base images made on the spot: a folder with ``make-base`` and ``env``."""

    folder: Path

    @classmethod
    def find(cls, environ: Mapping[str, str], beside: Path = KIT_BESIDE) -> Kit | None:
        """The one that ``STMS_CONTAINER_BASE`` names (folder or program), or the one beside the project.

        Raises Missing when the one that is named is not there.
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
        """podman with the store and the settings of the kit."""
        script = f'. "{self.folder / "env"}"; export BUILD_FLAGS; env -0'
        printed = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout
        found = dict(entry.split("=", 1) for entry in printed.split("\0") if "=" in entry)
        added = {name: value for name, value in found.items() if os.environ.get(name) != value}
        flags = found.get("BUILD_FLAGS", "--format docker").split()
        return Engine("podman", {k: v for k, v in added.items() if k not in {"_", "SHLVL"}}, tuple(flags))

    def make(self) -> None:
        """Make every base image, and install what that takes. Raises Missing."""
        done = subprocess.run(
            [self.folder / "make-base"], capture_output=True, text=True, timeout=MAKE_SECONDS, check=False
        )
        if done.returncode != 0:
            raise Missing(f"{self.folder / 'make-base'} failed: {_last_line(done.stderr)}")


def engine_with(
    images: Iterable[str], environ: Mapping[str, str] = os.environ, beside: Path = KIT_BESIDE
) -> Engine:
    """The first engine that works and has, or can be given, all the base images.

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
    """Fetch the images that an engine has not; which one cannot be had and why, None if all are there."""
    for image in images:
        if not engine.has(image) and (refused := engine.pull(image)) is not None:
            return f"has no {image} and cannot pull it ({refused})"
    return None


def bases(dockerfile: str, compose: str = "") -> list[str]:
    """Images that the files begin with: ARG BASE of the Dockerfile, and services that are not built."""
    found = re.findall(r"^ARG BASE=(\S+)", dockerfile, re.MULTILINE)
    found += re.findall(r"^\s+image: ([^$\s]+)$", compose, re.MULTILINE)
    return list(dict.fromkeys(found))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word"


def quoted(arguments: Sequence[str]) -> str:
    """Arguments as one line for people."""
    return " ".join(argument if " " not in argument else f"'{argument}'" for argument in arguments)
