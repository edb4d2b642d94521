"""Runs Compose: Docker's own, or podman-compose in a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.container.containers import Container
from deploy.container.engines import Engine, EngineFailed
from deploy.container.tools import tool

PROJECT: Final = "stms-smoke"
_MINUTES: Final = 300.0


@dataclass(frozen=True)
class Compose:
    """One Compose project. command: the program; files: Compose files; environ: variables."""

    engine: Engine
    command: Sequence[str]
    files: Sequence[Path]
    environ: Mapping[str, str]

    def run(self, *arguments: str, timeout: float = _MINUTES) -> str:
        """Run a command; returns its standard output. Raises EngineFailed."""
        described = [part for file in self.files for part in ("--file", str(file))]
        done = subprocess.run(
            [*self.command, "--project-name", PROJECT, *described, *arguments],
            env=os.environ | dict(self.engine.environ) | dict(self.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise EngineFailed(f"compose {' '.join(arguments)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout.strip()

    def containers(self, service: str) -> list[Container]:
        """The running containers of a service."""
        labels = {"com.docker.compose.project": PROJECT, "com.docker.compose.service": service}
        filters = [f"--filter=label={name}={value}" for name, value in labels.items()]
        names = self.engine.run("ps", "--format={{.Names}}", *filters).split()
        return [Container(self.engine, name) for name in sorted(names)]

    def container(self, service: str) -> Container:
        """The only running container of a service. Raises EngineFailed."""
        found = self.containers(service)
        if len(found) != 1:
            raise EngineFailed(f"{len(found)} containers of {service} run, not one.")
        return found[0]

    def away(self) -> None:
        """Remove everything including volumes; succeeds if nothing exists."""
        try:
            self.run("down", "--volumes", "--remove-orphans")
        except EngineFailed as fault:
            print(f"(taking it down: {fault})", file=sys.stderr)


def compose_for(engine: Engine) -> Sequence[str]:
    """The Compose program for an engine; podman-compose is installed on first use."""
    if engine.name == "docker":
        if engine.try_run("compose", "version").returncode != 0:
            raise EngineFailed("The Docker engine is there, its plugin `docker compose` is not.")
        return ("docker", "compose")
    return (str(tool("podman-compose")),)
