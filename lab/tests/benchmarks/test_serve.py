"""The serving benchmark at small size: its figures, the failures that it detects, and a run of each part."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.request import Request, urlopen

import numpy as np
import pytest

from lab.benchmarks import peers, scale
from lab.benchmarks.load import Load, WrkMissing, bursts, constant_rate, wrk
from lab.benchmarks.serve import __main__ as program
from lab.benchmarks.serve import bulk, fleet, formats, single, students, swap, targets
from lab.benchmarks.serve.comparison import Pace, interleaved, ratio, require_success
from tests.system.environments import Offline
from tests.system.query_service import Service

pytestmark = pytest.mark.long

SMALL = Pace(rounds=1, seconds=1, swap_requests=300)


@pytest.fixture(autouse=True)
def _affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def cores() -> tuple[int, int]:
    found = sorted(os.sched_getaffinity(0))
    return found[0], found[-1]


# Figures and targets


def test_only_missed_targets_are_reported():
    result = targets.result_of({"throughput_vs_bare": 1.3, "bulk_vs_bare": 2.5, "swap_failures": 1})
    assert list(targets.missed(result)) == [
        "throughput_vs_bare is 1.3; at least 1.4 is wanted",
        "swap_failures is 1; at most 0 is wanted",
    ]


def test_a_missed_target_does_not_fail_the_program(monkeypatch, capsys):
    monkeypatch.setattr(program.bulk, "measure", lambda cores, pace: {"bulk_vs_bare": 0.1})
    assert program.main(["bulk", "--quick"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["bulk_vs_bare"] == 0.1
    assert "missed: bulk_vs_bare is 0.1" in err


def test_a_part_that_fails_is_reported_and_the_others_are_measured(monkeypatch, capsys):
    def breaks(*_: object) -> dict[str, Any]:
        raise RuntimeError("7 of 9 requests failed.")

    monkeypatch.setattr(program.bulk, "measure", breaks)
    monkeypatch.setattr(program.students, "measure", lambda cores, pace: {"kernel": 1.0})
    assert program.main(["students", "bulk"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["kernel"] == 1.0
    assert "bulk could not be measured: 7 of 9 requests failed." in err


def test_without_wrk_the_message_names_the_package(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WrkMissing, match="apt-get install wrk"):
        wrk("http://127.0.0.1:1/", b"x", {}, connections=1, seconds=1, core=0)

    def missing(*_: object) -> dict[str, Any]:
        raise WrkMissing("wrk is needed")

    monkeypatch.setattr(program.bulk, "measure", missing)
    assert program.main(["bulk"]) == 2
    assert capsys.readouterr().err == "wrk is needed\n"


def test_the_million_is_left_out_when_the_disk_is_too_small(monkeypatch, capsys, cores):
    monkeypatch.setattr(program.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    monkeypatch.setattr(scale, "measure", lambda *_: pytest.fail("measured all the same"))
    assert program.million(cores, 1_000_000, 512, None) == {}
    out, err = capsys.readouterr()
    assert "8.1 GiB of disk are needed, 1.0 are free" in out
    assert "left out" in err


# What is counted


def test_each_round_begins_with_another_contestant():
    asked: list[str] = []

    def contestant(name: str) -> Callable[[], float]:
        return lambda: float(asked.append(name) or len(asked))

    found = interleaved({name: contestant(name) for name in "abc"}, 3)
    assert "".join(asked) == "abcbcacab"
    assert found == {"a": [1.0, 6.0, 8.0], "b": [2.0, 4.0, 9.0], "c": [3.0, 5.0, 7.0]}


def test_a_ratio_is_the_median_of_those_of_the_rounds():
    # Not the ratio of the medians, which is 1.
    assert ratio({"a": [1.0, 2.0, 9.0], "b": [2.0, 1.0, 3.0]}, "a", "b") == 2.0


@pytest.mark.parametrize("load", [Load(1.0, 1.0, 1.0, 1.0, 10, 1), Load(0.0, 0.0, 0.0, 0.0, 0, 0)])
def test_failed_requests_give_no_figure(load):
    with pytest.raises(RuntimeError, match="requests failed"):
        require_success(load)


# What the clients of the swap find wrong


@contextmanager
def answering(answer: Callable[[], tuple[int, dict[str, Any] | None]]) -> Iterator[int]:
    """A server on loopback; answers (status, JSON), hangs up without JSON."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, content = answer()
            if content is None:
                self.close_connection = True
                return
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask_a_while(port: int, *, left: dict[int, float] | None = None) -> swap.Traffic:
    scores = {(v, label, 0): float(v) for v in (3, 4) for label in swap.LABELS}
    traffic = swap.Traffic(port, "key", [b"{}"], scores)
    traffic.left = left or {}
    with traffic:
        deadline = time.monotonic() + 10
        while traffic.requests < 50 and time.monotonic() < deadline:
            time.sleep(0.01)
    return traffic


def test_right_answers_are_right():
    with answering(lambda: (200, {"version": 4, "score": 4.0})) as port:
        assert set(ask_a_while(port).seen) == {"right"}


@pytest.mark.parametrize(
    ("answer", "sign"),
    [
        ((200, {"version": 4, "score": 4.5}), '"score": 4.5'),
        ((200, {"version": 3, "score": 3.0}), '"version": 3'),
        ((429, {"code": "overloaded"}), "429"),
        ((200, None), "RemoteDisconnected"),
    ],
)
def test_wrong_scores_unpublished_versions_refusals_and_lost_connections_are_failures(answer, sign):
    with answering(lambda: answer) as port:
        traffic = ask_a_while(port)
    assert set(traffic.seen) == {"failed"}
    assert sign in traffic.failures[0]
    assert len(traffic.failures) <= 10


def test_answers_of_a_version_that_the_alias_has_left_long_ago_are_late():
    with answering(lambda: (200, {"version": 4, "score": 4.0})) as port:
        assert set(ask_a_while(port, left={4: time.monotonic() - 2.0}).seen) == {"late"}


def test_no_two_versions_of_the_swap_have_a_score_in_common():
    _, scores, _ = swap._models()
    by_version = {v: {s for (u, *_), s in scores.items() if u == v} for v in swap.VERSIONS}
    for v in swap.VERSIONS:
        assert not any(by_version[v] & by_version[u] for u in swap.VERSIONS if u != v)
    assert max(abs(score) for score in scores.values()) < 2**20


# The parts


@pytest.fixture
def light(monkeypatch) -> None:
    """Load that is one request, and the figures of this one."""

    def one(url: str, body: bytes, headers: Mapping[str, str], **_: object) -> Load:
        started = time.perf_counter()
        with urlopen(Request(url, body, dict(headers)), timeout=30) as answer:
            assert answer.status == 200
        spent = (time.perf_counter() - started) * 1e6
        return Load(1e6 / spent, spent, spent, spent, 1, 0)

    for part in (single, bulk, students, fleet):
        monkeypatch.setattr(part, "wrk", one)
    monkeypatch.setattr(single, "constant_rate", one)
    monkeypatch.setattr(fleet, "constant_rate", one)


@pytest.mark.usefixtures("light")
def test_the_part_for_one_row_asks_the_real_server_with_its_key(cores):
    found = single.measure(cores, SMALL, with_mlserver=False)
    assert found.pop("throughput_vs_mlserver") is None
    assert all(value > 0 for value in found.values())


@pytest.mark.usefixtures("light")
def test_the_part_for_many_rows_gets_a_score_for_each(cores):
    found = bulk.measure(cores, SMALL, rows=100)
    assert set(found) == {
        *("bulk_vs_bare", "bulk_cpu_vs_bare"),
        *("bulk_one_connection_vs_bare", "bulk_rows_per_second"),
    }
    assert all(value > 0 for value in found.values())


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_formats_are_compared(cores):
    found = formats.measure(cores, SMALL)
    assert set(found) == {
        *("v2_vs_native", "v2_binary_vs_native", "record_vs_native"),
        *("predict_vs_query", "two_pieces_vs_bare"),
    }
    assert all(value > 0 for value in found.values())


def test_mlserver_is_left_out_where_it_cannot_be_had(monkeypatch, capsys, cores, tmp_path):
    def offline(*_: object) -> None:
        raise Offline("out of reach")

    monkeypatch.setattr(peers, "environment", offline)
    ours = Service(folder=tmp_path)
    assert single._mlserver(ours, b"", {}, cores, SMALL) is None
    assert "MLServer is left out: out of reach" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_wrk_counts_refusals_and_measures_the_others(cores):
    answers = iter(range(1_000_000))
    with answering(lambda: (200 if next(answers) % 2 else 429, {})) as port:
        found = wrk(f"http://127.0.0.1:{port}/", b"{}", {}, connections=1, seconds=1, core=cores[1])
    assert 0 < found.failed < found.requests
    assert 0 < found.p50_us <= found.p99_us


class Admin:
    """Moves the alias, and the time with it."""

    def __init__(self, traffic: SimpleNamespace) -> None:
        self.traffic = traffic
        self.moved: list[tuple[int, int]] = []

    def point_alias(self, model: str, alias: str, version: int) -> None:
        self.moved.append((self.traffic.requests, version))


def test_the_alias_moves_three_times_with_a_restart_around_the_second(monkeypatch):
    events: list[str] = []
    pids = iter([[1, 2, 3], [1, 2, 3], [1, 2, 3, 4], [1, 3, 4], [1, 4, 5]])
    traffic = SimpleNamespace(requests=0, named=[4], left={})
    admin = Admin(traffic)

    def sleep(_: float) -> None:
        traffic.requests += 50

    monkeypatch.setattr(swap.time, "sleep", sleep)
    ours = mock.MagicMock()
    ours["api-0"].send = lambda number: events.append(f"{number!r} at {traffic.requests}")
    type(ours).pids = mock.PropertyMock(side_effect=lambda: next(pids))
    swap._story(ours, traffic, admin, 1000)
    assert events == ["<Signals.SIGHUP: 1> at 300"]
    assert admin.moved == [(200, 1), (350, 3), (400, 2)]
    assert traffic.named == [4, 1, 3, 2]
    assert set(traffic.left) == {4, 1, 3}
    assert traffic.requests == 1000


def test_a_service_that_makes_no_progress_is_reported(monkeypatch):
    monkeypatch.setattr(swap, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="did not get that far"):
        swap._until(lambda: False)


def test_students_in_process_cost_less_than_the_teacher():
    teacher, full, compact = students.models()
    found = students._in_process(teacher, full["M"], compact["M"], SMALL)
    students._with_teacher(found)
    assert found["teacher"] == [
        min(a, b) for a, b in zip(found["teacher_scores"], found["teacher_stops"], strict=True)
    ]
    x = np.random.default_rng(0).normal(size=(1, students.COLUMNS))
    assert teacher.map is full["M"].map
    assert np.ptp(teacher.map.block(x)) > 1e-3, "the kernel sees no difference between landmarks"


def test_a_constant_rate_is_kept_and_failures_are_counted(cores):
    with peers.bare(cores[0]) as url:
        found = constant_rate(url, b"x" * 100, {}, rate=500.0, seconds=0.5, connections=4, core=cores[1])
    assert (found.requests, found.failed) == (250, 0)
    assert 0 < found.p50_us <= found.p99_us
    with answering(lambda: (503, {})) as port:
        refused = constant_rate(
            f"http://127.0.0.1:{port}/", b"x", {}, rate=100.0, seconds=0.1, connections=1, core=cores[1]
        )
    assert (refused.requests, refused.failed) == (10, 10)


def test_servers_take_turns_in_bursts(cores):
    with peers.bare(cores[0]) as slow, peers.raw(cores[0]) as quick:
        urls = {"slow": slow, "quick": quick}
        found = bursts(urls, b"x" * 100, {}, connections=8, number=30, core=cores[1])
    assert {name: times.shape for name, times in found.items()} == {"slow": (30,), "quick": (30,)}
    assert 0 < found["quick"].min() < found["slow"].min()


def test_an_error_in_a_burst_is_no_figure(cores):
    with answering(lambda: (503, {})) as port, pytest.raises(ConnectionError, match="another status"):
        bursts({"it": f"http://127.0.0.1:{port}/"}, b"x", {}, connections=1, number=1, core=cores[1])


def test_a_lost_connection_is_no_figure(cores):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            visitor, _ = listener.accept()
            visitor.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ConnectionError):
            constant_rate(
                f"http://127.0.0.1:{port}/", b"x", {}, rate=10.0, seconds=1.0, connections=1, core=cores[1]
            )
        thread.join()
