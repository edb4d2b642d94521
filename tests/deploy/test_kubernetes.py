"""What is made for Kubernetes keeps the promises of docs/kubernetes.md, committed and with other values."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from app.api import health
from app.cli import build
from app.settings import Settings
from deploy.container.engines import ROOT
from deploy.container.image import project_version
from deploy.helm import CHART
from deploy.render import GIVEN_BY_THE_CHART, RENDERED, SCHEMA, chart_digest, copied, schema
from tests.deploy.rendered import (
    EVERYTHING,
    SMALLEST,
    Object,
    all_containers,
    committed,
    containers,
    environment,
    of_kind,
    pods,
    rendered,
)

GIB = 1024**3
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
SECRETS = {"STMS_BLOBS_SECRET", "STMS_DATABASE_URL", "STMS_REMOTE_TEACHER_TOKENS", "first.key"}


@pytest.fixture(
    scope="module",
    params=["committed", *(pytest.param(name, marks=pytest.mark.long) for name in (EVERYTHING, SMALLEST))],
)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """The committed objects, and what Helm makes of other values."""
    return committed() if request.param == "committed" else rendered(request.param)


def test_what_is_made_from_other_files_is_current():
    for path, text in copied().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `make kubernetes`"
    assert SCHEMA.read_text(encoding="utf-8") == schema(), "run `make kubernetes`"
    assert f" {chart_digest()}\n" in RENDERED.read_text(encoding="utf-8"), "run `make kubernetes`"


def test_the_chart_is_of_the_version_of_the_project():
    described = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert described["version"] == described["appVersion"] == project_version()
    [image] = {container["image"] for _, container in all_containers(committed())}
    assert image == f"localhost/stms:{project_version()}"


def test_the_default_objects_are_those_that_are_documented():
    kinds = sorted((each["kind"], each["metadata"]["name"]) for each in committed())
    assert kinds == [
        ("ConfigMap", "stms-api"),
        ("ConfigMap", "stms-worker"),
        ("Deployment", "stms-api"),
        ("Deployment", "stms-worker"),
        ("Job", "stms-migrate"),
        ("PodDisruptionBudget", "stms-api"),
        ("Service", "stms"),
    ]


def test_pods_have_no_rights(objects: list[Object]):
    for pod in pods(objects).values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"].get("runAsUser", 10001) == 10001
        # A Service named stms would set STMS_PORT=tcp://…
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_containers_have_no_rights_and_write_to_volumes_with_limits(objects: list[Object]):
    for pod, container in all_containers(objects):
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if not mount.get("readOnly"):
                assert re.fullmatch(r"\d+[MG]i", volume["emptyDir"]["sizeLimit"])


def test_what_is_mounted_is_what_the_image_writes_to(objects: list[Object]):
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "NUMBA_CACHE_DIR=/data/numba" in dockerfile.rpartition("\nFROM")[2]
    [user] = re.findall(r"^USER (\d+):\1$", dockerfile, re.MULTILINE)
    for pod in pods(objects).values():
        assert str(pod["securityContext"].get("runAsUser", user)) == user
        for container in pod["containers"]:
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            folder = environment(objects, container).get("STMS_DATA_DIR")
            assert mounts == {"/tmp", "/secrets"} | ({str(Path(folder).parent)} if folder else set())
    worker = pods(objects)["worker"]
    kernels = [each for each in worker["initContainers"] if each["name"] == "kernels"]
    assert bool(kernels) == ("runAsUser" in worker["securityContext"]), "other users cannot read them"
    for each in kernels:
        [volume] = each["volumeMounts"]
        assert each["command"] == ["cp", "-r", "/data/numba", f"{volume['mountPath']}/"]


def test_secrets_are_named_and_private(objects: list[Object]):
    assert not of_kind(objects, "Secret")
    mounted = set()
    for pod in pods(objects).values():
        [volume] = [volume["projected"] for volume in pod["volumes"] if volume["name"] == "secrets"]
        assert volume["defaultMode"] == 0o400
        mounted |= {item["path"] for source in volume["sources"] for item in source["secret"]["items"]}
    assert {"STMS_DATABASE_URL", "first.key"} <= mounted <= SECRETS
    for _, container in all_containers(objects):
        given = environment(objects, container)
        assert not SECRETS & given.keys()
        assert given.get("STMS_FIRST_KEY_FILE", "/secrets/first.key") == "/secrets/first.key"
        assert all("secretKeyRef" not in str(each) for each in container.get("env", []))


def test_every_variable_is_a_setting_and_every_value_valid(
    objects: list[Object], monkeypatch, tmp_path: Path
):
    known = {f"STMS_{name.upper()}" for name in Settings.model_fields}
    # The Secret that `secrets.blobsSecret` names, for the access key among the settings.
    secret = tmp_path / "STMS_BLOBS_SECRET"
    secret.write_text("of the object store", encoding="utf-8")
    secret.chmod(0o400)
    for _, container in all_containers(objects):
        given = environment(objects, container)
        assert given.keys() <= known
        with monkeypatch.context() as patched:
            # A container has what it is given, and nothing of the tests' own environment.
            for name in [name for name in os.environ if name.startswith("STMS_")]:
                patched.delenv(name)
            for name, value in given.items():
                patched.setenv(name, value)
            if given:
                patched.setenv("STMS_SECRETS_DIR", str(tmp_path))
            settings = Settings()
        assert settings.drain_listen_seconds <= settings.drain_seconds


def test_what_the_chart_gives_can_be_given_by_nothing_else(objects: list[Object]):
    assert {f"STMS_{name.upper()}" for name in Settings.model_fields} >= GIVEN_BY_THE_CHART
    own = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["settings"]
    for each in committed():
        if each["kind"] == "ConfigMap":
            assert each["data"].keys() - own.keys() <= GIVEN_BY_THE_CHART
    for component, pod in pods(objects).items():
        for container in pod["containers"]:
            settings = environment(objects, container)
            assert component == "migrate" or int(settings["STMS_CACHE_DISK_BYTES"]) % GIB == 0


def test_the_disk_has_room_for_cache_and_uploads(objects: list[Object]):
    pod = pods(objects)["api"]
    settings = environment(objects, pod["containers"][0])
    uploads = int(settings["STMS_MAX_INFLIGHT_UPLOAD_BYTES"])
    for name in ("STMS_MAX_UPLOAD_BYTES", "STMS_MAX_HEAD_BYTES", "STMS_MAX_BUNDLE_BYTES"):
        assert int(settings[name]) <= uploads, "a single one may be larger than the limit of all"
    assert _data_bytes(pod) >= int(settings["STMS_CACHE_DISK_BYTES"]) + 3 * uploads
    worker = pods(objects)["worker"]
    cache = int(environment(objects, worker["containers"][0])["STMS_CACHE_DISK_BYTES"])
    assert _data_bytes(worker) > cache


def _data_bytes(pod: Object) -> int:
    [data] = [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if volume["name"] == "data"]
    return int(data.removesuffix("Gi")) * GIB


def test_probes_ask_what_is_answered_without_the_database(objects: list[Object]):
    [api] = pods(objects)["api"]["containers"]
    port, *others = api["ports"]
    settings = environment(objects, api)
    assert str(port["containerPort"]) == settings["STMS_PORT"]
    assert [str(other["containerPort"]) for other in others] == [
        settings[name] for name in ("STMS_GRPC_PORT",) if name in settings
    ]
    paths = {name: probe["httpGet"]["path"] for name, probe in api.items() if name.endswith("Probe")}
    assert paths == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz/queries",
    }
    assert set(paths.values()) <= health.PATHS
    assert all(probe["httpGet"]["port"] == port["name"] for name, probe in api.items() if name in paths)
    [worker] = pods(objects)["worker"]["containers"]
    assert {name for name in worker if name.endswith("Probe")} == {"readinessProbe"}
    assert worker["readinessProbe"]["exec"]["command"] == ["stms", "ping", "--container"]


def test_a_monitor_scrapes_a_path_that_is_answered(objects: list[Object]):
    for monitor in of_kind(objects, "ServiceMonitor").values():
        [service] = of_kind(objects, "Service").values()
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["path"] in health.PATHS
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        labels = service["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels[monitor["spec"]["jobLabel"]] == "stms", "the rules name this job"


def test_every_command_is_one_of_the_program(objects: list[Object]):
    command = typer.main.get_command(build())
    shown = {
        tuple(container["args"])
        for pod in pods(objects).values()
        for container in containers(pod)
        if "args" in container
    }
    assert {("api",), ("worker",), ("db", "current", "--wait", "300")} <= shown
    assert all(words[:2] in {("db", "current"), ("db", "upgrade")} or len(words) == 1 for words in shown)
    for words in [*shown, ("ping", "--container")]:
        _parse(command, list(words))


def _parse(command: Any, words: list[str]) -> None:
    """Parse a command line as the program does, without running it. Raises UsageError."""
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("stms", words)


def test_a_pod_is_killed_only_after_it_has_drained(objects: list[Object]):
    pod = pods(objects)["api"]
    settings = environment(objects, pod["containers"][0])
    assert pod["terminationGracePeriodSeconds"] == float(settings["STMS_DRAIN_SECONDS"]) + 10
    deployment = of_kind(objects, "Deployment")["api"]
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_other_settings_restart_the_pods_that_have_them(objects: list[Object]):
    sums = {
        name: deployment["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
        for name, deployment in of_kind(objects, "Deployment").items()
    }
    assert len(set(sums.values())) == 2
    if objects != committed():
        before = of_kind(committed(), "Deployment")["api"]["spec"]["template"]["metadata"]["annotations"]
        assert sums["api"] != before["checksum/settings"]


def test_selectors_find_the_pods_of_their_component(objects: list[Object]):
    for name, deployment in of_kind(objects, "Deployment").items():
        wanted = deployment["spec"]["selector"]["matchLabels"]
        assert wanted["app.kubernetes.io/component"] == name
        assert deployment["spec"]["template"]["metadata"]["labels"] == wanted
        for spread in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert spread["labelSelector"]["matchLabels"] == wanted
    [service] = of_kind(objects, "Service").values()
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "api"


def test_servers_have_a_disruption_budget_where_there_are_two(objects: list[Object]):
    spec = of_kind(objects, "Deployment")["api"]["spec"]
    least = [each["spec"]["minReplicas"] for each in of_kind(objects, "HorizontalPodAutoscaler").values()]
    has_two = min([*least, spec.get("replicas", 2)]) >= 2
    assert has_two == ("api" in of_kind(objects, "PodDisruptionBudget"))


def test_the_migration_runs_before_all_else_and_uses_nothing_of_the_chart(objects: list[Object]):
    for job in of_kind(objects, "Job").values():
        annotations = job["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert (annotations["argocd.argoproj.io/hook"], annotations["argocd.argoproj.io/sync-wave"]) == (
            "Sync",
            "-1",
        )
        pod = job["spec"]["template"]["spec"]
        assert "configMap" not in str(pod)
        [container] = pod["containers"]
        assert shlex.join(container["args"]) == "db upgrade --wait 60"
    for name in ("api", "worker"):
        assert pods(objects)[name]["initContainers"][0]["args"][:2] == ["db", "current"]


@needs_kubectl
def test_kustomize_makes_the_same_objects():
    def named(objects: list[Object]) -> dict[tuple[str, str], Object]:
        return {(each["kind"], each["metadata"]["name"]): each for each in objects}

    assert named(kustomized(RENDERED.parent)) == named(committed())


@needs_kubectl
def test_the_overlay_of_the_documentation_changes_image_and_namespace(tmp_path: Path):
    text = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^ {4}resources: .*\n(?: {4}.*\n)+", text, re.MULTILINE)
    (tmp_path / "stms" / "deploy").mkdir(parents=True)
    shutil.copytree(RENDERED.parent, tmp_path / "stms" / "deploy" / "kubernetes")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "kustomization.yaml").write_text(shown, encoding="utf-8")
    found = kustomized(tmp_path / "ours")
    assert {each["metadata"]["namespace"] for each in found} == {"stms"}
    images = {container["image"] for _, container in all_containers(found)}
    assert images == {"registry.example.com/stms:0.2.0"}


def kustomized(folder: Path) -> list[Object]:
    """The objects that kubectl makes of a folder."""
    command = ["kubectl", "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_every_value_is_explained_and_in_the_schema_and_in_the_table():
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    lines = text.splitlines()
    unexplained = [
        line
        for before, line in itertools.pairwise(lines)
        if re.match(r" *\w+: *[^ {]|  *\w+: [{\[]", line)
        and not re.match(r" *(requests|limits|STMS_\w+):", line)
        and not before.lstrip().startswith("#")
    ]
    assert unexplained == []
    names = set(_leaves(yaml.safe_load(text)))
    described = set(_described(yaml.safe_load(schema())))
    assert names == {re.sub(r"\.(requests|limits)$", "", name) for name in described} - {"global"}
    table = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert {name for name in names if f"`{name}`" not in table} == set()


def _leaves(value: Any, path: str = "") -> list[str]:
    """Dotted names of all values; what has no names of its own is one."""
    if not isinstance(value, dict) or path.endswith(FREE):
        return [path]
    return [name for key, part in value.items() for name in _leaves(part, f"{path}.{key}".lstrip("."))]


FREE = ("settings", "resources", "labels", "podAnnotations", "nodeSelector", "annotations")


def _described(part: Any, path: str = "", whole: Any = None) -> list[str]:
    """Dotted names that a schema has."""
    whole = whole or part
    for each in [part, *part.get("allOf", [])]:
        if "$ref" in each:
            part = whole["definitions"][each["$ref"].rpartition("/")[2]]
    if "properties" not in part or path.endswith(FREE):
        return [path]
    return [
        name
        for key, inner in part["properties"].items()
        for name in _described(inner, f"{path}.{key}".lstrip("."), whole)
    ]
