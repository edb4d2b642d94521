"""``python -m verification.hostile``: all attacks on a real server; the last line has the figures as JSON."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from verification.hostile import browser
from verification.hostile.run import run


def main() -> int:
    """0 if every attack was answered as it should, and the server is as it was."""
    # However this ends, the server ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="stms-hostile-") as folder:
        report = run(Path(folder))
    for name, found in report.failures.items():
        print(f"FAILED {name}")
        for complaint in found:
            print(f"    {complaint}")
    damage = report.damage()
    for complaint in damage:
        print(f"DAMAGE {complaint}")
    if shutil.which(browser.PROGRAM) is None:
        print(browser.NOT_RUN)
    print("Slowest:")
    for name, seconds in sorted(report.slowest.items(), key=lambda item: -item[1])[:10]:
        print(f"    {seconds:6.2f} s  {name}")
    print("Hungriest:")
    for name, size in sorted(report.hungriest.items(), key=lambda item: -item[1])[:25]:
        print(f"    {size / 1e6:6.1f} MB  {name}")
    print(json.dumps(report.figures()))
    return int(bool(report.failures or damage))


if __name__ == "__main__":
    sys.exit(main())
