"""Local evaluation beside HTTP, on one real server: ``python -m lab.benchmarks.reach``.

The last line is a JSON object:

    local_us           microseconds of `Local.is_class` of a linear student of 16 columns, the best round
    local_vs_http      by how much the client over HTTP takes longer, the median of alternating rounds
    local_difference   largest |local − HTTP| of the scores of all forms and rows
    poll_vs_query      processor time of the server for a poll (304) by that for a query
    revocation_s       seconds from the revocation of a key until the last of the evaluators raised
    js_flips           other decisions of the JavaScript module; None without Node
    onnx_flips, onnx_difference     of onnxruntime on the ONNX models of the same students
    bundle_equal       whether the imported bundle of a version exports to the same packages
    grpc_vs_v2         processor time of the server for an inference of one row over gRPC by that over HTTP,
                       in binary form both
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnxruntime

from app.serving.open_inference.grpc.descriptors import message_classes
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from core.packed import PackedStudent
from core.packed.onnx import onnx_bytes
from stms_client import Client, NotAllowed, TooBusy
from tests.reference.packed_students import CASES, some_rows
from tests.system.deployment import Deployment
from tests.system.processes import free_port
from tests.system.published import linear_student, linear_teacher, publish

COLUMNS = 16
POLL = 1.0
SPREAD = 1.2
EVALUATE = Path(__file__).parents[2] / "tests" / "stms_client" / "evaluate.mjs"


def seconds_of(work: Callable[[], Any], times: int) -> float:
    """Seconds of one call, the mean of ``times``."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def speeds(stms: Client, rounds: int) -> dict[str, float]:
    """Local evaluation of a linear student beside the client over HTTP, by turns."""
    x = np.random.default_rng(0).normal(size=COLUMNS).tolist()
    ratios, local_seconds = [], []
    with stms.local("linear", ["A"], poll=30.0) as local:
        for _ in range(rounds):
            here = seconds_of(lambda: local.is_class("A", x), 20_000)
            there = seconds_of(lambda: stms.is_class("linear", "A", x), 100)
            local_seconds.append(here)
            ratios.append(there / here)
    return {
        "local_us": round(min(local_seconds) * 1e6, 2),
        "local_vs_http": round(statistics.median(ratios), 1),
    }


def difference(stms: Client, rows: int) -> float:
    """Largest |local − HTTP| of the scores of every form."""
    worst = 0.0
    for number, student in enumerate(CASES.values()):
        X = some_rows(student, rows)
        with stms.local(f"form-{number}", [student.label], poll=30.0) as local:
            here = np.asarray(local.query_rows(student.label, X).scores)
        there = np.asarray(stms.query_rows(f"form-{number}", student.label, X).scores)
        worst = max(worst, float(np.abs(here - there).max()))
    return worst


def server_seconds(http: httpx.Client) -> float:
    """Processor time of all processes of the server, in seconds."""
    time.sleep(1.0)
    text = http.get("/metrics").text
    return float(
        next(line for line in text.splitlines() if line.startswith("process_cpu_seconds_total")).split()[1]
    )


def cost_ratio(
    http: httpx.Client, one: Callable[[], Any], other: Callable[[], Any], rounds: int, times: int
) -> float:
    """Processor time of the server for ``one`` by that for ``other``: median of alternating rounds."""
    ratios = []
    for _ in range(rounds):
        used = []
        for ask in (one, other, lambda: None):
            before = server_seconds(http)
            seconds_of(ask, times)
            used.append(server_seconds(http) - before)
        of_one, of_other, idle = used
        ratios.append((of_one - idle) / (of_other - idle))
    return round(statistics.median(ratios), 2)


def grpc_cost(server: Deployment, port: int, rounds: int, times: int) -> float:
    """The cost of an inference of one row over gRPC by that over HTTP, in binary form both."""
    row = np.random.default_rng(0).normal(size=(1, COLUMNS)).astype("<f8")
    message = message_classes()["ModelInferRequest"](model_name="linear:A")
    message.inputs.add(name="x", datatype="FP64", shape=list(row.shape))
    message.raw_input_contents.append(row.tobytes())
    data, authorization = message.SerializeToString(), f"Bearer {server.first_key}"
    tensor = {"name": "x", "shape": list(row.shape), "datatype": "FP64"}
    tensor |= {"parameters": {"binary_data_size": row.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"authorization": authorization, "inference-header-content-length": str(len(head))}
    body = head + row.tobytes()
    with (
        httpx.Client(base_url=server.url, headers=headers) as http,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        def by_http() -> None:
            http.post("/v2/models/linear:A/infer", content=body).raise_for_status()

        def by_grpc() -> None:
            infer(data, metadata=[("authorization", authorization)])

        return cost_ratio(http, by_grpc, by_http, rounds, times)


def poll_cost(server: Deployment, rounds: int, times: int) -> float:
    """Processor time of a poll by that of a query, both by one client."""
    path = "/v1/models/linear/classes/A"
    x = {"x": np.random.default_rng(0).normal(size=COLUMNS).tolist()}
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {server.first_key}"}) as http:
        tag = {"if-none-match": http.get(f"{path}/package").headers["etag"]}
        return cost_ratio(
            http,
            lambda: http.get(f"{path}/package", headers=tag),
            lambda: http.post(f"{path}:query", json=x),
            rounds,
            times,
        )


def revocation(server: Deployment, stms: Client, evaluators: int) -> float:
    """Seconds until the last of some evaluators refused, after their key was revoked."""
    key = stms.create_key("evaluators", scopes=["download"])
    x = [0.0] * COLUMNS
    with Client(server.url, key["key"]) as asking:
        locals_ = [asking.local("linear", ["A"], poll=POLL, max_stale=600.0) for _ in range(evaluators)]
        for local in locals_:
            local.__enter__()
        started = time.monotonic()
        stms.revoke_key(key["details"]["id"])
        left = list(locals_)
        while left and time.monotonic() - started < 60.0:
            left = [local for local in left if _answers(local, x)]
            time.sleep(0.005)
        seconds = time.monotonic() - started
        for local in locals_:
            local.__exit__(None, None, None)
    if left:
        raise RuntimeError(f"{len(left)} evaluators still answer")
    return round(seconds, 2)


def _answers(local: Any, x: list[float]) -> bool:
    try:
        local.is_class("A", x)
    except (NotAllowed, TooBusy):
        # Of many wrong keys from one address, only the first are answered with 401.
        return False
    return True


def javascript_flips(rows: int, folder: Path) -> int | None:
    """Rows of every form that the JavaScript module decides otherwise; None without Node."""
    if shutil.which("node") is None:
        return None
    flips = 0
    for student in CASES.values():
        X = np.ascontiguousarray(some_rows(student, rows))
        (folder / "student").write_bytes(student.to_bytes())
        (folder / "rows").write_bytes(X.tobytes())
        files = [str(folder / name) for name in ("student", "rows", "found")]
        subprocess.run(["node", str(EVALUATE), *files], check=True)
        matches = np.fromfile(folder / "found").reshape(-1, 3)[:, 1] == 1.0
        flips += int((matches != student.decide(X)).sum())
    return flips


def onnx(rows: int) -> dict[str, float]:
    """Flips of onnxruntime on every form, and the largest difference, relative to the size of large rows."""
    flips, worst = 0, 0.0
    for student in CASES.values():
        X = some_rows(student, rows)
        session = onnxruntime.InferenceSession(onnx_bytes(student), providers=["CPUExecutionProvider"])
        match, score = session.run(None, {"x": X})[:2]
        expected = student.scores(X)
        flips += int((match != (expected >= student.threshold)).sum())
        size = np.where(student.map.kind == "trees", 1.0, np.abs(X).max(axis=1))
        worst = max(worst, float((np.abs(score - expected) / np.where(size > 100.0, size, 1.0)).max()))
    return {"onnx_flips": flips, "onnx_difference": worst}


def bundle_equal(stms: Client, folder: Path) -> bool:
    """Whether a version that was exported and imported has the same packages."""
    file = folder / "linear.stms.tar"
    stms.export_bundle("linear", file)
    stms.import_bundle(file, model="copy")
    packages = [stms.package(model, "A") for model in ("linear", "copy")]
    return packages[0] is not None and packages[1] is not None and packages[0].content == packages[1].content


def publish_all(server: Deployment) -> None:
    """Publish a linear student of 16 columns, and one of every form."""
    store = Store(open_engine(f"sqlite:///{server.data / 'stms.sqlite'}"))
    rng = np.random.default_rng(0)
    linear = linear_student("A", rng.normal(size=COLUMNS))
    publish(store, "linear", {"A": linear}, linear_teacher(["A", "B"], rng.normal(size=(2, COLUMNS))))
    for number, student in enumerate(CASES.values()):
        _publish_form(store, f"form-{number}", student)
    store.dispose()


def _publish_form(store: Store, model: str, student: PackedStudent) -> None:
    teacher = linear_teacher([student.label], np.zeros((1, student.map.n_columns)))
    publish(store, model, {student.label: student}, teacher)


def main() -> None:
    """Measure everything, and print a line for each and the JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of every form")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--evaluators", type=int, default=100)
    wished = parser.parse_args()
    found: dict[str, Any] = {}
    port = free_port()
    with Deployment(serve=True, is_new=False, settings={"STMS_GRPC_PORT": str(port)}) as server:
        folder = server.folder
        publish_all(server)
        with Client(server.url, server.first_key) as stms:
            found |= speeds(stms, wished.rounds)
            print(found, flush=True)
            found["local_difference"] = difference(stms, min(wished.rows, 20_000))
            found["poll_vs_query"] = poll_cost(server, wished.rounds, 1000)
            print(found, flush=True)
            found["grpc_vs_v2"] = grpc_cost(server, port, wished.rounds, 1000)
            print(found, flush=True)
            found["revocation_s"] = revocation(server, stms, wished.evaluators)
            print(f"a poll is due every {POLL} s ± 20 %: at most {POLL * SPREAD} s", found, flush=True)
            found["bundle_equal"] = bundle_equal(stms, folder)
        found["js_flips"] = javascript_flips(wished.rows, folder)
    found |= onnx(wished.rows)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
