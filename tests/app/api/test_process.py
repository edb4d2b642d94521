"""The server as a process: uvicorn, real sockets, loaded modules, and shutdown."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from resource import RLIMIT_NOFILE, setrlimit

import httpx
import pytest

from app.auth.authenticator import InsecureBinding
from app.database_check import check_database
from app.domain.errors import Unavailable
from app.processes.os_process import ProcessName
from app.settings import Settings
from app.store.migrate import SchemaOutdated
from tests.system.processes import process_name

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    def __init__(
        self, folder: Path, database: str, open_files: int | None = None, *, keyless: bool = True
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-P", "-m", "app.cli", "api", "--port", str(self.port)]
        command += ["--data-dir", str(folder), *(["--no-keys"] if keyless else [])]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"STMS_DATABASE_URL": database},
            preexec_fn=open_files and partial(setrlimit, RLIMIT_NOFILE, (open_files // 2, open_files)),
        )

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while True:
            try:
                httpx.get(f"{self.url}/livez", trust_env=False)
            except httpx.TransportError:
                assert self.process.poll() is None, "the server ended by itself"
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def children(self) -> list[int]:
        """The processes of control and of queries."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


@pytest.fixture
def server(tmp_path: Path, database_address: str) -> Iterator[Server]:
    started = Server(tmp_path, database_address)
    try:
        started.wait()
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


@pytest.mark.long
def test_a_process_that_answers_queries_loads_neither_training_code_nor_the_api(server: Server, pets):
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for label in ("cat", "gr%C3%B6%C3%9Fe%2F1:x"):
            response = client.post(f"/v1/models/pets/classes/{label}:query", json={"x": [1, 2, 3]})
            assert response.status_code == 200, response.text
        assert client.get("/readyz").status_code == 200
    libraries = [Path(f"/proc/{pid}/maps").read_text() for pid in server.children()]
    assert ["/sqlalchemy/" in text for text in libraries] == [True, True]
    [queries] = [
        text
        for pid, text in zip(server.children(), libraries, strict=True)
        if process_name(pid) == ProcessName.QUERY
    ]
    for library in ("sklearn", "scipy", "numba", "llvmlite", "pyarrow"):
        assert f"/{library}" not in queries
    assert server.stop() == 0
    listed = "import app.query_process, json, sys; print(json.dumps(sorted(sys.modules)))"
    modules = json.loads(subprocess.check_output([sys.executable, "-c", listed], cwd=ROOT))
    assert "app.serving.query.handler" in modules
    training = {
        "sklearn",
        "numba",
        "scipy",
        "joblib",
        "fastapi",
        "dbos",
        "jinja2",
        # Only a server with issuers of tokens loads these.
        "jwt",
        "cryptography",
        "app.auth.tokens",
        "app.remote.connection",
        "app.api.app",
        "core.training.pipeline",
        "core.solvers",
        "core.solvers.jit",
        "core.data.dataset",
    }
    assert training.isdisjoint(modules), training & set(modules)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_draws_the_docs_page_from_this_server_alone(server: Server, tmp_path: Path):
    command = [
        "chromium",
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--disable-background-networking", "--enable-logging=stderr", "--virtual-time-budget=10000"),
        *("--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"),
        # No other name or address is reached.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        *("--dump-dom", f"{server.url}/docs"),
    ]
    opened = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert opened.stdout.count('class="opblock ') > 30, "the page does not show the operations"
    assert "/v1/training-jobs" in opened.stdout
    console = [line for line in opened.stderr.splitlines() if "CONSOLE" in line]
    assert console == [], "a violation of the page's policy, or an error"


@pytest.mark.long
def test_an_upload_whose_connection_breaks_stores_nothing(server: Server):
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        head = (
            "POST /v1/datasets HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: text/csv\r\nContent-Length: 5000\r\n\r\n"
        )
        wire.sendall(head.encode() + b"a,b\n1,0\n2,1\n3,0\n4,1\n")
        time.sleep(0.2)
    time.sleep(0.2)
    assert httpx.get(f"{server.url}/v1/datasets", trust_env=False).json()["data"] == []


@pytest.mark.long
def test_a_job_is_followed_live_until_it_ends(server: Server, csv: bytes):
    with httpx.Client(base_url=server.url, trust_env=False, timeout=120) as client:
        dataset = client.post("/v1/datasets", content=csv, headers={"content-type": "text/csv"}).json()
        body = {"dataset_id": dataset["id"], "model": "m"}
        job = client.post("/v1/training-jobs", json=body).json()
        path = f"/v1/training-jobs/{job['id']}"
        cancel = threading.Timer(0.7, lambda: httpx.post(f"{server.url}{path}/cancel", trust_env=False))
        cancel.start()
        with client.stream("GET", f"{path}/events", headers={"accept": "text/event-stream"}) as stream:
            lines = [line for line in stream.iter_lines() if line.startswith("event:")]
        cancel.join()
    assert lines == ["event: job_queued", "event: job_cancelled"]


@pytest.mark.long
def test_an_open_stream_does_not_delay_shutdown(server: Server, csv: bytes):
    with httpx.Client(base_url=server.url, trust_env=False, timeout=120) as client:
        dataset = client.post("/v1/datasets", content=csv, headers={"content-type": "text/csv"}).json()
        job = client.post("/v1/training-jobs", json={"dataset_id": dataset["id"], "model": "m"}).json()
        path = f"/v1/training-jobs/{job['id']}/events"
        with client.stream("GET", path, headers={"accept": "text/event-stream"}) as stream:
            pieces = stream.iter_raw()
            assert b"\nid: 1\n" in next(pieces)
            started = time.monotonic()
            os.kill(server.process.pid, signal.SIGTERM)
            assert list(pieces) == []
    server.process.wait(120)
    assert time.monotonic() - started < 60
    assert server.process.returncode == 0


def test_a_server_refuses_to_start_without_tables(tmp_path: Path):
    with pytest.raises(SchemaOutdated, match="stms db upgrade"):
        check_database(Settings(data_dir=tmp_path))


def test_a_server_without_keys_refuses_to_listen_beyond_loopback(tmp_path: Path, database_address: str):
    settings = {"data_dir": tmp_path, "host": "0.0.0.0", "database_url": database_address}
    with pytest.raises(InsecureBinding):
        check_database(Settings.model_validate(settings))


def test_a_server_refuses_to_start_when_its_database_cannot_be_reached():
    nowhere = f"postgresql://stms@127.0.0.1:{free_port()}/none"
    with pytest.raises(Unavailable):
        check_database(Settings.model_validate({"database_url": nowhere}))


@pytest.mark.long
def test_idle_connections_beyond_the_open_files_keep_no_request_out(tmp_path: Path, database_address: str):
    server = Server(tmp_path, database_address, open_files=256)
    try:
        server.wait()
        with ExitStack() as stack:
            kept = stack.enter_context(httpx.Client(base_url=server.url, trust_env=False, timeout=60))
            assert kept.get("/readyz").status_code == 200
            for _ in range(400):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            # Longer than the pauses of all periodic work, such as the poll of the heap.
            deadline = time.monotonic() + 6
            while time.monotonic() < deadline:
                assert httpx.get(f"{server.url}/readyz", trust_env=False, timeout=60).status_code == 200
                time.sleep(0.2)
        assert server.process.poll() is None
    finally:
        assert server.stop() == 0
