"""Dockerfile and compose file keep the promises of docs/deployment.md."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from deploy.container.engines import ROOT
from deploy.container.image import base_images, project_version
from tests.system.object_store import REQUIREMENTS

SERVICES = ("db", "migrate", "api", "worker")
MONITORING = ("prometheus", "grafana")
OBJECTS = ("objects",)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_is_labelled_with_the_version_of_the_project(dockerfile):
    assert f"ARG VERSION={project_version()}\n" in dockerfile


def test_base_images_name_a_version_and_a_distribution():
    assert base_images(composed=True) == ["python:3.11-slim-bookworm", "postgres:15-bookworm"]


def test_the_last_stage_runs_as_a_user_without_rights(dockerfile):
    last = dockerfile[dockerfile.rindex("\nFROM") :]
    assert "USER 10001:10001" in last
    assert "HEALTHCHECK" in last
    assert "STOPSIGNAL SIGTERM" in last


def test_only_what_the_image_is_made_of_goes_to_the_builder():
    entries = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in entries
    named = [entry[1:] for entry in entries if entry.startswith("!")]
    assert all((ROOT / name).exists() for name in named)
    assert not any(re.search(r"\.env|secret|\.git", name) for name in named)


@pytest.mark.parametrize("service", MONITORING)
def test_monitoring_starts_on_demand_only_and_mounts_files_that_exist(compose, service):
    described = compose["services"][service]
    assert described["profiles"] == ["monitoring"]
    mounted = [mount.split(":")[0] for mount in described["volumes"] if mount.startswith("./")]
    assert mounted
    assert all((ROOT / path).exists() for path in mounted)


def test_the_object_store_for_trials_starts_on_demand_only_and_is_the_one_of_the_tests(compose):
    described = compose["services"]["objects"]
    assert described["profiles"] == ["objects"]
    version = re.search(r"^moto==(\S+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert described["image"] == f"${{STMS_OBJECTS_IMAGE:-motoserver/moto:{version}}}"


@pytest.mark.parametrize("service", [*SERVICES, *MONITORING, *OBJECTS])
def test_every_service_has_limits_and_rotated_logs(compose, service):
    described = compose["services"][service]
    assert {"mem_limit", "cpus", "pids_limit", "restart"} <= described.keys()
    assert described["logging"]["options"] == {"max-size": "10m", "max-file": "5"}
    assert described["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("service", SERVICES[1:])
def test_our_own_services_have_a_read_only_root_and_no_capability(compose, service):
    described = compose["services"][service]
    assert described["read_only"] is True
    assert described["cap_drop"] == ["ALL"]
    assert all("/tmp" in mount for mount in described["tmpfs"])


def test_no_password_has_a_default(compose):
    passwords = [
        value
        for service in compose["services"].values()
        for name, value in service.get("environment", {}).items()
        if "PASSWORD" in name or "URL" in name
    ]
    assert len(passwords) == 4
    assert all("${POSTGRES_PASSWORD:?" in value for value in passwords)


def test_ports_are_published_on_loopback_only(compose):
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_requests_under_way_have_their_time_before_a_container_is_killed(compose):
    for name in ("api", "worker"):
        described = compose["services"][name]
        drain = float(described["environment"]["STMS_DRAIN_SECONDS"])
        assert float(described["stop_grace_period"].removesuffix("s")) >= drain + 5


def test_nothing_starts_before_the_tables_are_there(compose):
    for name in ("api", "worker"):
        assert compose["services"][name]["depends_on"] == {
            "db": {"condition": "service_healthy"},
            "migrate": {"condition": "service_completed_successfully"},
        }


def test_every_volume_that_is_used_is_declared(compose):
    used = {
        mount.split(":")[0]
        for service in compose["services"].values()
        for mount in service.get("volumes", [])
        if not mount.startswith("./")
    }
    assert used == set(compose["volumes"])
