"""``python -m verification.fuzz``: coverage-guided fuzzing of every parser of bytes.

Each target of `verification.fuzz.targets` runs in a process of its own, two at a time, for its share
of the time. A finding is an error that the parser does not document, more than a second of processor time, or
memory that grows by more than 96 MiB. The last line is JSON; the exit code is 0 without findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

SHARES: Final[Mapping[str, float]] = {
    "request_head": 1.5,
    "known_heads": 1.5,
    "relay_response": 1.0,
    "relay_requests": 1.0,
    "address": 1.5,
    "query": 1.5,
    "inference": 1.5,
    "row_lists": 1.0,
    "text_terms": 1.0,
    "record": 1.5,
    "named_inputs": 1.0,
    "encoder": 1.0,
    "profile": 0.5,
    "form": 1.0,
    "picture": 1.0,
    "npz": 0.7,
    "npz_arrays": 1.0,
    "zip": 1.0,
    "npy": 0.7,
    "csv": 1.0,
    "svmlight": 1.0,
    "parquet": 1.0,
    "jsonl": 1.0,
    "arff": 1.0,
    "arrow": 1.0,
    "safetensors": 1.0,
    "safetensors_head": 1.0,
    "npz_head": 0.7,
    "package": 1.0,
    "student": 2.0,
    "cost": 2.0,
}
"""The targets and their shares of the time."""
_PROCESSES: Final = 2
_SECONDS: Final = 360.0
_QUICK_SECONDS: Final = 30.0
_WANTED: Final = 1_000_000
_EXTRA_ROUNDS: Final = 3
_START_SECONDS: Final = 60.0


def main() -> int:
    """0 if there was no finding and enough was executed."""
    parser = argparse.ArgumentParser(prog="python -m verification.fuzz", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute, without the minimum number")
    parser.add_argument("--seconds", type=float, help="of the whole, by default 360")
    parser.add_argument("--targets", nargs="+", choices=SHARES, default=list(SHARES), help="only these")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (_QUICK_SECONDS if arguments.quick else _SECONDS)
    wanted = 0 if arguments.quick or arguments.seconds else _WANTED
    figures = fuzz(arguments.targets, seconds, wanted)
    for finding in figures["findings"]:
        print(json.dumps(finding))
    print(json.dumps({**figures, "findings": len(figures["findings"])}))
    return int(bool(figures["findings"]) or figures["fuzz_executions"] < wanted)


def fuzz(targets: list[str], seconds: float, wanted: int) -> dict[str, Any]:
    """Fuzz ``targets`` for some seconds in all, and the fastest ones again until ``wanted`` executions."""
    started = time.monotonic()
    executions = dict.fromkeys(targets, 0)
    findings: dict[tuple[str, str], dict[str, str]] = {}

    def run(targets: list[str], seconds: float) -> None:
        whole = sum(SHARES[target] for target in targets)
        times = [_PROCESSES * seconds * SHARES[target] / whole for target in targets]
        with ThreadPoolExecutor(_PROCESSES) as pool:
            for target, result in zip(targets, pool.map(_fuzz_one, targets, times), strict=True):
                executions[target] += result["executions"]
                for kind, finding in result["findings"].items():
                    findings.setdefault((target, kind), {"target": target, "kind": kind, **finding})
                print(
                    f"{target}: {result['executions']} executions, {len(result['findings'])} findings",
                    flush=True,
                )

    run(targets, seconds)
    for _ in range(_EXTRA_ROUNDS):
        if sum(executions.values()) >= wanted:
            break
        fastest = sorted(targets, key=lambda target: executions[target] / SHARES[target])[-2:]
        run(fastest, seconds / 10)
    return {
        "fuzz_executions": sum(executions.values()),
        "fuzz_findings": len(findings),
        "fuzz_targets": executions,
        "fuzz_seconds": round(time.monotonic() - started, 1),
        "findings": list(findings.values()),
    }


def _fuzz_one(target: str, seconds: float) -> dict[str, Any]:
    """Executions and findings of one process. A process that crashed or hung is a finding, too."""
    with tempfile.TemporaryDirectory(prefix="stms-fuzz-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "verification.fuzz.worker", target, name, str(seconds)]
        with (folder / "log").open("wb") as log, contextlib.suppress(subprocess.TimeoutExpired):
            # A hang of one input ends the process after a minute; one that hangs otherwise is killed.
            subprocess.run(command, stdout=log, stderr=log, timeout=seconds + 2 * _START_SECONDS, check=False)
        report = folder / "result.json"
        result: dict[str, Any] = {"executions": 0, "findings": {}, "done": False}
        if report.exists():
            result = json.loads(report.read_text(encoding="utf-8"))
        if not result["done"]:
            inputs = [
                path.read_bytes().hex()
                for path in folder.iterdir()
                if path.name.startswith(("crash", "timeout"))
            ]
            text = (folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
            result["findings"]["process ended"] = {"text": text, "input": " ".join(inputs)}
        return result


if __name__ == "__main__":
    sys.exit(main())
