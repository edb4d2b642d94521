"""Which engine is taken and what is said where there is none; scripts of our own play the engines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.container.engines import Engine, EngineFailed, Kit, Missing, bases, engine_with

IMAGES = ["base:1"]
DEAD_DOCKER = 'echo "Client: 28"; echo "Cannot connect to the Docker daemon at unix:///x." >&2; exit {code}'
WORKS = 'case "$1 $2" in "info "*) echo fine;; "image inspect") exit 0;; *) exit 1;; esac'
EMPTY = 'case "$1" in info) echo fine;; pull) echo "no such host" >&2; exit 125;; *) exit 1;; esac'
PULLS = 'case "$1" in info) echo fine;; pull) echo "$3" >> "$0.pulled";; *) exit 1;; esac'
HAS_WHAT_IS_MADE = (
    'case "$1" in info) echo fine;; image) test -e "$MADE";; *) echo "no such host" >&2; exit 125;; esac'
)

Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a shell script on a PATH that has nothing but the shell's own tools besides."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "bash", "env", "test", "mkdir"):
        found = next(Path(place, tool) for place in ("/bin", "/usr/bin") if Path(place, tool).exists())
        (folder / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))

    def write(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """One that notes that it was run, and whose podman has a store of its own."""
    folder = tmp_path / "kit"
    folder.mkdir()
    (folder / "make-base").write_text('#!/bin/sh\n: > "$MADE"\n', encoding="utf-8")
    (folder / "make-base").chmod(0o755)
    (folder / "env").write_text(
        'export STORE=/store\nBUILD_FLAGS="--format docker --pull-never"\n', encoding="utf-8"
    )
    monkeypatch.setenv("MADE", str(tmp_path / "made"))
    return Kit(folder)


def nowhere(tmp_path: Path) -> Path:
    return tmp_path / "no kit"


def test_docker_is_taken_before_podman(program, tmp_path):
    program("docker", WORKS)
    program("podman", WORKS)
    assert engine_with(IMAGES, {}, nowhere(tmp_path)).name == "docker"


@pytest.mark.parametrize("code", [0, 1])
def test_podman_is_taken_where_docker_has_no_engine(program, tmp_path, code):
    program("docker", DEAD_DOCKER.format(code=code))
    program("podman", WORKS)
    engine = engine_with(IMAGES, {}, nowhere(tmp_path))
    assert (engine.name, engine.build_flags) == ("podman", ("--format", "docker"))


def test_one_of_them_can_be_asked_for(program, tmp_path):
    program("docker", WORKS)
    program("podman", WORKS)
    asked = {"STMS_CONTAINER_ENGINE": "podman"}
    assert engine_with(IMAGES, asked, nowhere(tmp_path)).name == "podman"
    with pytest.raises(Missing, match="'lxc'; it may be docker or podman"):
        engine_with(IMAGES, {"STMS_CONTAINER_ENGINE": "lxc"}, nowhere(tmp_path))


def test_without_any_engine_every_reason_is_told(program, tmp_path):
    program("docker", DEAD_DOCKER.format(code=1))
    with pytest.raises(Missing) as told:
        engine_with(IMAGES, {}, nowhere(tmp_path))
    for reason in (
        "docker does not answer (Cannot connect",
        "podman is not installed",
        "STMS_CONTAINER_BASE",
    ):
        assert reason in str(told.value)


def test_a_base_image_that_is_not_there_is_pulled(program, tmp_path):
    docker = program("docker", PULLS)
    assert engine_with(IMAGES, {}, nowhere(tmp_path)).name == "docker"
    assert Path(f"{docker}.pulled").read_text(encoding="utf-8") == "base:1\n"


def test_where_nothing_can_be_pulled_the_image_is_named(program, tmp_path):
    program("podman", EMPTY)
    with pytest.raises(Missing, match=r"podman has no base:1 and cannot pull it \(no such host\)"):
        engine_with(IMAGES, {}, nowhere(tmp_path))


def test_a_kit_makes_what_cannot_be_pulled(program, kit):
    program("docker", EMPTY)
    program("podman", HAS_WHAT_IS_MADE)
    engine = engine_with(IMAGES, {}, kit.folder)
    assert engine.name == "podman"
    assert engine.environ["STORE"] == "/store"
    assert engine.build_flags == ("--format", "docker", "--pull-never")


def test_a_kit_is_not_asked_for_what_is_there(program, kit):
    program("podman", WORKS)
    engine_with(IMAGES, {}, kit.folder)
    assert not Path(os.environ["MADE"]).exists()


def test_a_kit_that_fails_is_told(program, kit):
    (kit.folder / "make-base").write_text("#!/bin/sh\necho needs root >&2\nexit 1\n", encoding="utf-8")
    program("podman", EMPTY)
    with pytest.raises(Missing, match="make-base failed: needs root"):
        engine_with(IMAGES, {}, kit.folder)


@pytest.mark.parametrize("part", ["", "make-base"])
def test_a_kit_is_named_by_its_folder_or_its_program(kit, tmp_path, part):
    named = {"STMS_CONTAINER_BASE": str(kit.folder / part)}
    assert Kit.find(named, nowhere(tmp_path)) == kit


def test_a_kit_that_is_named_and_not_there_is_a_mistake(tmp_path):
    with pytest.raises(Missing, match="no make-base"):
        Kit.find({"STMS_CONTAINER_BASE": str(tmp_path)}, nowhere(tmp_path))
    assert Kit.find({}, nowhere(tmp_path)) is None


def test_a_failing_call_shows_what_the_engine_said(program):
    program("podman", "echo it broke >&2; exit 125")
    with pytest.raises(EngineFailed, match="podman run x\nit broke"):
        Engine("podman", {}).run("run", "x")


def test_a_call_that_takes_too_long_has_failed(program):
    program("podman", "exec sleep 20")
    (Path(os.environ["PATH"]) / "sleep").symlink_to("/bin/sleep")
    assert Engine("podman", {}).try_run("info", timeout=0.2).returncode != 0


def test_base_images_are_those_that_are_not_built():
    dockerfile = "ARG BASE=python:3.11\nFROM ${BASE} AS root\nFROM scratch\n"
    compose = "services:\n  db:\n    image: postgres:15\n  api:\n    image: ${STMS_IMAGE:-stms:latest}\n"
    assert bases(dockerfile, compose) == ["python:3.11", "postgres:15"]
