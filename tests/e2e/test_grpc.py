"""`stms api` with a port for gRPC: hostile clients, certificates, processes that are replaced or killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from app.processes.os_process import ProcessName
from app.services.bundle_export import open_bundle
from app.serving.open_inference.grpc.descriptors import message_classes
from app.store.unit_of_work import Store
from tests.app.api.conftest import publish_pets
from tests.certificates import make_certificate
from tests.clients.conftest import Service, running_service
from tests.e2e.test_bundle_server import make_key, serving
from tests.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Connection,
    frame,
    headers,
)
from tests.system.processes import family, free_port, memory, parent_of, process_name

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

STMS = Path(sys.executable).with_name("stms")
INFER = "/inference.GRPCInferenceService/ModelInfer"
MIB = 1024 * 1024
SERVICE_CONFIG = (
    '{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s",'
    ' "maxBackoff": "2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"]}}]}'
)
"""How clients of gRPC are asked to retry. It cancels calls that it has not passed on before it is stopped."""


@dataclass(frozen=True)
class Served:
    """service: its key and its log. port: of gRPC."""

    service: Service
    port: int

    def infer(self, rows: Any, key: str | None = None, **options: Any) -> Any:
        """The scores of class cat, over a connection of its own."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            return scores(channel, rows, self.service.key if key is None else key, **options)


def request(rows: Any, model: str = "pets:cat") -> bytes:
    message = message_classes()["ModelInferRequest"](model_name=model)
    message.inputs.add(name="x", datatype="FP64", shape=list(rows.shape))
    message.raw_input_contents.append(np.asarray(rows, "<f8").tobytes())
    message.outputs.add(name="score")
    data: bytes = message.SerializeToString()
    return data


def scores(channel: grpc.Channel, rows: Any, key: str, **options: Any) -> Any:
    metadata = [("authorization", f"Bearer {key}")]
    data = channel.unary_unary(INFER)(request(rows), metadata=metadata, timeout=60, **options)
    response = message_classes()["ModelInferResponse"].FromString(data)
    return np.frombuffer(response.raw_output_contents[0], "<f8")


@pytest.fixture(scope="module")
def served(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tmp_path_factory.mktemp("grpc"), free_port()
    shutil.copy(_sqlite_template, folder / "stms.sqlite")
    settings = {
        "STMS_GRPC_PORT": str(port),
        "STMS_REQUIRE_KEYS": "true",
        "STMS_MAX_QUERY_BYTES": str(4 * MIB),
        "STMS_MAX_INFLIGHT_BYTES": str(40 * MIB),
        "STMS_API_PROCESSES": "2",
        "STMS_AUTH_FAILURE_RATE": "0",
    }
    with running_service(folder, settings) as service:
        yield Served(service, port)


def test_a_wrong_key_is_refused_before_its_message(served: Served):
    """The message is announced with four MiB, of which nothing follows."""
    announced = b"\0" + (4 * MIB).to_bytes(4)
    with Connection(served.port) as connection:
        connection.send(headers(1, {"x-api-key": "stms_wrong"}), frame(DATA, 0, 1, announced))
        assert b"invalid_key" in connection.until_end_of(1)
        # With the right one the server waits for the message.
        connection.send(headers(3, {"x-api-key": served.service.key}), frame(DATA, 0, 3, announced))
        connection.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.until_end_of(3)


def test_a_message_beyond_the_limit_is_refused(served: Served):
    with pytest.raises(grpc.RpcError) as refusal:
        served.infer(np.zeros((200_000, 3)))
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError) as refusal:
        # Compressed it is small.
        served.infer(np.zeros((10_000_000, 3)), compression=grpc.Compression.Gzip)
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    np.testing.assert_array_equal(served.infer(np.eye(3)), [1.0, 0.0, 0.0])


def test_messages_that_do_not_arrive_take_no_more_than_a_share(served: Served):
    """Of 40 MiB a key has 10, which are two messages of four; the third finds none left in its process."""
    announced = frame(DATA, 0, 1, b"\0" + (4 * MIB).to_bytes(4))
    connections = [Connection(served.port) for _ in range(7)]
    for connection in connections:
        connection.send(headers(1, {"x-api-key": served.service.key}), announced)
    refused = 0
    for connection in connections:
        connection.socket.settimeout(3)
        with suppress(TimeoutError):
            refused += b"share_exceeded" in connection.until_end_of(1)
        connection.__exit__()
    # Two processes.
    assert 3 <= refused <= 5
    np.testing.assert_array_equal(served.infer(np.eye(3)), [1.0, 0.0, 0.0])


def test_garbage_ends_its_connection_only(served: Served):
    chance = random.Random(0)
    garbage = [chance.randbytes(size) for size in (1, 9, 24, 1000, 100_000)]
    for content in [*garbage, *(PREFACE + content for content in garbage[1:])]:
        with Connection(served.port, b"") as connection:
            try:
                connection.send(content)
                connection.socket.shutdown(1)
            except OSError:
                # It is closed already.
                continue
            assert connection.is_closed_by_server()
    with Connection(served.port) as connection:
        connection.send(headers(1, {"x": "y"}), frame(DATA, 1, 1, chance.randbytes(1000)))
        assert b"key_required" in connection.until_end_of(1)
    np.testing.assert_array_equal(served.infer(np.eye(3)), [1.0, 0.0, 0.0])


@pytest.mark.parametrize("kind", ["reset", "ping", "streams", "metadata"])
def test_floods_end_with_their_connection(served: Served, kind: str):
    """Rapid reset (CVE-2023-44487), pings without end, more streams than are permitted, endless metadata."""
    pids = family(os.getpid())
    before = memory(pids)[0]
    for _ in range(5):
        with suppress(ConnectionError, TimeoutError), Connection(served.port) as connection:
            for stream in range(1, 4001, 2):
                if kind == "reset":
                    connection.send(
                        headers(stream, {"x-api-key": "stms_x"}), frame(RST_STREAM, 0, stream, bytes(4))
                    )
                elif kind == "ping":
                    connection.send(frame(PING, 0, 0, bytes(8)))
                elif kind == "streams":
                    connection.send(headers(stream, {"x-api-key": served.service.key}))
                else:
                    many = {f"x-{place}": "y" * 100 for place in range(400)}
                    connection.send(headers(stream, many))
                    if stream > 200:
                        break
    began = time.monotonic()
    np.testing.assert_array_equal(served.infer(np.eye(3)), [1.0, 0.0, 0.0])
    assert time.monotonic() - began < 20
    assert memory(pids)[0] - before < 300 * MIB


class Load:
    """Threads that ask until the end of the block. failures: texts of the calls that had no answer."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]
        self.answers = 0
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait(self, answers: int) -> None:
        """Until so many more were given."""
        wanted, deadline = self.answers + answers, time.monotonic() + 120
        while self.answers < wanted:
            assert time.monotonic() < deadline, self.failures[:3]
            time.sleep(0.01)

    def _ask(self) -> None:
        rows = np.random.default_rng(0).normal(size=(3, 3))
        options = [("grpc.service_config", SERVICE_CONFIG), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{self._served.port}", options) as channel:
            while not self._ended.is_set():
                try:
                    found = scores(channel, rows, self._served.service.key, wait_for_ready=True)
                except grpc.RpcError as error:
                    self.failures.append(f"{error.code()} {error.details()}")
                    continue
                if not np.array_equal(found, rows[:, 0]):
                    self.failures.append("a wrong answer")
                self.answers += 1


def processes(served: Served) -> tuple[int, list[int]]:
    """The manager of the server, and its query processes."""
    managers, queries = set(), []
    for pid in family(os.getpid()):
        # It may have ended meanwhile.
        with suppress(FileNotFoundError):
            if str(served.service.log.parent) in Path(f"/proc/{pid}/cwd").readlink().as_posix():
                # While they are replaced there are two control processes.
                if process_name(pid) == ProcessName.CONTROL:
                    managers.add(parent_of(pid))
                elif process_name(pid) == ProcessName.QUERY:
                    queries.append(pid)
    [manager] = managers
    return manager, queries


def test_processes_are_replaced_and_killed_without_an_answer_lost(served: Served):
    """A client that retries as gRPC does gets every answer."""
    manager, queries = processes(served)
    with Load(served) as load:
        load.wait(200)
        os.kill(manager, signal.SIGHUP)
        deadline = time.monotonic() + 120
        while set(processes(served)[1]) & set(queries):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        load.wait(200)
        os.kill(processes(served)[1][0], signal.SIGKILL)
        load.wait(400)
    assert not load.failures


def test_a_flood_of_new_connections_does_not_reach_other_clients(served: Served):
    """Each makes 60 calls with a wrong key and goes; a client with a key keeps its connection."""
    ended = threading.Event()
    calls = b"".join(
        headers(stream, {"x-api-key": "stms_wrong"}, flags=END_HEADERS | END_STREAM)
        for stream in range(1, 121, 2)
    )

    def flood(source: str) -> int:
        begun = 0
        while not ended.is_set():
            with (
                suppress(OSError),
                socket.create_connection(
                    ("127.0.0.1", served.port), timeout=3, source_address=(source, 0)
                ) as connection,
            ):
                connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + calls)
                begun += bool(connection.recv(1000))
                time.sleep(0.01)
        return begun

    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{served.port}", options) as channel, ThreadPoolExecutor() as pool:
        scores(channel, np.eye(3), served.service.key)
        floods = [pool.submit(flood, f"127.0.1.{place}") for place in range(1, 5)]
        try:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                np.testing.assert_array_equal(scores(channel, np.eye(3), served.service.key), [1.0, 0.0, 0.0])
        finally:
            ended.set()
    # Two processes, each with 200 turns a second and 8 at once.
    assert sum(begun.result() for begun in floods) < 150


def test_a_server_of_bundles_answers(sqlite_store: Store, tmp_path: Path):
    bundle, keys, port = tmp_path / "pets.tar", tmp_path / "keys", free_port()
    with open_bundle(sqlite_store, publish_pets(sqlite_store)) as file:
        bundle.write_bytes(b"".join(file.pieces(sqlite_store)))
    key = make_key(keys)
    with serving(tmp_path, bundle, keys, STMS_GRPC_PORT=str(port)) as up:
        served = Served(Service(up.address, key, up.log), port)
        np.testing.assert_array_equal(served.infer(np.eye(3)), [1.0, 0.0, 0.0])


def test_waiting_streams_do_not_delay_a_shutdown(sqlite_address: str, tmp_path: Path):
    port = free_port()
    settings = {"STMS_GRPC_PORT": str(port), "STMS_REQUIRE_KEYS": "true", "STMS_DRAIN_SECONDS": "60"}
    settings["STMS_DRAIN_LISTEN_SECONDS"] = "1"
    ended = threading.Event()

    def requests() -> Iterator[bytes]:
        yield request(np.eye(3))
        ended.wait(120)

    with ExitStack() as stack:
        service = stack.enter_context(running_service(tmp_path, settings))
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        metadata = [("x-api-key", service.key)]
        answers = channel.stream_stream(f"/{INFER.split('/')[1]}/ModelStreamInfer")(
            requests(), metadata=metadata
        )
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert next(answers)
        assert next(watch) == message_classes()["HealthCheckResponse"](status=1).SerializeToString()
        began = time.monotonic()
        stack.close()
        assert time.monotonic() - began < 40
        assert next(watch) == message_classes()["HealthCheckResponse"](status=2).SerializeToString()
        with pytest.raises(grpc.RpcError) as refusal:
            next(answers)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        ended.set()
        channel.close()


def test_a_port_in_use_and_missing_keys_stop_the_start(served: Served, tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    environment |= {"STMS_DATA_DIR": str(tmp_path), "STMS_PORT": str(free_port())}
    for settings, words in (
        ({"STMS_GRPC_PORT": str(served.port)}, f"Cannot listen at 127.0.0.1 port {served.port}"),
        ({"STMS_GRPC_PORT": "1234", "STMS_REQUIRE_KEYS": "false"}, "STMS_GRPC_PORT needs API keys"),
    ):
        done = subprocess.run(
            [STMS, "serve"], env=environment | settings, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
        assert "Traceback" not in done.stderr


def test_without_its_packages_the_start_ends_with_a_sentence(tmp_path: Path):
    blocked = tmp_path / "blocked"
    (blocked / "grpc").mkdir(parents=True)
    (blocked / "grpc" / "__init__.py").write_text("raise ImportError('no grpc here')")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    environment |= {
        "STMS_DATA_DIR": str(tmp_path / "data"),
        "STMS_GRPC_PORT": str(free_port()),
        "STMS_PORT": str(free_port()),
        "PYTHONPATH": str(blocked),
    }
    done = subprocess.run([STMS, "serve"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "STMS_GRPC_PORT needs grpcio and protobuf" in done.stderr
    assert "Traceback" not in done.stderr


def test_certificates_are_those_of_https_and_follow_their_files(sqlite_address: str, tmp_path: Path):
    """The certificate of the server is also the authority of clients."""
    files, port = make_certificate(tmp_path), free_port()
    settings = {
        "STMS_GRPC_PORT": str(port),
        "STMS_REQUIRE_KEYS": "true",
        "STMS_TLS_CERTIFICATE": str(files.file),
        "STMS_TLS_KEY": str(files.key),
        "STMS_TLS_CLIENT_CA": str(files.file),
    }
    with running_service(tmp_path, settings, files) as service:

        def ask(certificate: bytes, *own: bytes) -> Any:
            trusted = grpc.ssl_channel_credentials(certificate, *own)
            with grpc.secure_channel(f"127.0.0.1:{port}", trusted) as channel:
                return scores(channel, np.eye(3), service.key)

        def pair() -> tuple[bytes, bytes]:
            return files.key.read_bytes(), files.file.read_bytes()

        first, own = files.file.read_bytes(), pair()
        np.testing.assert_array_equal(ask(first, *own), [1.0, 0.0, 0.0])
        with pytest.raises(grpc.RpcError):
            ask(first)
        with pytest.raises(grpc.RpcError), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            scores(channel, np.eye(3), service.key)
        make_certificate(tmp_path)
        deadline = time.monotonic() + 30
        while True:
            try:
                ask(files.file.read_bytes(), *pair())
                break
            except grpc.RpcError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        with pytest.raises(grpc.RpcError):
            ask(first, *own)
