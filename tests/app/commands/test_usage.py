"""Help, wrong usage, and commands before there is anything to show."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from app.cli import build

COMMANDS = [
    "serve",
    "api",
    "worker",
    "demo",
    "db",
    "keys",
    "hyperparameters",
    "version",
    "datasets",
    "train",
    "jobs",
]


def test_help_names_every_command(run):
    shown = run("--help")
    assert shown.exit_code == 0
    for name in [*COMMANDS, "models", "query", "ping"]:
        assert re.search(rf"\b{name}\b", shown.stdout), name


@pytest.mark.parametrize("command", ["train", "query", "serve", "hyperparameters"])
def test_help_of_a_command_has_an_example(run, command):
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert re.search(r"Examples?:", shown.stdout)


def test_help_hides_no_text_in_brackets():
    """Brackets are markup where help is shown in colours: ``[default: auto]`` would vanish."""
    found = [
        f"{command.name}: {text}"
        for command in commands_below(typer.main.get_command(build()))
        for text in [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]
        if text and re.search(r"\[[a-z]", text)
    ]
    assert found == []


def commands_below(command: Any) -> Iterator[Any]:
    yield command
    for name in getattr(command, "commands", {}):
        yield from commands_below(command.commands[name])


def test_help_tells_the_default_of_an_option(run):
    assert re.search(r"--header .*\[default: \(auto\)\]", run("datasets", "upload", "--help").stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["query", "m", "c"],
        ["query", "m", "c", "--row", "1,x"],
        ["query", "m", "c", "--row", "1", "--file", __file__],
        ["train", "x"],
        ["train", "x", "--model", "m", "--set", "student.C=-1"],
        ["datasets", "upload", "/no/such/file.csv"],
        ["models", "alias", "m", "a", "0"],
        ["serve", "--port", "70000"],
    ],
)
def test_wrong_usage_ends_with_2(run, arguments):
    assert run(*arguments).exit_code == 2


def test_without_a_server_the_way_to_start_one_is_told(run):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        result = run("models", "list", STMS_URL=f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert result.exit_code == 1
    assert "stms serve" in result.stderr


@pytest.mark.parametrize(
    ("command", "path", "text"),
    [
        ("datasets", "/v1/datasets", "There are no data sets."),
        ("jobs", "/v1/training-jobs", "There are no jobs."),
        ("models", "/v1/models", "There are no models."),
    ],
)
def test_an_empty_list_says_how_to_fill_it(run, written, command, path, text):
    written.on("GET", path, {"data": [], "has_more": False})
    shown = run(command, "list", STMS_URL=written.address)
    assert shown.exit_code == 0
    assert text in shown.stdout
    assert "`stms " in shown.stdout


def test_version_is_told(run):
    assert re.match(r"stms \d+\.\d+\.\d+, Python 3\.", run("version").stdout)


def test_the_program_can_be_started_as_a_module():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "app.cli", "version"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.startswith("stms ")


def test_a_command_loads_no_other_commands():
    """A server is several processes, each of which is started as a command."""
    code = "import sys; from app.cli import build; build('serve'); print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    loaded = set(done.stdout.split())
    assert "app.commands.processes" in loaded
    assert loaded & {"app.commands.jobs", "httpx", "numpy", "pygments", "stms_client"} == set()


def test_a_port_in_use_is_told_before_anything_is_started(run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run("serve", "--port", port, "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert "Address already in use" in result.stderr
    assert not (tmp_path / "data").exists()


def test_an_api_without_a_database_schema_says_what_to_do(run, tmp_path):
    result = run("api", "--data-dir", str(tmp_path), "--port", "0")
    assert result.exit_code == 1
    assert "stms db upgrade" in result.stderr


def test_an_api_beyond_loopback_needs_a_key(run, tmp_path):
    assert run("db", "upgrade", "--data-dir", str(tmp_path)).exit_code == 0
    arguments = ["api", "--data-dir", str(tmp_path), "--host", "0.0.0.0", "--port", "0"]
    result = run(*arguments, STMS_REQUIRE_KEYS="false")
    assert result.exit_code == 1
    assert "key" in result.stderr


def test_what_a_job_is_like_and_that_its_alias_may_break_callers_are_hyperparameters(run, written):
    written.on("POST", "/v1/training-jobs", {"id": "job_1"}, 202)
    options = ["--like", "m@stable", "--allow-schema-change"]
    result = run("train", "ds_1", "--model", "m", "--no-wait", *options, STMS_URL=written.address)
    assert result.exit_code == 0, result.stderr
    assert written.requests[-1].json["hyperparameters"] == {"like": "m@stable", "allow_schema_change": True}


def test_a_version_is_trained_again_with_hyperparameters_that_the_server_checks(run, written):
    written.on("POST", "/v1/models/m/retrain", {"id": "job_1"}, 202)
    options = ["--set", "student.pieces=3", "--alias", "candidate", "--no-wait"]
    result = run("models", "retrain", "m@production", "ds_1", *options, STMS_URL=written.address)
    assert result.exit_code == 0, result.stderr
    assert written.requests[-1].json == {
        "from": "production",
        "dataset_id": "ds_1",
        "alias": "candidate",
        "hyperparameters": {"student": {"pieces": 3}},
    }
    assert "follow it with `stms jobs wait job_1`" in result.stdout
    assert run("models", "retrain", "m", "--no-wait", STMS_URL=written.address).exit_code == 0
    assert written.requests[-1].json == {"from": "latest", "hyperparameters": {}}


def test_an_alias_that_would_break_callers_is_moved_only_where_that_is_said(run, written):
    path = "/v1/models/m/aliases/production"
    written.on("GET", path, {"revision": 7})
    refusal = {"field": "columns.Id", "code": "column_required", "message": "Column 'Id' is required."}
    problem = {"code": "schema_change", "detail": "It refuses questions.", "errors": [refusal]}
    written.on("PUT", path, problem, 409)
    written.on("PUT", path, {"version": 2})
    result = run("models", "alias", "m", "production", "2", STMS_URL=written.address)
    assert (result.exit_code, "Column 'Id' is required." in result.stderr) == (1, True)
    allowed = ["models", "alias", "m", "production", "2", "--allow-schema-change"]
    assert run(*allowed, STMS_URL=written.address).exit_code == 0
    assert written.requests[-1].json == {"version": 2, "allow_schema_change": True}
