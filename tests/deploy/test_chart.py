"""The chart in real Helm: lint, render, refused values; and each object against the schemas of Kubernetes."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import helm
from deploy.helm import REQUIREMENTS, Refused
from deploy.render import MONITORING, RENDERED, manifest
from tests.deploy.rendered import EVERYTHING, SMALLEST, Object, committed, of_kind, pods, rendered, values
from tests.system.environments import Offline, environment

# Without a cache, the environment takes a minute.
pytestmark = [pytest.mark.long, pytest.mark.timeout(700)]

NAMES = ("defaults", EVERYTHING, SMALLEST)
CUSTOM: dict[str, set[str]] = {
    "ScaledObject": {
        "spec.scaleTargetRef.name",
        "spec.minReplicaCount",
        "spec.maxReplicaCount",
        "spec.pollingInterval",
        "spec.cooldownPeriod",
        "spec.advanced.horizontalPodAutoscalerConfig.behavior.scaleDown.stabilizationWindowSeconds",
        "spec.triggers.type",
        "spec.triggers.metadata.query",
        "spec.triggers.metadata.targetQueryValue",
        "spec.triggers.metadata.activationTargetQueryValue",
        "spec.triggers.authenticationRef.name",
    },
    "TriggerAuthentication": {f"spec.secretTargetRef.{name}" for name in ("parameter", "name", "key")},
    "ServiceMonitor": {
        "spec.jobLabel",
        "spec.selector.matchLabels",
        "spec.endpoints.port",
        "spec.endpoints.path",
        "spec.endpoints.interval",
    },
    "PrometheusRule": {
        "spec.groups.name",
        *(f"spec.groups.rules.{name}" for name in ("alert", "expr", "for", "labels", "annotations")),
    },
}
"""Fields of kinds that Kubernetes does not know, from the definitions of KEDA and the Prometheus operator."""
VERSIONS = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}


@pytest.fixture(autouse=True)
def _needs_helm() -> None:
    try:
        environment(REQUIREMENTS)
    except Offline as error:
        pytest.skip(str(error))


def validated(objects: list[Object]) -> dict[str, list[str]]:
    """What `validate.py` reports."""
    python = environment(REQUIREMENTS) / "bin" / "python"
    done = subprocess.run(
        [python, "-I", Path(__file__).with_name("validate.py")],
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert len(found["versions"]) == 3
    return found


def test_the_committed_file_is_what_helm_makes():
    assert RENDERED.read_text(encoding="utf-8") == manifest(), "run `make kubernetes`"


@pytest.mark.parametrize("name", NAMES)
def test_helm_has_nothing_against_the_chart(name: str):
    assert helm.lint(values(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_object_is_valid(name: str):
    found = validated(rendered(name))
    assert found["faults"] == []
    assert found["unknown"] == (sorted(CUSTOM) if name == EVERYTHING else [])


def test_the_validation_finds_faults():
    objects = copy.deepcopy(committed())
    [container] = pods(objects)["api"]["containers"]
    container["readynessProbe"] = container.pop("readinessProbe")
    of_kind(objects, "Service")["stms"]["spec"]["ports"][0]["port"] = "http"
    faults = validated(objects)["faults"]
    assert len([text for text in faults if "readynessProbe" in text]) == 3, "once a version"
    assert len([text for text in faults if " Service stms " in text]) == 3


def test_custom_kinds_have_the_fields_of_their_definitions():
    custom = [each for each in rendered(EVERYTHING) if each["kind"] in CUSTOM]
    assert {each["kind"] for each in custom} == set(CUSTOM)
    for each in custom:
        assert each["apiVersion"] in VERSIONS
        fields = set(_fields({"spec": each["spec"]}))
        assert fields == CUSTOM[each["kind"]]


def _fields(value: Any, path: str = "") -> Iterator[str]:
    """Dotted names of the fields of an object, those of lists once."""
    if isinstance(value, list):
        for part in value:
            yield from _fields(part, path)
    elif isinstance(value, dict) and not path.endswith(("labels", "annotations", "matchLabels")):
        for key, part in value.items():
            yield from _fields(part, f"{path}.{key}".lstrip("."))
    else:
        yield path


def test_rules_and_dashboard_are_those_of_the_monitoring():
    objects = rendered(EVERYTHING)
    [rule] = of_kind(objects, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((MONITORING / "rules.yml").read_text(encoding="utf-8"))
    [dashboard] = of_kind(objects, "ConfigMap")["dashboards"]["data"].items()
    original = (MONITORING / "grafana" / "stms.json").read_text(encoding="utf-8")
    assert (dashboard[0], json.loads(dashboard[1])) == ("stms.json", json.loads(original))


def test_workers_are_scaled_by_units_and_servers_by_processor_time():
    objects = rendered(EVERYTHING)
    deployments = of_kind(objects, "Deployment")
    assert not any("replicas" in each["spec"] for each in deployments.values()), "the scalers set them"
    [trigger] = of_kind(objects, "ScaledObject")["worker"]["spec"]["triggers"]
    assert trigger["metadata"]["targetQueryValue"] == str(values(EVERYTHING)["worker"]["concurrency"])
    assert "FROM job_units" in trigger["metadata"]["query"]
    authentication = of_kind(objects, "TriggerAuthentication")["worker"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "connection", "name": "stms-database-app", "key": "uri"}
    ]
    autoscaler = of_kind(objects, "HorizontalPodAutoscaler")["api"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == deployments["api"]["metadata"]["name"]


def test_nothing_but_what_is_named_reaches_the_pods():
    policies = of_kind(rendered(EVERYTHING), "NetworkPolicy")
    whole = policies["stms"]["spec"]
    assert "ingress" not in whole
    assert whole["policyTypes"] == ["Ingress", "Egress"]
    assert whole["podSelector"]["matchLabels"].keys() == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
    }
    assert [rule["ports"][0]["port"] for rule in whole["egress"]] == [53, 6432, 4318]
    [ingress] = policies["api"]["spec"]["ingress"]
    assert ingress["from"] == values(EVERYTHING)["networkPolicy"]["clients"]
    assert policies["worker"]["spec"]["egress"] == values(EVERYTHING)["networkPolicy"]["workerEgress"]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ({"databaseUrl": "postgresql://stms:pw@db/stms"}, "databaseUrl"),
        ({"secrets": {"databaseUrl": {"name": "postgresql://stms:pw@db/stms"}}}, "name"),
        ({"secrets": {"databaseUrl": {"value": "postgresql://stms:pw@db/stms"}}}, "value"),
        ({"secrets": {"firstKey": {"name": ""}}}, "name"),
        ({"settings": {"STMS_DATABASE_URL": "postgresql://db/stms"}}, "STMS_DATABASE_URL"),
        ({"api": {"settings": {"STMS_REMOTE_TEACHER_TOKENS": "{}"}}}, "STMS_REMOTE_TEACHER_TOKENS"),
        ({"settings": {"STMS_TRACE_ENDPOINT": "http://user:pw@collector"}}, "STMS_TRACE_ENDPOINT"),
        ({"settings": {"STMS_RATE_LIMITS": "1"}}, "STMS_RATE_LIMITS"),
        ({"settings": {"STMS_RATE_LIMIT": 100}}, "STMS_RATE_LIMIT"),
        ({"worker": {"settings": {"STMS_WORKER_CONCURRENCY": "2"}}}, "STMS_WORKER_CONCURRENCY"),
        ({"api": {"replica": 3}}, "replica"),
        ({"api": {"replicas": "3"}}, "replicas"),
        ({"worker": {"resources": {"limits": {"memory": None}}}}, "memory"),
        ({"networkPolicy": {"enabled": True, "database": [{"ipBlock": {"cidr": "10.0.0.5/32"}}]}}, "clients"),
        ({"networkPolicy": {"enabled": True, "clients": [{"podSelector": {}}]}}, "database"),
        ({"image": {"digest": "latest"}}, "digest"),
    ],
)
def test_what_is_unknown_or_secret_is_refused(refused: dict[str, Any], reason: str):
    with pytest.raises(Refused, match=reason):
        helm.render(refused)


def test_a_release_name_makes_names_that_fit():
    for name, found in (
        ("stms", "stms"),
        ("a" * 53, f"{'a' * 50}"),
        ("shop", "shop-stms"),
        ("my-stms", "my-stms"),
    ):
        texts = helm.render({}, name)
        service = yaml.safe_load(texts["service.yaml"])
        assert service["metadata"]["name"] == found
