"""Alert rules, dashboard and Prometheus configuration: against the documentation and a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.main import create_app
from app.processes.listener import require_free
from app.settings import Settings
from tests.app.started import Client
from tests.system.deployment import QUICK_SOLVERS, Deployment

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
PATIENCE = 120.0
IRIS = "a,b,c,class\n" + "".join(
    f"{i % 7}.{i},{(i * i) % 11},{i % 3},{'cat' if i % 2 else 'dog'}\n" for i in range(60)
)

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed: apt-get install prometheus",
)


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((MONITORING / "rules.yml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "grafana" / "stms.json").read_text(encoding="utf-8"))
    return found


def expressions() -> list[str]:
    """What every panel of the dashboard asks, with the variables filled in."""
    shown = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [expr.replace("$__rate_interval", "30s").replace("$job", ".*") for expr in shown]


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"\b(?:stms|process)_[a-z_]+\b", text))


def test_every_row_of_the_table_of_alarms_has_an_alert_and_every_alert_a_row():
    table = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split("\n## Alarms\n")[1]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    anchors = [re.match(r'\| <a id="(alarm-[a-z-]+)"></a>', row) for row in rows]
    assert all(anchors), "every row has an anchor"
    urls = [rule["annotations"]["runbook_url"] for rule in rules()]
    assert len(urls) > 30
    assert sorted(urls) == sorted(f"docs/operations.md#{anchor[1]}" for anchor in anchors)


def test_every_alert_is_tested_where_it_fires_and_where_it_is_silent():
    tests = yaml.safe_load((MONITORING / "rules_test.yml").read_text(encoding="utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


def test_rules_and_dashboard_name_only_metrics_of_the_server(live_metrics: str):
    wanted = metric_names(" ".join([*expressions(), *(rule["expr"] for rule in rules())]))
    assert len(wanted) > 30
    shown = set(re.findall(r"^# TYPE (\S+)", live_metrics, re.MULTILINE))
    suffixes = ("", "_bucket", "_count", "_sum")
    missing = wanted - {name + suffix for name in shown for suffix in suffixes}
    # The sockets count refused connections, and this server has none; the test with a real Prometheus asks
    # for them. The others exist with a certificate or an issuer of tokens: test_tls.py and test_tokens.py.
    alone = {"stms_tls_expires_seconds", "stms_token_keys_unread_total"}
    assert missing == {"stms_connections_refused_total"} | alone


@pytest.fixture
def live_metrics(sqlite_address: str, tmp_path: Path) -> str:
    settings = Settings(database_url=sqlite_address, data_dir=tmp_path, require_keys=False)
    client = Client(create_app(settings, queue=_Queue()))
    text = client.get("/metrics").text
    client.close()
    return text


class _Queue:
    """A queue that answers, and gets nothing to do."""

    def ping(self) -> None:
        """Answer."""


def promtool(*arguments: str, text: str | None = None) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@needs_prometheus
def test_promtool_finds_no_fault():
    promtool("check", "rules", "rules.yml")
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "rules_test.yml")


@pytest.mark.long
@needs_prometheus
def test_a_real_prometheus_answers_every_query_of_the_dashboard(tmp_path: Path):
    with (
        Deployment(tmp_path, serve=True, arguments=["--no-keys"], settings=QUICK_SOLVERS) as server,
        server.client() as http,
    ):
        _load(http)
        promtool("check", "metrics", text=http.get("/metrics").text)
        with Prometheus(tmp_path, server.url.removeprefix("http://")) as prometheus:
            _ask_until_all_answer(http, prometheus)
            alerts = prometheus.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
    assert {rule["health"] for rule in alerts} == {"ok"}, "Prometheus evaluates every rule"
    assert [rule["name"] for rule in alerts if rule["state"] == "firing"] == [], "and the server is well"


def _load(http: httpx.Client) -> None:
    """A job that succeeds, and requests for it."""
    made = http.post("/v1/datasets", files={"file": ("pets.csv", IRIS.encode())})
    assert made.status_code == 201, made.text
    body = {"dataset_id": made.json()["id"], "model": "pets"}
    job = http.post("/v1/training-jobs", json=body).json()
    deadline = time.monotonic() + PATIENCE
    while (job := http.get(f"/v1/training-jobs/{job['id']}").json())["state"] not in ("succeeded", "failed"):
        assert time.monotonic() < deadline, job
        time.sleep(0.2)
    assert job["state"] == "succeeded", job


def _ask_until_all_answer(http: httpx.Client, prometheus: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    missing = expressions()
    assert len(missing) > 30
    while missing:
        for label in ("cat", "dog", "none"):
            http.post(f"/v1/models/pets/classes/{label}:query", json={"x": [1, 2, 3]})
        http.get("/v1/training-jobs")
        answers = {expr: prometheus.get("/api/v1/query", params={"query": expr}).json() for expr in missing}
        assert all(answer["status"] == "success" for answer in answers.values()), answers
        missing = [expr for expr, answer in answers.items() if not answer["data"]["result"]]
        assert time.monotonic() < deadline, missing
        time.sleep(0.5)


class Prometheus:
    """A Prometheus that scrapes one server every second, with the rules of the project."""

    def __init__(self, folder: Path, target: str) -> None:
        config = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(MONITORING / "rules.yml")]
        [job] = config["scrape_configs"]
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [target]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self._folder = folder
        port = require_free("127.0.0.1", 0)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        self._arguments = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]

    def __enter__(self) -> httpx.Client:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(self._arguments, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            assert time.monotonic() < deadline, (self._folder / "prometheus.log").read_text()
            time.sleep(0.1)
        return self.http

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._process.terminate()
        self._process.wait(30)

    def _is_ready(self) -> bool:
        try:
            return self.http.get("/-/ready").is_success
        except httpx.TransportError:
            return False
