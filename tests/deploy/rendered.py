"""Objects of Kubernetes as the chart makes them, and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.helm import render
from deploy.render import RENDERED
from tests.system.environments import Offline

VALUES = Path(__file__).with_name("values")
EVERYTHING, SMALLEST = "everything", "smallest"
Object = dict[str, Any]


def values(name: str) -> dict[str, Any]:
    """The values of a file beside this module; of "defaults" there are none."""
    if name == "defaults":
        return {}
    found: dict[str, Any] = yaml.safe_load((VALUES / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def committed() -> list[Object]:
    """The objects of the file in the repository."""
    return list(yaml.safe_load_all(RENDERED.read_text(encoding="utf-8")))


def rendered(name: str) -> list[Object]:
    """What Helm makes of the chart with the values; skips the test where Helm cannot be installed."""
    try:
        texts = render(values(name), "demo")
    except Offline as error:
        pytest.skip(str(error))
    assert texts.pop("NOTES.txt")
    return [found for text in texts.values() for found in yaml.safe_load_all(text)]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind by the last word of their names: api, worker, migrate, or the whole name."""
    found = [each for each in objects if each["kind"] == kind]
    return {each["metadata"]["name"].rpartition("-")[2]: each for each in found}


def pods(objects: list[Object]) -> dict[str, Object]:
    """Specifications of pods: of "api", "worker" and, if there is one, "migrate"."""
    owners = of_kind(objects, "Deployment") | of_kind(objects, "Job")
    return {name: owner["spec"]["template"]["spec"] for name, owner in owners.items()}


def containers(pod: Object) -> list[Object]:
    """All containers of a pod, those that run first before the others."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def all_containers(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Each container with the specification of its pod."""
    for pod in pods(objects).values():
        for container in containers(pod):
            yield pod, container


def environment(objects: list[Object], container: Object) -> dict[str, str]:
    """The variables that a container is given."""
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    return found | {each["name"]: each["value"] for each in container.get("env", [])}
