"""The process that reads uploaded files: its results, its limits, and that it cannot harm the server."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import Caller
from app.domain.errors import InvalidRequest, Overloaded, ServiceError, TooLarge, Unavailable
from app.ingest.orders import DatasetContent, DatasetOrder, HeadContent, HeadOrder
from app.ingest.reading import read_dataset, read_head
from app.processes.file_reader import FileReader
from app.processes.reader_process import READER_COMMAND
from tests.refusals import refused_as

CSV = b"a,b,kind\n" + b"".join(b"%d,%d,%s\n" % (i, i % 3, b"yn"[i % 2 : i % 2 + 1]) for i in range(40))
REPLACED = """
import os, signal, sys, time
import app.processes.file_reader_main as main
main._LIBRARIES = ()
main.carry_out = lambda order: {expression}
sys.exit(main.main())
"""
"""A reader with other work than reading a file."""

SOMEBODY = Caller("default", "key_1")
NewReader = Callable[..., FileReader]


def never() -> bool:
    return False


def order_of(folder: Path, content: bytes = CSV, *, name: str = "a.csv") -> DatasetOrder:
    source = folder / name
    source.write_bytes(content)
    return DatasetOrder(str(source), str(folder / "rows"), None, name, 10**6, 10**6, 10**9, str(folder))


@pytest.fixture
def new_reader() -> Iterator[NewReader]:
    readers: list[FileReader] = []

    def make(expression: str | None = None, **options: Any) -> FileReader:
        if expression is not None:
            options["command"] = (sys.executable, "-c", REPLACED.format(expression=expression))
        limits = {"memory": 512 * 1024**2, "seconds": 60.0, "max_waiting": 4}
        readers.append(FileReader(**{**limits, **options}))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


@pytest.fixture(scope="module")
def reader() -> Iterator[FileReader]:
    opened = FileReader(memory=512 * 1024**2, seconds=300.0, max_waiting=4)
    yield opened
    opened.close()


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def files_of(reader: FileReader) -> list[int]:
    """Processes in which files are being read."""
    return [pid for child in reader.pids for pid in children(child)]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def error_of(reader: FileReader, order: DatasetOrder, cancelled: Callable[[], bool] = never) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        reader.read(order, DatasetContent, cancelled, SOMEBODY)
    return caught.value


def test_a_data_set_is_read_as_in_this_process(reader: FileReader, tmp_path: Path):
    order = order_of(tmp_path)
    expected, rows = read_dataset(order), Path(order.rows).read_bytes()
    Path(order.rows).unlink()
    assert reader.read(order, DatasetContent, never, SOMEBODY) == expected
    assert Path(order.rows).read_bytes() == rows


def test_a_head_is_read_as_in_this_process(reader: FileReader, tmp_path: Path):
    source, files = tmp_path / "head.npz", [tmp_path / "weights", tmp_path / "labels"]
    np.savez(source, weights=np.eye(2, dtype=np.float32), labels=["a", "犬"])
    order = HeadOrder(str(source), str(files[0]), str(files[1]), "head", 10, 10, 10, 1000)
    expected, contents = read_head(order), [file.read_bytes() for file in files]
    assert reader.read(order, HeadContent, never, SOMEBODY) == expected
    assert [file.read_bytes() for file in files] == contents


def test_names_that_are_too_long_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.ingest.reading.MAX_NAMES_BYTES", 1)
    with refused_as(TooLarge, "class_names_too_long"):
        read_dataset(order_of(tmp_path))


def test_errors_name_row_and_column_as_in_this_process(reader: FileReader, tmp_path: Path):
    order = order_of(tmp_path, b"1,2,a\n1,x,b\n1,2,a\n")
    with pytest.raises(InvalidRequest) as expected:
        read_dataset(order)
    error = error_of(reader, order)
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.reason, error.faults) == (
        expected.value.message,
        expected.value.reason,
        expected.value.faults,
    )


@pytest.mark.long
def test_a_file_that_needs_too_much_memory_is_refused_and_harms_nobody(new_reader: NewReader, tmp_path: Path):
    """Two megabytes of CSV with many columns take more than two gigabytes in Arrow's reader."""
    reader = new_reader(memory=256 * 1024**2)
    line = b",".join([b"1"] * 500_000)
    order = order_of(tmp_path, line + b"\n" + line + b"\n", name="wide.csv")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = error_of(reader, order)
    assert isinstance(error, TooLarge)
    assert error.reason == "file_needs_too_much_memory"
    assert reader.failures["memory"] == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024
    assert reader.read(order_of(tmp_path), DatasetContent, never, SOMEBODY).rows == 40


def test_a_file_that_takes_too_long_is_refused(
    new_reader: NewReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.processes.file_reader._CLOCK_FACTOR", 100)
    reader = new_reader("[0 for _ in iter(int, 1)]", seconds=0.5)
    error = error_of(reader, order_of(tmp_path))
    assert isinstance(error, TooLarge)
    assert error.reason == "file_takes_too_long"


def test_a_reading_that_stalls_is_ended(new_reader: NewReader, tmp_path: Path):
    reader = new_reader("time.sleep(500)", seconds=0.2)
    error = error_of(reader, order_of(tmp_path))
    assert isinstance(error, Unavailable)
    assert error.reason == "reading_timed_out"


@pytest.mark.parametrize(
    ("expression", "kind", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", InvalidRequest, "unreadable_file"),
        ("os.abort()", InvalidRequest, "unreadable_file"),
        ("1 / 0", InvalidRequest, "unreadable_file"),
        ("os.kill(os.getpid(), signal.SIGKILL)", Unavailable, "reader_killed"),
        ("os.kill(os.getppid(), signal.SIGKILL) or time.sleep(500)", Unavailable, "reader_killed"),
        ("bytearray(2**40)", TooLarge, "file_needs_too_much_memory"),
        ("open('/dev/full', 'wb', 0).write(b'x')", Unavailable, "storage_unusable"),
    ],
)
def test_a_child_that_dies_is_an_error_of_its_file_alone(
    new_reader: NewReader, tmp_path: Path, expression: str, kind: type[ServiceError], code: str
):
    error = error_of(new_reader(expression), order_of(tmp_path))
    assert isinstance(error, kind)
    assert error.reason == code


def test_a_result_that_cannot_be_written_is_no_fault_of_the_file(
    new_reader: NewReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on a disk that is full."""

    @contextmanager
    def on_a_full_disk(*_: object) -> Iterator[tuple[Path]]:
        yield (Path("/dev/full"),)

    monkeypatch.setattr("app.processes.file_reader.temporary_paths", on_a_full_disk)
    reader = new_reader("None")
    error = error_of(reader, order_of(tmp_path))
    assert isinstance(error, Unavailable)
    assert error.reason == "storage_unusable"
    assert reader.failures == {**dict.fromkeys(reader.failures, 0), "storage": 1}


def test_a_cancelled_reading_ends_the_process_of_the_file_alone(new_reader: NewReader, tmp_path: Path):
    reader, gone = new_reader("time.sleep(500)"), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(error_of, reader, order_of(tmp_path), gone.is_set)
        wait_until(lambda: files_of(reader))
        (child,), of_file = reader.pids, files_of(reader)
        gone.set()
        assert reading.result().reason == "reading_cancelled"
    wait_until(lambda: not any(map(runs, of_file)))
    assert reader.pids == [child]
    assert runs(child)


def test_closing_ends_the_reading_and_the_child(new_reader: NewReader, tmp_path: Path):
    reader = new_reader("time.sleep(500)")
    with ThreadPoolExecutor(2) as pool:
        readings = [pool.submit(error_of, reader, order_of(tmp_path)) for _ in range(2)]
        wait_until(lambda: files_of(reader) and reader.waiting)
        pids = [*reader.pids, *files_of(reader)]
        reader.close()
        assert {reading.result().reason for reading in readings} == {"shutting_down"}
    wait_until(lambda: not any(map(runs, pids)))
    assert error_of(reader, order_of(tmp_path)).reason == "shutting_down"


def test_files_are_read_one_at_a_time_and_few_wait(new_reader: NewReader, tmp_path: Path):
    go = tmp_path / "go"
    wait = f"all(time.sleep(0.01) is None for _ in iter(lambda: os.path.exists({str(go)!r}), True)) and 1 / 0"
    reader = new_reader(wait, max_waiting=1)
    with ThreadPoolExecutor(2) as pool:
        readings = [pool.submit(error_of, reader, order_of(tmp_path)) for _ in range(2)]
        wait_until(lambda: reader.waiting == 1 and files_of(reader))
        refused = error_of(reader, order_of(tmp_path))
        assert isinstance(refused, Overloaded)
        assert refused.reason == "too_many_uploads"
        assert len(files_of(reader)) == 1
        go.touch()
        assert {reading.result().reason for reading in readings} == {"unreadable_file"}
    assert (reader.reading, reader.waiting, reader.failures["queue"]) == (0, 0, 1)


def test_a_small_file_does_not_wait_for_a_large_one_of_another_tenant(new_reader: NewReader, tmp_path: Path):
    reader, gone = new_reader("time.sleep(500) if 'large' in order.source else 1 / 0"), threading.Event()
    large = order_of(tmp_path, bytes(3 * 1024**2), name="large.csv")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(error_of, reader, large, gone.is_set)
        wait_until(lambda: files_of(reader))
        small = order_of(tmp_path)
        with pytest.raises(InvalidRequest):
            reader.read(small, DatasetContent, never, Caller("another", "key_2"))
        assert reader.reading == 1
        gone.set()
        assert reading.result().reason == "reading_cancelled"


def test_a_small_file_that_takes_long_is_read_again_among_the_large_ones(
    new_reader: NewReader, tmp_path: Path
):
    """With the limits of large files the replaced work ends by itself."""
    expression = (
        "1 / 0 if main.resource.getrlimit(main.resource.RLIMIT_CPU)[0] > 1 else [0 for _ in iter(int, 1)]"
    )
    reader = new_reader(expression)
    assert error_of(reader, order_of(tmp_path)).reason == "unreadable_file"
    assert reader.failures == {**dict.fromkeys(reader.failures, 0), "crash": 1}
    # What the first attempt took counts as well.
    assert reader.work.of("default") > 0.4


def test_a_tenant_takes_its_share_of_the_queue_and_others_come_first(new_reader: NewReader, tmp_path: Path):
    """Files that fail count as work: a tenant whose files all fail waits behind those of others."""
    go, read = tmp_path / "go", tmp_path / "read"
    expression = (
        f"open({str(read)!r}, 'a').write(os.path.basename(order.source) + ' ') and"
        f" all(time.sleep(0.01) is None for _ in iter(lambda: os.path.exists({str(go)!r}), True)) and 1 / 0"
    )
    reader = new_reader(expression, max_waiting=8)
    many, other = Caller("many", "key_1"), Caller("other", "key_2")

    def send(caller: Caller, name: str) -> str:
        with pytest.raises(ServiceError) as caught:
            reader.read(order_of(tmp_path, name=name), DatasetContent, never, caller)
        return caught.value.reason

    with ThreadPoolExecutor(12) as pool:
        first = [pool.submit(send, many, "many")]
        wait_until(lambda: files_of(reader))
        first += [pool.submit(send, many, "many") for _ in range(8)]
        wait_until(lambda: reader.waiting == 8)
        with pytest.raises(Overloaded):
            reader.check_queue("many")
        others = [pool.submit(send, other, "other") for _ in range(2)]
        wait_until(lambda: reader.waiting == 10)
        assert send(other, "other") == "too_many_uploads"
        reader.work.add(many, 1000.0)
        go.touch()
        assert {sent.result() for sent in (*first, *others)} == {"unreadable_file"}
    assert read.read_text().split() == ["many", "other", "other", *["many"] * 8]
    assert reader.work.of("many") > 0
    assert reader.work.of("other") > 0


def test_the_child_has_no_secrets_and_no_files_of_the_server(
    new_reader: NewReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STMS_DATABASE_URL", "postgresql://stms:hunter2@database/stms")
    reader = new_reader("time.sleep(500)")
    secret = tmp_path / "secret"
    gone = threading.Event()
    with secret.open("w") as opened, ThreadPoolExecutor(1) as pool:
        os.set_inheritable(opened.fileno(), True)
        reading = pool.submit(error_of, reader, order_of(tmp_path), gone.is_set)
        wait_until(lambda: files_of(reader))
        for pid in (*reader.pids, *files_of(reader)):
            assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
            files = {file.resolve() for file in Path(f"/proc/{pid}/fd").iterdir()}
            assert secret not in files
        gone.set()
        reading.result()


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies of Linux")
def test_the_child_leaves_the_processor_to_the_server(new_reader: NewReader, tmp_path: Path):
    reader = new_reader("time.sleep(60)")
    gone = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(error_of, reader, order_of(tmp_path), gone.is_set)
        wait_until(lambda: files_of(reader))
        for pid in (*reader.pids, *files_of(reader)):
            assert os.sched_getscheduler(pid) == os.SCHED_BATCH
            assert os.getpriority(os.PRIO_PROCESS, pid) == max(5, os.getpriority(os.PRIO_PROCESS, 0))
        gone.set()
        reading.result()


def test_the_child_ends_with_a_server_that_is_killed(tmp_path: Path):
    order = order_of(tmp_path)
    command = (sys.executable, "-c", REPLACED.format(expression="time.sleep(500)"))
    code = f"""
from app.ingest.options import ReadingOptions
from app.ingest.orders import DatasetContent, DatasetOrder
from app.domain.entities import Caller
from app.processes.file_reader import FileReader
reader = FileReader(memory=2**29, seconds=300, max_waiting=1, command={command!r})
reader.read(DatasetOrder(*{[getattr(order, name) for name in order.__struct_fields__]!r}), DatasetContent,
            lambda: False, Caller("default", "key_1"))
"""
    server = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: (first := children(server.pid)) and children(first[0]))
        pids = [*children(server.pid), *children(children(server.pid)[0])]
    finally:
        server.kill()
        server.wait()
    wait_until(lambda: not any(map(runs, pids)))


def test_a_child_that_ended_for_want_of_work_is_replaced(new_reader: NewReader, tmp_path: Path):
    expression = "open({path!r}, 'a').write('.') and 1 / 0".format(path=str(tmp_path / "started"))
    code = REPLACED.format(expression=expression).replace(
        "main._LIBRARIES = ()", "main._LIBRARIES, main._IDLE_SECONDS = (), 0.2"
    )
    reader = new_reader(command=(sys.executable, "-c", code))
    assert error_of(reader, order_of(tmp_path)).reason == "unreadable_file"
    (first,) = reader.pids
    wait_until(lambda: not runs(first))
    assert error_of(reader, order_of(tmp_path)).reason == "unreadable_file"
    assert reader.pids != [first]
    assert (tmp_path / "started").read_text() == ".."


def test_the_command_starts_without_the_web_and_the_database():
    code = "import sys, app.processes.file_reader_main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"fastapi", "sqlalchemy", "pydantic", "uvicorn"} & set(done.stdout.split())
    assert READER_COMMAND[-1] == "app.processes.file_reader_main"


def test_a_server_process_loads_no_reader_of_files():
    code = "import sys, app.main, app.services.datasets, app.services.head_import; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"scipy", "pyarrow", "app.ingest.npz", "app.ingest.csv.reader"} & set(done.stdout.split())
