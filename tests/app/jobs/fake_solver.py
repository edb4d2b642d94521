"""A solver process that solves nothing: it follows the protocol and fails as planned.

Usage: fake_solver.py PLAN LOG PARENT NICENESS WHEN. PLAN is a JSON file that may be changed between commands:
prepare_seconds, student_seconds, evaluate_seconds: how long each takes. fail_prepare, fail_evaluate: [code,
message]. die: {"prepare": n}, {"evaluate": n} or {"<class index>": n}, how many times to die there; counted
in LOG.
fail: {"<class index>": [code, message]}. cache_full: how many writes of a preparation fail.
large_teacher: its bytes, transferred as a file.
LOG gets a line for each action.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from app.jobs.solver.messages import read_message, write_message
from app.processes.os_process import die_with_parent

PLAN, LOG, PARENT = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])


def log(line: str) -> None:
    with LOG.open("a", encoding="utf-8") as file:
        file.write(f"{line} {os.getpid()}\n")


def times_logged(line: str) -> int:
    return sum(f"{entry} ".startswith(f"{line} ") for entry in LOG.read_text(encoding="utf-8").splitlines())


def maybe_die(where: str) -> None:
    if times_logged(f"died-{where}") < plan().get("die", {}).get(where, 0):
        log(f"died-{where}")
        os.kill(os.getpid(), signal.SIGSEGV)


def plan() -> dict:
    return json.loads(PLAN.read_text(encoding="utf-8"))


def send(kind: str, header: dict, *blobs: bytes) -> None:
    write_message(sys.stdout.buffer, {"type": kind, **header}, blobs)


def prepare(targets: list[int], settings: dict) -> None:
    wanted = plan()
    send("progress", {"stage": "teacher", "done": 1, "total": 2, "objective": 1.0, "gap": 0.5})
    if not times_logged(f"prepare {os.getpid()}"):
        time.sleep(wanted.get("prepare_seconds", 0))
        log("prepare")
    maybe_die("prepare")
    if "cache_full" in wanted:
        log("write")
        if times_logged("write") <= wanted["cache_full"]:
            send("failed", {"code": "cache_full", "message": "Full.", "retryable": True})
            return
    if "fail_prepare" in wanted:
        code, message = wanted["fail_prepare"]
        send("failed", {"code": code, "message": message})
        return
    metrics = [
        {"class_index": target, "label": f"c{target}", "metrics": {"accuracy": 1.0, "f1": 1.0, "auc": 1.0}}
        for target in targets
    ]
    summary = {"objective": 1.5, "relative_gap": 1e-4, "iterations": 7, "seconds": 0.1, "status": "converged"}
    report = {
        "summary": summary,
        "seconds": {},
        "metrics": metrics,
        "threads": 1,
        "features": {"kind": "linear"},
    }
    transfers = {
        "preparation": (None, b"preparation"),
        "teacher": (None, b"teacher"),
        "rows": (None, b"numbers of rows"),
    }
    if "large_teacher" in wanted:
        transfers["teacher"] = large(b"t" * wanted["large_teacher"], settings)
    send(
        "prepared",
        report | {"transfers": {name: header for name, (header, _) in transfers.items()}},
        *(data for _, data in transfers.values()),
    )


def evaluate() -> None:
    wanted = plan()
    log("evaluate")
    send("progress", {"stage": "classes", "done": 1, "total": 6})
    time.sleep(wanted.get("evaluate_seconds", 0))
    maybe_die("evaluate")
    if "fail_evaluate" in wanted:
        code, message = wanted["fail_evaluate"]
        send("failed", {"code": code, "message": message})
        return
    result = {
        "rows_used": 90,
        "rows_left_out": {"trained_on": 10},
        "warnings": [],
        "progress_done": 6,
        "progress_total": 6,
        "verdict": None,
        "classes": [{"class": "c0", "n": 15}],
        "not_compared": [],
    }
    send("evaluated", {"result": result})


def large(content: bytes, settings: dict) -> tuple[dict | None, bytes]:
    """Header and bytes of content that is transferred as a file."""
    # These take half a second to import, and no other test needs them.
    from app.jobs.solver.transfer import Transfer
    from app.store.blob_cache import BlobCache

    key = bytes.fromhex(settings["cache_key"])
    transfer = Transfer.of(BlobCache(Path(settings["cache_dir"]), settings["cache_disk_bytes"], key), content)
    return transfer.header, transfer.data or b""


def train(index: int, method: str) -> None:
    who = {"class_index": index, "method": method, "label": f"c{index}"}
    send("started", who)
    send("progress", {"stage": "student", "done": 1, "total": 2, "objective": 1.0, "gap": 0.5, **who})
    log(f"train-{index}-{method}")
    time.sleep(plan().get("student_seconds", 0))
    maybe_die(str(index))
    failing = plan().get("fail", {})
    if str(index) in failing:
        code, message = failing[str(index)]
        send("student_failed", who | {"code": code, "message": message})
        return
    row = {
        "objective": 2.0,
        "gap": 1e-4,
        "iterations": 3,
        "seconds": 0.01,
        "status": "converged",
        "threshold": 0.0,
        "metrics": {"accuracy": 0.875, "f1": 0.75, "auc": None},
    }
    send("student", who | row, f"{index}-{method}".encode())


def main() -> None:
    die_with_parent(PARENT)
    log("start" if sys.argv[5] == "now" else "spare")
    if sys.argv[5] == "later":
        send("ready", {})
    settings: dict = {}
    while (message := read_message(sys.stdin.buffer)) is not None:
        if message.type == "open":
            settings = message.header
            send("opened", {"threads": 1})
        elif message.type == "prepare":
            prepare(message.header["targets"], settings)
        elif message.type == "label":
            log("label")
            report = {"rows": 100, "labelled": 50, "class_counts": {}}
            send("labelled", {"report": report, "transfer": None}, b"labels")
        elif message.type == "evaluate":
            evaluate()
        elif message.type == "restore":
            log("restore")
            send("restored", {})
        else:
            for index, method in message.header["students"]:
                train(index, method)
            send("trained", {})


if __name__ == "__main__":
    main()
